"""A rank on a backend that counts its passes and fails on demand."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from plexclient.specs import AdamW
from plexclient.wire.v1 import operations_pb2, worker_pb2
from plexsvc.worker import config as worker_config
from plexsvc.worker.backends.base import MicroBatch, PassResult, TokenLoss
from plexsvc.worker.backends.noop import NoopBackend
from plexsvc.worker.executor import ExecutionOutcome, Executor
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
        self.failure_of_writing: Exception | None = None
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

    def plan_step(self, hyper: AdamW) -> Callable[[], dict[str, float]]:
        self.calls.append("step")
        self.hypers.append(hyper)
        if self.failure is not None:
            failure, self.failure = self.failure, None
            raise failure
        return super().plan_step(hyper)

    def _step(self) -> dict[str, float]:
        if self.failure_of_writing is not None:
            raise self.failure_of_writing
        return super()._step()


class Rank:
    """An executor over a fake backend, initialised."""

    def __init__(self, **changes: Any) -> None:
        table: Mapping[str, Any] = {
            "wpg_id": "wpg",
            "rank": 0,
            "world_size": 1,
            "incarnation": 1,
            "scheduler_epoch": 1,
            "tenant": "tenant",
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

    def run(self, made: operations_pb2.Operation) -> ExecutionOutcome:
        return self.executor.execute(worker_pb2.ExecuteRequest(operation=made))

    def code(self, made: operations_pb2.Operation) -> str:
        return self.run(made).reply.result.error.code

    def train(self, seq: int) -> operations_pb2.Operation:
        return operation(
            seq, "forward_backward", random_batch(seq), split=ONE, loss="cross_entropy"
        )
