"""Rollout devices that engines of several jobs share in time: which ones an engine joins.

A job that shares takes turns twice: on its rollout devices while others train, and on its training
devices while others roll out. Once the cycles of all whom it would meet are known, their rounds are
played on both pools (`planning/ring`), and it joins only where nobody's whole cycle is
predicted to pass its bound. Training that is placed in the same decision is a part of that: where
it breaks a bound, the job is refused both. While a cycle is not known nothing can be played: then
idle devices come first, and where there are none the emptiest.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from plexsvc.ids import DeploymentId, JobId, UnitId, WpgId
from plexsvc.scheduler.core.cluster import Placement
from plexsvc.scheduler.core.place.demands import demand, planner_of
from plexsvc.scheduler.core.planning.profile import Demand, Mode
from plexsvc.scheduler.core.planning.ring import (
    Course,
    Taken,
    Turns,
    play,
    together,
    turns_of,
    within_bounds,
)
from plexsvc.scheduler.core.planning.rooms import Gang
from plexsvc.scheduler.core.state import DeploymentEntry, Wpg
from plexsvc.scheduler.core.vocabulary import Place, WpgState

NOWHERE: Final = "nowhere/"
"""Where a part of a job is that has no devices yet: it meets nobody."""


def place(
    placement: Placement,
    wanted: Sequence[DeploymentEntry],
    *,
    held: Gang | None,
    idle: Sequence[UnitId],
    beside: Mapping[DeploymentId, Gang],
) -> Gang | None:
    """Return the devices of deployments of one job and kind: shared ones, or idle ones.

    `held` are idle ones for all of them, if there are so many; of fewer in `idle` some may come
    together with shared ones. `beside` is what the job's training is about to get. None if there
    are too few, or all would break a bound.
    """
    job_id, num_devices = wanted[0].job_id, sum(one.num_devices for one in wanted)
    sizes = [one.instance_bytes for one in wanted]
    nbytes = max(sizes) if all(sizes) else 0
    shared = sharable(placement, wanted[0].device_kind, nbytes=nbytes)
    mixed = (*idle, *shared)[:num_devices]
    # Neighbours in that order alone: all choices of devices would be too many to play.
    gangs = [shared[at : at + num_devices] for at in range(len(shared) - num_devices + 1)]
    if held is None and len(mixed) == num_devices:
        gangs.append(mixed)
    players, is_known = _players(placement), True
    for units in gangs:
        job = _turns(placement, job_id, at={**_deal(wanted, units), **beside})
        there = (w for unit in units for w in placement.devices[Place.of(unit)].ranks)
        met = {placement.wpgs[wpg_id].job_id for wpg_id in there} - {job_id}
        if job is None or any(players.get(other) is None for other in met):
            is_known = False
        elif courses := within_bounds(job, _known(players, but=job_id), now_us=placement.now_us):
            why = f"the first of {len(gangs)} place(s) where all bounds are kept"
            _note(placement, wanted, why=why, period_us=job.period_us, courses=courses)
            return units
    # On idle devices it meets nobody. Its training, which is placed with it, may.
    if held is not None:
        job = _turns(placement, job_id, at={**_deal(wanted, held), **beside}) if beside else None
        if job is None or within_bounds(job, _known(players, but=job_id), now_us=placement.now_us):
            return held
        return None
    if is_known or len(mixed) < num_devices:
        return None
    _note(placement, wanted, why="the emptiest, since a cycle there is not known")
    return mixed


def _note(
    placement: Placement,
    wanted: Sequence[DeploymentEntry],
    *,
    why: str,
    period_us: int = 0,
    courses: Sequence[Course] = (),
) -> None:
    """Note what deployments get among others; the first of `courses` is their job's."""
    taken = Taken(at_us=placement.now_us, why=why)
    if courses:
        taken = replace(
            taken,
            slowdown_ppm=courses[0].slowdown_ppm,
            others_ppm=max((course.slowdown_ppm for course in courses[1:]), default=0),
            period_us=period_us,
            course=courses[0],
        )
    for one in wanted:
        planner, key = planner_of(placement, one)
        planner.taken[key] = taken


