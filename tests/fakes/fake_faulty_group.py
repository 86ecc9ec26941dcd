"""A group of ranks whose collaborators raise at one call, before or after it was made."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from plexclient.specs import AdamW
from plexclient.wire import tensors
from plexclient.wire.v1 import common_pb2, operations_pb2, statemanager_pb2, worker_pb2
from plexsvc.errors import PlexError
from plexsvc.weights.boxes import Box, TensorBox
from plexsvc.weights.checksums import block_checksums
from plexsvc.weights.reading import OpenedPart
from plexsvc.worker import config as worker_config
from plexsvc.worker import sources
from plexsvc.worker.backends.base import Backend, DataShard, MicroBatch, PassResult, TokenLoss
from plexsvc.worker.backends.noop import NoopBackend
from plexsvc.worker.canonical import TensorSlice, piece
from plexsvc.worker.executor import ExecutionOutcome, Executor, RankGroup
from plexsvc.worker.ledger import ReplyLedger
from plexsvc.worker.operations import StateMemory
from tests.fakes.fake_backend import CountingClock
from tests.fakes.fake_state_client import FakeStateClient
from tests.rigs.faults import Faults, FaultyProxy
from tests.rigs.worker_batches import operation, plan, random_batch

LOST = "a peer has left"
LONG = (20_000,)
"""Lengths of a batch whose answer is staged."""


class FakeMeeting:
    """Ranks in one process: a collective ends when all are in it, or fails when one has left.

    A rank whose operation has ended is gone; one that left the group may join the next.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._changed = threading.Condition()
        self._waiting = self._round = self._joining = self._group = 0
        self._is_over = self._is_broken = False
        self._cause: PlexError | None = None
        self._refusals: list[PlexError] = []

    def open(self) -> None:
        self._waiting = self._joining = 0
        self._is_over = self._is_broken = False
        self._cause = None
        self._refusals.clear()

    def end(self) -> None:
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def say_why(self, error: Exception, told: PlexError) -> PlexError | None:
        with self._changed:
            if str(error) == LOST and self._cause is None:
                return None
            self._cause = self._cause or told
            return self._cause

    def leave(self) -> None:
        with self._changed:
            self._is_broken = True
            self._changed.notify_all()

    def join(self) -> None:
        with self._changed:
            now, self._joining = self._group, self._joining + 1
            if self._joining == self._size:
                self.open()
                self._group += 1
                self._changed.notify_all()
            self._changed.wait_for(lambda: self._group != now or self._is_over, timeout=20)
            if self._group == now:
                raise RuntimeError(LOST)

    def meet(self) -> None:
        with self._changed:
            now, self._waiting = self._round, self._waiting + 1
            if self._waiting == self._size and not self._is_broken:
                self._round, self._waiting = now + 1, 0
                self._changed.notify_all()
            self._changed.wait_for(
                lambda: self._round != now or self._is_over or self._is_broken, timeout=20
            )
            if self._round == now:
                raise RuntimeError(LOST)

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
        self._has_left = False
        self.params, self.moments, self.grads = torch.ones(4), torch.ones(4), torch.zeros(4)

    @property
    def shard(self) -> DataShard:
        return DataShard(dp_rank=0, dp_size=1, owns_results=self._config.rank == 0)

    def leave(self) -> None:
        self._has_left = True

    def build(self) -> None:
        if self._has_left:
            self._has_left = False
            self.meeting.join()

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

    def plan_step(self, hyper: AdamW) -> Callable[[], dict[str, float]]:
        self.meeting.meet()
        count = super().plan_step(hyper)

        def apply() -> dict[str, float]:
            self.params -= hyper.lr * self.grads
            self.moments += self.grads
            self.zero_grad()
            return count()

        return apply

    def zero_grad(self) -> None:
        self.grads.zero_()

    def params_from(self, weights: sources.TensorSource) -> list[sources.Read]:
        return sources.reads([self._slice(self.params)], weights)

    def moments_from(self, moments: sources.TensorSource) -> list[sources.Read]:
        return sources.reads([self._slice(self.moments)], moments, prefix="exp_avg/")

    def _slice(self, view: torch.Tensor) -> TensorSlice:
        return TensorSlice(key=TensorBox(name="w", shape=(4,), box=Box.whole((4,))), view=view)


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
            table |= {
                "scheduler_epoch": 1,
                "tenant": "t",
                "job_id": "job",
                "deployment_id": "job/actor",
            }
            table |= {"role": "actor", "backend": "fake", "model": "", "optimizer": {"lr": 0.5}}
            config = worker_config.parse(table)
            model = FakeModel(config, self.meeting)
            executor = Executor(
                config,
                cast("Backend", FaultyProxy(model, faults)),
                clock=CountingClock(),
                peers=cast("RankGroup", FaultyProxy(self.meeting, faults)),
            )
            client = FakeStateClient(executor)
            client.versions["job/source", 5] = published_weights()
            client.staged[b"inputs"] = staged_batch()
            executor.build(cast("StateMemory", FaultyProxy(client, faults)))
            executor.ledger = cast("ReplyLedger", FaultyProxy(executor.ledger, faults))
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

    def run(self, made: operations_pb2.Operation) -> list[ExecutionOutcome]:
        self.attempt += 1
        holders = [statemanager_pb2.VersionHolder()]
        version = statemanager_pb2.PublishedVersion(
            deployment_id="job/source", version=5, holders=holders
        )
        request = worker_pb2.ExecuteRequest(operation=made, published=version, attempt=self.attempt)
        sent = request.SerializeToString()
        self.meeting.open()

        def execute(one: Executor) -> ExecutionOutcome:
            try:  # ranks are processes: each reads a message of its own
                return one.execute(worker_pb2.ExecuteRequest.FromString(sent))
            finally:
                self.meeting.end()

        return list(self.pool.map(execute, self.executors, timeout=20))

    def codes(self, made: operations_pb2.Operation) -> list[str]:
        return [outcome.reply.result.error.code for outcome in self.run(made)]

    def state(self) -> list[list[float]]:
        return [model.state() for model in self.models]

    def staged(self) -> list[int]:
        return [len(client.staged) for client in self.clients]


@functools.cache
def staged_batch() -> tuple[list[common_pb2.TensorSpec], bytearray]:
    bundle = tensors.encode(
        {
            **random_batch(0, LONG),
            "grad_logprobs": np.zeros(sum(LONG), np.float32),
        }
    )
    return list(bundle.tensors), bytearray(bundle.data)


def published_weights() -> OpenedPart:
    data = torch.full((4,), 9.0)
    held = TensorSlice(key=TensorBox(name="w", shape=(4,), box=Box.whole((4,))), view=data)
    manifest = statemanager_pb2.VersionManifest(
        deployment_id="job/source",
        version=5,
        nbytes=16,
        pieces=[piece("param", held, region="params", base=data.view(torch.uint8), rank=0)],
        block_checksums=block_checksums(memoryview(data.numpy()).cast("B")),
    )
    return OpenedPart(manifest=manifest, data=memoryview(data.numpy()).cast("B"))
