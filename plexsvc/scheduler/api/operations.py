"""Intake of operations: submissions, their payloads, their results.

A payload may be staged before its operation comes. The scheduler then keeps the announcement until
the core has accepted the operation, for as long as an operation would wait for its payload. So the
core always sees `OperationSubmitted` before `PayloadStaged`.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from typing import Final

from plexclient.ids import OPERATION_ID_BYTES
from plexclient.wire.errors import refused, to_wire
from plexclient.wire.v1 import operations_pb2, service_pb2
from plexsvc.clock import Clock
from plexsvc.errors import ErrorCode, PlexError, bad_request, not_found, unavailable
from plexsvc.ids import DeploymentId, JobId, NodeId, OperationId, show
from plexsvc.scheduler.core.events import (
    CancelRequested,
    OperationSubmitted,
    PayloadRefused,
    PayloadStaged,
    PayloadUnderWay,
)
from plexsvc.scheduler.core.state import Operation
from plexsvc.scheduler.core.vocabulary import TERMINAL, OperationKind
from plexsvc.scheduler.driver.inbox import Decision, Posted
from plexsvc.scheduler.faults import fault_from_wire, refusal
from plexsvc.scheduler.ledger.results import num_tokens, staged_ids
from plexsvc.scheduler.live import LiveScheduler
from plexsvc.scheduler.orders import run

MAX_EARLY_BYTES: Final = 64 << 20
"""Announcements kept for operations that have not come; the next is refused with `staging_full`."""


ARRIVAL_LOOKS: Final = 50
ARRIVAL_LOOK_US: Final = 10_000
"""How often, and how far apart, it is looked for an operation whose stream came before it."""


class Submissions:
    """Submissions: checks what only the scheduler can know, and posts the facts."""

    def __init__(self, scheduler: LiveScheduler) -> None:
        self._scheduler = scheduler
        keep_us = scheduler.config.staging_timeout_us
        self._early = EarlyPayloads(scheduler.clock, max_bytes=MAX_EARLY_BYTES, keep_us=keep_us)

    async def submit(self, operation: operations_pb2.Operation) -> operations_pb2.OperationResult:
        """Run, attach to or answer an operation from the record; errors travel in the result."""
        operation_id = OperationId(operation.operation_id)
        try:
            self._scheduler.recorder.check_same(operation)
            if not self._is_of(operation_id, operation.job_id):
                raise _not_ours(operation_id, operation.job_id)
            known = self._scheduler.results.get(operation_id)
            if known is not None:
                return known
            if operation_id not in self._scheduler.registry.held:
                former = self._scheduler.cluster.operations.get(operation_id)
                if former is not None and former.job_id != operation.job_id:
                    raise _not_ours(operation_id, operation.job_id)
                if former is not None and former.state in TERMINAL:
                    return await self._recall(operation, former)
                self._take(operation)
        except PlexError as error:
            return refused(operation_id, error)
        return await self._scheduler.results.wait(operation_id)

    def _take(self, operation: operations_pb2.Operation) -> None:
        """Hold an operation: post one that is new, take back one of a former scheduler.

        Raises:
            PlexError: what keeps it from being held; nothing is recorded then.
        """
        operation_id = OperationId(operation.operation_id)
        if operation_id not in self._scheduler.registry.missing:
            event = self._hold(operation)
            try:
                posted = self._scheduler.post(event)
            except BaseException:
                self._scheduler.registry.let_go(operation_id)  # a repeat would wait for nothing
                raise
            self._follow(operation, event, posted)
            return
        self._scheduler.recorder.hold(operation, self._check(operation))
        if operation.payload.WhichOneof("form") != "staged":
            self._scheduler.recorder.arrived(operation_id)
        elif request := self._early.take((JobId(operation.job_id), operation_id)):
            self._announce(request)

    async def _recall(
        self, operation: operations_pb2.Operation, former: Operation
    ) -> operations_pb2.OperationResult:
        """Answer an operation that ended under a former scheduler, which had the answer.

        Raises:
            PlexError: `result_gone` when nobody has it any more.
        """
        self._check(operation)
        if former.operation_id not in self._scheduler.registry.answered_before:
            raise _result_gone(former.operation_id)
        if former.fault is not None:
            result = refusal(former.operation_id, former.fault, state=former.state)
        else:
            cluster = self._scheduler.cluster
            wpg = cluster.wpg_of(cluster.deployments[former.deployment_id])
            lease_no = 0 if wpg is None else wpg.lease_no
            reach, ran_on = self._scheduler.reach, former.wpg_id
            result = await run.recall(reach, operation, lease_no=lease_no, ran_on=ran_on)
        self._scheduler.recorder.recalled(operation, former.kind, result)
        return result

    async def get_result(
        self, request: service_pb2.GetResultRequest
    ) -> operations_pb2.OperationResult:
        """Return a kept answer; wait for that of an operation under way.

        When told not to wait, return whether it was answered.

        Raises:
            PlexError: `not_found` job, or `result_gone`; `not_found` for an operation that has not
                come and does not come at once, when not to wait for its answer.
        """
        self._scheduler.registry.job(request.job_id, tenant=request.tenant)
        operation_id = OperationId(request.operation_id)
        if request.no_wait:
            await self._arrival(operation_id, request.job_id)
            found = operations_pb2.OperationResult(operation_id=operation_id)
            is_former = operation_id in self._scheduler.registry.answered_before
            if is_former or self._scheduler.results.get(operation_id) is not None:
                found.state = operations_pb2.OPERATION_STATE_ANSWERED
            return found
        is_ours = self._is_of(operation_id, request.job_id)
        known = self._scheduler.results.get(operation_id) if is_ours else None
        if known is not None:
            record = self._scheduler.recorder.deployment_of(operation_id)
            durable = None if record is None else record.durable
            if durable is not None and durable.is_lost and staged_ids(known):
                raise unavailable(
                    f"the deployment of {show(operation_id)} is rebuilt, and what it answered may "
                    "be elsewhere then; ask again"
                )
            return known
        if is_ours and operation_id in self._scheduler.registry.missing:
            raise unavailable(
                f"{show(operation_id)} is known from before the service was started again, and its "
                "client has not sent it again; ask again"
            )
        if not is_ours or operation_id not in self._scheduler.registry.held:
            raise _result_gone(operation_id)
        return await self._scheduler.results.wait(operation_id)

    async def _arrival(self, operation_id: OperationId, job_id: str) -> None:
        """Return when the job's operation has come: the question may be a little ahead of it.

        Raises:
            PlexError: `not_found`; `unavailable` while clients come back after a takeover.
        """
        for _ in range(ARRIVAL_LOOKS):
            found = self._scheduler.recorder.deployment_of(operation_id)
            if found is not None and found.job_id == job_id:
                return
            former = self._scheduler.cluster.operations.get(operation_id)
            is_answered = operation_id in self._scheduler.registry.answered_before
            if is_answered and former is not None and former.job_id == job_id:
                return
            await self._scheduler.clock.sleep(ARRIVAL_LOOK_US)
        if self._scheduler.took_over_lately:
            raise unavailable(
                f"the service was started again, and {show(operation_id)} has not been sent again; "
                "ask again"
            )
        raise not_found(
            f"job {job_id!r} has no operation {show(operation_id)}: submit it, then ask again"
        )

    async def cancel(
        self, request: service_pb2.CancelOperationRequest
    ) -> service_pb2.CancelOperationReply:
        """Ask for the end of an operation; its answer tells those who wait for it.

        Raises:
            PlexError: `not_found` for an operation of another job, or one that has not come.
        """
        self._scheduler.registry.job(request.job_id, tenant=request.tenant)
        operation_id = OperationId(request.operation_id)
        held = self._scheduler.registry.held.get(operation_id)
        if held is not None and held.operation.job_id == request.job_id:
            await self._scheduler.post(CancelRequested(operation_id=operation_id)).decision
        elif self._scheduler.results.get(operation_id) is None:
            raise not_found(
                f"{show(operation_id)} is not cancelled: job {request.job_id!r} has no such "
                "operation"
            )
        return service_pb2.CancelOperationReply()

    async def payload_staged(
        self, request: service_pb2.PayloadStagedRequest
    ) -> service_pb2.PayloadStagedReply:
        """Note what became of an operation's payload, whether the operation has come or not.

        Raises:
            PlexError: `staging_full` when too much is announced for operations that have not come;
                `not_found` job or deployment; `bad_request` for another job's operation.
        """
        operation_id = OperationId(request.operation_id)
        cluster = self._scheduler.cluster
        self._scheduler.registry.deployment(
            request.deployment_id, job_id=request.job_id, tenant=request.tenant
        )
        if not self._is_of(operation_id, request.job_id):
            raise _not_ours(operation_id, request.job_id)
        if request.is_under_way:
            if operation_id in cluster.operations:
                self._scheduler.post(PayloadUnderWay(operation_id=operation_id))
        elif cluster.knows(JobId(request.job_id), operation_id) and not self._is_away(operation_id):
            self._announce(request)
        else:
            for expired in self._early.keep(request):
                self._drop(expired)
        return service_pb2.PayloadStagedReply()

    def _is_away(self, operation_id: OperationId) -> bool:
        """Whether an operation of a former scheduler has not been sent again."""
        registry = self._scheduler.registry
        return operation_id in registry.missing and operation_id not in registry.held

    def _drop(self, announced: service_pb2.PayloadStagedRequest) -> None:
        """Free inputs whose operation never came: the core orders it for what it does not know."""
        operation_id = OperationId(announced.operation_id)
        if self._scheduler.recorder.deployment_of(operation_id) is None:
            deployment_id = DeploymentId(announced.deployment_id)
            self._scheduler.recorder.never_came(operation_id, deployment_id)
            self._scheduler.post(PayloadStaged(operation_id=operation_id))

    def _is_of(self, operation_id: OperationId, job_id: str) -> bool:
        """Whether an id is a job's, or nobody's yet: ids mean something within their job alone."""
        record = self._scheduler.recorder.deployment_of(operation_id)
        return record is None or record.job_id == job_id

    def _hold(self, operation: operations_pb2.Operation) -> OperationSubmitted:
        """Hold a new operation and return what the core is told of it.

        Raises:
            PlexError: what keeps it from being posted; nothing is recorded then.
        """
        kind = self._check(operation)
        operation_id = OperationId(operation.operation_id)
        self._check_source(operation)
        is_refused = operation.HasField("refusal")
        submitted = OperationSubmitted(
            operation_id=operation_id,
            job_id=JobId(operation.job_id),
            deployment_id=DeploymentId(operation.deployment_id),
            seq=operation.seq,
            kind=kind,
            after=tuple(map(OperationId, operation.after)),
            is_staged=operation.payload.WhichOneof("form") != "staged" and not is_refused,
            num_tokens=num_tokens(operation.payload),
            traceparent=operation.traceparent,
        )
        self._scheduler.recorder.hold(operation, kind)
        return submitted

    def _follow(
        self, operation: operations_pb2.Operation, event: OperationSubmitted, posted: Posted
    ) -> None:
        """Tell the core next that the router refused it, or what of its payload came before it."""
        operation_id = event.operation_id
        if operation.HasField("refusal"):
            fault = fault_from_wire(operation.refusal)
            self._scheduler.post(PayloadRefused(operation_id=operation_id, fault=fault))
        elif not event.is_staged:
            posted.decision.add_done_callback(lambda decided: self._decided(operation_id, decided))

    def _check_source(self, operation: operations_pb2.Operation) -> None:
        """Have a pull refused that takes another job's weights, or adapters of another model."""
        if operation.WhichOneof("body") != OperationKind.PULL or operation.HasField("refusal"):
            return
        find = partial(
            self._scheduler.registry.deployment, job_id=operation.job_id, tenant=operation.tenant
        )
        try:
            source = find(operation.pull.source_deployment_id)
            _check_adapters(source.spec, find(operation.deployment_id).spec)
        except PlexError as error:
            operation.refusal.CopyFrom(to_wire(error))

    def _decided(self, operation_id: OperationId, decision: Decision) -> None:
        """Announce what was staged before the operation came, unless the core refused it."""
        is_decided = not decision.cancelled() and decision.exception() is None
        if is_decided and operation_id in self._scheduler.cluster.operations:
            job_id = self._scheduler.cluster.operations[operation_id].job_id
            request = self._early.take((job_id, operation_id))
            if request is not None:
                self._announce(request)

    def _announce(self, request: service_pb2.PayloadStagedRequest) -> None:
        operation_id = OperationId(request.operation_id)
        if request.HasField("error"):
            fault = fault_from_wire(request.error)
            self._scheduler.post(PayloadRefused(operation_id=operation_id, fault=fault))
            return
        held = self._scheduler.registry.held.get(operation_id)
        if held is not None:
            plan = request.plan if request.HasField("plan") else None
            self._scheduler.recorder.staged(held, on=map(NodeId, request.node_ids), plan=plan)
        self._scheduler.post(PayloadStaged(operation_id=operation_id))

    def _check(self, operation: operations_pb2.Operation) -> OperationKind:
        """Refuse what no deployment could run; return the operation's kind."""
        self._scheduler.check_open()
        record = self._scheduler.registry.job(operation.job_id, tenant=operation.tenant)
        record.check_controller(operation.controller)
        self._scheduler.caps.check(record.tenant)
        body = operation.WhichOneof("body")
        if len(operation.operation_id) != OPERATION_ID_BYTES:
            raise bad_request(
                f"operation id has {len(operation.operation_id)} bytes; mint {OPERATION_ID_BYTES}"
            )
        if body is None or body == OperationKind.INITIALIZE or not operation.seq:
            raise bad_request(
                f"{show(operation.operation_id)} has body {body!r} and seq {operation.seq}; "
                "give it something to do and a number from 1"
            )
        return OperationKind(body)


