"""Runs a rank's operations one at a time on its backend, on the one thread that owns torch.

Theory of operation. The accumulation window is clean, open (gradients accumulated) or broken. An
operation is validated completely before it touches anything; one that fails after it began to
change gradients or parameters breaks the window, and forward_backward, backward and step are
refused with `window_broken` until zero_grad or a load. In a group of several ranks an unexpected
failure may leave peers waiting inside a collective: the rank answers, then asks to exit, so that
the whole group ends with a cause instead of hanging.
"""

from __future__ import annotations

import hashlib
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import torch

from plexclient.wire import errors as wire_errors
from plexclient.wire import tensors
from plexclient.wire.v1 import common_pb2, operations_pb2, statemanager_pb2, worker_pb2
from plexsvc.clock import Clock
from plexsvc.errors import RETRYABLE, ErrorCode, PlexError
from plexsvc.log import Log
from plexsvc.transport.state_client import ExportReport, Region, RegionSpec, Scalars
from plexsvc.worker import batches, losses, results, sources
from plexsvc.worker.backends.base import Backend, Hyper, PassResult, TokenLoss
from plexsvc.worker.config import WorkerConfig
from plexsvc.worker.ledger import Ledger
from plexsvc.worker.results import Answer

log = Log(__name__)

LOG_TAIL_BYTES: Final = 4096
_WINDOW_KINDS: Final = frozenset({"forward_backward", "backward", "step"})

Operation = operations_pb2.Operation


class StateMemory(results.Staging, Protocol):
    """What a rank uses of `plexsvc.transport.state_client.StateClient`."""

    def allocate(self, regions: Sequence[RegionSpec]) -> dict[str, Region]:
        """Return zeroed device memory, all or nothing."""
        ...

    def set_index(self, pieces: Sequence[statemanager_pb2.CanonicalPiece]) -> None:
        """Say where each canonical piece lies."""
        ...

    def open_staged(self, staging_id: bytes) -> tuple[list[common_pb2.TensorSpec], memoryview]:
        """Return a staged bundle, read-only."""
        ...

    def open_version(self, manifest: statemanager_pb2.VersionManifest) -> memoryview:
        """Return a published version's memory, read-only."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A reply, and what must become of the process that gave it."""

    reply: worker_pb2.ExecuteReply
    must_exit: bool = False


