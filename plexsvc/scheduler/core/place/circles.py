"""Circles of jobs that would wait for each other's devices until a timeout.

A job that waits for a deployment keeps what its other deployments hold. Jobs that wait are
reduced: one that could have all it waits for, once every job outside the rest has ended, will get
it and end some day. Those that are left wait for each other, or one for devices that it has itself.

A request that would close a circle is refused. A node that is lost or closed may close one among
requests that were taken. It may be back soon, by itself or by its operator's hand, so circles are
looked for `GRACE_US` later: then the latest request of one is refused, until there is none.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from copy import copy
from dataclasses import replace
from typing import Final

from plexsvc.errors import ErrorCode
from plexsvc.ids import DeploymentId, JobId, NodeId, ResidentId, UnitId
from plexsvc.scheduler.core.cluster import Placement
from plexsvc.scheduler.core.place import demands, sharing
from plexsvc.scheduler.core.planning.groups import Group
from plexsvc.scheduler.core.planning.places import Search, Spot
from plexsvc.scheduler.core.state import DeploymentEntry, Wpg
from plexsvc.scheduler.core.timers import Timer
from plexsvc.scheduler.core.vocabulary import Fault

GRACE_US: Final = 600_000_000
"""How long a node that was lost or closed may take to be back before circles are opened for it."""


def look_later(placement: Placement, node_id: NodeId) -> None:
    """Look for circles once a node that was lost or closed has had the time to come back."""
    placement.set_timer(Timer.CIRCLE, node_id, at_us=placement.now_us + GRACE_US)


def closed_by(placement: Placement, deployment: DeploymentEntry) -> Fault | None:
    """Return the fault of a deployment whose wait would close a circle; None if it closes none.

    What its job has and waits for may also be more than there is, which nobody says while nodes
    are closed: they may be opened.
    """
    if deployment.deployment_id not in placement.unplaced:
        return None
    job_id = deployment.job_id
    waiting = _waiting(placement, placement.jobs[job_id].deployments)
    if job_id not in waiting:
        return None
    if not placement.cordoned and not _may_end(placement, waiting[job_id], {job_id}):
        return _fault(placement, deployment, waiting, {job_id})
    if not _wpgs(placement, job_id):  # nobody waits for it
        return None
    waiting = _waiting(placement)
    stuck = _stuck(placement, waiting)
    return _fault(placement, deployment, waiting, stuck) if job_id in stuck else None


def youngest(placement: Placement) -> tuple[DeploymentEntry, Fault] | None:
    """Return the latest request among the jobs in circles, and its fault; None without a circle.

    Refused, it opens a circle as a request that would have closed one does.
    """
    waiting = _waiting(placement)
    stuck = _stuck(placement, waiting)
    wanted = [one for job_id in stuck for one in waiting[job_id]]
    if not wanted:
        return None
    latest = max(wanted, key=lambda one: (one.requested_us, one.deployment_id))
    return latest, _fault(placement, latest, waiting, stuck)


def jobs_in(placement: Placement) -> set[JobId]:
    """Return the jobs in circles that a lost or closed node closed."""
    return _stuck(placement, _waiting(placement))


def _waiting(
    placement: Placement, among: Collection[DeploymentId] | None = None
) -> dict[JobId, list[DeploymentEntry]]:
    """Return what each job waits for that others may have, of all deployments or of some."""
    waiting: dict[JobId, list[DeploymentEntry]] = {}
    for deployment_id in placement.unplaced if among is None else among:
        if deployment_id not in placement.unplaced:
            continue
        one = placement.deployments[deployment_id]
        if one.where_it_trains:
            continue  # it goes where its job trains
        if one.is_rollout or demands.is_queued(placement, one):  # others live beside their lead
            waiting.setdefault(one.job_id, []).append(one)
    return waiting


def _stuck(placement: Placement, waiting: Mapping[JobId, list[DeploymentEntry]]) -> set[JobId]:
    """Return which jobs hold something and wait for each other."""
    stuck = {job_id for job_id in waiting if _wpgs(placement, job_id)}
    while ends := [j for j in stuck if _may_end(placement, waiting[j], stuck)]:
        stuck.difference_update(ends)
    return stuck


def _may_end(placement: Placement, wanted: list[DeploymentEntry], stuck: Collection[JobId]) -> bool:
    """Return whether a job could have all it waits for if only `stuck` jobs kept what they have."""
    instances: dict[str, list[DeploymentEntry]] = {}
    for one in wanted:
        if one.is_rollout:
            instances.setdefault(one.device_kind, []).append(one)
        elif not _has_training_place(placement, one, stuck):
            return False
    return all(_has_devices(placement, those, stuck) for those in instances.values())


def _has_devices(
    placement: Placement, wanted: list[DeploymentEntry], stuck: Collection[JobId]
) -> bool:
    """Return whether instances of one kind would all find idle devices, or ones that sharers have.

    Engines that may sleep keep nobody out who may, too: only what is not shared is held. Instances
    that were on a lost node get idle devices first.
    """
    kind, count = wanted[0].device_kind, sum(one.num_devices for one in wanted)
    stays = {wpg.wpg_id: wpg for job_id in stuck for wpg in _wpgs(placement, job_id)}
    may_meet = all(one.is_shared for one in wanted)
    back = [stays[wpg_id] for wpg_id, _ in placement.homeless if wpg_id in stays]
    alike = [w for w in back if placement.deployments[w.deployment_id].device_kind == kind]
    first = [w for w in alike if not (may_meet and w.is_shared)]
    rooms = placement.planner(kind).board.rooms
    left = max(0, len(rooms) - len(_barred(placement, kind, stuck)) - len(first))
    if may_meet:
        left += len(sharing.sharable(placement, kind, stays=stays))
    return left >= count


def _has_training_place(
    placement: Placement, wanted: DeploymentEntry, stuck: Collection[JobId]
) -> bool:
    """Return whether some gang would take a deployment beside the `stuck` jobs' deployments."""
    planner = placement.planner(wanted.device_kind)
    board, demand = planner.board, planner.waiting[wanted.resident_id]
    barred = _barred(placement, wanted.device_kind, stuck, shared=True)
    theirs = (d for job_id in stuck for d in placement.jobs[job_id].deployments)
    ids = {board.group_of[d] for d in map(ResidentId, theirs) if d in board.group_of}
    kept = {g: _without(placement, board.groups[g], stuck) for g in sorted(ids)}
    met = barred.union(*(group.units for group in kept.values()))
    if board.rooms.has_gang(demand.num_units, without=met):
        return True
    search = Search(copy(board), policy=planner.policy)
    search.board.memory = memory = board.memory.emptied()
    for one in (r for group in kept.values() for r in group.residents.values()):
        memory.book(one.demand, one.units)
    burden = {u: len(group.on((u,))) for group in kept.values() for u in group.units}
    usable = {u: None for u in board.rooms if u not in barred}
    for gang in board.rooms.gangs(
        demand.num_units, among=usable, burden=lambda unit_id: burden.get(unit_id, 0)
    ):
        there = sorted({board.group_at[u] for u in gang if u in board.group_at} & kept.keys())
        spot = Spot(units=gang, groups=[kept[g] for g in there])
        # Whenever that is: without a time.
        if not spot.groups or search.refusal(demand, spot, now_us=None) is None:
            return True
        is_guess = demand.is_cold or spot.is_probing
        if is_guess and not any(group.is_closed for group in spot.groups):  # refused for a while
            has_room = memory.holds(gang, demand)
            if has_room and spot.crowd().num_jobs < planner.policy.max_jobs:
                return True
    return False


