"""Stories: why an operation or a job waits, told from what a view of the core shows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from plexsvc.ids import JobId, OperationId, ResidentId, WpgId, show
from plexsvc.residency import Residency
from plexsvc.scheduler.api.views import unplaced
from plexsvc.scheduler.core.planning.planner import Planner
from plexsvc.scheduler.core.planning.profile import PPM
from plexsvc.scheduler.core.planning.ring import Taken
from plexsvc.scheduler.core.state import DeploymentEntry, Operation, Wpg
from plexsvc.scheduler.core.view import ClusterView
from plexsvc.scheduler.core.vocabulary import (
    AFTER_WRITING,
    DeploymentState,
    Fault,
    OperationKind,
    OperationState,
    WpgState,
)

_UNITS: Final = {"h": 3_600_000_000, "min": 60_000_000, "s": 1_000_000}
_LEAST_UNITS: Final = 10
"""How many of a unit make a duration that is said in it."""
MAX_BLOCKERS: Final = 3
"""Jobs that a job waited for, named in its story."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """One sentence, the facts behind it, and the operation's state; None for a job's story."""

    text: str
    facts: tuple[str, ...]
    state: OperationState | None = None


def explain(cluster: ClusterView, operation_id: OperationId, *, now_us: int) -> Story | None:
    """Return why an operation is where it is; `None` for one the core does not hold."""
    operation = cluster.operations.get(operation_id)
    if operation is None:
        return None
    deployment = cluster.deployments[operation.deployment_id]
    facts = [
        f"{show(operation_id)}: {operation.kind}, seq {operation.seq} of {operation.deployment_id}",
        f"state {operation.state} for {_ago(now_us - _since_us(operation))}",
    ]
    reason, more = _reason(cluster, deployment, operation, now_us=now_us)
    return Story(
        text=f"{show(operation_id)} ({operation.kind}) {reason}",
        facts=(*facts, *more),
        state=operation.state,
    )


def explain_job(cluster: ClusterView, job_id: JobId, *, now_us: int) -> Story | None:
    """Return what each deployment of a job does or waits for; `None` for a job that has ended."""
    job = cluster.jobs.get(job_id)
    if job is None:
        return None
    told: list[str] = []
    facts: list[str] = []
    for deployment in [cluster.deployments[d] for d in job.deployments]:
        sentence, more = _deployment_story(cluster, deployment, now_us=now_us)
        told.append(f"{_name(deployment)} {sentence}")
        facts += [f"{_name(deployment)}: {fact}" for fact in more]
    state = "ending" if job.ending is not None else str(job.state)
    pinned = " and pinned" if job.is_pinned else ""
    doing = "; ".join(told) or "it has no deployment yet"
    return Story(
        text=f"{job_id} is {state}{pinned}: {doing}", facts=(*facts, *_waits(cluster, job_id))
    )


def _no_place(cluster: ClusterView, deployment: DeploymentEntry) -> str:
    return unplaced.why(cluster, deployment) + unplaced.circle(cluster, deployment)


def _deployment_story(
    cluster: ClusterView, deployment: DeploymentEntry, *, now_us: int
) -> tuple[str, list[str]]:
    if deployment.fault is not None:
        return f"failed with {deployment.fault.code}: {deployment.fault.message}", []
    wpg = cluster.wpg_of(deployment)
    if wpg is None:
        since = _ago(now_us - (deployment.lost_us or deployment.requested_us))
        return f"waits for devices since {since}: {_no_place(cluster, deployment)}", []
    facts = [f"{wpg.wpg_id} is {wpg.state}, its state on {wpg.residency}, at {_where(wpg)}"]
    facts += _plan(cluster, deployment, now_us=now_us)
    if deployment.lost is not None:
        since = _ago(now_us - deployment.lost_us)
        is_new = deployment.state is DeploymentState.STARTING
        how = "started again" if is_new else "rebuilt from its last durable step"
        return f"is {how} since {since}: {deployment.lost.message}", facts
    if wpg.state is WpgState.SPAWNING and not _waits_to_start(wpg):
        return "waits for its processes to come up", facts
    facts += [
        f"instance {rank} waits for another device: {fault.message}"
        if (wpg.wpg_id, rank) in cluster.homeless
        else f"instance {rank} is being started again: {fault.message}"
        for rank, fault in wpg.absent.items()
    ]
    sentence, more = _doing(cluster, deployment, wpg, now_us=now_us)
    return sentence, [*facts, *_relocation(cluster, deployment, now_us=now_us), *more]


def _waits_to_start(wpg: Wpg) -> bool:
    """Whether a WPG has no processes yet, and gets them with its devices."""
    return wpg.initialize is not None and wpg.residency is Residency.NONE


def _doing(
    cluster: ClusterView, deployment: DeploymentEntry, wpg: Wpg, *, now_us: int
) -> tuple[str, list[str]]:
    """Say what runs, else what the head of the line waits for, else since when it is idle."""
    for operation in wpg.running.values():
        since = _ago(now_us - operation.started_us)
        return f"runs {operation.kind} since {since}", [f"{show(operation.operation_id)} runs"]
    head = cluster.head(wpg)
    if head is not None:
        reason, more = _reason(cluster, deployment, head, now_us=now_us)
        since = _ago(now_us - head.submitted_us)
        return f"{reason} (its next operation, {head.kind}, came {since} ago)", more
    if deployment.pending:
        return f"waits for seq {deployment.next_seq}, which has not been submitted", []
    for operation in wpg.writing.values():
        since = _ago(now_us - operation.started_us)
        return f"has a copy written for {operation.kind} since {since}", []
    last_us = deployment.pattern.last_end_us
    since = f" since {_ago(now_us - last_us)}" if last_us is not None else ""
    expected_us, facts = deployment.pattern.expected_us, list[str]()
    if expected_us is not None:
        late = "in" if expected_us >= now_us else "for"
        due = f"{late} {_ago(abs(expected_us - now_us))}"
        facts = [f"by its cycle, its next operation is due {due}"]
    return f"is idle{since}: nothing is submitted", facts


def _relocation(cluster: ClusterView, deployment: DeploymentEntry, *, now_us: int) -> list[str]:
    relocation = deployment.relocation
    if relocation is not None:
        where = ", ".join(p.unit for p in relocation.places)
        held = "; its operations wait until it arrives" if deployment.is_held else ""
        since = _ago(now_us - relocation.started_us)
        return [f"is being moved to {where} since {since} ({relocation.stage}){held}"]
    wpg = cluster.wpg_of(deployment)
    if wpg is not None and not deployment.is_rollout:
        leaving = [p.node_id for p in wpg.places if cluster.cordoned.get(p.node_id)]
        if leaving:
            why = cluster.why_stays(deployment)
            return [f"node {leaving[0]} is being drained; elsewhere: {why}"]
    if deployment.relocation_fault is not None:
        return [f"its last move did not happen: {deployment.relocation_fault.message}"]
    return []


def _plan(cluster: ClusterView, deployment: DeploymentEntry, *, now_us: int) -> list[str]:
    """Say how the planner sees a training deployment: its company, slowdown, and whether late."""
    planner = cluster.planners[deployment.device_kind]
    key = deployment.resident_id
    if key not in planner.board.group_of:
        return place_of(planner, key, now_us=now_us)
    group = planner.board.groups[planner.board.group_of[key]]
    mine = group.residents[key]
    ratios = [
        f"bound {_ratio(mine.demand.max_slowdown_ppm)}",
        f"predicted {_ratio(planner.ring(group).slowdowns[key])}",
        f"measured {_ratio(mine.pace_ppm)}" if mine.pace_ppm is not None else "not measured yet",
    ]
    company = f"shares its devices with {len(group.residents) - 1} others"
    facts = [f"{company}; slowdown: {', '.join(ratios)}", *place_of(planner, key, now_us=now_us)]
    if mine.demand.is_cold:
        facts.append("its cycle is being profiled")
    if mine.is_late:
        facts.append("it is late: measured past its bound, so its group takes no further job")
    return facts


def place_of(planner: Planner, resident_id: ResidentId, *, now_us: int) -> list[str]:
    """Say what a deployment got when it was put among others, if it was, and why there."""
    taken = planner.taken.get(resident_id)
    if taken is None:
        return []
    told = f"it was put there {_ago(now_us - taken.at_us)} ago: {taken.why}"
    return [f"{told}; {window_told(taken)}"]


def window_told(taken: Taken) -> str:
    """Say which window on the ring a job got, and what that was predicted to cost."""
    told = f"it is flat: mass at its duty of {taken.duty_ppm / PPM:.0%}, at any time alike"
    if taken.course is not None:
        start_us, end_us = taken.course.window
        told = (
            f"its window, {_ago(end_us - start_us)} long, comes "
            f"{_ago(start_us - taken.at_us)} later and every "
            f"{_ago(taken.period_us * taken.slowdown_ppm // PPM)}; for that it slides by "
            f"{_ago(taken.course.shift_us)}"
        )
    if not taken.slowdown_ppm:
        return "what that costs could not be told"
    others = f", {_ratio(taken.others_ppm)} at most for others" if taken.others_ppm else ""
    return f"{told}; predicted: {_ratio(taken.slowdown_ppm)} for it{others}"


def _waits(cluster: ClusterView, job_id: JobId) -> list[str]:
    """Say for whom a job waited most."""
    waits = [
        (waited_us, blocker)
        for (waiter, blocker), waited_us in cluster.waits.items()
        if waiter == job_id and blocker != job_id
    ]
    return [
        f"since it began it waited {_ago(waited_us)} for job {blocker}"
        for waited_us, blocker in sorted(waits, reverse=True)[:MAX_BLOCKERS]
    ]


def _reason(
    cluster: ClusterView, deployment: DeploymentEntry, operation: Operation, *, now_us: int
) -> tuple[str, list[str]]:
    match operation.state:
        case OperationState.RUNNING:
            since = _ago(now_us - operation.started_us)
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
    cluster: ClusterView, deployment: DeploymentEntry, operation: Operation, *, now_us: int
) -> tuple[str, list[str]]:
    wpg = cluster.wpg_of(deployment)
    if wpg is None:
        return f"waits for devices: {_no_place(cluster, deployment)}", []
    if deployment.lost is not None and operation.kind is not OperationKind.INITIALIZE:
        since = _ago(now_us - deployment.lost_us)
        why = deployment.lost.message
        return f"waits until its deployment is rebuilt, which was lost {since} ago: {why}", []
    if wpg.state is WpgState.SPAWNING and not _waits_to_start(wpg):
        return f"waits for the processes of {wpg.wpg_id} to come up", []
    relocation = deployment.relocation
    if relocation is not None and deployment.is_held and operation.seq == deployment.next_seq:
        where = ", ".join(place.unit for place in relocation.places)
        began = f"the relocation began {_ago(now_us - relocation.started_us)} ago"
        facts = [f"{began}: {relocation.reason}"]
        return f"waits for its deployment to arrive on {where} ({relocation.stage})", facts
    return _in_line(cluster, deployment, wpg, operation, now_us=now_us)


def _in_line(
    cluster: ClusterView,
    deployment: DeploymentEntry,
    wpg: Wpg,
    operation: Operation,
    *,
    now_us: int,
) -> tuple[str, list[str]]:
    head = cluster.head(wpg)
    if operation is not head:
        missing = cluster.first_missing(deployment)
        if head is None or operation.seq > missing:
            return f"waits for seq {missing} of its deployment, which has not been submitted", []
        return f"waits its turn: seq {head.seq} of its deployment comes first", []
    if operation.state is OperationState.QUEUED:
        return "waits for its payload to arrive in staging memory", []
    if wpg.running:
        ahead = ", ".join(show(o) for o in wpg.running)
        return f"waits for {ahead} of its own deployment to end", []
    if wpg.writing and operation.kind in AFTER_WRITING:
        ahead = ", ".join(show(o) for o in wpg.writing)
        return f"waits until {ahead} of its own deployment is written", []
    blocked = cluster.blocked_by(operation)
    if isinstance(blocked, Fault):
        return f"is about to be refused: {blocked.message}", []
    if blocked is not None:
        known, how = cluster.operations.get(blocked), "not submitted yet"
        if known is not None and known.job_id == operation.job_id:  # another's is none of its own
            how = f"{known.kind}, {known.state}"
        return f"waits for {show(blocked)} ({how}), which it comes after", []
    return _for_device(cluster, wpg, now_us=now_us)


def _for_device(cluster: ClusterView, wpg: Wpg, *, now_us: int) -> tuple[str, list[str]]:
    holders: dict[WpgId, int] = {}
    for place in wpg.places:
        device = cluster.devices[place]
        if device.holder is not None and device.holder != wpg.wpg_id:
            holders[device.holder] = device.held_since_us
    facts = [f"{wpg.wpg_id} is {wpg.residency} on {_where(wpg)}"]
    head = cluster.head(wpg)
    if head is not None and head.is_on_host:
        return "waits until its state is parked in host memory, where it is to run", facts
    if holders:
        told = [
            f"{holder} of job {cluster.wpgs[holder].job_id} since {_ago(now_us - since_us)}"
            for holder, since_us in holders.items()
        ]
        facts += [fact for holder in holders for fact in _holding(cluster, holder, now_us=now_us)]
        return f"waits for its device, held by {', '.join(told)}", facts
    if wpg.retry_us > now_us:
        return "waits to try again: its last context switch found no room", facts
    if wpg.residency is not Residency.DEVICE:
        return _for_room(cluster, wpg, now_us=now_us), facts
    return (
        "waits for its turn on its device: an operation with a higher response ratio is first",
        facts,
    )


def _for_room(cluster: ClusterView, wpg: Wpg, *, now_us: int) -> str:
    """Say why an operation of a parked WPG does not start although nobody runs."""
    victims = cluster.victims_of(wpg)
    if not victims:
        pinned = [
            f"{operation.kind} of job {pinner.job_id} reads {pinner.wpg_id} there since "
            f"{_ago(now_us - operation.started_us)}"
            for pinner in cluster.pinners(wpg)
            for operation in pinner.running.values()
        ]
        why = ", ".join(pinned) or "what is there cannot be parked right now"
        return f"waits for room on its device: {why}"
    told = []
    for victim_id in victims:
        victim = cluster.wpgs[victim_id]
        due_us = cluster.deployments[victim.deployment_id].pattern.expected_us
        due = "" if due_us is None else f" (due in {_ago(due_us - now_us)})"
        told.append(f"{victim_id} of job {victim.job_id}{due}")
    return f"leaves its device for a moment to the burst of {', '.join(told)}"


def _holding(cluster: ClusterView, holder: WpgId, *, now_us: int) -> list[str]:
    """Say what the holder of a device runs and when that is expected to end."""
    wpg = cluster.wpgs[holder]
    if wpg.state is WpgState.STOPPING:
        return [f"{holder} failed; its processes are being stopped"]
    if wpg.switch is not None:
        return [f"{holder} is being brought onto it since {_ago(now_us - wpg.switch.started_us)}"]
    told = []
    for operation in wpg.running.values():
        ends_us = operation.started_us + cluster.predicted_us(operation)
        ends = f"in about {_ago(ends_us - now_us)}" if ends_us > now_us else "any moment"
        told.append(f"{holder} runs {operation.kind}, expected to end {ends}")
    return told


def _switching(
    cluster: ClusterView, deployment: DeploymentEntry, *, now_us: int
) -> tuple[str, list[str]]:
    wpg = cluster.wpg_of(deployment)
    if wpg is None or wpg.switch is None:
        return "is granted its device", []
    since = _ago(now_us - wpg.switch.started_us)
    victims = [v for v in wpg.switch.victims if v in cluster.wpgs]
    facts = [f"{v} is {cluster.wpgs[v].residency}" for v in victims]
    facts.append(f"{wpg.wpg_id} is {wpg.residency}, lease {wpg.lease_no}")
    return f"waits for a context switch that began {since} ago on {_where(wpg)}", facts


def _where(wpg: Wpg) -> str:
    return ", ".join(p.unit for p in wpg.places)


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


def _name(deployment: DeploymentEntry) -> str:
    return deployment.name or deployment.deployment_id


def _ratio(ppm: int) -> str:
    return f"{ppm / 1e6:.2f}"


def _ago(duration_us: int) -> str:
    """Return a duration in the unit people would say it in.

    >>> [_ago(us) for us in (1_500, 61_000_000, 3_600_000_000, 90_000_000_000)]
    ['1.5 ms', '61 s', '60 min', '25.0 h']
    """
    us = max(0, duration_us)
    for unit, unit_us in _UNITS.items():
        if us >= _LEAST_UNITS * unit_us:
            return f"{us / unit_us:.1f} h" if unit == "h" else f"{us // unit_us} {unit}"
    return f"{us / 1000:.1f} ms"
