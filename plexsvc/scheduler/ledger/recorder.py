"""Recorder of the ledger: what the core and clients say, as records, results and rows."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from plexclient.wire.v1 import operations_pb2
from plexsvc.clock import Clock
from plexsvc.errors import bad_request
from plexsvc.ids import DeploymentId, JobId, MoveId, NodeId, OperationId, WpgId, show
from plexsvc.log import Log
from plexsvc.newest import Newest
from plexsvc.scheduler.core import actions
from plexsvc.scheduler.core.vocabulary import (
    COPYING_KINDS,
    DeploymentState,
    OperationKind,
    OperationState,
    Place,
)
from plexsvc.scheduler.faults import WIRE_STATES, refusal
from plexsvc.scheduler.handler import Handler
from plexsvc.scheduler.ledger import messages, profiles, rows
from plexsvc.scheduler.ledger.durable import CompletedOperation, Rebuilt
from plexsvc.scheduler.ledger.held import Held, Published
from plexsvc.scheduler.ledger.jobs import Copies, DeploymentRecord, JobRecord, Registry, WpgRecord
from plexsvc.scheduler.ledger.results import Result, ResultBook, staged_ids
from plexsvc.scheduler.ledger.waiters import Waiters
from plexsvc.store.rows import NodeRow, OperationGone, OperationRow, Row

log = Log(__name__)

MAX_LET_GO: Final = 8192
"""Operations no longer held of which it is known where their staged inputs lie."""


class _AnsweredOperation(NamedTuple):
    """Owner of an answer, and what was asked."""

    deployment_id: DeploymentId
    digest: bytes


class Recorder:
    """The only writer of the ledger: records, results for clients, rows for the store."""

    def __init__(self, registry: Registry, *, results: ResultBook, clock: Clock) -> None:
        self._registry = registry
        self._results = results
        self._clock = clock
        self._rows: list[Row] = []
        self._ends = Waiters[JobId, None]()
        self._settled = Waiters[DeploymentId, None]()
        self._operations: dict[OperationId, OperationRow | OperationGone] = {}
        """Rows of operations; one that is released at once is never written."""
        self._answered: dict[OperationId, _AnsweredOperation] = {}
        self._owned: dict[DeploymentId, dict[OperationId, None]] = {}
        self._let_go = Newest[OperationId, DeploymentId](MAX_LET_GO)
        """The deployments of operations that were held last."""
        self.dirty = asyncio.Event()
        self._stored = asyncio.Event()
        """Set when the store has the rows that are not taken yet."""
        self.is_owed = False
        """Whether some rows must be written before the journal goes on: it has not all of them."""

    def handlers(self) -> list[Handler[Any]]:
        """Return the handlers of what is only recorded and announced."""
        return [
            Handler(actions.AnswerOperation, self.answer),
            Handler(actions.RefuseOperation, self.refuse),
            Handler(actions.DeploymentChanged, self.deployment_changed),
            Handler(actions.DeploymentLost, self.deployment_lost),
            Handler(actions.JobChanged, self.job_changed),
            Handler(actions.RelocationChanged, self.relocation_changed),
            Handler(actions.KeepProfile, self.keep_profile),
        ]

    def take_rows(self) -> list[Row]:
        """Return the rows changed since the last call."""
        taken = [*self._rows, *self._operations.values()]
        self._rows, self._operations = [], {}
        self.is_owed = False
        return taken

    async def flush(self, write: Callable[[list[Row]], Awaitable[object]]) -> None:
        """Have the rows changed since the last call written."""
        stored, self._stored = self._stored, asyncio.Event()
        await write(self.take_rows())
        stored.set()

    async def until_stored(self) -> None:
        """Return when the store has what was changed just now."""
        await self._stored.wait()

    def job_opened(self, record: JobRecord) -> None:
        """Keep a new job."""
        self._registry.jobs[record.job_id] = record
        self._add(rows.job(record))
        self.is_owed = True

    async def until_ended(self, record: JobRecord) -> None:
        """Return when nothing of a job is left but its record."""
        if not record.has_ended:
            await self._ends.wait(record.job_id)

    async def until_settled(self, record: DeploymentRecord) -> None:
        """Return when a deployment is ready, or never will be."""
        if record.state is DeploymentState.STARTING:
            await self._settled.wait(record.deployment_id)

    def job_resumed(self, record: JobRecord, *, resume_id: str) -> None:
        """Note that another controller goes on with a job."""
        record.controller, record.resume_id = record.controller + 1, resume_id
        self._add(rows.job(record))
        self.is_owed = True

    def job_progressed(self, record: JobRecord, metrics: Mapping[str, float]) -> None:
        """Note the figures that a job's controller tells of itself."""
        record.metrics, record.metrics_us = dict(metrics), self._clock.wall_us()

    def job_exited(self, record: JobRecord, exit_code: int) -> None:
        """Note how a job's controller ended; the first one counts."""
        if record.exit_code is None:
            record.exit_code = exit_code

    def deployment_opened(self, record: DeploymentRecord) -> None:
        """Keep a new deployment, and hold its `Initialize`."""
        self._registry.deployments[record.deployment_id] = record
        self._registry.jobs[record.job_id].deployment_ids.append(record.deployment_id)
        initialize = messages.initialize(record, record.initialize_id)
        self.hold(initialize, OperationKind.INITIALIZE)
        self.deployment_kept(record)

    def deployment_kept(self, record: DeploymentRecord) -> None:
        """Have the store know a deployment as it is before the journal goes on."""
        self._add(rows.deployment(record))
        self.is_owed = True

    def done_kept(self, record: DeploymentRecord, done: CompletedOperation) -> None:
        """Have the store know what a durable deployment ran before the journal goes on."""
        self._add(rows.kept_operation(record, done))
        self.is_owed = True

    def acknowledged(self, record: DeploymentRecord, *, seq: int) -> bool:
        """Note that a client has every answer up to `seq`; return whether that is new."""
        is_new = seq > record.acked_seq
        record.acked_seq = max(record.acked_seq, seq)
        return is_new

    def learned(
        self, record: DeploymentRecord, *, vocab_size: int, max_sequence_length: int
    ) -> None:
        """Note what an initialised model says of itself; 0: nothing."""
        record.vocab_size = vocab_size or record.vocab_size
        record.max_sequence_length = max_sequence_length or record.max_sequence_length

    def check_same(self, operation: operations_pb2.Operation) -> None:
        """Refuse to take an operation for another one of its id.

        Raises:
            PlexError: `bad_request` when the id is known and meant something else.
        """
        operation_id = OperationId(operation.operation_id)
        held, answered = self._registry.held.get(operation_id), self._answered.get(operation_id)
        known = held.operation.digest if held is not None else answered and answered.digest
        if known and operation.digest not in {known, b""}:
            raise bad_request(
                f"{show(operation_id)} is the id of another operation, which goes on; this "
                f"{operation.WhichOneof('body')} has other contents and needs an id of its own"
            )

    def hold(
        self,
        operation: operations_pb2.Operation,
        kind: OperationKind,
        *,
        copies: Published | None = None,
    ) -> None:
        """Keep an operation until it is answered.

        Raises:
            PlexError: `queue_full` when the inline payloads of waiting operations take too much.
        """
        held = Held(
            operation=operation,
            kind=kind,
            nbytes=operation.ByteSize() if kind is not OperationKind.INITIALIZE else 0,
            submitted_us=self._clock.wall_us(),
            copies=copies,
        )
        self._registry.hold(held)

    def staged(
        self, held: Held, *, on: Iterable[NodeId], plan: operations_pb2.DispatchPlan | None = None
    ) -> None:
        """Note which nodes have an operation's payload, and how it is split over ranks."""
        held.staged_on = tuple(on)
        if plan is not None:
            held.operation.plan.CopyFrom(plan)
        self.arrived(OperationId(held.operation.operation_id))

    def arrived(self, operation_id: OperationId) -> None:
        """Note that an operation of a former scheduler is here again, its payload too."""
        awaited = self._registry.missing.get(operation_id)
        if awaited is not None:
            awaited.arrival.set()

    def granted(self, held: Held, *, lease_no: int) -> None:
        """Note under which lease an operation runs."""
        held.lease_no = lease_no

    def applied(self, held: Held, record: DeploymentRecord, *, result: Result, digest: str) -> None:
        """Note the result of an operation that ran; it is told when the core says so.

        The store has one that no rank has on record, or whose ranks may be replaced, before the
        core hears of its end.
        """
        held.result, held.digest = result, digest
        if held.kind in COPYING_KINDS or record.durable is not None:
            self._add_operation(held, result)
            self.is_owed = True
        record.applied_seq = max(record.applied_seq, held.operation.seq)
        is_elsewhere = held.operation.position != record.position
        if held.kind in {OperationKind.STEP, OperationKind.LOAD} and is_elsewhere:
            record.position = held.operation.position
            self.deployment_kept(record)

    def answer(self, action: actions.AnswerOperation) -> None:
        """Hand an applied operation's result to whoever waits."""
        held = self._end(action.operation_id)
        if held is None or held.result is None:
            return  # Initialize is answered by the deployment's state
        result = held.result
        result.state = WIRE_STATES[OperationState.ANSWERED]
        result.times.queued_us = action.queued_us
        result.times.switch_us = action.switch_us
        result.times.run_us = action.run_us
        job = self._registry.jobs.get(JobId(held.operation.job_id))
        if job is not None and held.kind is not OperationKind.INITIALIZE:
            job.operations_done += 1
        self._keep(held, result)
        self._results.tell(action.operation_id, result)

    def recalled(
        self, operation: operations_pb2.Operation, kind: OperationKind, result: Result
    ) -> None:
        """Keep an answer of a former scheduler that was found again."""
        held = Held(operation=operation, kind=kind, nbytes=0, submitted_us=self._clock.wall_us())
        self._keep(held, result)

    def refuse(self, action: actions.RefuseOperation) -> None:
        """Hand a refusal or failure to whoever waits; a final one is kept like any answer."""
        held = self._end(action.operation_id)
        if held is None:
            return
        result = refusal(action.operation_id, action.fault, state=action.state)
        log.info(
            "operation refused" if action.state is OperationState.REFUSED else "operation failed",
            operation_id=action.operation_id,
            kind=held.kind,
            code=action.fault.code,
        )
        if action.is_final:
            self._keep(held, result)
        self._results.tell(action.operation_id, result)

    def unread(self, deployment_id: DeploymentId) -> list[Result]:
        """Return the answers of which a client may still read staged parts."""
        owned = self._owned.get(deployment_id, ())
        kept = (self._results.get(operation_id) for operation_id in owned)
        return [result for result in kept if result is not None and staged_ids(result)]

    def lost(self, result: Result, again: Result | None) -> None:
        """Take what an operation came to again for an answer whose parts are lost, or drop that."""
        operation_id = OperationId(result.operation_id)
        self._results.drop(operation_id)
        if again is not None:
            del result.shards[:]
            result.shards.extend(again.shards)
            self._results.keep(operation_id, result)

    def deployment_of(self, operation_id: OperationId) -> DeploymentRecord | None:
        """Return the deployment of an operation that is held, was answered or ended lately."""
        held, answered = self._registry.held.get(operation_id), self._answered.get(operation_id)
        deployment_id = self._let_go.get(operation_id)
        if held is not None:
            deployment_id = DeploymentId(held.operation.deployment_id)
        elif answered is not None:
            deployment_id = answered.deployment_id
        return self._registry.deployments.get(deployment_id) if deployment_id else None

    def never_came(self, operation_id: OperationId, deployment_id: DeploymentId) -> None:
        """Note whose inputs lie on nodes for an operation that nobody submitted."""
        self._let_go[operation_id] = deployment_id

    def release(self, operation_id: OperationId) -> tuple[list[bytes], DeploymentRecord | None]:
        """Forget an answer; return the staged bytes it held and their deployment."""
        self._registry.answered_before.discard(operation_id)
        self._registry.answers.pop(operation_id, None)
        result = self._results.drop(operation_id)
        answered = self._answered.pop(operation_id, None)
        record = None
        if answered is not None:
            self._remove(operation_id)
            del self._owned[answered.deployment_id][operation_id]
            record = self._registry.deployments.get(answered.deployment_id)
        return ([] if result is None else staged_ids(result)), record

    def wpg_opened(self, wpg: WpgRecord, *, is_current: bool) -> None:
        """Keep a new WPG, whose processes will be at its places."""
        self._registry.by_wpg[wpg.wpg_id] = wpg
        if is_current:
            wpg.deployment.wpg = wpg

    def rank_respawned(
        self, wpg: WpgRecord, rank: int, *, incarnation: int, place: Place | None
    ) -> None:
        """Note which process takes the place of a lost one, and where if not there."""
        wpg.respawned[rank] = incarnation
        if place is not None:
            wpg.places = (*wpg.places[:rank], place, *wpg.places[rank + 1 :])

    def wpg_stopping(self, wpg: WpgRecord) -> None:
        """Note that the exits of a WPG's processes are wanted from here on."""
        wpg.is_stopping = True

    def carried(self, move_id: MoveId, copies: Copies, *, of: DeploymentRecord) -> None:
        """Keep the copies of a WPG's state, and hold the `Initialize` that starts from them."""
        initialize = messages.initialize(of, copies.initialize_id)
        self.hold(initialize, OperationKind.INITIALIZE, copies=copies.published)
        self._registry.copies[move_id] = copies

    def carried_dropped(self, move_id: MoveId) -> Copies | None:
        """Forget the copies of a relocation that is over; return what they were."""
        copies = self._registry.copies.pop(move_id, None)
        if copies is not None:
            self._registry.let_go(copies.initialize_id)
        return copies

    def cut_over(self, wpg: WpgRecord) -> None:
        """Note that a WPG took the place of its deployment's current one."""
        record = wpg.deployment
        known = dict.fromkeys((*record.former_nodes, *record.nodes))
        record.wpg = wpg
        record.former_nodes = tuple(n for n in known if n not in record.nodes)
        self.deployment_kept(record)

    def relocation_changed(self, action: actions.RelocationChanged) -> None:
        """Tell how far a relocation is, or why it ended."""
        say = log.info if action.fault is None else log.warning
        say(
            "relocation changed",
            deployment=action.deployment_id,
            stage=action.stage,
            places=" ".join(place.unit for place in action.places),
            reason=action.reason,
            fault="" if action.fault is None else f"{action.fault.code}: {action.fault.message}",
        )

    def deployment_changed(self, action: actions.DeploymentChanged) -> None:
        """Announce a deployment's state."""
        record = self._registry.deployments[action.deployment_id]
        record.state = action.state
        record.fault = action.fault or record.fault
        if action.state is not DeploymentState.STARTING:
            self._settled.tell(record.deployment_id, None)
            self._registry.let_go(record.initialize_id)
        log.info("deployment changed", deployment=action.deployment_id, state=action.state)
        self._add(rows.deployment(record))

    def deployment_lost(self, action: actions.DeploymentLost) -> None:
        """Hold the `Initialize` that rebuilds a deployment, and note since when it is lost."""
        record = self._registry.deployments[action.deployment_id]
        initialize = messages.initialize(record, action.initialize_id)
        self.hold(initialize, OperationKind.INITIALIZE)
        log.warning("deployment lost", deployment=action.deployment_id, why=action.fault.message)
        if record.durable is not None:
            lost_us = self._clock.monotonic_us()
            if record.durable.pause is not None and record.durable.is_lost:
                lost_us = record.durable.pause.lost_us
            record.durable.pause = Rebuilt(why=action.fault.message, lost_us=lost_us)

    def job_changed(self, action: actions.JobChanged) -> None:
        """Announce a job's state."""
        record = self._registry.jobs[action.job_id]
        record.state = action.state
        log.info("job changed", job=action.job_id, state=action.state, reason=action.reason)
        if record.has_ended:
            record.reason = action.reason
            record.device_us = action.device_us
            record.ended_us = self._clock.wall_us()
            for deployment_id in record.deployment_ids:
                deployment = self._registry.deployments[deployment_id]
                if deployment.state is not DeploymentState.FAILED:
                    deployment.state = DeploymentState.STOPPED
                self._settled.tell(deployment_id, None)
                self._registry.let_go(deployment.initialize_id)
            self._ends.tell(record.job_id, None)
            self._drop_answers(of=self._registry.forget_jobs())
        self._add(rows.job(record))

    def _drop_answers(self, *, of: Sequence[DeploymentId]) -> None:
        """Drop answers nobody acknowledged: their deployments are gone, nobody can ask again."""
        for deployment_id in of:
            for operation_id in self._owned.pop(deployment_id, ()):
                del self._answered[operation_id]
                self._remove(operation_id)
                self._results.drop(operation_id)

    def keep_profile(self, action: actions.KeepProfile) -> None:
        """Have a measured cycle stored."""
        self._add(profiles.to_row(action.kept))

    def node_changed(self, row: NodeRow) -> None:
        """Keep whether a node that an operator added is a member."""
        self._add(row)

    def forgotten(self, wpg_id: WpgId) -> None:
        """Drop a WPG that is no more."""
        self._registry.by_wpg.pop(wpg_id, None)

    def _end(self, operation_id: OperationId) -> Held | None:
        """Hold an operation no longer; its staged inputs are dropped later."""
        held = self._registry.let_go(operation_id)
        if held is not None:
            self._let_go[operation_id] = DeploymentId(held.operation.deployment_id)
        return held

    def _keep(self, held: Held, result: Result) -> None:
        """Keep the answer of a client's operation until it is acknowledged."""
        if held.kind is OperationKind.INITIALIZE:
            return
        operation_id = OperationId(held.operation.operation_id)
        self._results.keep(operation_id, result)
        deployment_id = DeploymentId(held.operation.deployment_id)
        self._answered[operation_id] = _AnsweredOperation(deployment_id, held.operation.digest)
        self._owned.setdefault(deployment_id, {})[operation_id] = None
        self._add_operation(held, result)

    def _add_operation(self, held: Held, result: Result) -> None:
        record = self._registry.deployments.get(DeploymentId(held.operation.deployment_id))
        is_durable = record is not None and record.durable is not None
        self._operations[OperationId(held.operation.operation_id)] = rows.operation(
            held,
            result,
            incarnation=1 if record is None or record.wpg is None else record.wpg.incarnation,
            answered_us=self._clock.wall_us(),
            keeps_answer=is_durable or held.kind in COPYING_KINDS,
        )
        self.dirty.set()

    def _remove(self, operation_id: OperationId) -> None:
        """Have the row of an operation deleted, or not written."""
        if not isinstance(self._operations.pop(operation_id, None), OperationRow):
            self._operations[operation_id] = OperationGone(operation_id=operation_id)
            self.dirty.set()

    def _add(self, row: Row) -> None:
        self._rows.append(row)
        self.dirty.set()