def crowded(placement: Placement) -> Iterator[DeploymentEntry]:
    """Yield deployments that share devices with others while somebody's bound is not kept.

    By now, as their cycles are known: those that were placed before they were, or have changed.
    """
    players = {job_id: job for job_id, job in _players(placement).items() if job is not None}
    names = {id(job): job_id for job_id, job in players.items()}
    is_over: dict[JobId, bool] = {}
    for job_id, job in players.items():
        if job_id not in is_over:  # all that meet are played once, for all of them
            among = together(job, _known(players, but=job_id))
            played = zip(among, play(among), strict=True)
            late = [one for one, course in played if course.slowdown_ppm > one.most_ppm]
            over = len(among) > 1 and bool(late)
            is_over.update(dict.fromkeys((names[id(one)] for one in among), over))
        for one in _rollouts(placement, job_id) if is_over[job_id] else ():
            wpg = placement.wpg_of(one)
            if wpg is not None and any(len(device.ranks) > 1 for device in wpg.devices):
                yield one


def sharable(
    placement: Placement, kind: str, *, stays: Collection[WpgId] | None = None, nbytes: int = 0
) -> Gang:
    """Return devices whose instances may sleep, those with the fewest first.

    Before them come those on which nobody need sleep for an instance of `nbytes` (0: all of it).
    With `stays`, as they will be when nobody else is left.
    """
    most = placement.policy.max_jobs
    found = []
    for place, device in placement.devices.items():
        is_open = place.node_id in placement.nodes and place.node_id not in placement.cordoned
        if device.kind == kind and is_open:
            there = [w for w in device.ranks if stays is None or w in stays]
            if 0 < len(there) < most and all(
                _may_meet(placement, placement.wpgs[w]) for w in there
            ):
                taken = sum(placement.wpgs[w].device_bytes[device.ranks[w]] for w in there)
                is_full = not 0 < nbytes <= device.bytes_total - taken
                found.append((is_full, len(there), place.unit))
    return tuple(unit for *_, unit in sorted(found))


def _may_meet(placement: Placement, wpg: Wpg) -> bool:
    """Return whether others may get devices of a WPG in turn with it."""
    is_ending = wpg.state in {WpgState.STOPPING, WpgState.FORGETTING}
    return wpg.is_shared and placement.is_current(wpg) and not is_ending


def _deal(wanted: Sequence[DeploymentEntry], units: Gang) -> dict[DeploymentId, Gang]:
    """Give units to deployments one after another."""
    dealt: dict[DeploymentId, Gang] = {}
    for one in wanted:
        dealt[one.deployment_id], units = units[: one.num_devices], units[one.num_devices :]
    return dealt


def _players(placement: Placement) -> dict[JobId, Turns | None]:
    """Return the turns of each job that has instances on shared devices; None: not known yet."""
    jobs = dict.fromkeys(w.job_id for w in placement.wpgs.values() if w.is_shared)
    return {job_id: _turns(placement, job_id) for job_id in sorted(jobs)}


def _known(players: Mapping[JobId, Turns | None], *, but: JobId) -> list[Turns]:
    return [job for job_id, job in players.items() if job is not None and job_id != but]


def _rollouts(placement: Placement, job_id: JobId) -> list[DeploymentEntry]:
    mine = [placement.deployments[d] for d in placement.jobs[job_id].deployments]
    return [one for one in mine if one.is_shared and not one.where_it_trains]


def _turns(
    placement: Placement,
    job_id: JobId,
    *,
    at: dict[DeploymentId, Gang] | None = None,
) -> Turns | None:
    """Return what a job does on both pools in a cycle; None if that is not known.

    Deployments are where their processes are, those in `at` there.
    """
    mine = [placement.deployments[d] for d in placement.jobs[job_id].deployments]
    parts: list[tuple[Demand, Gang]] = []
    for one in sorted(mine, key=lambda one: not one.is_rollout):
        if one.where_it_trains:
            continue  # a part of its training's cycle
        wanted = demand(placement, one)
        if wanted.is_cold or wanted.profile.mode is not Mode.SYNC:
            return None
        wpg = placement.wpg_of(one)
        units: Gang = (UnitId(NOWHERE + one.deployment_id),)
        if at is not None and one.deployment_id in at:
            units = at[one.deployment_id]
        elif wpg is not None:
            units = tuple(place.unit for place in wpg.places)
        parts.append((wanted, units))
    return turns_of(parts)
