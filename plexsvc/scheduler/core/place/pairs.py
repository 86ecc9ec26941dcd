"""Placement of jobs that take turns on two pools: both gangs at once, or none.

A synchronous job whose instances can be parked shares its rollout devices like its training
devices. It joins a group on either pool where nobody's whole cycle is predicted to pass its bound
(`planning/forecast`), and takes as few idle units as that allows. The groups of both pools are
independent: two jobs may share rollout devices alone. Until its cycle is known a job has both gangs
to itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Final

from plexsvc.ids import DeploymentId, UnitId
from plexsvc.scheduler.core.cluster import Placement
from plexsvc.scheduler.core.place import demands
from plexsvc.scheduler.core.planning.bounds import Spot
from plexsvc.scheduler.core.planning.forecast import ROOM_PPM, Turns, keeps_bounds, turns_of
from plexsvc.scheduler.core.planning.groups import Group
from plexsvc.scheduler.core.planning.places import joining, whole_groups
from plexsvc.scheduler.core.planning.planner import Planner
from plexsvc.scheduler.core.planning.profile import Demand
from plexsvc.scheduler.core.planning.rooms import Gang
from plexsvc.scheduler.core.state import Deployment
from plexsvc.scheduler.core.vocabulary import Place

MAX_TRIES: Final = 48
"""Pairs of groups that are played for a job."""

CLOSE_PPM: Final = 920_000
"""The share of its bound from which a job gets units of its own."""

MAX_LEFT: Final = 2
"""Parts of jobs in a group that may be emptied."""

NOWHERE: Final = Spot(units=(UnitId(""),))
"""A place that is shared with nobody."""

Placed = tuple[Deployment, tuple[Place, ...]]
Part = tuple[Planner, Demand]


def admit(placement: Placement) -> list[Placed]:
    """Place the jobs that wait for both pools, the longest first, as far as there are places."""
    done: list[Placed] = []
    waiting = _waiting(placement)
    players = list(map(turns_of, _parts_of(placement).values())) if waiting else []
    for deployments in waiting:
        parts = [
            (placement.planning.planner(one.device_kind), demands.demand(placement, one))
            for one in deployments
        ]
        spots = _spots(parts, players, is_shared=placement.planning.policy.max_jobs > 1)
        if spots is None:
            if not placement.planning.policy.backfill:
                break
            continue
        players.append(_turns(parts, spots))
        for one, (planner, demand), spot in zip(deployments, parts, spots, strict=True):
            planner.place_at(demand, spot.units, now_us=placement.now_us)
            placement.unplaced.remove(one.deployment_id)
            done.append((one, tuple(map(Place.of, spot.units))))
    return done


def emptied(
    placement: Placement, *, may_leave: Callable[[Deployment], bool]
) -> list[tuple[Deployment, Gang]]:
    """Return where all parts of jobs in one group may join others; none if no group can be emptied.

    So units become idle that jobs which ended left to few.
    """
    parts: dict[str, list[tuple[Demand, Gang]]] = {}
    groups = [each for each in _groups(placement) if len(each[1].residents) <= MAX_LEFT]
    for planner, group in sorted(groups, key=lambda each: each[1].duty_ppm):
        leaving = [
            (placement.deployments[DeploymentId(name)], resident.demand)
            for name, resident in group.residents.items()
        ]
        is_cold = any(demand.is_cold for _, demand in leaving)
        if is_cold or _past(planner, group, ROOM_PPM) or not all(may_leave(d) for d, _ in leaving):
            continue
        parts = parts or _parts_of(placement)
        left, moves = dict(parts), []
        for one, demand in leaving:
            units = _other_place(planner, demand, left, name=_name(one), barred=group.units)
            if units is None:
                break
            moves.append((one, units))
        else:
            return moves
    return []


def relieved(
    placement: Placement, *, may_leave: Callable[[Deployment], bool]
) -> tuple[Deployment, Gang] | None:
    """Return a part of a job that has used most of its bound, and idle units for it alone."""
    for planner, group in _groups(placement):
        close = _past(planner, group, CLOSE_PPM) if len(group.residents) > 1 else ()
        for demand in close:
            one = placement.deployments[DeploymentId(demand.resident_id)]
            gang = planner.search.idle_gang(demand, planner.kept.units())
            if gang is not None and may_leave(one):
                return one, gang
    return None


def _groups(placement: Placement) -> Iterator[tuple[Planner, Group]]:
    """Yield the groups in which all take turns with others on two pools."""
    for planner in placement.planning.planners.values():
        for group in planner.board.groups.values():
            living = (placement.deployments[DeploymentId(name)] for name in group.residents)
            if all(one.takes_turns_with is not None for one in living):
                yield planner, group


def _past(planner: Planner, group: Group, share_ppm: int) -> list[Demand]:
    """Return who of a group has used more than some share of its bound."""
    demands = (resident.demand for resident in group.residents.values())
    return [d for d in demands if planner.paces.lost_ppm(d) > share_ppm]


def _other_place(
    planner: Planner,
    demand: Demand,
    parts: dict[str, list[tuple[Demand, Gang]]],
    *,
    name: str,
    barred: Gang,
) -> Gang | None:
    """Return the units of the fullest group that a part of a job may join; book it in `parts`."""
    players = [turns_of(each) for other, each in parts.items() if other != name]
    spots = [spot for spot in _options(planner, demand, may_join=True) if spot.groups]
    for spot in sorted(spots, key=lambda spot: _cost((spot,))):
        there = sum(units == spot.units for each in parts.values() for _, units in each)
        if spot.units == barred or there >= planner.policy.max_jobs:
            continue
        moved = [(d, spot.units if d is demand else units) for d, units in parts[name]]
        if keeps_bounds(turns_of(moved), players):
            parts[name] = moved
            return spot.units
    return None


def _waiting(placement: Placement) -> list[list[Deployment]]:
    """Return the deployments of each job that is complete, by priority, then the longest first."""
    found: dict[DeploymentId, list[Deployment]] = {}
    for deployment_id in placement.unplaced:
        one = placement.deployments[deployment_id]
        if one.takes_turns_with:
            first = min(deployment_id, one.takes_turns_with)
            found.setdefault(first, []).append(one)

    def turn(deployments: list[Deployment]) -> tuple[int, int, int]:
        demand = demands.demand(placement, deployments[0])
        is_fifo = not placement.planning.policy.backfill
        return -demand.priority, 0 if is_fifo else -demand.expected_us, demand.arrived_us

    return sorted((each for each in found.values() if len(each) > 1), key=turn)


def _parts_of(placement: Placement) -> dict[str, list[tuple[Demand, Gang]]]:
    """Return all who live on some device, those that take turns as one."""
    parts: dict[str, list[tuple[Demand, Gang]]] = {}
    for planner in placement.planning.planners.values():
        for group in planner.board.groups.values():
            for resident_id, resident in group.residents.items():
                one = placement.deployments[DeploymentId(resident_id)]
                parts.setdefault(_name(one), []).append((resident.demand, resident.units))
    return parts


def _name(deployment: Deployment) -> str:
    takes_turns = deployment.takes_turns_with is not None
    return deployment.job_id if takes_turns else deployment.deployment_id


def _turns(parts: Sequence[Part], spots: Sequence[Spot]) -> Turns:
    return turns_of([(d, spot.units) for (_, d), spot in zip(parts, spots, strict=True)])


def _spots(
    parts: Sequence[Part], players: Sequence[Turns], *, is_shared: bool
) -> Sequence[Spot] | None:
    """Return the place of each part of a job; None if there is none.

    A group is tried first with the job's other part by itself: what breaks a bound then breaks it
    beside others, too.
    """
    may_join = is_shared and not any(demand.is_cold for _, demand in parts)
    options = []
    for at, (planner, demand) in enumerate(parts):
        found = []
        for spot in _options(planner, demand, may_join=may_join):
            alone = [spot if at == other else NOWHERE for other in range(len(parts))]
            if not spot.groups or keeps_bounds(_turns(parts, alone), players):
                found.append(spot)
        options.append(found)
    for tries, spots in enumerate(sorted(product(*options), key=_cost)):
        if sum(bool(spot.groups) for spot in spots) <= 1:
            return spots
        if tries < MAX_TRIES and keeps_bounds(_turns(parts, spots), players):
            return spots
    return None


def _options(planner: Planner, demand: Demand, *, may_join: bool) -> list[Spot]:
    """Return the groups that have room for a part of a job, and idle units."""
    kept = planner.kept.units()
    groups = whole_groups(planner.board, demand) if may_join else []
    found = [
        spot
        for spot in joining(planner.board, demand, groups, barred=kept)
        if _takes(planner, spot, demand)
    ]
    gang = planner.search.idle_gang(demand, kept)
    return found if gang is None else [*found, Spot(units=gang)]


def _takes(planner: Planner, spot: Spot, demand: Demand) -> bool:
    """Return whether a group has room for a part of a job, whatever the turns are like."""
    group = spot.groups[0]
    is_open = not (group.is_closed or group.late or group.probing)
    is_slow = bool(_past(planner, group, ROOM_PPM))
    is_full = len(group.residents) >= planner.policy.max_jobs
    duty_ppm = group.duty_ppm + demand.profile.duty_ppm
    has_room = planner.board.memory.holds(spot.units, demand.host_bytes)
    return is_open and not (is_full or is_slow) and has_room and duty_ppm <= demand.max_slowdown_ppm


def _cost(spots: Sequence[Spot]) -> tuple[int, int]:
    """Return how many idle units a place takes, then how full its groups are, the fullest first."""
    opened = sum(len(spot.units) for spot in spots if not spot.groups)
    return opened, -sum(group.duty_ppm for spot in spots for group in spot.groups)
