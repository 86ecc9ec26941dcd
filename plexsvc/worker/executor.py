"""Executor of a rank: runs operations one at a time, in order, and answers each.

Theory of operation. An operation is prepared, which changes nothing; then all ranks of the group
agree that none of them refuses it; then it is run. So a refusal is the whole group's and leaves no
trace. What raises later is recorded under the operation's number and breaks the window.

A rank that fails in a pass, out of memory for instance, leaves peers waiting inside a collective.
It tells them by leaving the group, and they follow. Each builds its model anew over its memory
regions, which hold all of the state, and all meet in a new group; every rank answers with the first
one's cause. A step writes weights only after all ranks have what they need for it, so one that
fails before has changed gradients alone. Where weights may be half written (in a load or a pull),
or a peer is dead, the rank answers and asks to exit: the whole group ends with a cause.
"""

from __future__ import annotations

import threading
import traceback
from contextlib import ExitStack
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import Final, Protocol

import torch

from plexclient.wire import errors as wire_errors
from plexclient.wire.v1 import operations_pb2, worker_pb2
from plexclient.wire.v1.statemanager_pb2 import PublishedVersion
from plexsvc import families, paths, sizes
from plexsvc.clock import Clock
from plexsvc.errors import RETRYABLE, ErrorCode, PlexError, internal, not_found
from plexsvc.ids import show
from plexsvc.log import Log
from plexsvc.residency import Home
from plexsvc.statelink.client import ExportReport, RegionSpec
from plexsvc.weights.manifests import Scalars
from plexsvc.worker import process_group, results
from plexsvc.worker.backends.base import Backend
from plexsvc.worker.config import WorkerConfig
from plexsvc.worker.ledger import ReplyLedger
from plexsvc.worker.operations import (
    WINDOW_KINDS,
    CheckingPass,
    Operation,
    Prepared,
    RankOperations,
    Run,
    StateMemory,
    operation_seed,
)
from plexsvc.worker.shortage import out_of_memory

log = Log(__name__)

LOG_TAIL_BYTES: Final = 4096

REPLACES: Final = frozenset({"load", "pull"})
"""Operations that replace weights; one that fails while it runs leaves them half replaced."""

WRITES: Final = REPLACES | {"initialize", "step"}
"""Operations that write weights, or the scalars beside them."""

COMPUTED: Final = frozenset({"forward", "forward_backward", "backward", "step"})
"""Operations that all ranks compute together before any of them writes a weight."""


class OperationStage(Enum):
    """How far an operation came."""

    AGREEING = auto()
    """Nothing has changed."""
    COMPUTING = auto()
    """Gradients may have changed, weights have not."""
    WRITING = auto()
    """Weights may be half written."""


class After(Enum):
    """Fate of a rank after an operation failed."""

    GOING_ON = auto()
    """The rank and its groups are as they were."""
    STARTING_OVER = auto()
    """No weight changed: the ranks leave, build the model anew over their state, and meet again."""
    EXITING = auto()
    """Weights may be half written, or a peer is dead."""


