"""One deployment's order: sequence numbers, gaps, dependencies, and how an operation ends.

Operations of a deployment start in the order of their numbers. A number is *consumed* when its
operation started or was finally refused; a retryable refusal consumes nothing. A missing number
holds its successors for `gap_timeout_us`, then they are refused and the number is void.
"""

from __future__ import annotations

from typing import Final

from plexsvc.errors import RETRYABLE, ErrorCode
from plexsvc.ids import DeploymentId, OperationId, show
from plexsvc.scheduler.core.actions import (
    AnswerOperation,
    DropPayload,
    RefuseOperation,
    ReleaseOperation,
)
from plexsvc.scheduler.core.cluster import Queues
from plexsvc.scheduler.core.events import Acknowledged
from plexsvc.scheduler.core.state import Deployment, Job, Operation, Wpg
from plexsvc.scheduler.core.timers import AfterTimer, GapTimer
from plexsvc.scheduler.core.transitions import TERMINAL, OperationTrigger
from plexsvc.scheduler.core.vocabulary import Fault, OperationKind, OperationState

OPENS_WINDOW: Final = frozenset({OperationKind.FORWARD_BACKWARD, OperationKind.BACKWARD})
CLOSES_WINDOW: Final = frozenset({OperationKind.STEP, OperationKind.ZERO_GRAD, OperationKind.LOAD})
"""Kinds after which gradients are accumulated, and kinds after which none are."""


def first_missing(deployment: Deployment) -> int:
    """Return the lowest number that has not come yet."""
    seq = deployment.next_seq
    while seq in deployment.pending or seq in deployment.consumed:
        seq += 1
    return seq


def advance(deployment: Deployment) -> None:
    """Step over numbers whose operations were refused."""
    while deployment.next_seq in deployment.consumed:
        deployment.consumed.remove(deployment.next_seq)
        deployment.next_seq += 1


def head(queues: Queues, wpg: Wpg) -> Operation | None:
    """Return what a WPG starts next: its `Initialize`, else the first of its deployment's line."""
    if wpg.initialize is not None or not queues.is_current(wpg):
        return wpg.initialize
    deployment = queues.deployments[wpg.deployment_id]
    return deployment.pending.get(deployment.next_seq)


def begin(queues: Queues, wpg: Wpg, operation: Operation) -> None:
    """Take the head of the line out of it: its number is consumed."""
    wpg.running[operation.operation_id] = operation
    operation.wpg_id = wpg.wpg_id
    if operation is wpg.initialize:
        wpg.initialize = None
        return
    deployment = queues.deployments[wpg.deployment_id]
    del deployment.pending[operation.seq]
    deployment.next_seq = operation.seq + 1
    advance(deployment)
    watch_gap(queues, deployment)


def watch_gap(queues: Queues, deployment: Deployment) -> None:
    """Notice the start or the end of a gap and set its timer."""
    missing = first_missing(deployment)
    has_gap = bool(deployment.pending) and max(deployment.pending) > missing
    if not has_gap:
        deployment.gap_seq = None
    elif deployment.gap_seq != missing:
        deployment.gap_seq, deployment.gap_since_us = missing, queues.now_us
        at_us = queues.now_us + queues.limits.gap_timeout_us
        queues.set_timer(GapTimer(deployment.deployment_id), at_us=at_us)


def close_gap(queues: Queues, deployment_id: DeploymentId) -> None:
    """End the wait for a missing number if it has lasted too long."""
    deployment = queues.deployments.get(deployment_id)
    if deployment is None:
        return
    missing, waited_us = deployment.gap_seq, queues.now_us - deployment.gap_since_us
    if missing is not None and waited_us >= queues.limits.gap_timeout_us:
        _void(queues, deployment, missing, waited_us=waited_us)
    queues.touch(deployment.wpg_id)


def _void(queues: Queues, deployment: Deployment, missing: int, *, waited_us: int) -> None:
    """Refuse what waits behind a number that never came, and consume the number."""
    stranded = [op for seq, op in sorted(deployment.pending.items()) if seq > missing]
    void = {*range(missing, stranded[-1].seq + 1)} - {op.seq for op in stranded}
    deployment.consumed |= void - deployment.consumed
    for operation in stranded:
        fault = Fault(
            code=ErrorCode.SEQUENCE_GAP,
            message=f"{show(operation.operation_id)} (seq {operation.seq}) waited "
            f"{waited_us // 1000} ms for seq {missing} of {operation.deployment_id}, which "
            "never came (scheduler.gap_timeout_us); submit it again with the next number",
            facts=(("missing_seq", str(missing)), ("seq", str(operation.seq))),
        )
        refuse(queues, operation, fault)
    watch_gap(queues, deployment)


