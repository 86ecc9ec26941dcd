"""Admission: jobs, operations by their deployment's order and bounds, payloads."""

from __future__ import annotations

from typing import Final

from plexsvc.errors import RETRYABLE, ErrorCode
from plexsvc.ids import OperationId, show
from plexsvc.scheduler.core.actions import DropPayload
from plexsvc.scheduler.core.cluster import Queues
from plexsvc.scheduler.core.events import (
    OperationSubmitted,
    PayloadRefused,
    PayloadStaged,
    PayloadUnderWay,
)
from plexsvc.scheduler.core.queues import endings, lanes
from plexsvc.scheduler.core.state import DeploymentEntry, Operation
from plexsvc.scheduler.core.timers import Timer
from plexsvc.scheduler.core.vocabulary import (
    DeploymentState,
    Fault,
    OperationKind,
    OperationState,
    OperationTrigger,
)

_ENDED: Final = frozenset({OperationState.ANSWERED, OperationState.REFUSED, OperationState.FAILED})


def submit(queues: Queues, event: OperationSubmitted) -> None:
    """Queue an operation, or refuse it with nothing recorded. A known id changes nothing."""
    if event.operation_id in queues.operations:
        return
    fault = _why_not(queues, event)
    if fault is not None:
        endings.tell_refused(
            queues, event.operation_id, fault, state=OperationState.REFUSED, is_final=False
        )
        # A retryable one comes again under its id, and finds its payload there.
        if not event.is_staged and fault.code not in RETRYABLE:
            queues.emit(DropPayload(operation_id=event.operation_id))
        if fault.code is ErrorCode.DEPLOYMENT_FAILED:
            # Remembered: what comes after it is refused, too, and does not wait for it.
            job = queues.jobs[event.job_id]
            job.turned_away[event.operation_id] = fault
            endings.wake_dependants(queues, event.operation_id, job)
        return
    deployment = queues.deployments[event.deployment_id]
    operation = Operation(
        operation_id=event.operation_id,
        deployment_id=event.deployment_id,
        job_id=event.job_id,
        seq=event.seq,
        kind=event.kind,
        after=event.after,
        submitted_us=event.at_us,
        num_tokens=event.num_tokens,
        traceparent=event.traceparent,
        is_inline=event.is_staged,
        is_on_host=deployment.steps_on_host and event.kind is OperationKind.STEP,
        payload_us=event.at_us,
    )
    operation.apply(OperationTrigger.ACCEPTED)
    if event.is_staged:
        operation.apply(OperationTrigger.PAYLOAD_ARRIVED)
    else:
        at_us = event.at_us + queues.limits.staging_timeout_us
        queues.set_timer(Timer.STAGE, event.operation_id, at_us=at_us)
    queues.operations[event.operation_id] = operation
    deployment.pending[event.seq] = operation
    lanes.watch_gap(queues, deployment)
    queues.touch(deployment.wpg_id)


def payload(queues: Queues, event: PayloadUnderWay | PayloadStaged | PayloadRefused) -> None:
    """Make an operation eligible whose inputs arrived, or refuse it, or have it wait for more.

    Inputs that come again after their operation has ended would stay: nothing else drops them.
    """
    operation = queues.operations.get(event.operation_id)
    if isinstance(event, PayloadUnderWay):
        if operation is not None:
            operation.payload_us = queues.now_us
        return
    if operation is None or operation.state in _ENDED:
        queues.emit(DropPayload(operation_id=event.operation_id))
        return
    if operation.state is not OperationState.QUEUED:
        return
    if isinstance(event, PayloadRefused):
        lanes.drop(queues, operation, event.fault)
        return
    operation.apply(OperationTrigger.PAYLOAD_ARRIVED)
    queues.touch(queues.deployments[operation.deployment_id].wpg_id)


def give_up_staging(queues: Queues, operation_id: OperationId) -> None:
    """Refuse an operation of whose payload nothing came in time."""
    operation = queues.operations[operation_id]
    until_us = operation.payload_us + queues.limits.staging_timeout_us
    if until_us > queues.now_us:
        queues.set_timer(Timer.STAGE, operation_id, at_us=until_us)
        return
    fault = Fault(
        code=ErrorCode.STAGING_TIMEOUT,
        message=f"{show(operation_id)}: nothing of its payload arrived for "
        f"{queues.limits.staging_timeout_us // 1_000_000} s; "
        "submit it again with the next number",
    )
    lanes.drop(queues, operation, fault)


def _why_not(queues: Queues, event: OperationSubmitted) -> Fault | None:
    """Return why an operation cannot be queued; `None` if it can."""
    name = show(event.operation_id)
    deployment = queues.deployments.get(event.deployment_id)
    job = queues.jobs.get(event.job_id)
    if job is not None and event.operation_id in job.released:
        return Fault(
            code=ErrorCode.RESULT_GONE,
            message=f"{name} was answered and its answer acknowledged or dropped; "
            "use the answer you had",
        )
    if job is None or job.ending is not None:
        return Fault(
            code=ErrorCode.JOB_ENDED,
            message=f"{name} not accepted: job {event.job_id} has ended; start another",
        )
    if deployment is None or deployment.job_id != event.job_id:
        return Fault(
            code=ErrorCode.NOT_FOUND,
            message=f"{name} names deployment {event.deployment_id!r}, which job {event.job_id} "
            "does not have; create it first",
        )
    if deployment.state in {DeploymentState.FAILED, DeploymentState.STOPPED}:
        cause = deployment.fault
        found = "stopped" if cause is None else f"failed with {cause.code}: {cause.message}"
        return Fault(
            code=ErrorCode.DEPLOYMENT_FAILED,
            message=f"{name} not accepted: {deployment.deployment_id} has {found}",
            facts=() if cause is None else (("cause", str(cause.code)), *cause.facts),
        )
    return _order_fault(queues, deployment, event)


def _order_fault(
    queues: Queues, deployment: DeploymentEntry, event: OperationSubmitted
) -> Fault | None:
    name, limits = show(event.operation_id), queues.limits
    is_used = event.seq < deployment.next_seq
    if is_used or event.seq in deployment.pending or event.seq in deployment.consumed:
        return Fault(
            code=ErrorCode.STALE_SEQUENCE,
            message=f"{name} carries seq {event.seq} of {event.deployment_id}, which another "
            f"operation used; the next free one is {lanes.first_missing(deployment)}",
            facts=(("seq", str(event.seq)), ("next_seq", str(lanes.first_missing(deployment)))),
        )
    missing = lanes.first_missing(deployment)
    if event.seq > missing + limits.max_gap:
        return Fault(
            code=ErrorCode.SEQUENCE_GAP,
            message=f"{name} carries seq {event.seq} of {event.deployment_id}, but seq "
            f"{missing} has "
            f"not come; at most {limits.max_gap} may be ahead of it",
            facts=(("seq", str(event.seq)), ("missing_seq", str(missing))),
        )
    # A full line takes what all in it wait for.
    fills_gap = event.seq == missing and deployment.gap_seq == missing
    if len(deployment.pending) >= limits.max_pending_per_wpg and not fills_gap:
        return Fault(
            code=ErrorCode.QUEUE_FULL,
            message=f"{name} not accepted: {event.deployment_id} already has "
            f"{len(deployment.pending)} pending operations; "
            "await some of them and submit again",
            facts=(("limit", str(limits.max_pending_per_wpg)),),
        )
    return None
