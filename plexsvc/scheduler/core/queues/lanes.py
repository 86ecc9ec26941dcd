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
from plexsvc.scheduler.core.state import Cluster, Deployment, Job, Operation, Wpg
from plexsvc.scheduler.core.timers import AfterTimer, GapTimer
from plexsvc.scheduler.core.transitions import TERMINAL, OperationTrigger
from plexsvc.scheduler.core.vocabulary import Fault, OperationKind, OperationState

MAX_RELEASED_IDS: Final = 8192
"""Ids of released operations remembered, for dependants and late repeats."""


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


def head(cluster: Cluster, wpg: Wpg) -> Operation | None:
    """Return what a WPG starts next: its `Initialize`, else the first of its deployment's line."""
    if wpg.initialize is not None or not cluster.is_current(wpg):
        return wpg.initialize
    deployment = cluster.deployments[wpg.deployment_id]
    return deployment.pending.get(deployment.next_seq)


def begin(cluster: Cluster, wpg: Wpg, operation: Operation) -> None:
    """Take the head of the line out of it: its number is consumed."""
    wpg.running[operation.operation_id] = operation
    operation.wpg_id = wpg.wpg_id
    if operation is wpg.initialize:
        wpg.initialize = None
        return
    deployment = cluster.deployments[wpg.deployment_id]
    del deployment.pending[operation.seq]
    deployment.next_seq = operation.seq + 1
    advance(deployment)
    watch_gap(cluster, deployment)


def watch_gap(cluster: Cluster, deployment: Deployment) -> None:
    """Notice the start or the end of a gap and set its timer."""
    missing = first_missing(deployment)
    has_gap = bool(deployment.pending) and max(deployment.pending) > missing
    if not has_gap:
        deployment.gap_seq = None
    elif deployment.gap_seq != missing:
        deployment.gap_seq, deployment.gap_since_us = missing, cluster.now_us
        at_us = cluster.now_us + cluster.limits.gap_timeout_us
        cluster.set_timer(GapTimer(deployment.deployment_id), at_us=at_us)


def close_gap(cluster: Cluster, deployment_id: DeploymentId) -> None:
    """End the wait for a missing number if it has lasted too long."""
    deployment = cluster.deployments.get(deployment_id)
    if deployment is None:
        return
    missing, waited_us = deployment.gap_seq, cluster.now_us - deployment.gap_since_us
    if missing is not None and waited_us >= cluster.limits.gap_timeout_us:
        _void(cluster, deployment, missing, waited_us=waited_us)
    cluster.touch(deployment.wpg_id)


def _void(cluster: Cluster, deployment: Deployment, missing: int, *, waited_us: int) -> None:
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
        refuse(cluster, operation, fault)
    watch_gap(cluster, deployment)


def dependency(cluster: Cluster, operation: Operation) -> OperationId | Fault | None:
    """Return the first `after` that is not over, a fault if one failed, or `None`."""
    for operation_id in operation.after:
        known = cluster.operations.get(operation_id)
        succeeded = cluster.released.get(operation_id)
        if known is not None and known.state in TERMINAL:
            succeeded = known.state is OperationState.ANSWERED
        if succeeded is None and operation_id not in cluster.turned_away:
            return operation_id
        if not succeeded:
            cause = cluster.turned_away.get(operation_id) if known is None else known.fault
            return _dependency_failed(operation, operation_id, cause)
    return None


def startable(cluster: Cluster, wpg: Wpg) -> Operation | None:
    """Return the head of a WPG's line if nothing but a device keeps it from running."""
    if wpg.initialize is not None:
        return wpg.initialize
    deployment = cluster.deployments[wpg.deployment_id]
    while not deployment.is_held:
        operation = head(cluster, wpg)
        if operation is None or operation.state is not OperationState.STAGED:
            return None
        if wpg.running and not _may_overlap(cluster, wpg, operation):
            return None
        blocked = dependency(cluster, operation)
        if isinstance(blocked, Fault):
            refuse(cluster, operation, blocked)
            watch_gap(cluster, deployment)
            continue
        if blocked is not None and deployment.waits_for != blocked:
            _wait_for_unknown(cluster, operation)
        deployment.waits_for = blocked
        if blocked is not None:
            return None
        if operation.eligible_us is None:
            operation.eligible_us = cluster.now_us
        return operation
    return None


def give_up_unseen(cluster: Cluster, operation_id: OperationId) -> None:
    """Refuse an operation that still comes after one that nobody has submitted."""
    operation = cluster.operations.get(operation_id)
    if operation is None or operation.state is not OperationState.STAGED:
        return
    unseen = [
        o for o in operation.after if o not in cluster.operations and o not in cluster.released
    ]
    if not unseen:
        return
    fault = Fault(
        code=ErrorCode.DEPENDENCY_FAILED,
        message=f"{show(operation_id)} not run: it comes after {show(unseen[0])}, which "
        f"nobody submitted within {cluster.limits.gap_timeout_us // 1_000_000} s "
        "(scheduler.gap_timeout_us)",
        facts=(("operation", unseen[0].hex()),),
    )
    drop(cluster, operation, fault)


def turn_away(cluster: Cluster, operation_id: OperationId, job: Job, fault: Fault) -> None:
    """Remember (bounded) that an operation will never run, for those that come after it."""
    cluster.turned_away[operation_id] = fault
    if len(cluster.turned_away) > MAX_RELEASED_IDS:
        cluster.turned_away.popitem(last=False)
    _wake_dependants(cluster, operation_id, job)


