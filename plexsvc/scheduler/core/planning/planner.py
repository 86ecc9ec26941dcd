"""The queue of waiting jobs and where each goes: admission, placement and the reasons for waiting.

A job is offered to groups only when something changed for it: a group that lost or took a job,
units that became idle, or the job being new. Besides the queue there is the operator's way
(`place_at`, `rehome`).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from plexsvc.ids import ResidentId, UnitId
from plexsvc.scheduler.core.planning.board import Board
from plexsvc.scheduler.core.planning.groups import Group, Resident
from plexsvc.scheduler.core.planning.places import Barred, Search, Spot, lived_with
from plexsvc.scheduler.core.planning.policies import Policy
from plexsvc.scheduler.core.planning.profile import Demand, Profile
from plexsvc.scheduler.core.planning.ring import Ring, Taken, simulate_insert, turned
from plexsvc.scheduler.core.planning.rooms import Gang, UnitRoom
from plexsvc.scheduler.core.planning.waiting import Kept, in_turn, may_reserve

NEVER_US: Final = -(1 << 62)

Claim = Callable[[Demand, Gang], bool]
"""Takes what a job needs besides its place here; False, with nothing taken, if it is not there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A job that may start, and where."""

    resident_id: ResidentId
    group_id: int
    units: Gang
    """The units it uses; its group may have others besides."""


class Planner:
    """Admission and placement on one board under one policy."""

    def __init__(self, board: Board, *, policy: Policy, noun: str = "node") -> None:
        """Plan on `board`; `noun` is what its units are called in reasons."""
        self.board = board
        self.policy = policy
        self.waiting: dict[ResidentId, Demand] = {}
        self.search = Search(board, policy=policy)
        self.kept = Kept(board, policy=policy, waiting=self.waiting)
        self.noun = noun
        self.taken: dict[ResidentId, Taken] = {}
        """Of residents that were put among others: what they got, and why there."""

        self._unseen: set[ResidentId] = set()
        self._changed: dict[int, None] = {}
        self._freed_seen = 0
        self._queue_news = False
        self._has_new_units = False
        self._relearned: dict[int, None] = {}

    def submit(self, demand: Demand) -> None:
        """Queue a job."""
        assert demand.resident_id not in self.waiting, demand
        self.waiting[demand.resident_id] = demand
        self.board.shares.enter(demand.tenant, self.board.kind)
        self.ask_again(demand.resident_id)

    def renew(self, demand: Demand) -> None:
        """Let a waiting job ask for what it is by now expected to need."""
        resident_id = demand.resident_id
        needed_us = self.waiting[resident_id].profile.busy_us
        self.waiting[resident_id] = demand
        if demand.profile.busy_us < needed_us:
            self.ask_again(resident_id)

    def ask_again(self, resident_id: ResidentId) -> None:
        """Offer a waiting job every place again at the next `admit`."""
        self._unseen.add(resident_id)
        self._queue_news = True

    def withdraw(self, resident_id: ResidentId) -> None:
        """Take a waiting job out of the queue."""
        self.board.shares.leave(self.waiting.pop(resident_id).tenant, self.board.kind)
        self._unseen.discard(resident_id)
        self._queue_news = True
        if resident_id in self.kept.reservations:
            self.kept.end(resident_id)

    def remove(self, resident_id: ResidentId) -> None:
        """Take a placed job off; what it held is offered to those who wait at the next `admit`."""
        resident = self.board.resident(resident_id)
        for group in self.board.remove(resident_id):
            self.touch(group.group_id)
        if resident.demand.host_bytes:
            self.look_at([self.board.rooms[unit_id].host for unit_id in resident.units])
        self.taken.pop(resident_id, None)

    def lose(self, resident_id: ResidentId, *, now_us: int) -> int:
        """Keep the units that a placed job leaves, since it lost one of them, for its return.

        Returns its group.
        """
        group = self.group_of(resident_id)
        there = group.residents[resident_id].units
        self.kept.keep_left(there, group_id=group.group_id, now_us=now_us)
        return group.group_id

    def open(self, unit_id: UnitId) -> None:
        """Let a unit take work again; those who wait look at its group again, too."""
        self.board.uncordon(unit_id)
        if unit_id in self.board.group_at:
            self.touch(self.board.group_at[unit_id])
        self._has_new_units = True

    def join(self, room: UnitRoom) -> None:
        """Take a new unit in."""
        self.board.join(room)
        self._has_new_units = True

    def note_phase(self, resident_id: ResidentId, at_us: int, *, alone_us: int = 0) -> None:
        """Take in that a resident's cycle was seen to start.

        When its measured pace passes its bound, its group takes no further job.
        """
        group = self.group_of(resident_id)
        resident = group.residents[resident_id]
        resident.note_phase(at_us, alone_us=alone_us)
        if resident.pace_ppm is None:
            return
        if resident.pace_ppm > resident.demand.max_slowdown_ppm:
            resident.is_late = True
        elif resident.is_late:
            resident.is_late = False
            self.touch(group.group_id)

    def learned(self, resident_id: ResidentId, profile: Profile) -> None:
        """Plan a resident by its measured cycle.

        A cold job's group opens to others; a group that is now over its bounds takes no further job
        and is to be relieved.
        """
        self.board.relearn(resident_id, profile)
        # Its pace was over another cycle.
        self.board.resident(resident_id).pace_ppm = None
        group_id = self.board.group_of[resident_id]
        self._relearned[group_id] = None
        self.touch(group_id)

    def resize(self, resident_id: ResidentId, state_bytes: int) -> None:
        """Note how many bytes a resident's parked state has on each of its units."""
        resident = self.board.resident(resident_id)
        if state_bytes < resident.demand.state_bytes:
            self.look_at([self.board.rooms[unit_id].host for unit_id in resident.units])
        self.board.resize(resident_id, state_bytes)

    def touch(self, group_id: int) -> None:
        """Have waiting jobs look at a group again."""
        self._changed[group_id] = None

    def look_at(self, hosts: Iterable[str]) -> None:
        """Have waiting jobs look again at all places on some hosts."""
        for host in dict.fromkeys(hosts):
            for unit_id in self.board.rooms.of_host(host):
                if unit_id in self.board.group_at:
                    self.touch(self.board.group_at[unit_id])
                else:
                    self._queue_news = True

    def in_trouble(self) -> list[Group]:
        """Return the groups in which a job is late, or that are over their bounds by now.

        Bounds are predicted anew for groups in which a cycle was learned, where that grew clearly
        since its job was placed.
        """
        groups = self.board.groups
        for group_id in list(self._relearned):
            group = groups.get(group_id)
            has_grown = group is not None and any(r.grew_ppm for r in group.residents.values())
            if group is None or not has_grown or not self.search.is_over(group):
                del self._relearned[group_id]
        late = [g.group_id for g in groups.values() if g.late and len(g.residents) > 1]
        return [groups[group_id] for group_id in dict.fromkeys([*late, *self._relearned])]

    @property
    def has_news(self) -> bool:
        """Whether something changed for those who wait since the last `admit`."""
        if self.kept.left:  # kept from instances, too, which are not in this queue
            return True
        return bool(self.waiting) and self._has_changed

    @property
    def _has_changed(self) -> bool:
        if self._queue_news or self._changed or self.kept.has_reopened:
            return True
        return self.board.num_freed > self._freed_seen

    def admit(self, now_us: int, *, claim: Claim = lambda *_: True) -> list[Placed]:
        """Place what can be placed now, in queue order.

        `claim` is asked for each demand that found a place: with False it does not get it.
        """
        self.kept.keep_on(now_us)
        changed = [self.board.groups[g] for g in self._changed if g in self.board.groups]
        has_changed = self._has_changed
        if self.kept.has_reopened:
            self._unseen.update(self.waiting)
        self._changed.clear()
        self.kept.has_reopened = False
        self._freed_seen = self.board.num_freed
        placed: list[Placed] = []
        if has_changed:
            hopes: dict[int, bool] = {}
            waiting = self._concerned(changed, now_us=now_us)
            blocked: list[Demand] = []
            for demand in in_turn(waiting, self.board, policy=self.policy, now_us=now_us):
                had_kept = demand.resident_id in self.kept.reservations
                if had_kept and self._has_new_units and demand.lost_place:
                    self.kept.end(demand.resident_id)  # with what came, less may be missing
                    self.kept.reserve_for(demand, now_us=now_us)
                    had_kept = demand.resident_id in self.kept.reservations
                done = self._offer(demand, changed, hopes, now_us=now_us, claim=claim)
                if done is not None:
                    for before in blocked if had_kept else ():  # refused what was kept for it
                        self.kept.reserve_for(before, now_us=now_us)
                        if before.resident_id in self.kept.reservations:
                            break
                    # It took idle units, or changed a group.
                    hopes.clear()
                    placed.append(done)
                    changed = [g for g in changed if g.group_id in self.board.groups]
                    group = self.board.groups[done.group_id]
                    if group not in changed:
                        changed.append(group)
                # Strictly in order: nobody passes whom there is no place for.
                elif not self.policy.backfill:
                    break
                else:
                    blocked.append(demand)
                    self.kept.reserve_for(demand, now_us=now_us)
        self._queue_news = self._has_new_units = False
        return placed

    def _concerned(self, changed: Iterable[Group], *, now_us: int) -> Iterable[Demand]:
        """Return who of those that wait may find a place now, or keeps others from one.

        The others would be refused again: none of their groups has changed, and the idle units are
        too few for their gang.
        """
        policy, waiting = self.policy, self.waiting.values()
        if not policy.backfill:
            return waiting
        sizes = dict.fromkeys(demand.num_units for demand in waiting)
        hopes = {num_units: self._has_hope(num_units, changed) for num_units in sizes}
        return [
            demand
            for demand in waiting
            if hopes[demand.num_units]
            or demand.resident_id in self._unseen
            or may_reserve(demand, policy=policy, now_us=now_us)
        ]

    def _has_hope(self, num_units: int, changed: Iterable[Group]) -> bool:
        """Return whether a job of a size that was refused before may find a place now."""
        has_part = not self.board.by_size.get(num_units)
        has_group = has_part or any(group.size == num_units for group in changed)
        return has_group or self.board.idle_gang(num_units) is not None

    def place_at(self, demand: Demand, units: Sequence[UnitId], *, now_us: int) -> None:
        """Let a job live exactly on `units`, which are in groups, idle or cordoned; nothing asked.

        Groups that share the units become one. The job waits or is new.
        """
        spot = Spot(units=tuple(units), groups=self.board.groups_at(units))
        self.touch(self._commit(demand, spot, now_us=now_us).group_id)

    def rehome(
        self,
        resident_id: ResidentId,
        *,
        now_us: int,
        onto: Collection[UnitId] | None = None,
        off: Collection[UnitId] = (),
        must_leave: bool = True,
    ) -> Gang | None:
        """Book a resident elsewhere: in another group or on idle units, within everyone's bounds.

        It touches none of its units, and with `onto` only those. Where no such place is, it leaves
        those in `off` alone, for idle ones. Returns where; None, with nothing changed, if there is
        no place. One that `must_leave` may take a part of a larger group also while groups of its
        size are full.
        """
        resident = self.board.resident(resident_id)
        demand, barred = resident.demand, set(resident.units)
        if onto is None:
            barred |= self.kept.units()
        else:
            barred.update(unit_id for unit_id in self.board.rooms if unit_id not in onto)
        spot = self.search.spot_for(
            demand,
            self.search.whole_groups(demand),
            barred=barred,
            without=resident_id,
            must_leave=must_leave,
            now_us=now_us,
        )
        spot = spot or self._partly_off(resident, off, barred)
        if spot is None:
            return None
        self.move(resident_id, spot.units, why=spot.why, now_us=now_us)
        return spot.units

    def _partly_off(
        self, resident: Resident, off: Collection[UnitId], barred: Collection[UnitId]
    ) -> Spot | None:
        """Return where a resident is if only its units in `off` change, for idle ones."""
        going = [unit_id for unit_id in resident.units if unit_id in off]
        if not 0 < len(going) < len(resident.units):
            return None
        part = replace(resident.demand, num_units=len(going))
        idle = dict(zip(going, self.search.idle_gang(part, barred) or (), strict=False))
        units = tuple(idle.get(unit_id, unit_id) for unit_id in resident.units)
        # Until it has moved, hosts that it stays on have its state twice.
        fits = bool(idle) and self.board.memory.holds(units, resident.demand)
        return Spot(units=units) if fits else None

    def best_spot(self, demand: Demand, *, barred: Collection[int]) -> Spot | None:
        """Return the place a placed job could move to, in a group that is not barred."""
        spots = self.search.that_take(
            demand,
            [g for g in self.search.whole_groups(demand) if g.group_id not in barred],
            barred=self.kept.units(),
            now_us=self.board.resident(demand.resident_id).began_us,
        )
        return self.search.best(demand, spots)

    def _offer(
        self,
        demand: Demand,
        changed: Sequence[Group],
        hopes: dict[int, bool],
        *,
        now_us: int,
        claim: Claim,
    ) -> Placed | None:
        """Place a job if it finds a place; `hopes` keeps for which sizes there may be one."""
        is_new, num_units = demand.resident_id in self._unseen, demand.num_units
        if num_units not in hopes:
            hopes[num_units] = self._has_hope(num_units, changed)
        if not (is_new or hopes[num_units] or self.kept.reservations):
            return None
        self._unseen.discard(demand.resident_id)
        if is_new:
            pool = self.search.whole_groups(demand)
        else:
            pool = [group for group in changed if group.size == demand.num_units]
        barred = self.kept.barred(demand, now_us=now_us)
        spot = self.search.spot_for(demand, pool, barred=barred, now_us=now_us)
        if spot is None:
            self.kept.reserve_for(demand, now_us=now_us)
            spot = self._kept_spot(demand, now_us=now_us)
            spot = spot or self._pressed_spot(demand, barred, now_us=now_us)
        gang = self.search.idle_gang(demand, barred) if spot is not None and spot.groups else None
        alone = None if gang is None else Spot(units=gang)
        for one in (spot, alone):  # what its set needs may be had only where it shares nothing
            if one is not None and claim(demand, one.units):
                return self._commit(demand, one, now_us=now_us)
        return None

    def in_the_way(self, *, now_us: int) -> list[ResidentId]:
        """Return who lives where a reservation is due whose job does not fit in beside them."""
        return [
            resident.demand.resident_id
            for resident_id, kept in self.kept.reservations.items()
            if kept.due_us <= now_us
            and self._kept_spot(self.waiting[resident_id], now_us=now_us) is None
            for group in self.board.groups_at(kept.units)
            for resident in group.on(kept.units)
            if not lived_with(self.waiting[resident_id], resident, group)
        ]

    def _kept_spot(self, demand: Demand, *, now_us: int) -> Spot | None:
        """Return the place that is kept for a job, if it can have it by now."""
        kept = self.kept.reservations.get(demand.resident_id)
        if kept is None:
            return None
        spot = Spot(units=kept.units, groups=self.board.groups_at(kept.units))
        fits = not spot.groups or self.search.within_bounds(demand, [spot], now_us=now_us)
        return spot if fits else None

    def _pressed_spot(self, demand: Demand, barred: Barred, *, now_us: int) -> Spot | None:
        """Return a place beside jobs of no higher priority, near everybody's own bound.

        Others are placed within targets that are well below it (`Policy.target_slowdown_ppm`).
        """
        if not self.kept.may_press(demand):
            return None
        search = copy.copy(self.search)
        search.policy = self.policy.within_bounds()
        pool = search.whole_groups(demand) + search.larger_groups(demand)
        spots = search.joining(demand, pool, barred=barred)
        spots += search.merging(demand, barred=barred)
        spots = [s for s in spots if all(r.demand.priority <= demand.priority for r in s.met())]
        return search.best(demand, search.within_bounds(demand, spots, now_us=now_us))

    def _commit(self, demand: Demand, spot: Spot, *, now_us: int) -> Placed:
        group = self.board.gather(spot.units)
        self.board.commit(group, demand, units=spot.units)
        if demand.resident_id in self.waiting:
            self.withdraw(demand.resident_id)
        self.board.resident(demand.resident_id).began_us = now_us
        self._note_taken(demand.resident_id, why=spot.why, now_us=now_us)
        return Placed(resident_id=demand.resident_id, group_id=group.group_id, units=spot.units)

    def _note_taken(self, resident_id: ResidentId, *, why: str, now_us: int) -> None:
        """Note what a job got: the ring by which its place was found."""
        group = self.group_of(resident_id)
        mine = group.residents[resident_id]
        self.taken.pop(resident_id, None)
        if len(group.on(mine.units)) == 1:
            return
        others = [r for r in group.residents.values() if r is not mine]
        if not mine.demand.is_cold:  # else all it goes by are guesses
            others = [r for r in others if not r.demand.is_cold]
        new = mine.lodger()
        ring = simulate_insert((r.lodger() for r in others), new, now_us=now_us)
        self.taken[resident_id] = ring.taken(new, why=why, at_us=now_us)

    def move(
        self, resident_id: ResidentId, units: Gang, *, why: str = "as ordered", now_us: int
    ) -> None:
        """Let a placed job live on other units."""
        left = self.board.move(resident_id, units)
        for each in (*left, self.group_of(resident_id)):
            self.touch(each.group_id)
        self._note_taken(resident_id, why=why, now_us=now_us)

    def group_of(self, resident_id: ResidentId) -> Group:
        """Return the group a placed job lives in."""
        return self.board.groups[self.board.group_of[resident_id]]

    def ring(self, group: Group, *, now_us: int = 0) -> Ring:
        """Return what the jobs of a group are predicted to do from now on."""
        return turned([r.lodger() for r in group.residents.values()], now_us=now_us)
