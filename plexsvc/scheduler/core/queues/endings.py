"""Endings of operations: answered, refused or failed, then kept until acknowledged and released.

An operation that ends wakes those that come after it, also when it may come again: the wait for
what nobody has submitted is bounded. What is kept is bounded, the oldest go first.
"""

from __future__ import annotations

from typing import Final

from plexsvc.errors import RETRYABLE, ErrorCode
from plexsvc.ids import OperationId
from plexsvc.scheduler.core.actions import (
    AnswerOperation,
    DropPayload,
    RefuseOperation,
    ReleaseOperation,
)
from plexsvc.scheduler.core.cluster import Queues
from plexsvc.scheduler.core.events import Acknowledged
from plexsvc.scheduler.core.state import DeploymentEntry, JobEntry, Operation, Wpg
from plexsvc.scheduler.core.vocabulary import Fault, OperationKind, OperationState, OperationTrigger

OPENS_WINDOW: Final = frozenset({OperationKind.FORWARD_BACKWARD, OperationKind.BACKWARD})
CLOSES_WINDOW: Final = frozenset({OperationKind.STEP, OperationKind.ZERO_GRAD, OperationKind.LOAD})
"""Kinds after which gradients are accumulated, and kinds after which none are."""


def answer(queues: Queues, operation: Operation, *, run_us: int) -> None:
    """Mark an operation applied and answered."""
    operation.apply(OperationTrigger.APPLIED)
    operation.apply(OperationTrigger.ANSWERED)
    deployment = queues.deployments[operation.deployment_id]
    if operation.kind in OPENS_WINDOW:
        deployment.is_window_open = True
    elif operation.kind in CLOSES_WINDOW:
        deployment.is_window_open = False
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
    operation.apply(OperationTrigger.REFUSED)
    operation.fault = fault
    if operation.kind is OperationKind.INITIALIZE:
        _wpg_of(queues, operation).initialize = None
    else:
        del deployment.pending[operation.seq]
        if is_final:
            deployment.consumed.add(operation.seq)
            advance(deployment)
        else:
            # Its number is missing again: the search for such must not begin behind it.
            deployment.complete_to = min(deployment.complete_to, operation.seq)
    _say_refused(queues, operation, fault, is_final=is_final)


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
    # By a retryable code the client would send it again, under a number that is used.
    if fault.code in RETRYABLE and is_final:
        fault = Fault(code=ErrorCode.INTERNAL, message=fault.message, facts=fault.facts)
    refused = is_refusal or not is_final
    operation.apply(OperationTrigger.REFUSED if refused else OperationTrigger.FAILED)
    operation.fault = fault
    if operation.kind in OPENS_WINDOW and not is_refusal:
        deployment.is_window_open = True  # it may have added some gradients, and not others
    if is_numbered and not is_final:
        deployment.next_seq = deployment.complete_to = operation.seq
    _say_refused(queues, operation, fault, is_final=is_final)


def tell_refused(
    queues: Queues,
    operation_id: OperationId,
    fault: Fault,
    *,
    state: OperationState,
    is_final: bool,
) -> None:
    """Tell whoever waits that an operation was refused or failed."""
    queues.emit(
        RefuseOperation(operation_id=operation_id, state=state, fault=fault, is_final=is_final)
    )


def acknowledge(queues: Queues, event: Acknowledged) -> None:
    """Release every answered operation up to the number that the client has answers for."""
    deployment = queues.deployments.get(event.deployment_id)
    if deployment is None:
        return
    for number in [n for n in deployment.answered if n <= event.seq]:
        release(queues, queues.operations[deployment.answered.pop(number)])


def release(queues: Queues, operation: Operation) -> None:
    """Drop the record of an answered operation; dependants still learn its outcome (bounded)."""
    succeeded = operation.state is OperationState.ANSWERED
    operation.apply(OperationTrigger.RELEASED)
    del queues.operations[operation.operation_id]
    queues.jobs[operation.job_id].released[operation.operation_id] = succeeded
    queues.emit(ReleaseOperation(operation_id=operation.operation_id))


def advance(deployment: DeploymentEntry) -> None:
    """Step over numbers whose operations were refused."""
    while deployment.next_seq in deployment.consumed:
        deployment.consumed.remove(deployment.next_seq)
        deployment.next_seq += 1


def _say_refused(queues: Queues, operation: Operation, fault: Fault, *, is_final: bool) -> None:
    operation_id = operation.operation_id
    tell_refused(queues, operation_id, fault, state=operation.state, is_final=is_final)
    if is_final:
        _keep(queues, operation)
        return
    del queues.operations[operation_id]
    wake_dependants(queues, operation_id, queues.jobs[operation.job_id])


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
    wake_dependants(queues, operation.operation_id, queues.jobs[operation.job_id])


def wake_dependants(queues: Queues, operation_id: OperationId, job: JobEntry) -> None:
    """Look again at what comes after an operation: it is over, or must be waited for anew."""
    for deployment_id in job.deployments:
        deployment = queues.deployments[deployment_id]
        if deployment.waits_for == operation_id:
            deployment.waits_for = None
            queues.touch(deployment.wpg_id)


def _wpg_of(queues: Queues, operation: Operation) -> Wpg:
    assert operation.wpg_id is not None, operation
    return queues.wpgs[operation.wpg_id]
