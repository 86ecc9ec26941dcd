"""Operations on a rank's backend, by kind, and the accumulation window they share.

Theory of operation. The window is clean, open (gradients accumulated) or broken. An operation is
validated completely before it touches anything; one that fails after it began to change gradients
or parameters breaks the window, and forward_backward, backward and step are refused with
`window_broken` until zero_grad or a load.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from plexclient.specs import AdamW
from plexclient.wire import tensors
from plexclient.wire.v1 import common_pb2, operations_pb2, statemanager_pb2
from plexclient.wire.v1.statemanager_pb2 import PublishedVersion
from plexsvc.batches import arrays_of, check_arrays, rules_of
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.statelink.client import Region, RegionSpec
from plexsvc.weights import manifests
from plexsvc.weights.checksums import verify
from plexsvc.weights.reading import OpenedVersion, Published
from plexsvc.worker import batches, losses, results, sources
from plexsvc.worker.backends.base import Backend, MicroBatch, PassResult, TokenLoss
from plexsvc.worker.config import WorkerConfig
from plexsvc.worker.results import Answer

Operation = operations_pb2.Operation

T = TypeVar("T")

_WINDOW_KINDS: Final = frozenset({"forward_backward", "backward", "step"})


class StateMemory(results.Staging, Protocol):
    """What a rank uses of `plexsvc.statelink.client.StateClient`."""

    def allocate(self, regions: Sequence[RegionSpec]) -> dict[str, Region]:
        """Return zeroed device memory, all or nothing."""
        ...

    def set_index(self, pieces: Sequence[statemanager_pb2.CanonicalPiece]) -> None:
        """Say where each canonical piece lies."""
        ...

    def open_staged(self, staging_id: bytes) -> tuple[list[common_pb2.TensorSpec], memoryview]:
        """Return a staged bundle, read-only."""
        ...

    def open_version(self, deployment_id: str, version: int) -> Published:
        """Return this node's part of a published version, read-only."""
        ...


