"""Lanes: the order of one deployment's operations, with its gaps and dependencies.

Operations of a deployment start in the order of their numbers. A number is *consumed* when its
operation starts or is finally refused (`endings`); a retryable refusal consumes nothing. A missing
number holds its successors for `gap_timeout_us`. Then they are refused, and the number is void.
"""

from __future__ import annotations

from plexsvc.errors import ErrorCode
from plexsvc.ids import DeploymentId, OperationId, show
from plexsvc.scheduler.core.cluster import Queues
from plexsvc.scheduler.core.queues import endings
from plexsvc.scheduler.core.state import DeploymentEntry, JobEntry, Operation, Wpg
from plexsvc.scheduler.core.timers import Timer
from plexsvc.scheduler.core.vocabulary import (
    AFTER_WRITING,
    TERMINAL,
    Fault,
    OperationKind,
    OperationState,
)


def first_missing(deployment: DeploymentEntry) -> int:
    """Return the lowest number that has not come yet."""
    pending, consumed = deployment.pending, deployment.consumed
    seq = max(deployment.next_seq, deployment.complete_to)
    while seq in pending or seq in consumed:
        seq += 1
    deployment.complete_to = seq
    return seq


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
    if operation.kind is OperationKind.GENERATE:  # a seed may wait for it to begin
        endings.wake_dependants(queues, operation.operation_id, queues.jobs[operation.job_id])
    deployment = queues.deployments[wpg.deployment_id]
    del deployment.pending[operation.seq]
    deployment.next_seq = operation.seq + 1
    endings.advance(deployment)
    watch_gap(queues, deployment)


def watch_gap(queues: Queues, deployment: DeploymentEntry) -> None:
    """Notice the start or the end of a gap and set its timer."""
    missing = first_missing(deployment)
    if deployment.consumed:
        has_gap = max(deployment.pending, default=missing) > missing
    else:  # what came without a gap is counted, so it need not be looked at
        has_gap = len(deployment.pending) > missing - deployment.next_seq
    if not has_gap:
        deployment.gap_seq = None
    elif deployment.gap_seq != missing:
        deployment.gap_seq, deployment.gap_since_us = missing, queues.now_us
        at_us = queues.now_us + queues.limits.gap_timeout_us
        queues.set_timer(Timer.GAP, deployment.deployment_id, at_us=at_us)


def close_gap(queues: Queues, deployment_id: DeploymentId) -> None:
    """Refuse what waited too long behind a number that never came, and consume the number."""
    deployment = queues.deployments[deployment_id]
    missing, waited_us = deployment.gap_seq, queues.now_us - deployment.gap_since_us
    if missing is not None and waited_us >= queues.limits.gap_timeout_us:
        stranded = [op for seq, op in sorted(deployment.pending.items()) if seq > missing]
        # Further numbers may be missing between those that came: none is waited for any more.
        void = {*range(missing, stranded[-1].seq + 1)} - {op.seq for op in stranded}
        deployment.consumed |= void - deployment.consumed
        for operation in stranded:
            fault = Fault(
                code=ErrorCode.SEQUENCE_GAP,
                message=f"{show(operation.operation_id)} (seq {operation.seq}) waited "
                f"{waited_us // 1000} ms for seq {missing} of {operation.deployment_id}, which "
                "never came; submit it again with the next number",
                facts=(("missing_seq", str(missing)), ("seq", str(operation.seq))),
            )
            endings.refuse(queues, operation, fault)
        watch_gap(queues, deployment)
    queues.touch(deployment.wpg_id)


def dependency(queues: Queues, operation: Operation) -> OperationId | Fault | None:
    """Return the first `after` that is not over, a fault if one failed, or `None`.

    A seed waits for its generate to begin. Once that is over there is nothing left to serve.
    """
    job = queues.jobs[operation.job_id]
    is_seed = operation.kind is OperationKind.SEED
    for operation_id in operation.after:
        known = _known(queues, operation, operation_id)
        if is_seed and known is not None and known.state is OperationState.RUNNING:
            continue
        succeeded = job.released.get(operation_id)
        if known is not None and known.state in TERMINAL:
            succeeded = known.state is OperationState.ANSWERED
        if succeeded is None and operation_id not in job.turned_away:
            return operation_id
        if not succeeded or is_seed:
            cause = job.turned_away.get(operation_id) if known is None else known.fault
            return _dependency_failed(operation, operation_id, cause)
    return None


def _known(queues: Queues, operation: Operation, operation_id: OperationId) -> Operation | None:
    """Return an operation of the same job: ids mean something within their job alone."""
    known = queues.operations.get(operation_id)
    return None if known is None or known.job_id != operation.job_id else known


