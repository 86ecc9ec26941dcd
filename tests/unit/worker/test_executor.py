"""Order, records, the accumulation window and failures of one rank, on a fake backend."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from plexclient.specs import AdamW
from plexclient.wire import tensors
from plexclient.wire.v1 import common_pb2, operations_pb2, statemanager_pb2, worker_pb2
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.scheduler.ledger.results import merge
from plexsvc.weights import checkpoints
from plexsvc.weights.boxes import Box, TensorBox
from plexsvc.weights.checksums import block_checksums
from plexsvc.weights.reading import Published
from plexsvc.worker import config as worker_config
from plexsvc.worker import sources
from plexsvc.worker.backends.base import Backend, MicroBatch, PassResult, Shard, TokenLoss
from plexsvc.worker.backends.noop import NoopBackend
from plexsvc.worker.canonical import Slice, piece
from plexsvc.worker.executor import Executor, Outcome
from plexsvc.worker.ledger import Ledger
from plexsvc.worker.operations import StateMemory, operation_seed
from plexsvc.worker.servicer import WorkerServicer
from tests.fakes.fake_state_client import FakeStateClient
from tests.rigs.worker_batches import operation, plan, random_batch

ONE = plan([[0, 1, 2, 3]])


class CountingClock:
    def __init__(self) -> None:
        self._ticks = itertools.count()

    def wall_us(self) -> int:
        return next(self._ticks)

    monotonic_us = wall_us

    async def sleep(self, duration_us: int) -> None:
        raise AssertionError(duration_us)


class FakeBackend(NoopBackend):
    """Counts passes and fails on demand."""

    def __init__(self, config: worker_config.WorkerConfig) -> None:
        super().__init__(config)
        self.calls: list[str] = []
        self.hypers: list[AdamW] = []
        self.seeds: list[int] = []
        self.failure: Exception | None = None
        self.gate: threading.Event | None = None
        self.entered = threading.Event()

    def reseed(self, seed: int) -> None:
        self.seeds.append(seed)

    def forward_backward(
        self,
        batch: Sequence[MicroBatch],
        *,
        loss: TokenLoss,
        temperature: float,
        keep_outputs: bool,
    ) -> PassResult:
        self.calls.append("forward_backward")
        self.entered.set()
        if self.gate is not None:
            assert self.gate.wait(10)
        if self.failure is not None:
            failure, self.failure = self.failure, None
            raise failure
        outputs = tuple(mb.tokens.float() * temperature for mb in batch)
        sums = {name: float(v) for name, v in loss(outputs[0], batch[0].arrays).sums.items()}
        return PassResult(outputs=outputs if keep_outputs else (), sums=sums)

    def step(self, hyper: AdamW) -> dict[str, float]:
        self.calls.append("step")
        self.hypers.append(hyper)
        if self.failure is not None:
            failure, self.failure = self.failure, None
            raise failure
        return super().step(hyper)


class Rank:
    """An executor over a fake backend, initialised."""

    def __init__(self, **changes: Any) -> None:  # noqa: ANN401 - configuration
        table: Mapping[str, Any] = {
            "wpg_id": "wpg",
            "rank": 0,
            "world_size": 1,
            "incarnation": 1,
            "scheduler_epoch": 1,
            "job_id": "job",
            "deployment_id": "job/actor",
            "role": "actor",
            "backend": "fake",
            "model": "",
            "optimizer": {"lr": 0.5, "weight_decay": 0.1},
            **changes,
        }
        self.config = worker_config.parse(table)
        self.backend = FakeBackend(self.config)
        self.executor = Executor(self.config, self.backend, clock=CountingClock())
        self.executor.build(None)
        assert self.code(operation(0, "initialize")) == ""

    def run(self, made: operations_pb2.Operation) -> Outcome:
        return self.executor.execute(worker_pb2.ExecuteRequest(operation=made))

    def code(self, made: operations_pb2.Operation) -> str:
        return self.run(made).reply.result.error.code

    def train(self, seq: int) -> operations_pb2.Operation:
        return operation(
            seq, "forward_backward", random_batch(seq), split=ONE, loss="cross_entropy"
        )


def test_a_failed_pass_breaks_the_window_until_zero_grad() -> None:
    rank = Rank()
    assert rank.code(rank.train(1)) == ""
    rank.backend.failure = ValueError("out of luck")
    failed = rank.run(rank.train(2))
    assert failed.reply.result.error.code == "internal"
    assert "out of luck" in failed.reply.result.error.message
    assert "ValueError" in failed.reply.log_tail
    assert not failed.must_exit
    assert rank.code(rank.train(3)) == "window_broken"
    assert rank.code(operation(4, "step")) == "window_broken"
    assert rank.code(operation(5, "forward", random_batch(0), split=ONE)) == ""
    assert rank.backend.calls == ["forward_backward", "forward_backward"]
    assert rank.code(operation(6, "zero_grad")) == ""
    assert rank.code(rank.train(7)) == ""
    assert rank.code(operation(8, "step")) == ""


def test_validation_comes_before_mutation_and_leaves_the_window_whole() -> None:
    rank = Rank()
    assert rank.code(rank.train(1)) == ""
    broken = random_batch(0) | {"cu_seqlens": random_batch(0)["cu_seqlens"][:-1]}
    for seq, made in enumerate(
        (
            operation(2, "forward_backward", broken, split=ONE, loss="cross_entropy"),
            operation(3, "forward_backward", random_batch(0), split=ONE, loss="nonsense"),
            operation(4, "forward_backward", random_batch(0), loss="cross_entropy"),
            operation(5, "forward_backward", split=ONE, loss="cross_entropy"),
            operation(6, "backward", random_batch(0), split=ONE),
        ),
        start=2,
    ):
        reply = rank.run(made).reply
        assert reply.result.state == operations_pb2.OPERATION_STATE_REFUSED
        assert reply.applied_seq == seq, "a final refusal consumes its number"
    assert rank.backend.calls == ["forward_backward"]
    assert rank.code(operation(7, "step")) == ""


def test_an_unexpected_failure_in_a_group_asks_to_exit() -> None:
    rank = Rank(world_size=2)
    rank.backend.failure = RuntimeError("a collective broke")
    assert rank.run(rank.train(1)).must_exit
    rank = Rank(world_size=2)
    rank.backend.failure = PlexError(ErrorCode.WINDOW_BROKEN, "every rank sees this")
    assert not rank.run(rank.train(1)).must_exit


@pytest.mark.parametrize(
    ("name", "value", "fragment"),
    [
        ("tokens", np.full(24, -7, np.int32), "'tokens' is -7 at position 0"),
        ("target_tokens", np.full(24, -1, np.int32), "'target_tokens' is -1"),
        ("weights", np.zeros(23, np.float32), "'weights' has 23 entries"),
        ("cu_seqlens", np.array([0, 5, 5, 24], np.int32), "sequence 1 is empty"),
        ("cu_seqlens", np.array([0, 5, 23], np.int32), "24 tokens"),
    ],
)
def test_a_bad_batch_is_refused_by_name_before_the_backend_sees_it(
    name: str, value: np.ndarray, fragment: str
) -> None:
    rank = Rank()
    arrays = random_batch(1) | {name: value}
    made = operation(1, "forward_backward", arrays, split=ONE, loss="cross_entropy")
    error = rank.run(made).reply.result.error
    assert (error.code, rank.backend.calls) == ("bad_batch", [])
    assert fragment in error.message
    arrays.pop(name)
    made = operation(2, "forward_backward", arrays, split=ONE, loss="cross_entropy")
    assert f"array '{name}' is required and missing" in rank.run(made).reply.result.error.message
    assert rank.code(rank.train(3)) == ""


def test_a_step_that_fails_half_way_is_the_end_of_the_rank() -> None:
    rank = Rank()
    assert rank.code(rank.train(1)) == ""
    rank.backend.failure = RuntimeError("half of the weights are written")
    failed = rank.run(operation(2, "step"))
    assert failed.reply.result.error.code == "internal"
    assert failed.must_exit
    rank.backend.failure = PlexError(ErrorCode.WINDOW_BROKEN, "parameters are unchanged")
    assert rank.code(operation(3, "zero_grad")) == ""
    assert not rank.run(operation(4, "step")).must_exit


def test_steps_take_the_deployments_hyper_parameters_unless_told_otherwise() -> None:
    rank = Rank()
    rank.run(operation(1, "step"))
    rank.run(operation(2, "step", lr=0.0, beta1=0.5))
    assert [hyper.lr for hyper in rank.backend.hypers] == [0.5, 0.0]
    assert [hyper.beta1 for hyper in rank.backend.hypers] == [0.9, 0.5]
    assert [hyper.weight_decay for hyper in rank.backend.hypers] == [0.1, 0.1]


def test_the_same_operation_on_the_same_state_has_the_same_digest_and_seed() -> None:
    first, second = Rank(seed=3), Rank(seed=3)
    replies = [rank.run(rank.train(1)).reply for rank in (first, second)]
    assert replies[0].digest == replies[1].digest
    assert len(replies[0].digest) == 16
    assert first.backend.seeds == second.backend.seeds
    assert first.backend.seeds[-1] == operation_seed(3, 1)
    assert Rank(seed=4).backend.seeds != first.backend.seeds[:1]
    other = operation(1, "forward_backward", random_batch(9), split=ONE, loss="cross_entropy")
    assert Rank(seed=3).run(other).reply.digest != replies[0].digest


def test_an_export_says_that_clean_gradients_need_not_survive() -> None:
    rank = Rank()
    rank.run(rank.train(4))
    report = rank.executor.export()
    assert report.applied_seq == 4
    assert report.scalars == {"adam_step": 0}
    rank.executor.restored({"adam_step": 12})
    assert rank.executor.export().scalars == {"adam_step": 12}


def test_a_reference_trains_nothing() -> None:
    rank = Rank(role="reference", optimizer=None)
    for made in (rank.train(1), operation(2, "step"), operation(3, "zero_grad")):
        assert rank.code(made) == "bad_request"
    assert rank.backend.calls == []


@pytest.mark.parametrize("table", [{"backend": 3}, {"colour": "red"}, {"parallel": {"tp": "two"}}])
def test_a_wrong_configuration_names_the_key(table: dict[str, Any]) -> None:
    with pytest.raises(PlexError) as caught:
        Rank(**table)
    assert next(iter(table)) in caught.value.message


# -- the servicer ----------------------------------------------------------------------------------


class Served:
    """A servicer whose executor runs on a thread of its own."""

    def __init__(self, pool: ThreadPoolExecutor, **changes: Any) -> None:  # noqa: ANN401 - configuration
        self.rank = Rank(**changes)
        self.servicer = WorkerServicer(self.rank.config, self.rank.executor, pool)

    async def execute(
        self, made: operations_pb2.Operation, *, wpg_id: str = "wpg", lease_no: int = 1
    ) -> worker_pb2.ExecuteReply:
        fence = common_pb2.Fence(scheduler_epoch=1, lease_no=lease_no, incarnation=1)
        request = worker_pb2.ExecuteRequest(wpg_id=wpg_id, fence=fence, operation=made)
        return await self.servicer.Execute(request, Mock())


@pytest.fixture
def pool() -> Any:  # noqa: ANN401 - a generator
    with ThreadPoolExecutor(max_workers=1) as made:
        yield made


async def test_a_dropped_call_lets_the_operation_end_and_a_repeat_gets_its_answer(
    pool: ThreadPoolExecutor,
) -> None:
    served = Served(pool)
    backend = served.rank.backend
    backend.gate = threading.Event()
    made = served.rank.train(1)
    async with asyncio.TaskGroup() as group:
        dropped = group.create_task(served.execute(made))
        await asyncio.get_running_loop().run_in_executor(None, backend.entered.wait, 10)
        dropped.cancel()
    async with asyncio.TaskGroup() as group:
        attached = group.create_task(served.execute(made))
        await asyncio.sleep(0)
        backend.gate.set()
    first = attached.result()
    assert not first.result.error.code
    assert (await served.execute(made)).digest == first.digest
    assert backend.calls == ["forward_backward"]


async def test_a_full_rank_refuses_and_the_refused_may_come_again(
    pool: ThreadPoolExecutor,
) -> None:
    served = Served(pool, max_pending=1)
    backend = served.rank.backend
    backend.gate = threading.Event()
    async with asyncio.TaskGroup() as group:
        first = group.create_task(served.execute(served.rank.train(1)))
        await asyncio.get_running_loop().run_in_executor(None, backend.entered.wait, 10)
        refused = await served.execute(served.rank.train(2))
        backend.gate.set()
    assert not first.result().result.error.code
    assert refused.result.error.code == "queue_full"
    assert refused.result.error.retryable
    again = await served.execute(served.rank.train(2))
    assert not again.result.error.code


async def test_orders_for_others_are_refused(pool: ThreadPoolExecutor) -> None:
    served = Served(pool)
    assert (await served.execute(operation(1, "noop"), wpg_id="x")).result.error.code == "not_found"
    assert not (await served.execute(operation(1, "noop"), lease_no=5)).result.error.code
    stale = await served.execute(operation(2, "noop"), lease_no=4)
    assert stale.result.error.code == "stale_fence"


@pytest.mark.parametrize("call", ["_check", "_future", "recorded"])
@pytest.mark.parametrize(
    "error", [PlexError(ErrorCode.UNAVAILABLE, "not now"), MemoryError("no more")]
)
async def test_a_fault_of_the_servicer_before_an_operation_leaves_it_to_a_repeat(
    pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch, call: str, error: Exception
) -> None:
    served = Served(pool)
    made = served.rank.train(1)
    home: object = served.servicer if call.startswith("_") else served.rank.executor.ledger
    with monkeypatch.context() as patch:
        patch.setattr(home, call, Mock(side_effect=error))
        with contextlib.suppress(MemoryError):
            assert (await served.execute(made)).result.error.code == "unavailable"
    assert not (await served.execute(made)).result.error.code
    assert not (await served.execute(made)).result.error.code
    assert served.rank.backend.calls == ["forward_backward"]


async def test_a_poisoned_rank_asks_its_process_to_exit_after_the_answer(
    pool: ThreadPoolExecutor,
) -> None:
    served = Served(pool, world_size=2)
    served.rank.backend.failure = RuntimeError("a collective broke")
    reply = await served.execute(served.rank.train(1))
    assert reply.result.error.code == "internal"
    assert served.servicer.must_exit.is_set()


def test_outputs_travel_as_a_shard_when_asked_for() -> None:
    rank = Rank()
    made = rank.train(1)
    made.forward_backward.return_logprobs = True
    (shard,) = rank.run(made).reply.result.shards
    assert list(shard.sequences) == [0, 1, 2, 3]
    assert torch.get_num_threads() == 1


# -- faults at every call --------------------------------------------------------------------------

LONG = (20_000,)
"""Lengths of a batch whose answer is staged."""

ERRORS = {
    "retryable": lambda: PlexError(ErrorCode.STAGING_FULL, "others' batches wait there"),
    "final": lambda: PlexError(ErrorCode.BAD_REQUEST, "cannot be meant"),
    "memory": lambda: MemoryError("no more"),
    "file": lambda: OSError(28, "no space left"),
    "bug": lambda: RuntimeError("out of luck"),
}


class Faults:
    """Counts calls of a rank's collaborators, and raises `error` before or after one of them."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.is_armed = False
        self.at = -1
        self.is_after = False
        self.error: Callable[[], Exception] = RuntimeError

    def arm(self, at: int = -1, *, is_after: bool = False, error: str = "bug") -> None:
        self.calls, self.is_armed = [], True
        self.at, self.is_after, self.error = at, is_after, ERRORS[error]

    @property
    def lost_its_room(self) -> bool:
        """Whether room was made and not told of: the state client itself gives that back."""
        return self.is_after and self.calls[self.at : self.at + 1] == ["create_staged"]

    def around(self, name: str, call: Callable[..., Any], *args: Any, **named: Any) -> Any:  # noqa: ANN401 - any call
        if not self.is_armed:
            return call(*args, **named)
        self.calls.append(name)
        is_here = len(self.calls) - 1 == self.at
        if is_here and not self.is_after:
            raise self.error()
        found = call(*args, **named)
        if is_here:
            raise self.error()
        return found


