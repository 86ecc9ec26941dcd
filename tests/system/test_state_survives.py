"""A killed state manager costs time and nothing else: jobs end as they would have undisturbed."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import plexclient as plex
from plexclient.wire.v1 import statemanager_pb2, statemanager_pb2_grpc
from plexsvc.rpc.channels import open_blocking_channel
from tests.rigs.live_cluster import (
    ROLLOUT,
    TRAIN,
    LiveCluster,
    rank_processes,
    start_cluster,
)
from tests.rigs.processes import descendants, is_alive, running
from tests.rigs.waiting import wait_until
from tests.rigs.workloads import PPO_ARGS, fixed_batch

pytestmark = [pytest.mark.process, pytest.mark.slow]

MOMENTS = ["idle", "switch-away", "switch-to", "publish", "delivery", "staging", "result"]
REACHED_S = 0.5
"""Time in which an operation gets to where a stopped process holds it up."""

Start = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Victims:
    """The processes of a one-node cluster."""

    live: LiveCluster

    @property
    def agent(self) -> int:
        return running("plexsvc.node.agent", below=self.live.pid)[0]

    @property
    def state_manager(self) -> int:
        return self._state_managers()[0]

    def _state_managers(self) -> list[int]:
        return running("plexsvc.statemanager.main", below=self.agent)

    def kill(self) -> None:
        """Kill -9 the state manager; return when it has a successor."""
        before = self._state_managers()
        os.kill(before[0], signal.SIGKILL)
        wait_until(lambda: self._state_managers() not in ([], before), what="a successor runs")

    def kept_files(self) -> list[str]:
        """Return the memory files of state that the agent and the state manager hold."""
        held = []
        for pid in (self.agent, self.state_manager):
            for entry in Path(f"/proc/{pid}/fd").iterdir():
                with suppress(FileNotFoundError):  # closed meanwhile
                    name = entry.readlink().name
                    held += [name] if "plexsvc-" in name and "device" not in name else []
        return held

    def inventory(self) -> statemanager_pb2.InventoryReply:
        node = self.live.status().nodes[0]
        with open_blocking_channel(node.address.state_manager, self.live.keys) as channel:
            stub = statemanager_pb2_grpc.StateManagerStub(channel)
            return stub.Inventory(statemanager_pb2.InventoryRequest(), timeout=120)


Drill = Callable[[Victims, Mapping[str, int], Start], Any]
"""Starts an operation, kills the state manager and returns what the operation answers."""


@pytest.fixture(scope="module")
def victims(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Victims]:
    """A cluster whose one device holds one of the jobs at a time; nothing of it stays behind."""
    with start_cluster(tmp_path_factory.mktemp("survive"), nodes={"node-a": [TRAIN]}) as live:
        found = Victims(live)
        yield found
        family = [live.pid, *descendants(live.pid)]
    wait_until(lambda: not any(map(is_alive, family)), what="the whole family is gone")


@pytest.fixture(scope="module")
def sampling(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Victims]:
    """A cluster with an instance beside the device that trains."""
    nodes = {"node-a": [TRAIN, ROLLOUT]}
    with start_cluster(tmp_path_factory.mktemp("sampling"), nodes=nodes) as live:
        yield Victims(live)


@pytest.fixture(scope="module")
def undisturbed(victims: Victims, tiny_model: Path) -> dict[str, Any]:
    return run(victims, tiny_model)


@pytest.mark.every(2)
@pytest.mark.parametrize("moment", MOMENTS)
def test_jobs_go_on_bit_for_bit(
    victims: Victims, tiny_model: Path, undisturbed: dict[str, Any], moment: str
) -> None:
    before = victims.state_manager
    found = run(victims, tiny_model, disturbed=moment)
    assert victims.state_manager != before, "it was killed"
    assert found.keys() == undisturbed.keys()
    for name, value in found.items():
        np.testing.assert_equal(value, undisturbed[name], err_msg=name)
    wait_until(lambda: not victims.kept_files(), what="no state is kept")
    inventory = victims.inventory()
    assert (inventory.host_bytes_used, inventory.staging_bytes_used) == (0, 0)
    assert [device.bytes_used for device in inventory.devices] == [0]


def deploy(job: plex.Job, model: Path, *, seed: int = 0) -> plex.Actor:
    adam = plex.AdamW(lr=1e-2)
    return job.deploy("actor", model=str(model), backend="megatron", optimizer=adam, seed=seed)


@pytest.mark.parametrize("how", ["killed", "killed while an instance is held up", "hangs"])
def test_an_instance_takes_a_version_whose_state_manager_died(
    sampling: Victims, tiny_model: Path, how: str
) -> None:
    with sampling.live.connect() as connection, connection.job("samples") as job:
        actor = deploy(job, tiny_model)
        rollout = job.deploy("rollout", model=actor, backend="vllm", max_model_len=128)
        rollout.sync(actor)
        ids = [actor.deployment_id, rollout.deployment_id]
        before = rank_processes(sampling.live, ids)
        actor.forward_backward(fixed_batch(1), loss="ppo", **PPO_ARGS)
        actor.step()
        version = LOSSES[how](
            sampling,
            dict(zip(("actor", "rollout"), before, strict=True)),
            lambda: rollout.sync.submit(actor),
        )
        samples = rollout.generate([[3, 4, 12]], n=2, max_tokens=8, seed=1)
        assert {v for sample in samples for v in sample.versions} == {version}
        assert rank_processes(sampling.live, ids) == before
    wait_until(lambda: not sampling.kept_files(), what="no state is kept")


def idle(victims: Victims, pids: Mapping[str, int], start: Start) -> Any:
    """Kill the state manager before the operation."""
    del pids
    victims.kill()
    return start().result(120)


def unanswered(victims: Victims, pids: Mapping[str, int], start: Start) -> Any:
    """Kill the state manager while it is asked and does not answer."""
    del pids
    os.kill(victims.state_manager, signal.SIGSTOP)
    going_on = start()
    threading.Event().wait(REACHED_S)
    victims.kill()
    return going_on.result(120)


def hanging(victims: Victims, pids: Mapping[str, int], start: Start) -> Any:
    """Stop the state manager while it is asked, and leave the rest to the node agent."""
    del pids
    os.kill(victims.state_manager, signal.SIGSTOP)
    return start().result(120)


def waiting_for(name: str) -> Drill:
    """Kill the state manager while it waits for a rank that does not answer."""

    def drill(victims: Victims, pids: Mapping[str, int], start: Start) -> Any:
        os.kill(pids[name], signal.SIGSTOP)
        try:
            going_on = start()
            threading.Event().wait(REACHED_S)
            victims.kill()
        finally:
            os.kill(pids[name], signal.SIGCONT)
        return going_on.result(120)

    return drill


LOSSES: dict[str, Drill] = {
    "killed": unanswered,
    "killed while an instance is held up": waiting_for("rollout"),
    "hangs": hanging,
}

DRILLS: dict[str, Drill] = {
    "idle": idle,
    "switch-away": waiting_for("a"),
    "switch-to": waiting_for("b"),
    "publish": unanswered,
    "delivery": waiting_for("reference"),
    "staging": unanswered,
    "result": unanswered,
}


def run(victims: Victims, model: Path, *, disturbed: str = "") -> dict[str, Any]:
    """Train two jobs on fixed data and hand weights to a reference; return all one can see."""
    seen: dict[str, Any] = {}
    with (
        victims.live.connect() as connection,
        connection.job("first") as first,
        connection.job("second") as second,
    ):
        a, b = deploy(first, model), deploy(second, model, seed=1)
        reference = first.deploy(
            "reference", role="reference", model=str(model), backend="megatron"
        )
        ids = [deployment.deployment_id for deployment in (a, b, reference)]
        pids = dict(zip(("a", "b", "reference"), rank_processes(victims.live, ids), strict=True))

        def at(moment: str, start: Start) -> Any:
            if moment == disturbed:
                return DRILLS[moment](victims, pids, start)
            return start().result(120)

        def train(actor: plex.Actor, seed: int, **size: int) -> Start:
            batch = fixed_batch(seed, **size)
            return lambda: actor.forward_backward.submit(batch, loss="ppo", **PPO_ARGS)

        seen["a1"] = at("idle", train(a, 1)).metrics
        seen["b1"] = train(b, 2)().result(120).metrics
        seen["a2"] = train(a, 3)().result(120).metrics
        seen["b2"] = at("switch-away", train(b, 4)).metrics
        seen["a3"] = train(a, 5)().result(120).metrics
        seen["b3"] = at("switch-to", train(b, 6)).metrics
        seen["a step"] = a.step().metrics
        at("publish", lambda: reference.sync.submit(a))
        seen["a4"] = train(a, 7)().result(120).metrics
        at("delivery", lambda: reference.sync.submit(a))
        big = fixed_batch(8, sequences=600, longest=60)
        assert big.tokens.nbytes > 64 << 10, "its logprobs are fetched from staging memory"
        seen["logprobs"] = at("result", lambda: reference.forward.submit(big)).logprobs
        seen["b4"] = at("staging", train(b, 9, sequences=120, longest=60)).metrics
        seen["b step"] = b.step().metrics
        seen["a digest"], seen["b digest"] = a.digest(), b.digest()
        seen["reference digest"] = reference.digest()
        assert rank_processes(victims.live, ids) == list(pids.values()), "the ranks went on"
    return seen
