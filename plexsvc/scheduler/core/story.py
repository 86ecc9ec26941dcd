"""Why an operation waits, told from the core's own record."""

from __future__ import annotations

from dataclasses import dataclass

from plexsvc.ids import OperationId, WpgId, show
from plexsvc.scheduler.core import lanes, placing
from plexsvc.scheduler.core.state import Cluster, Deployment, Operation, Wpg
from plexsvc.scheduler.core.words import Fault, OperationState, Residency, WpgState


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """One sentence, the facts behind it, and the operation's state."""

    text: str
    facts: tuple[str, ...]
    state: OperationState


def explain(cluster: Cluster, operation_id: OperationId, *, now_us: int) -> Story | None:
    """Return why an operation is where it is; `None` for one the core does not hold."""
    operation = cluster.operations.get(operation_id)
    if operation is None:
        return None
    deployment = cluster.deployments[operation.deployment_id]
    facts = [
        f"{show(operation_id)}: {operation.kind}, seq {operation.seq} of {operation.deployment_id}",
        f"state {operation.state} for {_ms(now_us - _since_us(operation))}",
    ]
    reason, more = _reason(cluster, deployment, operation, now_us=now_us)
    return Story(
        text=f"{show(operation_id)} ({operation.kind}) {reason}",
        facts=(*facts, *more),
        state=operation.state,
    )


def _reason(
    cluster: Cluster, deployment: Deployment, operation: Operation, *, now_us: int
) -> tuple[str, list[str]]:
    match operation.state:
        case OperationState.RUNNING:
            since = _ms(now_us - operation.started_us)
            return f"runs on {deployment.wpg_id} since {since}", []
        case OperationState.REFUSED | OperationState.FAILED:
            cause = operation.fault
            why = f"{cause.code}: {cause.message}" if cause is not None else "no cause recorded"
            return f"ended with {why}", []
        case OperationState.ANSWERED:
            return "is applied and answered; its answer is kept until acknowledged", []
        case OperationState.GRANTED:
            return _switching(cluster, deployment, now_us=now_us)
        case _:
            return _waiting(cluster, deployment, operation, now_us=now_us)


def _waiting(
    cluster: Cluster, deployment: Deployment, operation: Operation, *, now_us: int
) -> tuple[str, list[str]]:
    wpg = cluster.wpg_of(deployment)
    if wpg is None:
        return f"waits for devices: {placing.why(cluster, deployment)}", []
    if wpg.state is WpgState.SPAWNING:
        return f"waits for the processes of {wpg.wpg_id} to come up", []
    return _in_line(cluster, deployment, operation, now_us=now_us)


def _in_line(
    cluster: Cluster, deployment: Deployment, operation: Operation, *, now_us: int
) -> tuple[str, list[str]]:
    wpg = cluster.wpg_of(deployment)
    assert wpg is not None, deployment
    if operation.seq != deployment.next_seq:
        return _behind(deployment, operation)
    if operation.state is OperationState.QUEUED:
        return "waits for its payload to arrive in staging memory", []
    if deployment.running:
        ahead = ", ".join(show(o) for o in deployment.running)
        return f"waits for {ahead} of its own deployment to end", []
    blocked = lanes.dependency(cluster, operation)
    if blocked is not None:
        return _after(cluster, blocked), []
    return _for_device(cluster, wpg, now_us=now_us)


def _behind(deployment: Deployment, operation: Operation) -> tuple[str, list[str]]:
    missing = lanes.first_missing(deployment)
    if operation.seq > missing:
        return f"waits for seq {missing} of its deployment, which has not been submitted", []
    return f"waits its turn: seq {deployment.next_seq} of its deployment comes first", []


def _after(cluster: Cluster, blocked: OperationId | Fault) -> str:
    if isinstance(blocked, Fault):
        return f"is about to be refused: {blocked.message}"
    known = cluster.operations.get(blocked)
    how = "not submitted yet" if known is None else f"{known.kind}, {known.state}"
    return f"waits for {show(blocked)} ({how}), which it comes after"


def _for_device(cluster: Cluster, wpg: Wpg, *, now_us: int) -> tuple[str, list[str]]:
    holders: dict[WpgId, int] = {}
    for place in wpg.places:
        device = cluster.devices[place]
        if device.holder is not None and device.holder != wpg.wpg_id:
            holders[device.holder] = device.held_since_us
    facts = [f"{wpg.wpg_id} is {wpg.residency} on {_where(wpg)}"]
    if holders:
        told = [
            f"{holder} of job {cluster.wpgs[holder].job_id} since {_ms(now_us - since_us)}"
            for holder, since_us in holders.items()
        ]
        return f"waits for its device, held by {', '.join(told)}", facts
    if wpg.retry_us > now_us:
        return "waits to try again: its last context switch found no room", facts
    if wpg.residency is not Residency.DEVICE:
        return "waits for room on its device: what is there cannot be parked right now", facts
    return (
        "waits for its turn on its device: an operation with a higher response ratio is first",
        facts,
    )


def _switching(cluster: Cluster, deployment: Deployment, *, now_us: int) -> tuple[str, list[str]]:
    wpg = cluster.wpg_of(deployment)
    if wpg is None or wpg.switch is None:
        return "is granted its device", []
    since = _ms(now_us - wpg.switch.started_us)
    victims = [v for v in wpg.switch.victims if v in cluster.wpgs]
    facts = [f"{v} is {cluster.wpgs[v].residency}" for v in victims]
    facts.append(f"{wpg.wpg_id} is {wpg.residency}, lease {wpg.lease_no}")
    return f"waits for a context switch that began {since} ago on {_where(wpg)}", facts


def _where(wpg: Wpg) -> str:
    return ", ".join(f"{p.node_id}:{p.device}" for p in wpg.places)


def _since_us(operation: Operation) -> int:
    match operation.state:
        case OperationState.RUNNING:
            return operation.started_us
        case OperationState.GRANTED:
            return operation.granted_us
        case OperationState.ANSWERED | OperationState.REFUSED | OperationState.FAILED:
            return operation.finished_us
        case _:
            return operation.submitted_us


def _ms(duration_us: int) -> str:
    return f"{max(0, duration_us) / 1000:.1f} ms"
