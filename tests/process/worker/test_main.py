"""Whole rank processes with a real state manager: the Worker service, moves, exits."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plexclient.wire.v1 import (
    common_pb2,
    operations_pb2,
    statemanager_pb2,
    statemanager_pb2_grpc,
    worker_pb2,
    worker_pb2_grpc,
)
from plexsvc.frames.line import OrderLine
from plexsvc.rpc.channels import open_blocking_channel
from tests.rigs.keys import KEYS, keys_file
from tests.rigs.rank_host import RankHost, Served
from tests.rigs.state_daemon import copied
from tests.rigs.worker_batches import answered_tokens, operation, plan, random_batch

pytestmark = [pytest.mark.process, pytest.mark.slow]

DEADLINE_S = 120
ONE = plan([[0, 2], [1], [3]])
TWO = plan([[0, 2], [3]], [[1], []])
LAYOUTS: dict[str, tuple[dict[str, Any], operations_pb2.DispatchPlan]] = {
    "megatron-one-rank": ({"backend": "megatron"}, ONE),
    "megatron-tp2": ({"backend": "megatron", "parallel": {"tp": 2}}, ONE),
    "megatron-pp2": ({"backend": "megatron", "parallel": {"pp": 2}}, ONE),
    "megatron-dp2": ({"backend": "megatron", "parallel": {"dp": 2}}, TWO),
    "fsdp-dp2": ({"backend": "fsdp", "parallel": {"dp": 2}}, TWO),
}


@dataclass(frozen=True, slots=True)
class StateManager:
    """A real daemon."""

    data_socket: str
    stub: statemanager_pb2_grpc.StateManagerStub

    def move(self, wpg_id: str, to: common_pb2.Residency) -> None:
        reply = self.stub.Move(
            statemanager_pb2.MoveRequest(wpg_id=wpg_id, to=to), timeout=DEADLINE_S
        )
        assert not reply.HasField("error"), reply.error

    def digests(self, wpg_id: str) -> dict[str, str]:
        with copied(self.stub, wpg_id, node_id="node") as copies:
            request = statemanager_pb2.DigestRequest(wpg_id=wpg_id, copies=copies)
            reply = self.stub.Digest(request, timeout=DEADLINE_S)
        assert not reply.HasField("error"), reply.error
        return dict(reply.digests)


@dataclass(frozen=True, slots=True)
class Wpg:
    """Rank processes and stubs to them."""

    wpg_id: str
    ranks: list[Served]
    stubs: list[worker_pb2_grpc.WorkerStub]

    def start(self, made: operations_pb2.Operation, **fence: int) -> list[Any]:
        """Send an operation to every rank; return the calls."""
        numbers = {"scheduler_epoch": 1, "lease_no": 1, "incarnation": 1, **fence}
        request = worker_pb2.ExecuteRequest(
            wpg_id=self.wpg_id, operation=made, fence=common_pb2.Fence(**numbers)
        )
        return [stub.Execute.future(request, timeout=DEADLINE_S) for stub in self.stubs]

    def run(self, made: operations_pb2.Operation, **fence: int) -> list[worker_pb2.ExecuteReply]:
        return [call.result() for call in self.start(made, **fence)]


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as held:
        yield held


@pytest.fixture
def manager(tmp_path: Path, stack: ExitStack) -> StateManager:
    config = tmp_path / "sm.toml"
    devices = "".join(f"[[devices]]\nindex = {i}\nbytes_total = 67108864\n" for i in range(2))
    places = f'runtime_dir = "{tmp_path}/run"\nkeys_file = "{keys_file(tmp_path)}"\n'
    config.write_text(f'node_id = "node"\n{places}{devices}')
    argv = [sys.executable, "-m", "plexsvc.statemanager.main", "--config", str(config)]
    process = stack.enter_context(subprocess.Popen(argv, stdout=subprocess.PIPE))
    stack.callback(process.terminate)
    assert process.stdout is not None
    stack.enter_context(process.stdout)
    ready = json.loads(process.stdout.readline())
    channel = stack.enter_context(open_blocking_channel(ready["address"], KEYS))
    return StateManager(ready["data_socket"], statemanager_pb2_grpc.StateManagerStub(channel))


@pytest.fixture
def start_wpg(
    rank_host: RankHost, manager: StateManager, odd_model: Path, tmp_path: Path, stack: ExitStack
) -> Any:
    def start(wpg_id: str, **changes: Any) -> Wpg:
        parallel = changes.get("parallel", {})
        world = parallel.get("tp", 1) * parallel.get("pp", 1) * parallel.get("dp", 1)
        table = {
            "wpg_id": wpg_id,
            "world_size": world,
            "incarnation": 1,
            "scheduler_epoch": 1,
            "tenant": "tenant",
            "job_id": "job",
            "deployment_id": f"job/{wpg_id}",
            "role": "actor",
            "backend": "megatron",
            "model": str(odd_model),
            "optimizer": {"lr": 1e-2, "beta2": 0.95, "weight_decay": 0.1},
            "seed": 7,
            "node_id": "node",
            "data_socket": manager.data_socket,
            "rendezvous": f"file://{tmp_path}/{wpg_id}.rdzv",
            "collective_timeout_s": 60,
            "keys_file": str(keys_file(tmp_path)),
            **changes,
        }
        where = f"unix:{tmp_path}/{wpg_id}"
        configs = [
            {**table, "rank": rank, "device_index": rank, "listen": f"{where}{rank}.sock"}
            for rank in range(world)
        ]
        ranks = rank_host.serve(configs)
        for rank in ranks:
            stack.callback(end, rank)
        stubs = [
            worker_pb2_grpc.WorkerStub(stack.enter_context(open_blocking_channel(r.address, KEYS)))
            for r in ranks
        ]
        return Wpg(wpg_id, ranks, stubs)

    return start


def end(rank: Served) -> None:
    """Kill and reap a rank that may have been reaped already."""
    try:
        rank.signal(signal.SIGKILL)
        rank.wait()
    except (ProcessLookupError, RuntimeError):
        pass  # a test waited for it


def codes(replies: list[worker_pb2.ExecuteReply]) -> set[str]:
    return {reply.result.error.code for reply in replies}


def test_a_rank_describes_itself_runs_once_and_fences(start_wpg: Any) -> None:
    wpg = start_wpg("wpg")
    (stub,) = wpg.stubs
    described = stub.Describe(worker_pb2.DescribeRequest(wpg_id="wpg"), timeout=DEADLINE_S)
    assert (described.vocab_size, described.max_sequence_length) == (51, 512)
    assert described.device_bytes > 0
    assert not described.initialized
    early = wpg.run(operation(1, "forward", random_batch(0), split=ONE))
    assert codes(early) == {"bad_request"}
    late = wpg.run(operation(0, "initialize"))
    assert codes(late) == {"stale_sequence"}, "a final refusal consumes its number"

    wpg = start_wpg("other")
    assert codes(wpg.run(operation(0, "initialize"))) == {""}
    train = operation(1, "forward_backward", random_batch(0), split=ONE, loss="ppo")
    calls = [*wpg.start(train), *wpg.start(train), *wpg.start(train)]
    replies = [call.result() for call in calls]
    assert codes(replies) == {""}
    assert len({reply.SerializeToString(deterministic=True) for reply in replies}) == 1
    again = operation(1, "forward", random_batch(0), split=ONE)
    assert codes(wpg.run(again)) == {"stale_sequence"}
    (stepped,) = wpg.run(operation(5, "step"), lease_no=3)
    assert stepped.applied_seq == 5
    for old in ({"lease_no": 2}, {"lease_no": 3, "scheduler_epoch": 0}, {"incarnation": 2}):
        refused = wpg.run(operation(6, "noop"), **{"lease_no": 3, **old})
        assert codes(refused) == {"stale_fence"}
    assert codes(wpg.run(operation(6, "noop"), lease_no=3)) == {""}
    (answer,) = wpg.run(operation(7, "generate"), lease_no=3)
    assert answer.result.error.code == "bad_request"


async def test_calls_and_orders_of_one_operation_run_it_once(start_wpg: Any) -> None:
    wpg = start_wpg("wpg")
    (stub,) = wpg.stubs
    assert codes(wpg.run(operation(0, "initialize"))) == {""}
    described = stub.Describe(worker_pb2.DescribeRequest(wpg_id="wpg"), timeout=DEADLINE_S)
    line = OrderLine(
        described.orders_socket,
        reply=worker_pb2.ExecuteReply,
    )
    train = operation(1, "forward_backward", random_batch(0), split=ONE, loss="ppo")
    request = worker_pb2.ExecuteRequest(
        wpg_id="wpg",
        operation=train,
        fence=common_pb2.Fence(scheduler_epoch=1, lease_no=1, incarnation=1),
    )
    calls = wpg.start(train)
    ordered = [await line.execute(request) for _ in range(2)]
    replies = [*[call.result() for call in calls], *ordered]
    assert codes(replies) == {""}
    assert len({reply.SerializeToString(deterministic=True) for reply in replies}) == 1
    request.fence.incarnation = 2
    assert codes([await line.execute(request)]) == {"stale_fence"}
    line.close()


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_switch_between_backward_and_step_changes_no_bit(
    start_wpg: Any,
    manager: StateManager,
    name: str,
) -> None:
    settings, split = LAYOUTS[name]
    digests = []
    for wpg_id, is_switched in (("alone", False), ("switched", True)):
        wpg = start_wpg(wpg_id, **settings)
        assert codes(wpg.run(operation(0, "initialize"))) == {""}
        for step in range(2):
            train = operation(
                2 * step + 1, "forward_backward", random_batch(step), split=split, loss="ppo"
            )
            assert codes(wpg.run(train)) == {""}
            if is_switched:
                manager.move(wpg_id, common_pb2.RESIDENCY_HOST)
                manager.move(wpg_id, common_pb2.RESIDENCY_DEVICE)
            assert codes(wpg.run(operation(2 * step + 2, "step"))) == {""}
        digests.append(manager.digests(wpg_id))
    assert {"param", "exp_avg", "exp_avg_sq"} <= set(digests[0])
    assert digests[0] == digests[1]


def test_a_published_version_is_pulled_through_the_state_manager(
    start_wpg: Any,
    manager: StateManager,
) -> None:
    actor = start_wpg("actor")
    reference = start_wpg("reference", role="reference", optimizer=None, parallel={"tp": 2})
    for wpg in (actor, reference):
        assert codes(wpg.run(operation(0, "initialize"))) == {""}
    batch = random_batch(0)
    actor.run(operation(1, "forward_backward", batch, split=ONE, loss="ppo"))
    actor.run(operation(2, "step"))
    published = manager.stub.Publish(
        statemanager_pb2.PublishRequest(wpg_id="actor", deployment_id="job/actor", version=3),
        timeout=DEADLINE_S,
    )
    assert not published.HasField("error"), published.error
    pull = worker_pb2.ExecuteRequest(
        wpg_id="reference",
        operation=operation(1, "pull", source_deployment_id="job/actor", version=3),
        fence=common_pb2.Fence(scheduler_epoch=1, lease_no=1, incarnation=1),
        published=statemanager_pb2.PublishedVersion(
            deployment_id="job/actor", version=3, holders=[statemanager_pb2.VersionHolder()]
        ),
    )
    calls = [stub.Execute.future(pull, timeout=DEADLINE_S) for stub in reference.stubs]
    replies = [call.result() for call in calls]
    assert codes(replies) == {""}, replies
    assert {reply.result.weight_version for reply in replies} == {3}
    wanted = answered_tokens(actor.run(operation(4, "forward", batch, split=ONE)), batch)
    found = answered_tokens(reference.run(operation(2, "forward", batch, split=ONE)), batch)
    assert np.abs(found - wanted).max() <= 1e-5


def test_a_rank_whose_peer_died_answers_and_exits_with_its_cause(start_wpg: Any) -> None:
    wpg = start_wpg("pair", parallel={"tp": 2})
    assert codes(wpg.run(operation(0, "initialize"))) == {""}
    wpg.ranks[1].signal(signal.SIGKILL)
    assert wpg.ranks[1].wait() == -signal.SIGKILL
    first, _ = wpg.start(operation(1, "forward", random_batch(0), split=ONE))
    reply = first.result()
    assert reply.result.error.code == "internal"
    assert "rank 0 of pair" in reply.result.error.message
    assert "RuntimeError" in reply.log_tail
    assert wpg.ranks[0].wait() == 70


def test_a_terminated_rank_ends_in_order(start_wpg: Any) -> None:
    wpg = start_wpg("ended", backend="noop")
    wpg.ranks[0].signal(signal.SIGTERM)
    assert wpg.ranks[0].wait() == 0