class RankGroup(Protocol):
    """The ranks of a group: what `process_group` has."""

    def agree(self, refusal: PlexError | None) -> PlexError | None:
        """Return why the group refuses, the same on every rank."""

    def say_why(self, error: Exception, told: PlexError) -> PlexError | None:
        """Say why this rank leaves; return why the first did, None where a peer is dead."""

    def leave(self) -> None:
        """Leave the group; ranks that wait for this one hear of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionOutcome:
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
        peers: RankGroup = process_group,
    ) -> None:
        self._peers = peers
        self._config = config
        self._backend = backend
        self._clock = clock
        self._memory: StateMemory | None = None
        self._operations: RankOperations | None = None
        self._between_operations = threading.Lock()
        self._written = ExportReport()
        """What the last operation left that wrote weights."""
        self._writes = 0
        self.ledger = ReplyLedger(max_replies=config.max_recorded_replies)

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
        self._operations = RankOperations(self._config, self._backend, memory)

    @property
    def is_initialized(self) -> bool:
        """Return whether Initialize was applied."""
        return self._operations is not None and self._operations.is_initialized

    @property
    def device_bytes(self) -> int:
        """Return what this rank's own state takes on its device."""
        own = (one for one in self._backend.regions() if not one.shared)
        return sum(region.nbytes for region in own if region.home is not Home.HOST)

    @property
    def shared(self) -> RegionSpec | None:
        """Return the region that it shares with others, if there is one."""
        return next((region for region in self._backend.regions() if region.shared), None)

    @property
    def parked_bytes(self) -> int:
        """Return what this process keeps on its device while its state is parked: an estimate."""
        if not torch.cuda.is_available():
            return 0
        return sizes.CONTEXT_BYTES + (
            sizes.COMMUNICATOR_BYTES if self._config.world_size > 1 else 0
        )

    @property
    def pass_bytes(self) -> int:
        """Return what its passes take of its device beside all state: an estimate.

        On a CPU they are in memory that is no device's.
        """
        config = self._config
        if not torch.cuda.is_available() or config.backend == "noop":
            return 0
        return sizes.of_pass(
            families.read(Path(config.model)),
            backend=config.backend,
            dtype=config.dtype,
            parallel=config.parallel,
            tokens=config.micro_batch_tokens,
            recompute=config.recompute if config.has_optimizer else "full",
            lora=config.lora,
        )

    @property
    def backend(self) -> Backend:
        """Return the rank's backend."""
        return self._backend

    # -- moves: called on the state client's thread, between operations ------------------------

    def export(self, *, beside: bool = False) -> ExportReport:
        """Return what must survive a move; waits for the running operation to end.

        `beside` the running operation, which writes no weights: as it was before that.
        """
        if beside:
            return self._written
        with self._between_operations:
            return self._report()

    def _tell_of_step(self) -> None:
        """Say what a step left of parked state: it is loaded next, or parked for longer."""
        if self._memory is not None and self._memory.is_parked:  # else it was refused
            self._memory.stepped(self._written)

    def _report(self) -> ExportReport:
        held = {spec.name for spec in self._backend.regions() if not spec.droppable}
        if self._backend.is_grad_dirty:
            held |= {spec.name for spec in self._backend.regions()}
        return ExportReport(
            dirty=frozenset(held),
            scalars=self._backend.scalars(),
            applied_seq=max(0, self.ledger.applied_seq),
            writes=self._writes,
        )

    def restored(self, scalars: Scalars) -> None:
        """Take the scalars back after a load."""
        with self._between_operations:
            self._backend.restore_scalars(scalars)

    # -- operations ----------------------------------------------------------------------------

    def execute(self, request: worker_pb2.ExecuteRequest) -> ExecutionOutcome:
        """Run one operation to its end, or answer it from the record; failures are answers.

        Repeats of one start of an operation carry the same `attempt`; 0 is none.
        """
        operation, attempt = request.operation, request.attempt
        with self._between_operations:
            started_us = self._clock.monotonic_us()
            try:
                recorded = self.ledger.recorded(operation.operation_id, attempt=attempt)
                if recorded is not None:
                    return ExecutionOutcome(reply=recorded)
                if request.is_asked:
                    never = not_found(f"{show(operation.operation_id)} has not come to this rank")
                    return ExecutionOutcome(reply=_ended(operation, never, is_refusal=True))
                # Before it runs: one that fails may have written, too.
                self._writes += operation.WhichOneof("body") in WRITES
                with ExitStack() as held:
                    outcome = self._run(operation, request.published, held)
                if operation.WhichOneof("body") in COMPUTED:
                    torch.cuda.empty_cache()  # others have the device next, for passes of theirs
                outcome.reply.run_us = self._clock.monotonic_us() - started_us
                outcome.reply.position = operation.position
                self._record(operation, outcome.reply, attempt=attempt)
                if operation.WhichOneof("body") in WRITES:
                    self._written = self._report()
                if operation.HasField("step") and self._config.steps_on_host:
                    self._tell_of_step()
            except Exception as error:  # noqa: BLE001 - the record failed: nobody may go on
                reply = _failed(operation, self._told(operation, error), log_tail=_tail(error))
                outcome = ExecutionOutcome(reply=reply, must_exit=True)
            outcome.reply.applied_seq = max(0, self.ledger.applied_seq)
            return outcome

    def _run(
        self, operation: Operation, published: PublishedVersion, held: ExitStack
    ) -> ExecutionOutcome:
        kind, stage = operation.WhichOneof("body"), OperationStage.AGREEING
        try:
            found = self._agreed(operation, published, held)
            if isinstance(found, PlexError):
                is_bug = found.code is ErrorCode.INTERNAL
                return ExecutionOutcome(reply=_ended(operation, found, is_refusal=not is_bug))
            self.ledger.begin(operation.seq)
            stage = OperationStage.COMPUTING if kind in COMPUTED else OperationStage.WRITING
            self._backend.reseed(operation_seed(self._config.seed, operation.seq))
            done = found()
            if kind in COMPUTED:
                self._peers.agree(None)  # applied means that all ranks say so
            stage = OperationStage.WRITING if callable(done) else stage
            answer = done() if callable(done) else done
            result = results.to_wire(answer, operation_id=operation.operation_id)
            digest = results.digest(answer)
            return ExecutionOutcome(reply=worker_pb2.ExecuteReply(result=result, digest=digest))
        except Exception as error:  # noqa: BLE001 - the rank's boundary: becomes an answer
            told, log_tail = self._told(operation, error), _tail(error)
            after = self._after(operation, error, stage)
            if after is After.STARTING_OVER:
                cause = self._peers.say_why(error, told)
                told, after = (told, After.EXITING) if cause is None else (cause, after)
        # The traceback is gone by now, and with it the tensors and groups that its frames held.
        if after is After.STARTING_OVER and not self._has_started_over():
            after = After.EXITING
        if stage is not OperationStage.AGREEING:
            self._built().broken(kind, told)
        reply = _failed(operation, told, log_tail=log_tail)
        return ExecutionOutcome(reply=reply, must_exit=after is After.EXITING)

    def _after(self, operation: Operation, error: Exception, stage: OperationStage) -> After:
        is_bug, kind = not isinstance(error, PlexError), operation.WhichOneof("body")
        if stage is not OperationStage.WRITING:
            is_alike = kind == "step" and not is_bug  # all ranks see the gradients' norm
            return After.GOING_ON if is_alike else After.STARTING_OVER
        has_peers = self._config.world_size > 1
        is_lost = kind in REPLACES or (is_bug and (has_peers or kind == "step"))
        return After.EXITING if is_lost else After.GOING_ON

    def _has_started_over(self) -> bool:
        self._writes += 1
        try:
            self._built().start_over(self._peers.leave)
        except Exception:  # noqa: BLE001 - whatever it is, this rank cannot go on
            log.error("a rank could not start over")
            return False
        return True

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
        refusal = self._peers.agree(refusal)
        if refusal is None and isinstance(run, CheckingPass):
            refusal, run = self._peers.agree(_looked(run)), run.run
        if refusal is None:
            assert run is not None, operation
            assert not isinstance(run, CheckingPass), operation
            return run
        return refusal

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

    def _told(self, operation: Operation, error: Exception) -> PlexError:
        """Return what the caller is told of an error."""
        if isinstance(error, PlexError):
            return paths.told(error)
        what = (
            f"{operation.WhichOneof('body')} on rank {self._config.rank} of {self._config.wpg_id}"
        )
        if (lack := out_of_memory(error, what=what)) is not None:
            return lack
        log.error("operation failed", operation_id=operation.operation_id)
        return internal(
            f"{what} failed: {type(error).__name__}: {error}",
            worker=f"{self._config.wpg_id}/{self._config.rank}",
        )

    def _built(self) -> RankOperations:
        assert self._operations is not None, "build() comes first"
        return self._operations


