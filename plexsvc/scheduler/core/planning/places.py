"""Places that a job could take: what sharing one is predicted to cost each job, and which is best.

Where every job of a group lives on all of its units, the group's sums are the units'. Where jobs
live on some, each unit has its own sums, and jobs that share no unit do not slow each other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from heapq import nsmallest
from typing import Final

from plexsvc.ids import ResidentId, UnitId
from plexsvc.scheduler.core.planning.board import Board
from plexsvc.scheduler.core.planning.groups import Crowd, Group, Resident
from plexsvc.scheduler.core.planning.policies import NO_BOUND_PPM, Policy, Preference
from plexsvc.scheduler.core.planning.profile import PPM, Demand, Lodger
from plexsvc.scheduler.core.planning.ring import simulate_insert, turned
from plexsvc.scheduler.core.planning.rooms import Gang

SETTLED_PPM: Final = 750_000
"""Where all who share are sharp, they may lose this share of what others may: with all of it they
drain no sooner (`steady`)."""

NOBODY: Final = ResidentId("")

LAST_PPM: Final = 700_000
"""The share of its bound that a job may lose by waits of its last burst: they seldom all happen."""

MAX_CANDIDATES: Final = 64
"""Groups, or blocks to be merged, that a job is checked against."""

COST_GRAIN_PPM: Final = 10_000
"""Predicted slowdowns closer than this count as equal: the busiest decides."""

Barred = Collection[UnitId]


@dataclass(slots=True, kw_only=True)
class Spot:
    """A place a job could take: units, and the groups they are in; without one, idle units."""

    units: Gang
    groups: Sequence[Group] = ()
    cost_ppm: int = 0
    """What all are predicted to lose there together, once `refusal` was asked."""

    why: str = "as ordered"
    """Why a job takes it rather than another."""

    @property
    def size(self) -> int:
        """Return the number of units of all its groups together."""
        return sum(group.size for group in self.groups)

    @property
    def is_probing(self) -> bool:
        """Whether the cycle of some job there is not known yet."""
        return any(group.is_probing for group in self.groups)

    def met(self, *, without: ResidentId = NOBODY) -> list[Resident]:
        """Return the jobs it would share units with."""
        there = [r for group in self.groups for r in group.on(self.units)]
        return [r for r in there if r.demand.resident_id != without]

    def crowd(self) -> Crowd:
        """Return the most that lives on any of its units."""
        crowds = [group.crowd(self.units) for group in self.groups]
        return Crowd(
            num_jobs=max((c.num_jobs for c in crowds), default=0),
            duty_ppm=max((c.duty_ppm for c in crowds), default=0),
        )


NO_ROOM: Final = "no room for it in host memory"
"""Why a place does not take a job whose state and versions do not fit beside what is booked."""


class Search:
    """The search for a place on one board by one policy: who takes a job, and which is best."""

    def __init__(self, board: Board, *, policy: Policy) -> None:
        """Search `board` by `policy`."""
        self.board = board
        self.policy = policy

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
        gang = self.idle_gang(demand, barred)
        # Alone, a cold job's cycle is measured as it is.
        if gang and (demand.is_cold or self.policy.preference is Preference.SPREAD):
            return Spot(units=gang)
        find = partial(self.that_take, demand, barred=barred, without=without, now_us=now_us)
        spots = find(groups)
        # Who fits in somewhere leaves idle units to who does not.
        if not spots and gang:
            return Spot(units=gang)
        may_part = must_leave or not self.has_whole(demand, barred=barred)
        if not spots and may_part:
            spots = find(self.larger_groups(demand))
            if not spots and self.policy.is_plex:
                there = self.merging(demand, barred=barred)
                spots = self.within_bounds(demand, there, without=without, now_us=now_us)
        return self.best(demand, spots)

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
        open_ones = [group for group in groups if not self.is_full(group, demand)]
        there = self.joining(demand, open_ones, barred=barred)
        return self.within_bounds(demand, there, without=without, now_us=now_us)

    def within_bounds(
        self,
        demand: Demand,
        spots: Iterable[Spot],
        *,
        without: ResidentId = NOBODY,
        now_us: int,
    ) -> list[Spot]:
        """Return those of some places that take a job within everyone's bounds."""
        ask = partial(self.refusal, demand, without=without, now_us=now_us)
        return [spot for spot in spots if ask(spot) is None]

    def refusal(
        self,
        demand: Demand,
        spot: Spot,
        *,
        without: ResidentId = NOBODY,
        now_us: int | None,
    ) -> str | None:
        """Return why a place does not take a job, None if it would; notes the cost on `spot`.

        Without a time, runs of one cycle are not told to meet: any other time may be theirs.
        `without` is a resident that is about to leave; what it has in host memory stays there until
        it has moved.
        """
        policy = self.policy
        shut = _why_shut(spot, demand, policy=policy, without=without)
        if shut is not None:
            return shut
        is_return = demand.lost_place > 0 and all(
            lived_with(demand, r, group) for group in spot.groups for r in group.on(spot.units)
        )
        full = self._why_full(spot.crowd(), demand, is_return=is_return)
        if full is not None:
            return full
        if not self.board.memory.holds(spot.units, demand):
            return NO_ROOM
        # Other policies predict nothing, nor does a guess. Who comes back was within bounds.
        if not policy.is_plex or demand.is_cold or is_return:
            return None
        company = [r for g in spot.groups for r in g.residents.values() if not r.demand.is_cold]
        there = [r.lodger() for r in company if r.demand.resident_id != without]
        new = Lodger(resident_id=demand.resident_id, load=demand.load, units=spot.units)
        slowdowns = simulate_insert(there, new, now_us=now_us or 0).slowdowns
        spot.cost_ppm = sum(slowdowns.values())
        is_late = _is_beyond([*there, new], slowdowns, policy=policy)
        is_late = is_late or self._ends_late(demand, spot, without=without, now_us=now_us)
        return "a job's predicted slowdown would pass its bound (max_slowdown)" if is_late else None

    def is_full(self, group: Group, demand: Demand) -> bool:
        """Return whether all of a group refuses a job by its sums, told without a place."""
        if not group.is_uniform or demand.lost_place:
            return False
        crowd = Crowd(len(group.residents), group.duty_ppm)
        return self._why_full(crowd, demand, is_return=False) is not None

    def _why_full(self, crowd: Crowd, demand: Demand, *, is_return: bool) -> str | None:
        if crowd.num_jobs >= self.policy.max_jobs:
            return f"holds {self.policy.max_jobs} jobs (max_jobs)"
        cap_ppm = PPM if is_return else self.policy.duty_cap_ppm
        if crowd.duty_ppm + demand.load.duty_ppm > cap_ppm:
            return f"duty would pass {cap_ppm / PPM:.0%} (duty_cap)"
        return None

    def _ends_late(
        self, demand: Demand, spot: Spot, *, without: ResidentId, now_us: int | None
    ) -> bool:
        """Return whether someone's run may end too late; note what that costs, too.

        Runs of one cycle that are not expected to meet cost each other nothing, but rollouts vary:
        the bound counts them as if they did.
        """
        load, own, do_meet, costs = demand.load, None, False, []
        if now_us is not None:
            is_placed = demand.resident_id in self.board.group_of
            began_us = self.board.resident(demand.resident_id).began_us if is_placed else now_us
            own = demand.last_burst(began_us=began_us)
        for resident in spot.met(without=without):
            one, other = resident.demand.load, None
            if own is not None:
                other = resident.demand.last_burst(began_us=resident.began_us)
            costs.append((one, one.last_ppm(load)))
            if own is not None and other is not None:
                if own[0] >= other[1] or other[0] >= own[1]:
                    continue
                do_meet = True
            spot.cost_ppm += one.last_ppm(load) + load.last_ppm(one)
        costs.append((load, sum(load.last_ppm(one) for one, _ in costs)))
        is_over = any(
            ppm > (one.bound_ppm - PPM) * LAST_PPM // PPM
            for one, ppm in costs
            if one.bound_ppm < NO_BOUND_PPM
        )
        return is_over or do_meet

    def is_over(self, group: Group) -> bool:
        """Return whether jobs of a group, as known by now, would not be placed together."""
        policy = self.policy
        if not policy.is_plex or len(group.residents) == 1:
            return False
        if group.duty_ppm > policy.duty_cap_ppm and group.is_uniform:
            return True
        lodgers = [r.lodger() for r in group.residents.values() if not r.demand.is_cold]
        return _is_beyond(lodgers, turned(lodgers).slowdowns, policy=policy)

    def has_whole(self, demand: Demand, *, barred: Barred = ()) -> bool:
        """Return whether there is a group as large as a job's gang, outside of `barred`."""
        same = self.board.by_size.get(demand.num_units, {}).values()
        if not barred:
            return bool(same)
        return any(not any(unit_id in barred for unit_id in group.units) for group in same)

    def whole_groups(self, demand: Demand) -> list[Group]:
        """Return the groups as large as a job's gang: the least busy, a bounded number."""
        return _least_busy_groups(list(self.board.by_size.get(demand.num_units, {}).values()))

    def larger_groups(self, demand: Demand) -> list[Group]:
        """Return the groups of which a job would use a part: the least busy, a bounded number."""
        every = sorted(self.board.groups.values(), key=lambda g: (g.size, g.group_id))
        return _least_busy_groups([g for g in every if g.size > demand.num_units])

    def joining(
        self, demand: Demand, groups: Iterable[Group], *, barred: Barred = ()
    ) -> list[Spot]:
        """Return the place each group has for a job: all of it, or its least busy block."""
        board, spots = self.board, []
        for group in groups:
            if group.is_uniform and group.size == demand.num_units:
                if not barred or not any(unit_id in barred for unit_id in group.units):
                    spots.append(Spot(units=group.units, groups=(group,)))
                continue
            usable = [n for n in group.units if n not in barred]
            gangs = board.rooms.gangs(demand.num_units, among=usable, burden=board.duty_on)
            units = min(gangs, key=lambda gang: max(map(board.duty_on, gang)), default=None)
            if units is not None:
                spots.append(Spot(units=units, groups=(group,)))
        return spots

    def merging(self, demand: Demand, *, barred: Barred = ()) -> list[Spot]:
        """Return the places that groups, or groups and idle units, would make as one."""
        board, spots = self.board, []
        usable = dict.fromkeys(n for n in [*board.idle, *board.group_at] if n not in barred)
        for units in board.rooms.gangs(demand.num_units, among=usable, burden=board.duty_on):
            met = board.groups_at(units)
            is_inside = len(met) == 1 and set(units) <= set(met[0].units)
            if met and not is_inside:
                spots.append(Spot(units=units, groups=met))
        if len(spots) <= MAX_CANDIDATES:
            return spots
        return nsmallest(MAX_CANDIDATES, spots, key=lambda spot: spot.crowd().duty_ppm)

    def best(self, demand: Demand, spots: Sequence[Spot]) -> Spot | None:
        """Return the place the policy prefers among those that take the job; None without any.

        A cold job goes where the fewest live, away from others that are being profiled. `plex`
        takes the smallest group, of those the least predicted interference, then the busiest.
        """
        if not spots:
            return None
        policy = self.policy
        if demand.is_cold:
            found, why = min(spots, key=_by_crowd), "the emptiest, since its cycle is not known"
        elif policy.is_plex:
            found, why = min(spots, key=_by_cost), "the least predicted loss"
        else:
            sign = -1 if policy.preference is Preference.PACK else 1
            found, why = min(spots, key=lambda spot: _by_number(spot, sign)), policy.name
        found.why = f"{why}, of {len(spots)} place(s) that take it"
        return found

    def idle_gang(self, demand: Demand, barred: Barred) -> Gang | None:
        """Return idle units whose hosts have room for a job's state; None without such."""
        board = self.board
        gang = board.idle_gang(demand.num_units, barred=barred)
        while gang is not None and (full := board.memory.without_room(gang, demand)):
            barred = {*barred, *full}
            gang = board.idle_gang(demand.num_units, barred=barred)
        return gang