def startable(queues: Queues, wpg: Wpg) -> Operation | None:
    """Return the head of a WPG's line if nothing but a device keeps it from running."""
    if wpg.initialize is not None:
        return wpg.initialize
    deployment = queues.deployments[wpg.deployment_id]
    while queues.is_current(wpg) and not deployment.is_held:
        operation = deployment.pending.get(deployment.next_seq)
        if operation is None or operation.state is not OperationState.STAGED:
            return None
        if wpg.writing and operation.kind in AFTER_WRITING:
            return None
        if wpg.running and not _may_overlap(queues, wpg, operation):
            return None
        blocked = dependency(queues, operation) if operation.after else None
        if isinstance(blocked, bytes) and _is_circle(queues, operation, blocked):
            blocked = Fault(
                code=ErrorCode.BAD_REQUEST,
                message=f"{show(operation.operation_id)} not run: its `after` names "
                f"{show(blocked)}, which waits for it, by its number or through others; name "
                "operations that can end first",
                facts=(("operation", blocked.hex()),),
            )
        if isinstance(blocked, Fault):
            endings.refuse(queues, operation, blocked)
            watch_gap(queues, deployment)
            continue
        is_new, deployment.waits_for = deployment.waits_for != blocked, blocked
        if blocked is not None:
            if is_new and any(_known(queues, operation, one) is None for one in operation.after):
                at_us = queues.now_us + queues.limits.gap_timeout_us
                queues.set_timer(Timer.AFTER, operation.operation_id, at_us=at_us)
            return None
        if operation.eligible_us is None:
            job = queues.jobs[operation.job_id]
            operation.eligible_us = queues.now_us
            operation.own_us = job.own_now_us(queues.now_us)
            operation.is_sequel = deployment.pattern.last_end_us == job.seen_us
            operation.is_beside = rolls_out(queues, job)
        return operation
    return None


def rolls_out(queues: Queues, job: JobEntry) -> bool:
    """Return whether a job generates now: what trains meanwhile is one step behind."""
    for deployment_id in job.deployments:
        deployment = queues.deployments[deployment_id]
        wpg = queues.wpg_of(deployment) if deployment.is_rollout else None
        running = () if wpg is None else wpg.running.values()
        if any(one.kind is OperationKind.GENERATE for one in running):
            return True
    return False


def give_up_unseen(queues: Queues, operation_id: OperationId) -> None:
    """Refuse an operation that still comes after one that nobody has submitted."""
    operation = queues.operations[operation_id]
    released = queues.jobs[operation.job_id].released
    unseen = [
        o for o in operation.after if _known(queues, operation, o) is None and o not in released
    ]
    if not unseen:
        return
    fault = Fault(
        code=ErrorCode.DEPENDENCY_FAILED,
        message=f"{show(operation_id)} not run: it comes after {show(unseen[0])}, which "
        f"nobody submitted within {queues.limits.gap_timeout_us // 1_000_000} s",
        facts=(("operation", unseen[0].hex()),),
    )
    drop(queues, operation, fault)


def drop(queues: Queues, operation: Operation, fault: Fault) -> None:
    """Refuse an operation that waits, finally; its successors go on."""
    deployment = queues.deployments[operation.deployment_id]
    endings.refuse(queues, operation, fault)
    watch_gap(queues, deployment)
    queues.touch(deployment.wpg_id)


def _may_overlap(queues: Queues, wpg: Wpg, operation: Operation) -> bool:
    return (
        wpg.is_rollout
        and operation.kind is OperationKind.GENERATE
        and len(wpg.running) < queues.limits.max_overlapping_generates
        and all(o.kind is OperationKind.GENERATE for o in wpg.running.values())
    )


def _is_circle(queues: Queues, head: Operation, blocked: OperationId) -> bool:
    """Return whether what the head of a lane comes after waits, through others, for that head.

    What stands in a lane waits for the lane's head, and that for what it comes after. `O(lanes)`.
    """
    passed: set[DeploymentId] = set()
    while (known := _known(queues, head, blocked)) is not None:
        deployment = queues.deployments[known.deployment_id]
        if deployment.pending.get(known.seq) is not known or deployment.deployment_id in passed:
            return False
        if deployment.deployment_id == head.deployment_id:
            return True
        passed.add(deployment.deployment_id)
        first = deployment.pending.get(deployment.next_seq)
        following = None if first is None else dependency(queues, first)
        if following is None or isinstance(following, Fault):
            return False
        blocked = following
    return False


def _dependency_failed(
    operation: Operation, operation_id: OperationId, cause: Fault | None
) -> Fault:
    found = "is over" if operation.kind is OperationKind.SEED else "failed"
    if cause is not None:
        found = f"ended with {cause.code}: {cause.message}"
    return Fault(
        code=ErrorCode.DEPENDENCY_FAILED,
        message=f"{show(operation.operation_id)} not run: {show(operation_id)}, which it comes "
        f"after, {found}",
        facts=(
            ("operation", operation_id.hex()),
            ("cause", "" if cause is None else cause.code),
        ),
    )