class Operations:
    """Runs operations of one rank: `run` answers or raises, and knows what it left behind."""

    def __init__(self, config: WorkerConfig, backend: Backend, memory: StateMemory | None) -> None:
        self._config = config
        self._backend = backend
        self._memory = memory
        self._broken_by: str | None = None
        self.is_initialized = False
        self.carried_seq = 0
        """Last number applied by the WPG whose state this rank started from."""

    def run(self, operation: Operation, published: PublishedVersion) -> Answer:
        """Run one operation and return this rank's answer.

        Raises:
            PlexError: the operation was refused, or failed for a stated cause.
        """
        kind = operation.WhichOneof("body")
        if kind != "initialize" and not self.is_initialized:
            raise PlexError(
                ErrorCode.BAD_REQUEST, f"{kind} came before initialize on {self._config.wpg_id}"
            )
        if kind in _WINDOW_KINDS and self._broken_by is not None:
            raise PlexError(
                ErrorCode.WINDOW_BROKEN,
                f"{kind} refused: {self._broken_by}. Call zero_grad and send the window's batches "
                "again",
            )
        self._backend.reseed(operation_seed(self._config.seed, operation.seq))
        return self._dispatch(operation, published)

    def _dispatch(self, operation: Operation, published: PublishedVersion) -> Answer:
        kind = operation.WhichOneof("body")
        answers: dict[str | None, Callable[[], Answer]] = {
            "noop": Answer,
            "initialize": lambda: self._initialize(published),
            "forward": lambda: self._forward(operation),
            "forward_backward": lambda: self._forward_backward(operation),
            "backward": lambda: self._backward(operation),
            "step": lambda: self._step(operation.step),
            "zero_grad": self._zero_grad,
            "load": lambda: self._load(operation.load),
            "pull": lambda: self._pull(operation.pull, published),
        }
        if kind not in answers:
            raise PlexError(
                ErrorCode.BAD_REQUEST,
                f"{kind or 'an empty operation'} does not run on a training rank",
            )
        return answers[kind]()

    def _initialize(self, copies: PublishedVersion) -> Answer:
        if self.is_initialized:
            raise PlexError(ErrorCode.BAD_REQUEST, f"{self._config.wpg_id} is initialized already")
        specs = self._backend.regions()
        if copies.holders:
            self._start_from(copies, specs)
        elif specs:
            with sources.open_checkpoint(Path(self._config.model)) as weights:
                self._fill(specs, weights)
        elif self._memory is not None:
            self._memory.allocate(())
        if self._memory is not None:
            self._memory.set_index(self._backend.pieces() if specs else ())
        self.is_initialized = True
        return Answer()

    def _start_from(self, copies: PublishedVersion, specs: Sequence[RegionSpec]) -> None:
        """Take over another WPG's whole state from its complete copies.

        No view of a copy outlives this: its holder frees it when it is told of the last.
        """
        with self._opened(copies) as version:
            weights = sources.VersionTensors(version.parts)
            self._fill(specs, weights)
            if specs and self._config.has_optimizer:
                self._backend.load_moments(weights)
            known = manifests.scalars_by_rank(version.manifests)
            mine = known.get(self._config.rank)  # all ranks count alike
            self._backend.restore_scalars(mine or next(iter(known.values()), {}))
            self.carried_seq = manifests.applied_seq(version.manifests)

    def _fill(self, specs: Sequence[RegionSpec], weights: sources.TensorSource) -> None:
        """Give the backend its memory and its weights."""
        regions = self._state_memory().allocate(specs)
        if specs:
            self._backend.attach({n: region.tensor() for n, region in regions.items()}, weights)

    def _forward(self, operation: Operation) -> Answer:
        batch = self._batch(operation)
        temperature = operation.forward.temperature or 1.0
        return self._pass_answer(self._backend.forward(batch, temperature=temperature), batch)

    def _forward_backward(self, operation: Operation) -> Answer:
        body = operation.forward_backward
        loss = losses.resolve(body.loss, body.loss_args, role=self._config.role)
        return self._train(
            operation,
            loss,
            temperature=body.temperature,
            keep_outputs=body.return_logprobs,
        )

    def _backward(self, operation: Operation) -> Answer:
        return self._train(
            operation,
            losses.given_gradient,
            temperature=operation.backward.temperature,
            keep_outputs=False,
        )

    def _train(
        self,
        operation: Operation,
        loss: TokenLoss,
        *,
        temperature: float,
        keep_outputs: bool,
    ) -> Answer:
        kind = str(operation.WhichOneof("body"))
        self._check_trains(kind)
        batch = self._batch(operation)
        found = self._mutate(
            kind,
            lambda: self._backend.forward_backward(
                batch, loss=loss, temperature=temperature or 1.0, keep_outputs=keep_outputs
            ),
        )
        return self._pass_answer(found, batch)

    def _step(self, body: operations_pb2.Step) -> Answer:
        self._check_trains("step")
        given = {field.name: value for field, value in body.ListFields()}
        hyper = replace(self._config.optimizer or AdamW(lr=0.0), **given)
        found = self._mutate("step", lambda: self._backend.step(hyper))
        return self._metrics({**found, "lr": hyper.lr})

    def _zero_grad(self) -> Answer:
        self._check_trains("zero_grad")
        self._backend.zero_grad()
        self._broken_by = None
        return Answer()

    def _load(self, body: operations_pb2.Load) -> Answer:
        directory = Path(body.path)
        with sources.open_checkpoint(directory) as weights:
            if not body.optimizer:
                self._backend.load_params(weights)
            else:
                self._check_trains("load with optimizer=True")
                scalars = sources.read_scalars(directory)
                with sources.open_checkpoint(
                    directory, pattern="optimizer*.safetensors"
                ) as moments:
                    self._backend.load_params(weights)
                    self._backend.load_moments(moments)
                self._backend.restore_scalars(scalars)
        return self._zero_grad() if self._config.has_optimizer else Answer()

    def _pull(self, body: operations_pb2.Pull, published: PublishedVersion) -> Answer:
        if not published.holders:
            raise PlexError(
                ErrorCode.UNAVAILABLE,
                f"version {body.version} of {body.source_deployment_id} is on no node; publish it "
                "again",
            )
        with self._opened(published) as version:
            self._backend.load_params(sources.VersionTensors(version.parts))
        return Answer(weight_version=body.version)

    # -- helpers -------------------------------------------------------------------------------

    def _mutate(self, kind: str, change: Callable[[], T]) -> T:
        """Run `change`; if it fails the window is broken from here on."""
        try:
            return change()
        except BaseException as error:
            self._broken_by = f"an earlier {kind} failed ({error})"
            raise

    def _check_trains(self, kind: str) -> None:
        if self._config.backend != "noop" and not self._config.has_optimizer:
            raise PlexError(
                ErrorCode.BAD_REQUEST,
                f"{kind} refused: {self._config.deployment_id} (role {self._config.role!r}) "
                "has no optimizer; deploy an actor or critic with "
                "optimizer=AdamW(...) to train",
            )

    def _batch(self, operation: Operation) -> list[MicroBatch]:
        arrays = self._arrays(operation.payload)
        names = arrays_of(operation, role=self._config.role)
        check_arrays(arrays, rules_of(self._backend.facts, names))
        return batches.split(arrays, operation.plan, names=names, shard=self._backend.shard)

    def _arrays(self, payload: common_pb2.Payload) -> Mapping[str, npt.NDArray[Any]]:
        if payload.WhichOneof("form") == "inline":
            return tensors.decode(payload.inline)
        if payload.WhichOneof("form") == "staged":
            specs, memory = self._state_memory().open_staged(payload.staged.staging_id)
            return tensors.views(specs, memory)
        raise PlexError(ErrorCode.BAD_BATCH, "the operation carries no batch; send one")

    def _pass_answer(self, found: PassResult, batch: list[MicroBatch]) -> Answer:
        if not self._backend.shard.owns_results:
            return Answer()
        name = "values" if self._config.role == "critic" else "logprobs"
        answer = self._metrics(losses.metrics(found.sums))
        if not found.outputs:
            return answer
        flat = torch.cat([output.float().cpu() for output in found.outputs]).numpy()
        sequences = [s for micro in batch for s in micro.sequences]
        return Answer(
            metrics=answer.metrics,
            arrays={name: np.ascontiguousarray(flat)} if sequences else {},
            sequences=sequences,
        )

    def _metrics(self, found: Mapping[str, float]) -> Answer:
        """Return metrics from the one rank that reports them: sums over all ranks already."""
        shard = self._backend.shard
        reports = shard.owns_results and shard.dp_rank == 0
        return Answer(metrics=found if reports else {})

    @contextmanager
    def _opened(self, published: PublishedVersion) -> Iterator[OpenedVersion]:
        """Open a version and verify what was opened; no view of it may outlive the block."""
        from plexsvc.statelink.opening import VersionOpener  # noqa: PLC0415 - gRPC: after the fork

        opener = VersionOpener(self._config, here=self._state_memory().open_version)
        with closing(opener):
            version = opener.open(published)
            for part in version.parts:
                verify(part.manifest, part.data)
            yield version

    def _state_memory(self) -> StateMemory:
        if self._memory is None:
            raise PlexError(
                ErrorCode.BAD_REQUEST,
                f"{self._config.wpg_id} has no state manager (data_socket is empty)",
            )
        return self._memory


def operation_seed(seed: int, seq: int) -> int:
    """Return the seed of operation `seq`: 62 bits of a hash of (deployment seed, seq)."""
    data = hashlib.sha256(f"{seed}/{seq}".encode()).digest()
    return int.from_bytes(data[:8], "little") >> 2
