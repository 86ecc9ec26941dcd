"""Places that a job could take, and which of them is best."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import partial
from heapq import nsmallest
from typing import Final

from plexsvc.ids import ResidentId, UnitId
from plexsvc.scheduler.core.planning.board import Board
from plexsvc.scheduler.core.planning.bounds import (
    NOBODY,
    Spot,
    is_full,
    refusal,
)
from plexsvc.scheduler.core.planning.groups import Group
from plexsvc.scheduler.core.planning.paces import Paces
from plexsvc.scheduler.core.planning.policies import Policy, Preference
from plexsvc.scheduler.core.planning.profile import PPM, Demand, Load
from plexsvc.scheduler.core.planning.rooms import Gang

MAX_CANDIDATES: Final = 64
"""Groups, or blocks to be merged, that a job is checked against."""

COST_GRAIN_PPM: Final = 10_000
"""Predicted slowdowns closer than this count as equal: the busiest decides."""

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


def best(demand: Demand, spots: Sequence[Spot], *, policy: Policy) -> Spot | None:
    """Return the place the policy prefers among those that take the job; None without any.

    A cold job goes where the fewest live, away from others that are being profiled. `plex` takes
    the smallest group, of those the least predicted interference, then the busiest.
    """
    if not spots:
        return None
    if demand.is_cold:
        return min(spots, key=_by_crowd)
    if policy.preference is Preference.PLEX:
        return min(spots, key=_by_cost)
    sign = -1 if policy.preference is Preference.PACK else 1
    return min(spots, key=lambda spot: _by_number(spot, sign))


def _by_cost(spot: Spot) -> tuple[int, ...]:
    grain, duty_ppm = spot.cost_ppm // COST_GRAIN_PPM, spot.crowd().duty_ppm
    return spot.size, grain, -duty_ppm, spot.groups[0].group_id


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


class Search:
    """The search for a place: who takes a job within everyone's bounds."""

    def __init__(
        self, board: Board, *, policy: Policy, paces: Paces, waiting: dict[ResidentId, Demand]
    ) -> None:
        """Search `board` by `policy`."""
        self.board = board
        self.policy = policy
        self.paces = paces
        self.waiting = waiting
        self.loads: dict[ResidentId, Load] = {}
        """Loads of those that wait, worked out once."""

    def spot_for(
        self,
        demand: Demand,
        groups: Iterable[Group],
        *,
        barred: Barred = (),
        without: ResidentId = NOBODY,
        must_leave: bool = False,
        now_us: int,
    ) -> Spot | None:
        """Return the place the policy gives a job now, in `groups` of its size or elsewhere.

        It takes a part of a larger group, or has several made one, only where there is no group of
        its size and no idle gang, or where it `must_leave`. When two jobs overlap only in part, one
        that waits outside the overlap makes the other wait for it inside. Changes nothing.
        """
        policy, board = self.policy, self.board
        gang = self.idle_gang(demand, barred)
        if gang and (demand.is_cold or policy.preference is Preference.SPREAD):
            return Spot(units=gang)
        find = partial(self.that_take, demand, barred=barred, without=without, now_us=now_us)
        spots = find(groups)
        if not spots and gang:
            return Spot(units=gang)
        may_part = must_leave or not has_whole(board, demand, barred=barred)
        if not spots and may_part:
            spots = find(larger_groups(board, demand))
            if not spots and policy.merges:
                there = merging(board, demand, barred=barred)
                spots = self.within_bounds(demand, there, without=without, now_us=now_us)
        return best(demand, spots, policy=policy)

    def that_take(
        self,
        demand: Demand,
        groups: Iterable[Group],
        *,
        barred: Barred = (),
        without: ResidentId = NOBODY,
        now_us: int,
    ) -> list[Spot]:
        """Return the places in some groups that take a job."""
        load = self._load_of(demand)
        open_ones = [g for g in groups if not is_full(g, demand, load, policy=self.policy)]
        if not open_ones:
            return []
        there = joining(self.board, demand, open_ones, barred=barred)
        return self.within_bounds(demand, there, without=without, now_us=now_us)

    def within_bounds(
        self,
        demand: Demand,
        spots: Iterable[Spot],
        *,
        without: ResidentId = NOBODY,
        policy: Policy | None = None,
        now_us: int,
    ) -> list[Spot]:
        """Return those of some places that take a job within everyone's bounds."""
        ask = partial(
            refusal,
            demand=demand,
            load=self._load_of(demand),
            policy=policy or self.policy,
            memory=self.board.memory,
            last_burst=partial(self.paces.last_burst, now_us=now_us),
        )
        return [spot for spot in spots if ask(spot, without=without) is None]

    def being_left(self, demand: Demand) -> set[UnitId]:
        """Return the units where a job would pass the duty cap while others move out of them."""
        cap_ppm = PPM if demand.lost_place else self.policy.duty_cap_ppm
        return self.board.being_left(demand, cap_ppm=cap_ppm)

    def _load_of(self, demand: Demand) -> Load:
        """Return the load of a job's cycle, worked out once while it waits."""
        if self.waiting.get(demand.resident_id) is not demand:
            return Load.of(demand)
        load = self.loads.get(demand.resident_id)
        if load is None:
            load = self.loads[demand.resident_id] = Load.of(demand)
        return load

    def idle_gang(self, demand: Demand, barred: Barred) -> Gang | None:
        """Return idle units whose hosts have room for a job's state; None without such."""
        board, nbytes = self.board, demand.host_bytes
        gang = board.idle_gang(demand.num_units, barred=barred)
        while gang is not None and (full := board.memory.without_room(gang, nbytes)):
            barred = {*barred, *full}
            gang = board.idle_gang(demand.num_units, barred=barred)
        return gang

    def groups_at(self, units: Iterable[UnitId]) -> list[Group]:
        """Return the groups that some units are in."""
        met = sorted({self.board.group_at[n] for n in units if n in self.board.group_at})
        return [self.board.groups[group_id] for group_id in met]