@dataclass(frozen=True, slots=True)
class _Early:
    request: service_pb2.PayloadStagedRequest
    nbytes: int
    until_us: int


class EarlyPayloads:
    """Announcements of payloads whose operations have not come: bounded in bytes and in time.

    They are kept in the order in which they expire.
    """

    def __init__(self, clock: Clock, *, max_bytes: int, keep_us: int) -> None:
        self._clock = clock
        self._max_bytes = max_bytes
        self._keep_us = keep_us
        self._kept: OrderedDict[tuple[JobId, OperationId], _Early] = OrderedDict()
        self._bytes = 0

    def keep(
        self, request: service_pb2.PayloadStagedRequest
    ) -> list[service_pb2.PayloadStagedRequest]:
        """Keep an announcement; return those that have expired.

        Raises:
            PlexError: `staging_full`.
        """
        now_us = self._clock.monotonic_us()
        late = list(takewhile(lambda key: self._kept[key].until_us <= now_us, self._kept))
        expired = [self._kept[key].request for key in late]
        key = (JobId(request.job_id), OperationId(request.operation_id))
        nbytes = request.ByteSize()
        for known in (*late, key):
            self.take(known)
        if self._bytes + nbytes > self._max_bytes:
            raise PlexError(
                ErrorCode.STAGING_FULL,
                f"the payload of {show(key[1])} not accepted: {self._bytes} bytes are "
                f"announced for operations that have not come, at most {self._max_bytes}; submit "
                "the operation, then send the payload again",
                limit=self._max_bytes,
            )
        self._kept[key] = _Early(request, nbytes, now_us + self._keep_us)
        self._bytes += nbytes
        return expired

    def take(self, key: tuple[JobId, OperationId]) -> service_pb2.PayloadStagedRequest | None:
        """Return the announcement of a job's operation and keep it no longer."""
        early = self._kept.pop(key, None)
        if early is None:
            return None
        self._bytes -= early.nbytes
        return early.request


def _check_adapters(source: service_pb2.DeploymentSpec, target: service_pb2.DeploymentSpec) -> None:
    """Refuse adapters to deployments that cannot merge them into their model.

    Raises:
        PlexError: `bad_request`.
    """
    if source.HasField("lora") and (target.role != "rollout" or target.model != source.model):
        raise bad_request(
            f"adapters of model {source.model!r} cannot be pulled by role {target.role!r} with "
            f"model {target.model!r}; a rollout of the same model merges them"
        )


def _not_ours(operation_id: OperationId, job_id: str) -> PlexError:
    return bad_request(f"{show(operation_id)} is no operation of job {job_id!r}; mint another id")


def _result_gone(operation_id: OperationId) -> PlexError:
    return PlexError(
        ErrorCode.RESULT_GONE,
        f"{show(operation_id)} is not known: its answer was acknowledged or dropped",
    )