def answer(cluster: Cluster, operation: Operation, *, run_us: int) -> None:
    """Mark an operation applied and answered."""
    operation.apply(OperationTrigger.APPLIED)
    operation.apply(OperationTrigger.ANSWERED)
    cluster.emit(
        AnswerOperation(
            operation_id=operation.operation_id,
            queued_us=max(0, operation.granted_us - operation.submitted_us),
            switch_us=max(0, operation.started_us - operation.granted_us),
            run_us=run_us,
        )
    )
    _keep(cluster, operation)


def refuse(cluster: Cluster, operation: Operation, fault: Fault, *, is_final: bool = True) -> None:
    """End an operation that waits; a final refusal consumes its number."""
    deployment = cluster.deployments[operation.deployment_id]
    if operation.state is OperationState.GRANTED:
        operation.apply(OperationTrigger.WITHDRAWN)
    operation.apply(OperationTrigger.REFUSED)
    operation.fault = fault
    if operation.kind is OperationKind.INITIALIZE:
        _wpg_of(cluster, operation).initialize = None
    else:
        del deployment.pending[operation.seq]
        if is_final:
            deployment.consumed.add(operation.seq)
            advance(deployment)
    _say_refused(cluster, operation, fault, is_final=is_final)


def drop(cluster: Cluster, operation: Operation, fault: Fault) -> None:
    """Refuse an operation that waits, finally; its successors go on."""
    deployment = cluster.deployments[operation.deployment_id]
    refuse(cluster, operation, fault)
    watch_gap(cluster, deployment)
    cluster.touch(deployment.wpg_id)


def end_running(
    cluster: Cluster, operation: Operation, fault: Fault, *, is_refusal: bool = False
) -> None:
    """End an operation that ran and did not succeed; its place among the running is gone already.

    A retryable fault gives the number back when nothing after it has started; else it is final.
    An `Initialize` has no number in the line: nothing can have started after it.
    """
    deployment = cluster.deployments[operation.deployment_id]
    is_numbered = operation.kind is not OperationKind.INITIALIZE
    is_next = deployment.next_seq == operation.seq + 1
    is_last = is_next and not _wpg_of(cluster, operation).running
    is_final = fault.code not in RETRYABLE or (is_numbered and not is_last)
    if fault.code in RETRYABLE and is_final:
        fault = Fault(code=ErrorCode.INTERNAL, message=fault.message, facts=fault.facts)
    refused = is_refusal or not is_final
    operation.apply(OperationTrigger.REFUSED if refused else OperationTrigger.FAILED)
    operation.fault = fault
    if is_numbered and not is_final:
        deployment.next_seq = operation.seq
    _say_refused(cluster, operation, fault, is_final=is_final)


def release(cluster: Cluster, operation: Operation) -> None:
    """Drop the record of an answered operation; dependants still learn its outcome (bounded)."""
    succeeded = operation.state is OperationState.ANSWERED
    operation.apply(OperationTrigger.RELEASED)
    del cluster.operations[operation.operation_id]
    cluster.released[operation.operation_id] = succeeded
    if len(cluster.released) > MAX_RELEASED_IDS:
        cluster.released.popitem(last=False)
    cluster.emit(ReleaseOperation(operation_id=operation.operation_id))


def acknowledge(cluster: Cluster, deployment: Deployment, *, seq: int) -> None:
    """Release every answered operation up to `seq`."""
    deployment.acked_seq = max(deployment.acked_seq, seq)
    for number in [n for n in deployment.answered if n <= seq]:
        release(cluster, cluster.operations[deployment.answered.pop(number)])


def _may_overlap(cluster: Cluster, wpg: Wpg, operation: Operation) -> bool:
    return (
        wpg.is_rollout
        and operation.kind is OperationKind.GENERATE
        and len(wpg.running) < cluster.limits.max_overlapping_generates
        and all(o.kind is OperationKind.GENERATE for o in wpg.running.values())
    )


def _wait_for_unknown(cluster: Cluster, operation: Operation) -> None:
    """Bound the wait for an `after` that nobody has submitted yet."""
    unseen = [o for o in operation.after if o not in cluster.operations]
    if unseen:
        at_us = cluster.now_us + cluster.limits.gap_timeout_us
        cluster.set_timer(AfterTimer(operation.operation_id), at_us=at_us)


def _say_refused(cluster: Cluster, operation: Operation, fault: Fault, *, is_final: bool) -> None:
    cluster.emit(
        RefuseOperation(
            operation_id=operation.operation_id,
            state=operation.state,
            fault=fault,
            is_final=is_final,
        )
    )
    if is_final:
        _keep(cluster, operation)
    else:
        del cluster.operations[operation.operation_id]


def _keep(cluster: Cluster, operation: Operation) -> None:
    """Keep an answer until it is acknowledged, within the bound, and wake who depends on it."""
    operation.finished_us = cluster.now_us
    deployment = cluster.deployments[operation.deployment_id]
    if not operation.is_inline:
        cluster.emit(DropPayload(operation_id=operation.operation_id))
    if operation.kind is not OperationKind.INITIALIZE:
        deployment.answered[operation.seq] = operation.operation_id
    elif operation.operation_id != deployment.initialize_id:
        del cluster.operations[operation.operation_id]  # a relocation's: no client knows its id
    if len(deployment.answered) > cluster.limits.max_answered_per_deployment:
        oldest = next(iter(deployment.answered))
        release(cluster, cluster.operations[deployment.answered.pop(oldest)])
    _wake_dependants(cluster, operation.operation_id, cluster.jobs[operation.job_id])


def _wpg_of(cluster: Cluster, operation: Operation) -> Wpg:
    assert operation.wpg_id is not None, operation
    return cluster.wpgs[operation.wpg_id]


def _wake_dependants(cluster: Cluster, operation_id: OperationId, job: Job) -> None:
    for deployment_id in job.deployments:
        deployment = cluster.deployments[deployment_id]
        if deployment.waits_for == operation_id:
            cluster.touch(deployment.wpg_id)


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