class Executor:
    """One rank: its backend, its memory, its ledger. All but the move handlers run on one thread."""

    def __init__(self, config: WorkerConfig, backend: Backend, *, clock: Clock) -> None:
        self._config = config
        self._backend = backend
        self._clock = clock
        self._memory: StateMemory | None = None
        self._between_operations = threading.Lock()
        self._broken_by: str | None = None
        self._default_hyper = config.optimizer.hyper() if config.optimizer else None
        self.ledger = Ledger(max_replies=config.max_recorded_replies)
        self.is_initialized = False

    def build(self, memory: StateMemory | None) -> None:
        """Build the backend in host memory; `memory` is asked for regions at Initialize.

        Raises:
            PlexError: as `Backend.build`.
        """
        torch.set_num_threads(1)  # holds for the calling thread, which is the one that runs passes
        self._memory = memory
        self._backend.build()

    @property
    def device_bytes(self) -> int:
        """Return what this rank's state takes on its device."""
        return sum(region.nbytes for region in self._backend.regions())

    @property
    def backend(self) -> Backend:
        """Return the rank's backend."""
        return self._backend

    # -- moves: called on the state client's thread, between operations ------------------------

    def export(self) -> ExportReport:
        """Return what must survive a move; waits for the running operation to end."""
        with self._between_operations:
            held = {spec.name for spec in self._backend.regions() if not spec.droppable}
            if self._backend.is_grad_dirty:
                held |= {spec.name for spec in self._backend.regions()}
            return ExportReport(
                dirty=frozenset(held),
                scalars=self._backend.scalars(),
                applied_seq=max(0, self.ledger.applied_seq),
            )

    def restored(self, scalars: Scalars) -> None:
        """Take the scalars back after a load."""
        with self._between_operations:
            self._backend.restore_scalars(scalars)

    # -- operations ----------------------------------------------------------------------------

    def execute(
        self, operation: Operation, manifests: Sequence[statemanager_pb2.VersionManifest] = ()
    ) -> Outcome:
        """Run one operation to its end; every failure becomes an answer."""
        with self._between_operations:
            started_us = self._clock.monotonic_us()
            outcome = self._answered(operation, manifests)
            outcome.reply.run_us = self._clock.monotonic_us() - started_us
            error = outcome.reply.result.error
            if not (error.code in RETRYABLE or error.code == ErrorCode.STALE_SEQUENCE):
                self.ledger.finish(operation.operation_id, operation.seq, outcome.reply)
            outcome.reply.applied_seq = max(0, self.ledger.applied_seq)
            return outcome

    def _answered(
        self, operation: Operation, manifests: Sequence[statemanager_pb2.VersionManifest]
    ) -> Outcome:
        try:
            self.ledger.check_order(operation.operation_id, operation.seq)
            answer = self._run(operation, manifests)
            result = results.to_wire(
                answer,
                operation_id=operation.operation_id,
                node_id=self._config.node_id,
                staging=self._memory,
            )
        except PlexError as error:
            return Outcome(reply=_failure(operation, error))
        except Exception as error:  # noqa: BLE001 - the rank's boundary: becomes an answer
            log.error("operation failed", operation_id=operation.operation_id)  # noqa: TRY400 - Log.error adds the traceback
            return Outcome(
                reply=self._internal(operation, error), must_exit=self._config.world_size > 1
            )
        return Outcome(reply=worker_pb2.ExecuteReply(result=result, digest=results.digest(answer)))

    def _internal(self, operation: Operation, error: Exception) -> worker_pb2.ExecuteReply:
        kind = operation.WhichOneof("body")
        told = PlexError(
            ErrorCode.INTERNAL,
            f"{kind} failed on rank {self._config.rank} of {self._config.wpg_id}: "
            f"{type(error).__name__}: {error}",
            worker=f"{self._config.wpg_id}/{self._config.rank}",
        )
        reply = _failure(operation, told)
        reply.log_tail = "".join(traceback.format_exception(error))[-LOG_TAIL_BYTES:]
        return reply

    def _run(
        self, operation: Operation, manifests: Sequence[statemanager_pb2.VersionManifest]
    ) -> Answer:
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
        return self._dispatch(operation, manifests)

    def _dispatch(
        self, operation: Operation, manifests: Sequence[statemanager_pb2.VersionManifest]
    ) -> Answer:
        match operation.WhichOneof("body"):
            case "noop":
                return Answer()
            case "forward":
                return self._forward(operation)
            case "forward_backward":
                return self._forward_backward(operation)
            case "backward":
                return self._backward(operation)
            case "step":
                return self._step(operation.step)
            case "pull":
                return self._pull(operation.pull, manifests)
            case "initialize" | "zero_grad" | "load" as kind:
                plain = {
                    "initialize": self._initialize,
                    "zero_grad": self._zero_grad,
                    "load": lambda: self._load(operation.load),
                }
                plain[kind]()
                return Answer()
        raise PlexError(
            ErrorCode.BAD_REQUEST,
            f"{operation.WhichOneof('body') or 'an empty operation'} does not run on a training rank",
        )

    def _initialize(self) -> None:
        if self.is_initialized:
            raise PlexError(ErrorCode.BAD_REQUEST, f"{self._config.wpg_id} is initialized already")
        specs = self._backend.regions()
        if not specs:
            if self._memory is not None:
                self._memory.allocate(())
                self._memory.set_index(())
            self.is_initialized = True
            return
        memory = self._state_memory()
        with sources.open_checkpoint(Path(self._config.model)) as weights:
            regions = memory.allocate(specs)
            views = {name: region.tensor() for name, region in regions.items()}
            self._backend.attach(views, weights)
        memory.set_index(self._backend.pieces())
        self.is_initialized = True

    def _forward(self, operation: Operation) -> Answer:
        required = () if self._config.role == "critic" else ("target_tokens",)
        batch = self._batch(operation, required)
        temperature = operation.forward.temperature or 1.0
        return self._pass_answer(self._backend.forward(batch, temperature=temperature), batch)

    def _forward_backward(self, operation: Operation) -> Answer:
        body = operation.forward_backward
        loss = losses.resolve(body.loss, body.loss_args, role=self._config.role)
        return self._train(
            operation,
            loss,
            required=losses.required_arrays(body.loss),
            temperature=body.temperature,
            keep_outputs=body.return_logprobs,
        )

    def _backward(self, operation: Operation) -> Answer:
        targets = () if self._config.role == "critic" else ("target_tokens",)
        return self._train(
            operation,
            losses.given_gradient,
            required=(*targets, losses.GRAD_ARRAY),
            temperature=operation.backward.temperature,
            keep_outputs=False,
        )

    def _train(
        self,
        operation: Operation,
        loss: TokenLoss,
        *,
        required: Sequence[str],
        temperature: float,
        keep_outputs: bool,
    ) -> Answer:
        self._check_trains(operation)
        batch = self._batch(operation, required)
        found = self._mutate(
            operation,
            lambda: self._backend.forward_backward(
                batch, loss=loss, temperature=temperature or 1.0, keep_outputs=keep_outputs
            ),
        )
        return self._pass_answer(found, batch)

    def _step(self, body: operations_pb2.Step) -> Answer:
        self._check_trains(Operation(step=body))
        assert self._default_hyper is not None
        hyper = _overridden(self._default_hyper, body)
        found = self._mutate(Operation(step=body), lambda: self._backend.step(hyper))
        return self._metrics({**found, "lr": hyper.lr})

    def _zero_grad(self) -> None:
        self._check_trains(Operation(zero_grad=operations_pb2.ZeroGrad()))
        self._backend.zero_grad()
        self._broken_by = None

    def _load(self, body: operations_pb2.Load) -> None:
        directory = Path(body.path)
        with sources.open_checkpoint(directory) as weights:
            if not body.optimizer:
                self._backend.load_params(weights)
            else:
                self._check_trains(Operation(load=body))
                scalars = sources.read_scalars(directory)
                with sources.open_checkpoint(
                    directory, pattern="optimizer*.safetensors"
                ) as moments:
                    self._backend.load_params(weights)
                    self._backend.load_moments(moments)
                self._backend.restore_scalars(scalars)
        if self._config.has_optimizer:
            self._zero_grad()

    def _pull(
        self,
        body: operations_pb2.Pull,
        manifests: Sequence[statemanager_pb2.VersionManifest],
    ) -> Answer:
        here = [m for m in manifests if m.node_id in ("", self._config.node_id)]
        if not here:
            raise PlexError(
                ErrorCode.UNAVAILABLE,
                f"version {body.version} of {body.source_deployment_id} is not on node "
                f"{self._config.node_id}; publish it there",
            )
        memory = self._state_memory()
        views = [memory.open_version(manifest) for manifest in here]
        for manifest, view in zip(here, views, strict=True):
            sources.verify_blocks(manifest, view)
        self._backend.load_params(sources.VersionSource(here, views))
        return Answer(weight_version=body.version)

    # -- helpers -------------------------------------------------------------------------------

    def _mutate(self, operation: Operation, change: Callable[[], Any]) -> Any:  # noqa: ANN401 - returns what `change` does
        """Run `change`; if it fails the window is broken from here on."""
        try:
            return change()
        except BaseException as error:
            self._broken_by = f"an earlier {operation.WhichOneof('body')} failed ({error})"
            raise

    def _check_trains(self, operation: Operation) -> None:
        if self._config.backend != "noop" and not self._config.has_optimizer:
            raise PlexError(
                ErrorCode.BAD_REQUEST,
                f"{operation.WhichOneof('body')} refused: {self._config.deployment_id} (role "
                f"{self._config.role!r}) has no optimizer; deploy an actor or critic with "
                "optimizer=AdamW(...) to train",
            )

    def _batch(self, operation: Operation, required: Sequence[str]) -> list[batches.MicroBatch]:
        arrays = self._arrays(operation.payload)
        batches.check(arrays, required, self._backend.facts)
        return batches.split(arrays, operation.plan, names=required, shard=self._backend.shard)

    def _arrays(self, payload: common_pb2.Payload) -> Mapping[str, npt.NDArray[Any]]:
        match payload.WhichOneof("form"):
            case "inline":
                return tensors.decode(payload.inline)
            case "staged":
                specs, memory = self._state_memory().open_staged(payload.staged.staging_id)
                return tensors.views(specs, memory)
        raise PlexError(ErrorCode.BAD_BATCH, "the operation carries no batch; send one")

    def _pass_answer(self, found: PassResult, batch: list[batches.MicroBatch]) -> Answer:
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
        """Return metrics from the one rank that reports them: they are sums over all ranks already."""
        shard = self._backend.shard
        reports = shard.owns_results and shard.dp_rank == 0
        return Answer(metrics=found if reports else {})

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


def _failure(operation: Operation, error: PlexError) -> worker_pb2.ExecuteReply:
    refused = error.code not in (ErrorCode.INTERNAL, ErrorCode.CHECKSUM_MISMATCH)
    result = operations_pb2.OperationResult(
        operation_id=operation.operation_id,
        state=operations_pb2.OPERATION_STATE_REFUSED
        if refused
        else operations_pb2.OPERATION_STATE_FAILED,
        error=wire_errors.to_wire(error),
    )
    return worker_pb2.ExecuteReply(result=result)


def _overridden(default: Hyper, body: operations_pb2.Step) -> Hyper:
    """Return the deployment's hyper-parameters with those the step sets."""
    names = ("lr", "beta1", "beta2", "eps", "weight_decay", "clip_grad_norm")
    given = {name: getattr(body, name) for name in names if body.HasField(name)}
    kept = {name: getattr(default, name) for name in names}
    return Hyper(**{**kept, **given})