class FaultyProxy:
    """Passes everything on to `of`, calls through `faults`."""

    def __init__(self, of: object, faults: Faults) -> None:
        self._of = of
        self._faults = faults

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever it is
        found = getattr(self._of, name)
        return functools.partial(self._faults.around, name, found) if callable(found) else found


class FakeMeeting:
    """Ranks in one process: a collective ends when all are in it, or fails when one has left."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._changed = threading.Condition()
        self._waiting = self._round = 0
        self._has_left = False
        self._refusals: list[PlexError] = []

    def open(self) -> None:
        self._waiting, self._has_left = 0, False
        self._refusals.clear()

    def leave(self) -> None:
        with self._changed:
            self._has_left = True
            self._changed.notify_all()

    def meet(self) -> None:
        with self._changed:
            now, self._waiting = self._round, self._waiting + 1
            if self._waiting == self._size:
                self._round, self._waiting = now + 1, 0
                self._changed.notify_all()
            self._changed.wait_for(lambda: self._round != now or self._has_left, timeout=20)
            if self._round == now:
                raise RuntimeError("a peer has left")

    def agree(self, refusal: PlexError | None) -> PlexError | None:
        if refusal is not None:
            self._refusals.append(refusal)
        self.meet()
        return min(self._refusals, key=lambda one: one.retryable, default=None)


class FakeModel(NoopBackend):
    """Four weights that training changes, and a collective in each pass and step."""

    def __init__(self, config: worker_config.WorkerConfig, meeting: FakeMeeting) -> None:
        super().__init__(config)
        self.meeting = meeting
        self.params, self.moments, self.grads = torch.ones(4), torch.ones(4), torch.zeros(4)

    @property
    def shard(self) -> Shard:
        return Shard(dp_rank=0, dp_size=1, owns_results=self._config.rank == 0)

    def state(self) -> list[float]:
        return torch.cat([self.params, self.moments, self.grads]).tolist()

    def forward(self, batch: Sequence[MicroBatch], *, temperature: float) -> PassResult:
        self.meeting.meet()
        return super().forward(batch, temperature=temperature)

    def forward_backward(
        self,
        batch: Sequence[MicroBatch],
        *,
        loss: TokenLoss,
        temperature: float,
        keep_outputs: bool,
    ) -> PassResult:
        self.grads += sum(float(micro.tokens.sum()) for micro in batch)
        self.meeting.meet()
        return super().forward_backward(
            batch, loss=loss, temperature=temperature, keep_outputs=keep_outputs
        )

    def step(self, hyper: AdamW) -> dict[str, float]:
        self.meeting.meet()
        self.params -= hyper.lr * self.grads
        self.moments += self.grads
        self.zero_grad()
        return super().step(hyper)

    def zero_grad(self) -> None:
        self.grads.zero_()

    def params_from(self, weights: sources.TensorSource) -> list[sources.Read]:
        return sources.reads([self._slice(self.params)], weights)

    def moments_from(self, moments: sources.TensorSource) -> list[sources.Read]:
        return sources.reads([self._slice(self.moments)], moments, prefix="exp_avg/")

    def _slice(self, view: torch.Tensor) -> Slice:
        return Slice(key=TensorBox(name="w", shape=(4,), box=Box.whole((4,))), view=view)


class FaultyGroup:
    """Ranks of one WPG, each on a thread while an operation runs, with a window that is open."""

    def __init__(self, size: int, directory: Path) -> None:
        self.pool = ThreadPoolExecutor(size)
        self.faults = [Faults() for _ in range(size)]
        self.meeting = FakeMeeting(size)
        self.models: list[FakeModel] = []
        self.executors: list[Executor] = []
        self.clients: list[FakeStateClient] = []
        self.attempt = 0
        for rank, faults in enumerate(self.faults):
            table = {"rank": rank, "world_size": size, "wpg_id": "wpg", "incarnation": 1}
            table |= {"scheduler_epoch": 1, "job_id": "job", "deployment_id": "job/actor"}
            table |= {"role": "actor", "backend": "fake", "model": "", "optimizer": {"lr": 0.5}}
            config = worker_config.parse(table)
            model = FakeModel(config, self.meeting)
            executor = Executor(
                config,
                cast("Backend", FaultyProxy(model, faults)),
                clock=CountingClock(),
                agree=functools.partial(faults.around, "agree", self.meeting.agree),
            )
            client = FakeStateClient(executor)
            client.versions["job/source", 5] = published_weights()
            client.staged[b"inputs"] = staged_batch()
            executor.build(cast("StateMemory", FaultyProxy(client, faults)))
            executor.ledger = cast("Ledger", FaultyProxy(executor.ledger, faults))
            self.models.append(model)
            self.executors.append(executor)
            self.clients.append(client)
        self.directory = directory
        assert self.codes(self.made(0, "initialize")) == [""] * size
        assert self.codes(self.made(1, "forward_backward")) == [""] * size

    def made(self, seq: int, kind: str) -> operations_pb2.Operation:
        fields: dict[str, dict[str, Any]] = {
            "forward_backward": {"loss": "cross_entropy", "return_logprobs": True},
            "load": {"path": str(self.directory), "root": str(self.directory), "optimizer": True},
            "pull": {"source_deployment_id": "job/source", "version": 5},
        }
        found = operation(seq, kind, split=plan([[0]]), **fields.get(kind, {}))
        if kind in {"forward", "forward_backward", "backward"}:
            found.payload.staged.staging_id = b"inputs"
        return found

    def run(self, made: operations_pb2.Operation) -> list[Outcome]:
        self.attempt += 1
        holders = [statemanager_pb2.VersionHolder()]
        version = statemanager_pb2.PublishedVersion(
            deployment_id="job/source", version=5, holders=holders
        )
        request = worker_pb2.ExecuteRequest(operation=made, published=version, attempt=self.attempt)
        self.meeting.open()

        def execute(one: Executor) -> Outcome:
            try:
                return one.execute(request)
            finally:
                self.meeting.leave()

        return list(self.pool.map(execute, self.executors, timeout=20))

    def codes(self, made: operations_pb2.Operation) -> list[str]:
        return [outcome.reply.result.error.code for outcome in self.run(made)]

    def state(self) -> list[list[float]]:
        return [model.state() for model in self.models]

    def staged(self) -> list[int]:
        return [len(client.staged) for client in self.clients]


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    save_file({"w": torch.full((4,), 7.0)}, tmp_path / "model.safetensors")
    save_file({"exp_avg/w": torch.full((4,), 8.0)}, tmp_path / "optimizer.safetensors")
    (tmp_path / "plex_state.json").write_text('{"scalars": {"adam_step": 3}}')
    checkpoints.seal(tmp_path, {})
    return tmp_path


@functools.cache
def staged_batch() -> tuple[list[common_pb2.TensorSpec], bytearray]:
    bundle = tensors.encode(
        {
            **random_batch(0, LONG),
            "grad_logprobs": np.zeros(sum(LONG), np.float32),
        }
    )
    return list(bundle.tensors), bytearray(bundle.data)


def published_weights() -> Published:
    data = torch.full((4,), 9.0)
    held = Slice(key=TensorBox(name="w", shape=(4,), box=Box.whole((4,))), view=data)
    manifest = statemanager_pb2.VersionManifest(
        deployment_id="job/source",
        version=5,
        nbytes=16,
        pieces=[piece("param", held, region="params", base=data.view(torch.uint8), rank=0)],
        block_checksums=block_checksums(memoryview(data.numpy()).cast("B")),
    )
    return Published(manifest=manifest, data=memoryview(data.numpy()).cast("B"))


FAULTY_KINDS = [
    "forward",
    "forward_backward",
    "backward",
    "step",
    "zero_grad",
    "load",
    "pull",
]


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("kind", FAULTY_KINDS)
@pytest.mark.parametrize("error", ERRORS)
def test_a_fault_at_any_call_leaves_an_operation_refused_or_recorded(
    checkpoint: Path, kind: str, error: str, size: int
) -> None:
    clean = FaultyGroup(size, checkpoint)
    for faults in clean.faults:
        faults.arm()
    assert clean.codes(clean.made(2, kind)) == [""] * size
    assert {"recorded", "check_order", "begin", "finish", "agree"} < set(clean.faults[0].calls)
    for rank in range(size):
        for at in range(len(clean.faults[rank].calls)):
            for is_after in (False, True):
                group = FaultyGroup(size, checkpoint)
                group.faults[rank].arm(at, is_after=is_after, error=error)
                check_fault(group, kind, wanted=clean.state())
                group.pool.shutdown()
    clean.pool.shutdown()


def check_fault(group: FaultyGroup, kind: str, *, wanted: list[list[float]]) -> None:
    """Run `kind` with a fault: nothing has changed and it can run, or it is over and says so.

    A rank that must exit takes its group with it, and nobody trains on.
    """
    before, staged = group.state(), group.staged()
    made = group.made(2, kind)
    outcomes = group.run(made)
    for faults in group.faults:
        faults.is_armed = False
    ends = [outcome.reply.result.error for outcome in outcomes if outcome.must_exit]
    if ends:
        assert all(error.code and not error.retryable for error in ends)
        return
    merged = merge(made.operation_id, [outcome.reply for outcome in outcomes])
    for executor, outcome in zip(group.executors, outcomes, strict=True):  # without its peers
        again = executor.execute(worker_pb2.ExecuteRequest(operation=made, attempt=group.attempt))
        assert again.reply.result == outcome.reply.result, "a repeat is answered alike"
    if merged.error.retryable:
        assert group.state() == before
        if not any(faults.lost_its_room for faults in group.faults):
            assert group.staged() == staged, "room for the answer was given back"
        assert group.codes(made) == [""] * len(outcomes), "its number is free"
        assert group.state() == wanted
        return
    assert all(executor.ledger.applied_seq == 2 for executor in group.executors)
    is_changed = group.state() != (before if merged.HasField("error") else wanted)
    goes_on = group.codes(group.made(3, "forward_backward"))
    assert not is_changed or goes_on == ["window_broken"] * len(outcomes)
    assert goes_on == ["window_broken"] * len(outcomes) or not any(goes_on)


def test_room_for_the_answer_comes_before_the_gradients(checkpoint: Path) -> None:
    group = FaultyGroup(1, checkpoint)
    group.faults[0].arm()
    group.run(group.made(2, "forward_backward"))
    calls = group.faults[0].calls
    assert calls.index("create_staged") < calls.index("agree") < calls.index("begin")
    assert calls.index("begin") < calls.index("forward_backward") < calls.index("seal_staged")
    group.pool.shutdown()


def test_a_damaged_batch_is_refused_by_all_and_dropped_where_it_lies(checkpoint: Path) -> None:
    group = FaultyGroup(2, checkpoint)
    made = group.made(2, "forward_backward")
    specs, good = staged_batch()
    made.payload.checksum = tensors.checksum([good])
    group.clients[1].staged[b"inputs"] = (specs, bytearray([good[0] ^ 1]) + good[1:])
    before = group.state()
    assert group.codes(made) == ["checksum_mismatch"] * 2
    assert [b"inputs" in client.staged for client in group.clients] == [True, False]
    assert group.codes(made) == ["unavailable"] * 2, "it is not there: to be sent again"
    assert group.state() == before
    group.clients[1].staged[b"inputs"] = staged_batch()
    assert group.codes(made) == [""] * 2
    group.pool.shutdown()


def test_a_damaged_inline_batch_is_refused() -> None:
    rank = Rank()
    made = rank.train(1)
    made.payload.checksum = tensors.checksum([made.payload.inline.data])
    assert rank.code(made) == ""
    made.operation_id, made.seq = b"another---------", 2
    made.payload.inline.data = made.payload.inline.data[:-1] + b"?"
    assert rank.code(made) == "checksum_mismatch"
    assert rank.backend.calls == ["forward_backward"]


@pytest.mark.parametrize("lengths", [(5, 9, 3, 7), LONG])
def test_an_answer_carries_the_checksum_of_its_bytes(
    checkpoint: Path, lengths: tuple[int, ...]
) -> None:
    group = FaultyGroup(1, checkpoint)
    made = group.made(2, "forward")
    made.plan.CopyFrom(plan([list(range(len(lengths)))]))
    made.payload.inline.CopyFrom(tensors.encode(random_batch(0, lengths)))
    (outcome,) = group.run(made)
    payload = outcome.reply.result.shards[0].payload
    is_staged = payload.WhichOneof("form") == "staged"
    assert is_staged == (lengths == LONG)
    staged = group.clients[0].staged
    data = staged[payload.staged.staging_id][1] if is_staged else payload.inline.data
    assert payload.checksum == tensors.checksum([data])
    group.pool.shutdown()


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "plex_state.json"])
@pytest.mark.parametrize("damage", ["flipped", "cut"])
def test_a_load_of_a_damaged_file_changes_nothing(checkpoint: Path, name: str, damage: str) -> None:
    data = bytearray((checkpoint / name).read_bytes())
    data[-2] ^= 1
    (checkpoint / name).write_bytes(data if damage == "flipped" else data[:-1])
    group = FaultyGroup(2, checkpoint)
    before = group.state()
    assert group.codes(group.made(2, "load")) == ["checksum_mismatch"] * 2
    assert group.state() == before
    assert group.codes(group.made(3, "step")) == [""] * 2, "the window is whole"
    group.pool.shutdown()


@pytest.mark.parametrize("lacks", ["model", "optimizer"])
def test_a_load_that_lacks_a_tensor_changes_nothing(checkpoint: Path, lacks: str) -> None:
    group = FaultyGroup(2, checkpoint)
    save_file({"v": torch.zeros(4)}, checkpoint / f"{lacks}.safetensors")
    checkpoints.seal(checkpoint, {})
    before = group.state()
    assert group.codes(group.made(2, "load")) == ["unknown_model"] * 2
    assert group.state() == before
    assert group.codes(group.made(3, "step")) == [""] * 2, "the window is whole"
    group.pool.shutdown()