def lived_with(demand: Demand, other: Resident, group: Group) -> bool:
    """Return whether a resident of a group shared the place that a job lost.

    They were within their bounds together, and what is measured of them varies: nobody would be
    sent away for it.
    """
    there = {group.group_id, other.demand.lost_place}
    return demand.lost_place > 0 and demand.lost_place in there


def _why_shut(spot: Spot, demand: Demand, *, policy: Policy, without: ResidentId) -> str | None:
    """Return why a place takes no job, or not this one beside a cycle that is not known yet.

    A guess cannot keep a bound that is tighter than the default.
    """
    for group in spot.groups:
        if group.is_closed or group.late:
            return group.why_closed
    if not (demand.is_cold or spot.is_probing):
        return None
    for one in [demand, *(r.demand for r in spot.met(without=without))]:
        if one.max_slowdown_ppm < policy.default_bound_ppm:
            name = one.resident_id
            return f"{name} asked for a tighter bound than a cycle not known yet can keep"
    return None


def _is_beyond(
    lodgers: Sequence[Lodger], slowdowns: dict[ResidentId, int], *, policy: Policy
) -> bool:
    """Return whether somebody is predicted to become slower than its target."""
    share_ppm = SETTLED_PPM if all(one.load.bursts for one in lodgers) else PPM
    for one in lodgers:
        target_ppm = policy.critical_target_ppm if one.load.entries else policy.target_slowdown_ppm
        if min(one.load.bound_ppm, target_ppm) >= NO_BOUND_PPM:
            continue
        target_ppm = PPM + (target_ppm - PPM) * share_ppm // PPM
        if slowdowns[one.resident_id] > min(one.load.bound_ppm, target_ppm):
            return True
    return False


def _least_busy_groups(groups: list[Group]) -> list[Group]:
    if len(groups) <= MAX_CANDIDATES:
        return groups
    return nsmallest(MAX_CANDIDATES, groups, key=lambda g: (g.duty_ppm, g.group_id))


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
