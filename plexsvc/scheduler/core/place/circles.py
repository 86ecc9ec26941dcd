"""Circles of jobs that would wait for each other's devices until a timeout.

A job that waits for a deployment keeps what its other deployments hold. Jobs that wait are
reduced: one that could have all it waits for, once every job outside the rest has ended, will get
it and end some day. Those that are left wait for each other.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import partial

from plexsvc.errors import ErrorCode
from plexsvc.ids import DeploymentId, JobId, UnitId
from plexsvc.scheduler.core.cluster import Placement
from plexsvc.scheduler.core.place import sets
from plexsvc.scheduler.core.planning.bounds import Spot, refusal
from plexsvc.scheduler.core.planning.groups import Group
from plexsvc.scheduler.core.planning.interference import Load
from plexsvc.scheduler.core.planning.memory import Use
from plexsvc.scheduler.core.state import Deployment, Wpg
from plexsvc.scheduler.core.vocabulary import Fault


def closed_by(placement: Placement, deployment: Deployment) -> Fault | None:
    """Return the fault of a deployment whose wait would close a circle; None if it closes none."""
    waiting: dict[JobId, list[Deployment]] = {}
    for deployment_id in placement.unplaced:
        one = placement.deployments[deployment_id]
        if one.takes_turns_with is not None:
            continue  # it holds nothing while it waits
        if one.is_rollout or sets.is_queued(placement, one):  # others find room beside their lead
            waiting.setdefault(one.job_id, []).append(one)
    stuck = {job_id for job_id in waiting if _wpgs(placement, job_id)}
    if deployment.job_id not in stuck or len(stuck) == 1:
        return None
    while True:
        ends = [j for j in stuck if _may_end(placement, waiting[j], stuck)]
        if not ends:
            break
        stuck.difference_update(ends)
    return _fault(placement, deployment, waiting, stuck) if deployment.job_id in stuck else None


def _may_end(placement: Placement, wanted: list[Deployment], stuck: Collection[JobId]) -> bool:
    """Return whether a job could have all it waits for if only `stuck` jobs kept what they have."""
    needed: dict[str, int] = {}
    for one in wanted:
        if one.is_rollout:
            needed[one.device_kind] = needed.get(one.device_kind, 0) + one.num_devices
        elif not _has_training_place(placement, one, stuck):
            return False
    return all(len(_free(placement, kind, stuck)) >= count for kind, count in needed.items())


def _has_training_place(placement: Placement, wanted: Deployment, stuck: Collection[JobId]) -> bool:
    """Return whether some gang would take a deployment beside the `stuck` jobs' deployments."""
    planner = placement.planning.planner(wanted.device_kind)
    board, demand = planner.board, planner.waiting[wanted.resident_id]
    usable = _free(placement, wanted.device_kind, stuck, shared=True)
    kept = {g: _without(placement, board.groups[g], stuck) for g in board.groups}
    memory = board.memory.emptied()
    for one in (r for group in kept.values() for r in group.residents.values()):
        memory.reserve(Use.STATE, one.demand.resident_id, one.units, one.demand.host_bytes)
    ask = partial(
        refusal, demand=demand, load=Load.of(demand), policy=planner.policy, memory=memory
    )
    burden = {u: len(kept[g].on((u,))) for u, g in board.group_at.items()}
    for gang in board.rooms.gangs(
        demand.num_units, among=usable, burden=lambda unit_id: burden.get(unit_id, 0)
    ):
        met = sorted({board.group_at[u] for u in gang if u in board.group_at})
        spot = Spot(units=gang, groups=[kept[g] for g in met if kept[g].residents])
        if not spot.groups or ask(spot) is None:
            return True
    return False


def _without(placement: Placement, group: Group, stuck: Collection[JobId]) -> Group:
    """Return a group as it is when only the residents of `stuck` jobs are left."""
    left = {
        resident_id: resident
        for resident_id, resident in group.residents.items()
        if placement.deployments[DeploymentId(resident_id)].job_id in stuck
    }
    return replace(
        group,
        residents=left,
        late={},
        probing={key: None for key in group.probing if key in left},
        duty_ppm=sum(r.demand.profile.duty_ppm for r in left.values()),
        is_uniform=all(len(r.units) == group.size for r in left.values()),
    )


def _free(
    placement: Placement, kind: str, stuck: Collection[JobId], *, shared: bool = False
) -> dict[UnitId, None]:
    """Return the devices that `stuck` jobs leave: to instances idle ones, to training `shared`."""
    board = placement.planning.planner(kind).board
    held = {
        place.unit
        for job_id in stuck
        for one in _wpgs(placement, job_id)
        if one.is_rollout or not shared
        for place in one.places
    }
    return {u: None for u in board.rooms if u not in held and u not in board.cordoned}


def _wpgs(placement: Placement, job_id: JobId) -> list[Wpg]:
    """Return what a job has on devices."""
    mine = [placement.deployments[d] for d in placement.jobs[job_id].deployments]
    return [wpg for wpg in map(placement.wpg_of, mine) if wpg is not None]


def _fault(
    placement: Placement,
    deployment: Deployment,
    waiting: dict[JobId, list[Deployment]],
    stuck: Collection[JobId],
) -> Fault:
    told = []
    for job_id in sorted(stuck):
        has = ", ".join(one.deployment_id for one in _wpgs(placement, job_id))
        lacks = ", ".join(one.deployment_id for one in waiting[job_id])
        told.append(f"{job_id} holds {has} and waits for {lacks}")
    return Fault(
        code=ErrorCode.NO_PLACEMENT,
        message=f"{deployment.deployment_id} would wait in a circle of jobs, each for devices that "
        f"the others hold: {'; '.join(told)}. It is not waited for; ask for fewer devices, or end "
        "one of the jobs and deploy again",
        facts=(("circle", " ".join(sorted(stuck))),),
    )
