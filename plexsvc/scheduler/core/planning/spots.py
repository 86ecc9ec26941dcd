"""The places a job could take on a board, and which of those that take it is best."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from heapq import nsmallest
from typing import Final

from plexsvc.ids import UnitId
from plexsvc.scheduler.core.planning.board import Board
from plexsvc.scheduler.core.planning.bounds import Spot
from plexsvc.scheduler.core.planning.groups import Group
from plexsvc.scheduler.core.planning.policies import Policy, Preference
from plexsvc.scheduler.core.planning.profile import Demand
from plexsvc.scheduler.core.planning.rooms import Gang

MAX_CANDIDATES: Final = 64
"""Groups, or blocks to be merged, that a job is checked against."""

COST_GRAIN_PPM: Final = 10_000
"""Predicted slowdowns closer than this count as equal; commensurate periods decide."""

Barred = Collection[UnitId]


def has_whole(board: Board, demand: Demand, *, barred: Barred = ()) -> bool:
    """Return whether there is a group as large as a job's gang, outside of `barred`."""
    same = board.by_size.get(demand.num_units, {}).values()
    if not barred:
        return bool(same)
    return any(not any(unit_id in barred for unit_id in group.units) for group in same)


def whole_groups(board: Board, demand: Demand) -> list[Group]:
    """Return the groups as large as a job's gang: the least busy, a bounded number."""
    return _least_busy_groups(list(board.by_size.get(demand.num_units, {}).values()))


def larger_groups(board: Board, demand: Demand) -> list[Group]:
    """Return the groups of which a job would use a part: the least busy, a bounded number."""
    every = sorted(board.groups.values(), key=lambda g: (g.size, g.group_id))
    return _least_busy_groups([g for g in every if g.size > demand.num_units])


def _least_busy_groups(groups: list[Group]) -> list[Group]:
    if len(groups) <= MAX_CANDIDATES:
        return groups
    return nsmallest(MAX_CANDIDATES, groups, key=lambda g: (g.duty_ppm, g.group_id))


def joining(
    board: Board, demand: Demand, groups: Iterable[Group], *, barred: Barred = ()
) -> list[Spot]:
    """Return the place each group has for a job: all of it, or its least busy block."""
    spots = []
    for group in groups:
        if group.is_uniform and group.size == demand.num_units:
            if not barred or not any(unit_id in barred for unit_id in group.units):
                spots.append(Spot(units=group.units, groups=(group,), is_whole=True))
            continue
        units = _least_busy(board, demand, [n for n in group.units if n not in barred])
        if units is not None:
            spots.append(Spot(units=units, groups=(group,)))
    return spots


def merging(board: Board, demand: Demand, *, barred: Barred = ()) -> list[Spot]:
    """Return the places that groups, or groups and idle units, would make as one."""
    usable = dict.fromkeys(n for n in [*board.idle, *board.group_at] if n not in barred)
    spots = []
    for units in board.rooms.gangs(demand.num_units, among=usable, burden=board.duty_on):
        met = sorted({board.group_at[n] for n in units if n in board.group_at})
        is_inside = len(met) == 1 and set(units) <= set(board.groups[met[0]].units)
        if met and not is_inside:
            spots.append(Spot(units=units, groups=[board.groups[group_id] for group_id in met]))
    if len(spots) <= MAX_CANDIDATES:
        return spots
    return nsmallest(MAX_CANDIDATES, spots, key=lambda spot: spot.crowd().duty_ppm)


def best(board: Board, demand: Demand, spots: Sequence[Spot], *, policy: Policy) -> Spot | None:
    """Return the place the policy prefers among those that take the job; None without any.

    A cold job goes where the fewest live, away from others that are being profiled. `plex` takes
    the smallest group, of those the least predicted interference, then commensurate periods, then
    the busiest.
    """
    if not spots:
        return None
    if demand.is_cold:
        return min(spots, key=_by_crowd)
    if policy.preference is Preference.PLEX:
        return _least_interference(board, demand, spots)
    sign = -1 if policy.preference is Preference.PACK else 1
    return min(spots, key=lambda spot: _by_number(spot, sign))


def _least_interference(board: Board, demand: Demand, spots: Sequence[Spot]) -> Spot:
    grains = [(spot.size, spot.cost_ppm // COST_GRAIN_PPM) for spot in spots]
    least = min(grains)
    equal = [spot for spot, grain in zip(spots, grains, strict=True) if grain == least]
    if len(equal) == 1:
        return equal[0]
    period = board.period_slots(demand.profile)

    def cost(spot: Spot) -> tuple[int, int, int]:
        odd = sum(not _is_commensurate(period, r.cells.period) for r in spot.met())
        return odd, -spot.crowd().duty_ppm, spot.groups[0].group_id

    return min(equal, key=cost)


def _by_crowd(spot: Spot) -> tuple[int, ...]:
    crowd = spot.crowd()
    met = (crowd.num_jobs, crowd.duty_ppm, spot.size, spot.groups[0].group_id)
    return (spot.is_probing, *met)


def _by_number(spot: Spot, sign: int) -> tuple[int, int, int]:
    crowd = spot.crowd()
    return sign * crowd.num_jobs, sign * crowd.duty_ppm, spot.groups[0].group_id


def _least_busy(board: Board, demand: Demand, among: list[UnitId]) -> Gang | None:
    gangs = board.rooms.gangs(demand.num_units, among=among, burden=board.duty_on)
    return min(gangs, key=lambda units: max(map(board.duty_on, units)), default=None)


def _is_commensurate(period: int, other: int) -> bool:
    """Return whether one period is a multiple of the other."""
    return period % other == 0 or other % period == 0