def dependency(queues: Queues, operation: Operation) -> OperationId | Fault | None:
    """Return the first `after` that is not over, a fault if one failed, or `None`."""
    for operation_id in operation.after:
        known = queues.operations.get(operation_id)
        succeeded = queues.released.get(operation_id)
        if known is not None and known.state in TERMINAL:
            succeeded = known.state is OperationState.ANSWERED
        if succeeded is None and operation_id not in queues.turned_away:
            return operation_id
        if not succeeded:
            cause = queues.turned_away.get(operation_id) if known is None else known.fault
            return _dependency_failed(operation, operation_id, cause)
    return None


def startable(queues: Queues, wpg: Wpg) -> Operation | None:
    """Return the head of a WPG's line if nothing but a device keeps it from running."""
    if wpg.initialize is not None:
        return wpg.initialize
    deployment = queues.deployments[wpg.deployment_id]
    while queues.is_current(wpg) and not deployment.is_held:
        operation = deployment.pending.get(deployment.next_seq)
        if operation is None or operation.state is not OperationState.STAGED:
            return None
        if wpg.running and not _may_overlap(queues, wpg, operation):
            return None
        blocked = dependency(queues, operation)
        if isinstance(blocked, Fault):
            refuse(queues, operation, blocked)
            watch_gap(queues, deployment)
            continue
        if blocked is not None and deployment.waits_for != blocked:
            _wait_for_unknown(queues, operation)
        deployment.waits_for = blocked
        if blocked is not None:
            return None
        if operation.eligible_us is None:
            operation.eligible_us = queues.now_us
        return operation
    return None


def give_up_unseen(queues: Queues, operation_id: OperationId) -> None:
    """Refuse an operation that still comes after one that nobody has submitted."""
    operation = queues.operations.get(operation_id)
    if operation is None or operation.state is not OperationState.STAGED:
        return
    unseen = [o for o in operation.after if o not in queues.operations and o not in queues.released]
    if not unseen:
        return
    fault = Fault(
        code=ErrorCode.DEPENDENCY_FAILED,
        message=f"{show(operation_id)} not run: it comes after {show(unseen[0])}, which "
        f"nobody submitted within {queues.limits.gap_timeout_us // 1_000_000} s "
        "(scheduler.gap_timeout_us)",
        facts=(("operation", unseen[0].hex()),),
    )
    drop(queues, operation, fault)


def turn_away(queues: Queues, operation_id: OperationId, job: Job, fault: Fault) -> None:
    """Remember (bounded) that an operation will never run, for those that come after it."""
    queues.turned_away[operation_id] = fault
    _wake_dependants(queues, operation_id, job)


def answer(queues: Queues, operation: Operation, *, run_us: int) -> None:
    """Mark an operation applied and answered."""
    operation.apply(OperationTrigger.APPLIED)
    operation.apply(OperationTrigger.ANSWERED)
    deployment = queues.deployments[operation.deployment_id]
    if operation.kind in OPENS_WINDOW | CLOSES_WINDOW:
        deployment.is_window_open = operation.kind in OPENS_WINDOW
    queues.emit(
        AnswerOperation(
            operation_id=operation.operation_id,
            queued_us=max(0, operation.granted_us - operation.submitted_us),
            switch_us=max(0, operation.started_us - operation.granted_us),
            run_us=run_us,
        )
    )
    _keep(queues, operation)


def refuse(queues: Queues, operation: Operation, fault: Fault, *, is_final: bool = True) -> None:
    """End an operation that waits; a final refusal consumes its number."""
    deployment = queues.deployments[operation.deployment_id]
    if operation.state is OperationState.GRANTED:
        operation.apply(OperationTrigger.WITHDRAWN)
    operation.apply(OperationTrigger.REFUSED)
    operation.fault = fault
    if operation.kind is OperationKind.INITIALIZE:
        _wpg_of(queues, operation).initialize = None
    else:
        del deployment.pending[operation.seq]
        if is_final:
            deployment.consumed.add(operation.seq)
            advance(deployment)
    _say_refused(queues, operation, fault, is_final=is_final)


def drop(queues: Queues, operation: Operation, fault: Fault) -> None:
    """Refuse an operation that waits, finally; its successors go on."""
    deployment = queues.deployments[operation.deployment_id]
    refuse(queues, operation, fault)
    watch_gap(queues, deployment)
    queues.touch(deployment.wpg_id)


