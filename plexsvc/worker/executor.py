"""Executor of a rank: runs operations one at a time, in order, and answers each.

Theory of operation. An operation is prepared, which changes nothing; then all ranks of the group
agree that none of them refuses it; then it is run. So a refusal is the whole group's and leaves no
trace. What raises later is recorded under the operation's number and breaks the window.

In a group of several ranks an unexpected failure may leave peers waiting inside a collective, and
one while weights are written may leave them half old, half new: the rank answers, then asks to
exit, so that the whole group ends with a cause instead of hanging or training on.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable
from contextlib import ExitStack
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
from plexsvc.worker import process_group, results
from plexsvc.worker.backends.base import Backend
from plexsvc.worker.config import WorkerConfig
from plexsvc.worker.ledger import Ledger
from plexsvc.worker.operations import (
    WINDOW_KINDS,
    Look,
    Operation,
    Operations,
    Prepared,
    Run,
    StateMemory,
    operation_seed,
)

log = Log(__name__)

LOG_TAIL_BYTES: Final = 4096

REPLACES: Final = frozenset({"load", "pull"})
"""Operations that replace weights; one that fails while it runs leaves them half replaced."""

REWRITES: Final = REPLACES | {"step"}
"""Operations that write weights in place; a `step` refuses bad gradients before it does."""

Agree = Callable[[PlexError | None], PlexError | None]
"""Returns why the group refuses, the same on every rank; see `process_group.agree`."""

CONTEXT_BYTES: Final = 640 << 20
"""A process's CUDA context, kernels and cuBLAS workspaces: by NVIDIA's documents, not measured."""
COMMUNICATOR_BYTES: Final = 512 << 20
"""Buffers of its NCCL communicators, where it has peers: likewise."""


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

    def __init__(
        self,
        config: WorkerConfig,
        backend: Backend,
        *,
        clock: Clock,
        agree: Agree = process_group.agree,
    ) -> None:
        self._agree = agree
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
            torch.cuda.set_device(0)  # a process sees its own GPU alone
            torch.use_deterministic_algorithms(True)
            torch.utils.deterministic.fill_uninitialized_memory = False  # it writes NaN everywhere
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
    def parked_bytes(self) -> int:
        """Return what this process keeps on its device while its state is parked: an estimate."""
        if not torch.cuda.is_available():
            return 0
        return CONTEXT_BYTES + (COMMUNICATOR_BYTES if self._config.world_size > 1 else 0)

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

    def execute(self, request: worker_pb2.ExecuteRequest) -> Outcome:
        """Run one operation to its end, or answer it from the record; failures are answers.

        Repeats of one start of an operation carry the same `attempt`; 0 is none.
        """
        operation, attempt = request.operation, request.attempt
        with self._between_operations:
            started_us = self._clock.monotonic_us()
            try:
                recorded = self.ledger.recorded(operation.operation_id, attempt=attempt)
                if recorded is not None:
                    return Outcome(reply=recorded)
                with ExitStack() as held:
                    found = self._agreed(operation, request.published, held)
                    if isinstance(found, PlexError):
                        is_bug = found.code is ErrorCode.INTERNAL
                        outcome = Outcome(reply=_ended(operation, found, is_refusal=not is_bug))
                    else:
                        outcome = self._change(operation, found)
                outcome.reply.run_us = self._clock.monotonic_us() - started_us
                self._record(operation, outcome.reply, attempt=attempt)
            except Exception as error:  # noqa: BLE001 - peers or record failed: nobody may go on
                outcome = Outcome(reply=self._failed(operation, error), must_exit=True)
            outcome.reply.applied_seq = max(0, self.ledger.applied_seq)
            return outcome

    def _agreed(
        self, operation: Operation, published: PublishedVersion, held: ExitStack
    ) -> Run | PlexError:
        """Prepare an operation; return what runs it, or why the group refuses it."""
        refusal: PlexError | None = None
        run: Prepared | None = None
        try:
            self.ledger.check_order(operation.operation_id, operation.seq)
            run = self._built().prepare(operation, published, held=held)
        except Exception as error:  # noqa: BLE001 - the rank's boundary: becomes an answer
            refusal = self._told(operation, error)
        refusal = self._agree(refusal)
        if refusal is None and isinstance(run, Look):
            refusal, run = self._agree(_looked(run)), run.run
        if refusal is None:
            assert run is not None, operation
            assert not isinstance(run, Look), operation
            return run
        return refusal

    def _change(self, operation: Operation, run: Run) -> Outcome:
        self.ledger.begin(operation.seq)
        kind = operation.WhichOneof("body")
        try:
            self._backend.reseed(operation_seed(self._config.seed, operation.seq))
            answer = run()
        except Exception as error:  # noqa: BLE001 - the rank's boundary: becomes an answer
            self._built().broken(kind, error)
            is_bug = not isinstance(error, PlexError)
            is_open = self._config.world_size > 1 or kind in REWRITES
            must_exit = kind in REPLACES or (is_bug and is_open)
            return Outcome(reply=self._failed(operation, error), must_exit=must_exit)
        result = results.to_wire(answer, operation_id=operation.operation_id)
        return Outcome(reply=worker_pb2.ExecuteReply(result=result, digest=results.digest(answer)))

    def _record(
        self, operation: Operation, reply: worker_pb2.ExecuteReply, *, attempt: int
    ) -> None:
        code = reply.result.error.code
        if code in RETRYABLE:
            self.ledger.refuse(operation.operation_id, attempt, reply)
        elif code != ErrorCode.STALE_SEQUENCE:
            self.ledger.finish(operation.operation_id, operation.seq, reply)
            if operation.HasField("initialize"):
                self.ledger.go_on_from(self._built().carried_seq)

    def _failed(self, operation: Operation, error: Exception) -> worker_pb2.ExecuteReply:
        """Return the answer of an operation that failed while it ran: it is final."""
        told = self._told(operation, error)
        if told.retryable:
            is_window = operation.WhichOneof("body") in WINDOW_KINDS
            code = ErrorCode.WINDOW_BROKEN if is_window else ErrorCode.INTERNAL
            cure = "; call zero_grad and send the window's batches again" if is_window else ""
            told = PlexError(code, f"failed while it ran: {told.message}{cure}", **told.facts)
        reply = _ended(operation, told, is_refusal=False)
        reply.log_tail = "".join(traceback.format_exception(error))[-LOG_TAIL_BYTES:]
        return reply

    def _told(self, operation: Operation, error: Exception) -> PlexError:
        """Return what the caller is told of an error."""
        if isinstance(error, PlexError):
            return error
        log.error("operation failed", operation_id=operation.operation_id)
        return PlexError(
            ErrorCode.INTERNAL,
            f"{operation.WhichOneof('body')} failed on rank {self._config.rank} of "
            f"{self._config.wpg_id}: {type(error).__name__}: {error}",
            worker=f"{self._config.wpg_id}/{self._config.rank}",
        )

    def _built(self) -> Operations:
        assert self._operations is not None, "build() comes first"
        return self._operations


def _looked(prepared: Look) -> PlexError | None:
    """Return why this rank refuses after its look; any other error leaves no peer to agree with."""
    try:
        prepared.look()
    except PlexError as refusal:
        return refusal
    return None


def _ended(operation: Operation, error: PlexError, *, is_refusal: bool) -> worker_pb2.ExecuteReply:
    state = (
        operations_pb2.OPERATION_STATE_REFUSED
        if is_refusal
        else operations_pb2.OPERATION_STATE_FAILED
    )
    result = operations_pb2.OperationResult(
        operation_id=operation.operation_id, state=state, error=wire_errors.to_wire(error)
    )
    return worker_pb2.ExecuteReply(result=result)
