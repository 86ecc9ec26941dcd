"""Executor of a rank: runs operations one at a time, in order, and answers each.

In a group of several ranks an unexpected failure may leave peers waiting inside a collective, and
one while weights are written may leave them half old, half new: the rank answers, then asks to
exit, so that the whole group ends with a cause instead of hanging or training on.
"""

from __future__ import annotations

import threading
import traceback
from dataclasses import dataclass
from typing import Final

import torch

from plexclient.wire import errors as wire_errors
from plexclient.wire.v1 import operations_pb2, worker_pb2
from plexclient.wire.v1.statemanager_pb2 import PublishedVersion
from plexsvc.clock import Clock
from plexsvc.errors import RETRYABLE, ErrorCode, PlexError
from plexsvc.log import Log
from plexsvc.statelink.client import ExportReport, Scalars
from plexsvc.worker import results
from plexsvc.worker.backends.base import Backend
from plexsvc.worker.config import WorkerConfig
from plexsvc.worker.ledger import Ledger
from plexsvc.worker.operations import Operation, Operations, StateMemory

log = Log(__name__)

LOG_TAIL_BYTES: Final = 4096

REWRITES: Final = frozenset({"step", "load", "pull"})
"""Operations that replace weights in place, after their checks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A reply, and what must become of the process that gave it."""

    reply: worker_pb2.ExecuteReply
    must_exit: bool = False


class Executor:
    """One rank: its backend, its memory, its ledger.

    `build` and `execute` run on the one thread that owns torch, `export` and `restored` on the
    state client's.
    """

    def __init__(self, config: WorkerConfig, backend: Backend, *, clock: Clock) -> None:
        self._config = config
        self._backend = backend
        self._clock = clock
        self._memory: StateMemory | None = None
        self._operations: Operations | None = None
        self._between_operations = threading.Lock()
        self.ledger = Ledger(max_replies=config.max_recorded_replies)

    def build(self, memory: StateMemory | None) -> None:
        """Build the backend in host memory; `memory` is asked for regions at Initialize.

        Raises:
            PlexError: as `Backend.build`.
        """
        torch.set_num_threads(1)  # holds for the calling thread, which is the one that runs passes
        if torch.cuda.is_available():
            torch.cuda.set_device(self._config.device_index)
            torch.use_deterministic_algorithms(True)
        self._memory = memory
        self._backend.build()
        self._operations = Operations(self._config, self._backend, memory)

    @property
    def is_initialized(self) -> bool:
        """Return whether Initialize was applied."""
        return self._operations is not None and self._operations.is_initialized

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

    def execute(self, operation: Operation, published: PublishedVersion | None = None) -> Outcome:
        """Run one operation to its end, or answer it from the record; failures are answers."""
        with self._between_operations:
            recorded = self.ledger.recorded(operation.operation_id)
            if recorded is not None:
                return Outcome(reply=recorded)
            started_us = self._clock.monotonic_us()
            outcome = self._answered(operation, published or PublishedVersion())
            outcome.reply.run_us = self._clock.monotonic_us() - started_us
            error = outcome.reply.result.error
            if not (error.code in RETRYABLE or error.code == ErrorCode.STALE_SEQUENCE):
                self.ledger.finish(operation.operation_id, operation.seq, outcome.reply)
                if operation.HasField("initialize"):
                    self.ledger.go_on_from(self._built().carried_seq)
            outcome.reply.applied_seq = max(0, self.ledger.applied_seq)
            return outcome

    def _answered(self, operation: Operation, published: PublishedVersion) -> Outcome:
        try:
            self.ledger.check_order(operation.operation_id, operation.seq)
            answer = self._built().run(operation, published)
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
            must_exit = self._config.world_size > 1 or operation.WhichOneof("body") in REWRITES
            return Outcome(reply=self._internal(operation, error), must_exit=must_exit)
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

    def _built(self) -> Operations:
        assert self._operations is not None, "build() comes first"
        return self._operations


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