def _without(placement: Placement, group: Group, stuck: Collection[JobId]) -> Group:
    """Return a group as it is when only the residents of `stuck` jobs are left."""
    left = {
        resident_id: replace(resident, is_late=False, began_us=0, seen_us=None)
        for resident_id, resident in group.residents.items()
        if placement.deployments[DeploymentId(resident_id)].job_id in stuck
    }
    return replace(
        group,
        residents=left,
        duty_ppm=sum(r.demand.profile.duty_ppm for r in left.values()),
        is_uniform=all(len(r.units) == group.size for r in left.values()),
    )


def _barred(
    placement: Placement, kind: str, stuck: Collection[JobId], *, shared: bool = False
) -> set[UnitId]:
    """Return the devices that `stuck` jobs keep from instances; what from training, if `shared`."""
    board = placement.planner(kind).board
    held = {
        place.unit
        for job_id in stuck
        for one in _wpgs(placement, job_id)
        if not shared
        or (one.is_rollout and not placement.deployments[one.deployment_id].where_it_trains)
        for place in one.places
    }
    return {u for u in held.union(board.cordoned) if u in board.rooms}


def _wpgs(placement: Placement, job_id: JobId) -> list[Wpg]:
    """Return what a job has on devices."""
    mine = [placement.deployments[d] for d in placement.jobs[job_id].deployments]
    return [wpg for wpg in map(placement.wpg_of, mine) if wpg is not None]


def _fault(
    placement: Placement,
    deployment: DeploymentEntry,
    waiting: Mapping[JobId, list[DeploymentEntry]],
    stuck: Collection[JobId],
) -> Fault:
    told = []
    for job_id in sorted(stuck):
        has = ", ".join(one.deployment_id for one in _wpgs(placement, job_id))
        lacks = ", ".join(one.deployment_id for one in waiting[job_id])
        told.append(f"{job_id} {f'holds {has} and ' if has else ''}waits for {lacks}")
    others = "in a circle of jobs, each for devices that the others hold"
    held = others if len(stuck) > 1 else "for more than all devices, were others gone, hold"
    gone = {n for n in placement.cordoned if n in placement.nodes}  # nobody gets their devices
    gone.update(p.node_id for p in placement.devices if p.node_id not in placement.nodes)
    without = f" (without nodes that are lost or closed: {', '.join(sorted(gone))})" if gone else ""
    return Fault(
        code=ErrorCode.NO_PLACEMENT,
        message=f"{deployment.deployment_id} would wait {held}: {'; '.join(told)}"
        f"{without}. It is not waited for; ask for fewer devices, or end one of "
        "the jobs and deploy again",
        facts=(("circle", " ".join(sorted(stuck))),),
    )