def end_running(
    queues: Queues, operation: Operation, fault: Fault, *, is_refusal: bool = False
) -> None:
    """End an operation that ran and did not succeed; its place among the running is gone already.

    A retryable fault gives the number back when nothing after it has started; else it is final.
    An `Initialize` has no number in the line: nothing can have started after it.
    """
    deployment = queues.deployments[operation.deployment_id]
    is_numbered = operation.kind is not OperationKind.INITIALIZE
    is_next = deployment.next_seq == operation.seq + 1
    is_last = is_next and not _wpg_of(queues, operation).running
    is_final = fault.code not in RETRYABLE or (is_numbered and not is_last)
    if fault.code in RETRYABLE and is_final:
        fault = Fault(code=ErrorCode.INTERNAL, message=fault.message, facts=fault.facts)
    refused = is_refusal or not is_final
    operation.apply(OperationTrigger.REFUSED if refused else OperationTrigger.FAILED)
    operation.fault = fault
    if operation.kind in OPENS_WINDOW and not is_refusal:
        deployment.is_window_open = True  # it may have added some gradients, and not others
    if is_numbered and not is_final:
        deployment.next_seq = operation.seq
    _say_refused(queues, operation, fault, is_final=is_final)


def release(queues: Queues, operation: Operation) -> None:
    """Drop the record of an answered operation; dependants still learn its outcome (bounded)."""
    succeeded = operation.state is OperationState.ANSWERED
    operation.apply(OperationTrigger.RELEASED)
    del queues.operations[operation.operation_id]
    queues.released[operation.operation_id] = succeeded
    queues.emit(ReleaseOperation(operation_id=operation.operation_id))


def acknowledge(queues: Queues, event: Acknowledged) -> None:
    """Release every answered operation up to the number that the client has answers for."""
    deployment = queues.deployments.get(event.deployment_id)
    if deployment is None:
        return
    for number in [n for n in deployment.answered if n <= event.seq]:
        release(queues, queues.operations[deployment.answered.pop(number)])


def _may_overlap(queues: Queues, wpg: Wpg, operation: Operation) -> bool:
    return (
        wpg.is_rollout
        and operation.kind is OperationKind.GENERATE
        and len(wpg.running) < queues.limits.max_overlapping_generates
        and all(o.kind is OperationKind.GENERATE for o in wpg.running.values())
    )


def _wait_for_unknown(queues: Queues, operation: Operation) -> None:
    """Bound the wait for an `after` that nobody has submitted yet."""
    unseen = [o for o in operation.after if o not in queues.operations]
    if unseen:
        at_us = queues.now_us + queues.limits.gap_timeout_us
        queues.set_timer(AfterTimer(operation.operation_id), at_us=at_us)


def _say_refused(queues: Queues, operation: Operation, fault: Fault, *, is_final: bool) -> None:
    queues.emit(
        RefuseOperation(
            operation_id=operation.operation_id,
            state=operation.state,
            fault=fault,
            is_final=is_final,
        )
    )
    if is_final:
        _keep(queues, operation)
    else:
        del queues.operations[operation.operation_id]


def _keep(queues: Queues, operation: Operation) -> None:
    """Keep an answer until it is acknowledged, within the bound, and wake who depends on it."""
    operation.finished_us = queues.now_us
    deployment = queues.deployments[operation.deployment_id]
    if not operation.is_inline:
        queues.emit(DropPayload(operation_id=operation.operation_id))
    if operation.kind is not OperationKind.INITIALIZE:
        deployment.answered[operation.seq] = operation.operation_id
    elif operation.operation_id != deployment.initialize_id:
        del queues.operations[operation.operation_id]  # a relocation's: no client knows its id
    if len(deployment.answered) > queues.limits.max_answered_per_deployment:
        oldest = next(iter(deployment.answered))
        release(queues, queues.operations[deployment.answered.pop(oldest)])
    _wake_dependants(queues, operation.operation_id, queues.jobs[operation.job_id])


def _wpg_of(queues: Queues, operation: Operation) -> Wpg:
    assert operation.wpg_id is not None, operation
    return queues.wpgs[operation.wpg_id]


def _wake_dependants(queues: Queues, operation_id: OperationId, job: Job) -> None:
    for deployment_id in job.deployments:
        deployment = queues.deployments[deployment_id]
        if deployment.waits_for == operation_id:
            queues.touch(deployment.wpg_id)


def _dependency_failed(
    operation: Operation, operation_id: OperationId, cause: Fault | None
) -> Fault:
    found = "failed" if cause is None else f"ended with {cause.code}: {cause.message}"
    return Fault(
        code=ErrorCode.DEPENDENCY_FAILED,
        message=f"{show(operation.operation_id)} not run: {show(operation_id)}, which it comes "
        f"after, {found}",
        facts=(
            ("operation", operation_id.hex()),
            ("cause", "" if cause is None else cause.code),
        ),
    )
