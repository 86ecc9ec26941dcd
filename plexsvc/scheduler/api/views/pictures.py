"""Views of the plan: who owns which slots of each group, what a job would cost.

A resident of the planner's board is a training deployment; a node of the board is one device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from plexclient.wire.v1 import common_pb2, service_pb2
from plexsvc.errors import ErrorCode, PlexError, bad_request
from plexsvc.ids import DeploymentId, ResidentId, TenantId
from plexsvc.rpc.residency import ON_WIRE
from plexsvc.rpc.services import Methods
from plexsvc.scheduler.api.views import newcomer, unplaced
from plexsvc.scheduler.api.views.lens import Lens
from plexsvc.scheduler.api.views.nodes import moving_to
from plexsvc.scheduler.api.views.story import place_of, window_told
from plexsvc.scheduler.api.views.waiting import Waits
from plexsvc.scheduler.core.planning.groups import Group, Resident
from plexsvc.scheduler.core.planning.planner import Planner
from plexsvc.scheduler.core.planning.profile import (
    PRIOR_JOB_US,
    SECOND_US,
    Demand,
    Mode,
    Profile,
    Segment,
)
from plexsvc.scheduler.core.planning.ring import ROUNDS, SETTLED
from plexsvc.scheduler.live import LiveScheduler

DEFAULT_KIND: Final = "train"
ROLLOUT_KIND: Final = "rollout"
WINDOW_PERIODS: Final = 3
"""How many of the longest cycles a picture shows unless asked for a window."""

MIN_WINDOW_US: Final = 30 * SECOND_US
MAX_SPANS: Final = 1024
"""Windows of one resident that a picture has: of a short cycle beside a long one, the first."""

GIB: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class _Look:
    """What one answer is made from: the scheduler, what its caller may see, the waits so far."""

    scheduler: LiveScheduler
    lens: Lens
    waits: Waits


async def pack(scheduler: LiveScheduler, request: service_pb2.PackRequest) -> service_pb2.PackReply:
    """Return the node groups with their residents, and the deployments that wait for devices."""
    look = _Look(
        scheduler=scheduler, lens=Lens(scheduler.registry, request), waits=Waits(scheduler)
    )
    cluster = scheduler.cluster
    reply = service_pb2.PackReply(
        now_us=scheduler.clock.wall_us(),
        policy=cluster.policy.name,
        prefetches=cluster.prefetches.ordered,
        prefetch_hits=cluster.prefetches.hits,
        prefetches_wasted=cluster.prefetches.wasted,
    )
    for kind, planner in cluster.planners.items():
        reply.idle.extend(planner.board.idle)
        for group in planner.board.groups.values():
            reply.groups.append(_group(look, planner, group, kind=kind))
    _waiting(look, reply)
    longest_us = max((r.period_us for g in reply.groups for r in g.residents), default=0)
    reply.horizon_us = max(longest_us * (SETTLED + ROUNDS), MIN_WINDOW_US)
    wanted_us = request.window_us or max(longest_us * WINDOW_PERIODS, MIN_WINDOW_US)
    reply.window_us = min(wanted_us, reply.horizon_us)
    return reply


async def what_if(
    scheduler: LiveScheduler, request: service_pb2.WhatIfRequest
) -> service_pb2.WhatIfReply:
    """Return where a job would go now and what it would cost the others, or why it would wait.

    Raises:
        PlexError: `no_placement` when the cluster has no device of the kind.
    """
    look = _Look(
        scheduler=scheduler, lens=Lens(scheduler.registry, request), waits=Waits(scheduler)
    )
    kind = request.kind or DEFAULT_KIND
    planner = scheduler.cluster.planners.get(kind)
    if planner is None or not planner.board.rooms:
        known = ", ".join(scheduler.cluster.planners) or "none"
        raise PlexError(
            ErrorCode.NO_PLACEMENT,
            f"no device of kind {kind!r} has joined (kinds: {known}); ask for one of them",
        )
    lacking = _never_fits(scheduler, request.job, kind)
    if lacking:  # nothing is planned for what could not be here were all devices idle
        return service_pb2.WhatIfReply(reasons=[lacking])
    now_us = scheduler.clock.wall_us()
    demand = _demand(scheduler, request.job, tenant=TenantId(request.tenant), now_us=now_us)
    reply = _answer(look, planner, newcomer.what_if(planner, demand, now_us=now_us))
    lacking = _lacks_rollout(scheduler, request.job)
    if lacking:
        reply.fits = False
        reply.reasons.append(lacking)
    return reply


def _group(look: _Look, planner: Planner, group: Group, *, kind: str) -> service_pb2.PackGroup:
    now_us = look.scheduler.clock.wall_us()
    ring, crowd = planner.ring(group, now_us=now_us), group.crowd(group.units)
    memory = planner.board.memory
    tightest = min(group.units, key=lambda u: memory.total_at(u) - memory.booked_at(u))
    view = service_pb2.PackGroup(
        kind=kind,
        group_id=group.group_id,
        devices=group.units,
        duty_ppm=crowd.duty_ppm,
        duty_cap_ppm=planner.policy.duty_cap_ppm,
        state_bytes=memory.booked_at(tightest),
        parked_bytes=memory.total_at(tightest),
        booked=[
            service_pb2.HostUse(use=use, nbytes=nbytes)
            for use, nbytes in memory.uses_at(tightest).items()
        ],
        closed=look.lens.text(group.why_closed) if group.is_closed or group.late else "",
    )
    for key, resident in group.residents.items():
        shown = _resident(look, resident)
        shown.predicted_ppm = ring.slowdowns[key]
        if key in ring.courses:
            course = ring.courses[key]
            coming = [span for span in course.windows if span[1] > now_us]
            shown.busy.extend(
                service_pb2.BusySpan(start_us=start_us, end_us=end_us)
                for start_us, end_us in coming[:MAX_SPANS]
            )
            shown.shift_us = course.shift_us
        shown.place = look.lens.text("".join(place_of(planner, key, now_us=now_us)))
        shown.measured_ppm = resident.pace_ppm or 0
        shown.is_late = resident.is_late
        view.residents.append(shown)
    return view


def _resident(look: _Look, resident: Resident) -> service_pb2.PackResident:
    demand = resident.demand
    view = service_pb2.PackResident(
        period_us=demand.profile.period_us,
        duty_ppm=demand.profile.duty_ppm,
        bound_ppm=demand.max_slowdown_ppm,
        state_bytes=demand.state_bytes,
        is_cold=demand.is_cold,
        devices=resident.units,
        segments=[
            service_pb2.CycleSegment(
                phase=s.phase, offset_us=s.offset_us, duration_us=s.duration_us
            )
            for s in demand.profile.segments
        ],
    )
    _live(look, view, deployment_id=DeploymentId(demand.resident_id))
    return view


def _live(look: _Look, view: service_pb2.PackResident, *, deployment_id: DeploymentId) -> None:
    """Add what the deployment of a resident does now, and its names where they may be shown."""
    cluster = look.scheduler.cluster
    deployment = cluster.deployments.get(deployment_id)
    if deployment is None:
        return
    job_id = deployment.job_id
    wpg = cluster.wpg_of(deployment)
    view.residency = common_pb2.RESIDENCY_NONE if wpg is None else ON_WIRE[wpg.residency]
    view.is_running = wpg is not None and bool(wpg.running)
    view.is_pinned = cluster.jobs[job_id].is_pinned
    view.moving_to.extend(moving_to(deployment))
    view.wait_us = look.waits.total_us(job_id)
    view.wait_ratio_ppm = look.waits.ratio_ppm(job_id)
    _name(look, view, deployment_id=deployment_id)


def _waiting(look: _Look, reply: service_pb2.PackReply) -> None:
    cluster = look.scheduler.cluster
    demand: dict[str, service_pb2.KindDemand] = {}
    for deployment_id in cluster.unplaced:
        deployment = cluster.deployments[deployment_id]
        kind, short_of = deployment.device_kind, unplaced.short_of(cluster, deployment)
        view = service_pb2.PackWaiting(
            since_us=deployment.requested_us,
            reason=look.lens.text(unplaced.why(cluster, deployment)),
            short_of=short_of,
        )
        _name(look, view, deployment_id=deployment_id)
        reply.waiting.append(view)
        if kind not in demand:
            idle = len(cluster.planners[kind].board.idle)
            demand[kind] = service_pb2.KindDemand(kind=kind, idle=idle)
        demand[kind].wanted[short_of] += deployment.num_devices
    for one in demand.values():
        if "devices" in one.wanted:
            one.missing = max(0, one.wanted["devices"] - one.idle)
    reply.demand.extend(demand.values())


def _demand(
    scheduler: LiveScheduler, job: service_pb2.JobShape, *, tenant: TenantId, now_us: int
) -> Demand:
    limits = scheduler.config
    profile = Profile(
        period_us=job.period_us,
        segments=tuple(
            Segment(phase=s.phase, offset_us=s.offset_us, duration_us=s.duration_us)
            for s in job.segments
        ),
        mode=_mode(job.mode or Mode.SYNC),
        switch_us=job.state_bytes * limits.prior_switch_us_per_gib // GIB,
        jitter_ppm=job.jitter_ppm,
    )
    return Demand(
        resident_id=ResidentId(job.job_id or "what-if"),
        num_units=job.num_devices,
        profile=profile,
        arrived_us=now_us,
        expected_us=job.expected_us or PRIOR_JOB_US,
        state_bytes=job.state_bytes,
        max_slowdown_ppm=job.max_slowdown_ppm or limits.max_slowdown_ppm,
        is_cold=not profile.segments,
        priority=job.priority,
        tenant=tenant,
    )


def _mode(name: str) -> Mode:
    try:
        return Mode(name)
    except ValueError as error:
        known = ", ".join(Mode)
        raise bad_request(f"mode is {name!r}; wanted one of {known}") from error


def _answer(look: _Look, planner: Planner, found: newcomer.WhatIf) -> service_pb2.WhatIfReply:
    if not found.units:
        return service_pb2.WhatIfReply(reasons=map(look.lens.text, found.refusals))
    taken = found.taken
    reply = service_pb2.WhatIfReply(
        fits=True,
        devices=found.units,
        opens_group=found.opens,
        group_ids=found.group_ids,
        shift_us=taken.course.shift_us if taken is not None and taken.course is not None else 0,
        predicted_ppm=found.slowdown_ppm,
        place="" if taken is None or found.opens else f"{taken.why}; {window_told(taken)}",
    )
    for meeting in found.meets:
        view = service_pb2.WhatIfNeighbour(
            before_ppm=meeting.before_ppm,
            after_ppm=meeting.after_ppm,
            bound_ppm=planner.group_of(meeting.resident_id)
            .residents[meeting.resident_id]
            .demand.max_slowdown_ppm,
        )
        _name(look, view, deployment_id=DeploymentId(meeting.resident_id))
        reply.neighbours.append(view)
    return reply


def _never_fits(scheduler: LiveScheduler, job: service_pb2.JobShape, kind: str) -> str:
    """Say so when a job could not live here were all devices idle; else return nothing."""
    cluster = scheduler.cluster
    devices = [device for device in cluster.devices.values() if device.kind == kind]
    is_gang = job.num_devices <= len(devices) and cluster.has_gang(
        kind=kind, num_devices=job.num_devices
    )
    if not is_gang:
        return (
            f"were all idle, no {job.num_devices} {kind} devices here make a gang: it would be "
            "refused"
        )
    room = max((device.bytes_total for device in devices), default=0)
    if job.state_bytes > room:
        return f"its {job.state_bytes} bytes a device are more than any {kind} device has: {room}"
    return ""


def _lacks_rollout(scheduler: LiveScheduler, job: service_pb2.JobShape) -> str:
    """Say so when too few rollout devices are idle for a job; else return nothing."""
    if not job.rollout_devices:
        return ""
    planner = scheduler.cluster.planners.get(ROLLOUT_KIND)
    idle = 0 if planner is None else len(planner.board.idle)
    if idle >= job.rollout_devices:
        return ""
    return f"{job.rollout_devices} rollout devices asked for, {idle} are idle"


def _name(
    look: _Look,
    view: service_pb2.PackResident | service_pb2.PackWaiting | service_pb2.WhatIfNeighbour,
    *,
    deployment_id: DeploymentId,
) -> None:
    """Add the names of a deployment where they may be shown."""
    record = look.scheduler.registry.deployments.get(deployment_id)
    if record is None or not look.lens.sees(record.job_id):
        return
    view.deployment_id, view.job_id = deployment_id, record.job_id
    view.name, view.tenant = record.name, record.tenant
    view.job_name = look.lens.job_name(record.job_id)


METHODS: Final[Methods] = {"GetPack": pack, "WhatIf": what_if}