def _looked(prepared: CheckingPass) -> PlexError | None:
    """Return why this rank refuses after its look; any other error leaves no peer to agree with."""
    try:
        prepared.look()
    except PlexError as refusal:
        return refusal
    return None


def _failed(operation: Operation, told: PlexError, *, log_tail: str) -> worker_pb2.ExecuteReply:
    """Return the answer of an operation that failed while it ran: it is final."""
    code, message = told.code, told.message
    is_window = operation.WhichOneof("body") in WINDOW_KINDS
    if told.retryable:
        code = ErrorCode.WINDOW_BROKEN if is_window else ErrorCode.INTERNAL
        message = f"failed while it ran: {message}"
    if is_window and (told.retryable or code is ErrorCode.OUT_OF_MEMORY):
        message += "; call zero_grad and send the window's batches again"
    reply = _ended(operation, PlexError(code, message, **told.facts), is_refusal=False)
    reply.log_tail = log_tail
    return reply


def _tail(error: Exception) -> str:
    return "".join(traceback.format_exception(error))[-LOG_TAIL_BYTES:]


def _ended(operation: Operation, error: PlexError, *, is_refusal: bool) -> worker_pb2.ExecuteReply:
    result = wire_errors.refused(operation.operation_id, error)
    if not is_refusal:
        result.state = operations_pb2.OPERATION_STATE_FAILED
    return worker_pb2.ExecuteReply(result=result)
