"""The planning board: units, groups of units, and who lives in each.

A group is opened on idle units by its first job, grows when a job needs its units and others
(merging groups it meets), splits where jobs no longer share units, and dissolves with its last job.
A unit that is neither idle, held nor out of service is in a group.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from plexsvc.ids import ResidentId, TenantId, UnitId
from plexsvc.scheduler.core.planning.groups import Group, Resident, connected
from plexsvc.scheduler.core.planning.memory import HostMemory, Use
from plexsvc.scheduler.core.planning.profile import NOBODY, PPM, Demand, Profile
from plexsvc.scheduler.core.planning.rooms import Gang, Rooms, UnitRoom
from plexsvc.scheduler.core.planning.shares import HOST, Shares


class Board:
    """All units and groups. Every method is atomic: it does all of it or raises before any."""

    def __init__(
        self,
        units: Iterable[UnitRoom],
        *,
        shares: Shares | None = None,
        memory: HostMemory | None = None,
        kind: str = "device",
    ) -> None:
        """Plan with `units` of one kind.

        Tenants' use of them goes into `shares`, what is booked on their hosts into `memory`.
        """
        self.rooms = Rooms(())
        self.kind = kind
        self.shares = shares or Shares({})
        self.memory = memory or HostMemory()
        self.idle: dict[UnitId, None] = {}
        self._is_idle_sorted = True
        self.num_freed = 0
        """Times a unit became idle: grows with every chance to open a group."""

        self.exclusive: dict[ResidentId, Gang] = {}
        self._payers: dict[ResidentId, TenantId] = {}
        self.cordoned: set[UnitId] = set()
        """Units that take no further work; what lives there goes on."""

        self.out: set[UnitId] = set()
        """Cordoned units on which nothing lives."""

        self.groups: dict[int, Group] = {}
        self.group_at: dict[UnitId, int] = {}
        self.by_size: dict[int, dict[int, Group]] = {}
        self.group_of: dict[ResidentId, int] = {}
        self._next_group = 1
        for room in units:
            self.join(room)

    def first_idle(self, num_units: int, *, barred: Collection[UnitId] = ()) -> Gang | None:
        """Return the first idle units by host, position and name; None if too few."""
        self._sort_idle()
        chosen: list[UnitId] = []
        for unit_id in self.idle:
            if len(chosen) == num_units:
                break
            if unit_id not in barred:
                chosen.append(unit_id)
        return tuple(chosen) if len(chosen) == num_units else None

    def idle_gang(self, num_units: int, *, barred: Collection[UnitId] = ()) -> Gang | None:
        """Return idle units that can make a gang, first by name; None if there are none."""
        if len(self.idle) < num_units:
            return None
        self._sort_idle()
        return self.rooms.first_gang(
            num_units,
            among=self.idle,
            usable=lambda unit_id: unit_id in self.idle and unit_id not in barred,
        )

    def hold(self, key: ResidentId, units: Sequence[UnitId], *, tenant: TenantId = NOBODY) -> None:
        """Give units to one holder, on account of its tenant: idle ones, or such as others hold."""
        assert key not in self.exclusive, key
        idle = [unit_id for unit_id in units if unit_id in self.idle]
        assert not self.not_held([u for u in units if u not in idle]), units
        for unit_id in idle:
            del self.idle[unit_id]
        self.exclusive[key] = tuple(units)
        self._payers[key] = tenant
        self.shares.book(tenant, self.kind, len(units) * PPM)

    def release(self, key: ResidentId) -> None:
        """Take back what a holder had for itself, if it had anything."""
        held = self.exclusive.pop(key, ())
        if held:
            self.shares.book(self._payers.pop(key), self.kind, -len(held) * PPM)
        self.give_back(self.not_held(held))

    def exchange(self, key: ResidentId, *, gone: UnitId, unit: UnitId) -> None:
        """Give a holder an idle unit for one that it has."""
        self.exclusive[key] = tuple(unit if u == gone else u for u in self.exclusive[key])
        del self.idle[unit]
        self.give_back(self.not_held([gone]))

    def not_held(self, units: Iterable[UnitId]) -> list[UnitId]:
        """Return which of `units` no holder has: those that training may get."""
        held = {unit_id for theirs in self.exclusive.values() for unit_id in theirs}
        return [unit_id for unit_id in units if unit_id not in held]

    def join(self, room: UnitRoom) -> None:
        """Take a new unit in."""
        assert room.unit_id not in self.rooms, room
        self.rooms.join(room)
        self.memory.grow(room, 1)
        self._count(room, 1)
        self.give_back([room.unit_id])

    def leave(self, unit_id: UnitId) -> None:
        """Forget a cordoned unit on which nothing lives any more."""
        assert unit_id in self.out, unit_id
        self.out.discard(unit_id)
        self.cordoned.discard(unit_id)
        self._count(self.rooms[unit_id], -1)
        self.memory.grow(self.rooms[unit_id], -1)
        self.rooms.leave(unit_id)

    def _claim(self, units: Sequence[UnitId]) -> None:
        """Take units for a group; by an operator's will also cordoned ones."""
        assert all(unit_id in self.idle or unit_id in self.out for unit_id in units), units
        for unit_id in units:
            if unit_id in self.out:
                self.out.discard(unit_id)
            else:
                del self.idle[unit_id]

    def give_back(self, units: Iterable[UnitId]) -> None:
        """Take units back that nothing uses any more."""
        for unit_id in units:
            if unit_id in self.cordoned:
                self.out.add(unit_id)
            else:
                self.idle[unit_id] = None
                self._is_idle_sorted = False
                self.num_freed += 1

    def _count(self, room: UnitRoom, sign: int) -> None:
        self.shares.grow(self.kind, sign)
        self.shares.grow(HOST, sign * room.parked_bytes)

    def _sort_idle(self) -> None:
        if not self._is_idle_sorted:
            self.idle = dict.fromkeys(self.rooms.in_order(self.idle))
            self._is_idle_sorted = True

    def duty_on(self, unit_id: UnitId) -> int:
        """Return the sum of the duties of the jobs on a unit, in ppm."""
        group_id = self.group_at.get(unit_id)
        return 0 if group_id is None else self.groups[group_id].duty_on(unit_id)

    def groups_at(self, units: Iterable[UnitId]) -> list[Group]:
        """Return the groups that some units are in, the oldest first."""
        met = sorted({self.group_at[n] for n in units if n in self.group_at})
        return [self.groups[group_id] for group_id in met]

    def resident(self, resident_id: ResidentId) -> Resident:
        """Return a job that lives on the board."""
        return self.groups[self.group_of[resident_id]].residents[resident_id]

    def gather(self, units: Sequence[UnitId]) -> Group:
        """Return one group that holds all of `units`: opened, found, or made of those they meet."""
        met = self.groups_at(units)
        loose = [unit_id for unit_id in units if unit_id not in self.group_at]
        self._claim(loose)
        if not met:
            return self._new_group(tuple(units))
        if len(met) > 1 or loose:
            self._merge(met, loose)
        # The oldest keeps its number.
        return met[0]

    def commit(self, group: Group, demand: Demand, *, units: Gang | None = None) -> None:
        """Let a job live on units of a group (all of them by default)."""
        assert demand.resident_id not in self.group_of, demand.resident_id
        resident = Resident(
            demand=demand, units=units or group.units, booked_ppm=demand.profile.duty_ppm
        )
        group.residents[demand.resident_id] = resident
        self.group_of[demand.resident_id] = group.group_id
        group.duty_ppm += demand.profile.duty_ppm
        self._book(resident, 1)
        group.see_uniform()

    def remove(self, resident_id: ResidentId) -> list[Group]:
        """Take a job off the board; returns what is left of its group: none, one or several."""
        group = self.groups[self.group_of.pop(resident_id)]
        resident = group.residents.pop(resident_id)
        group.duty_ppm -= resident.demand.profile.duty_ppm
        self._book(resident, -1)
        return self._settle(group)

    def relearn(self, resident_id: ResidentId, profile: Profile) -> None:
        """Give a resident another cycle: it was profiled, or its cycle changed."""
        group = self.groups[self.group_of[resident_id]]
        resident = group.residents[resident_id]
        group.duty_ppm += profile.duty_ppm - resident.demand.profile.duty_ppm
        demand = resident.demand
        self._book(resident, -1)
        resident.demand = replace(
            demand,
            profile=profile,
            is_cold=False,
            expected_us=profile.period_us * demand.expected_steps or demand.expected_us,
        )
        if demand.is_cold:
            resident.booked_ppm = 0  # what was guessed says nothing: it is the one that may move
        self._book(resident, 1)

    def resize(self, resident_id: ResidentId, state_bytes: int) -> None:
        """Note how many bytes a resident's state has on each of its units."""
        resident = self.resident(resident_id)
        self._book(resident, -1)
        resident.demand = replace(resident.demand, state_bytes=state_bytes)
        self._book(resident, 1)

    def move(self, resident_id: ResidentId, units: Sequence[UnitId]) -> list[Group]:
        """Let a resident live on other units.

        Returns what is left of the group it left. Its units may be part of the new ones.
        """
        before = self.resident(resident_id)
        left = self.remove(resident_id)
        self.commit(self.gather(units), before.demand, units=tuple(units))
        moved = self.resident(resident_id)
        moved.began_us, moved.seen_us = before.began_us, before.seen_us
        return left

    def cordon(self, unit_id: UnitId) -> None:
        """Give a unit no further work; what lives there goes on."""
        self.cordoned.add(unit_id)
        if unit_id in self.idle:
            del self.idle[unit_id]
            self.out.add(unit_id)
        elif unit_id in self.group_at:
            self._recheck_closed(self.groups[self.group_at[unit_id]])

    def uncordon(self, unit_id: UnitId) -> None:
        """Let a unit take work again."""
        self.cordoned.discard(unit_id)
        if unit_id in self.out:
            self.out.discard(unit_id)
            self.give_back([unit_id])
        elif unit_id in self.group_at:
            self._recheck_closed(self.groups[self.group_at[unit_id]])

    def _recheck_closed(self, group: Group) -> None:
        group.is_closed = any(unit_id in self.cordoned for unit_id in group.units)

    def _book(self, resident: Resident, sign: int) -> None:
        """Book what a job uses of its hosts and on its tenant's account: devices by its duty."""
        demand = resident.demand
        self.memory.book(demand, resident.units if sign > 0 else ())
        for part, unit_id in demand.models_on(resident.units).items() if sign < 0 else ():
            there = self.groups[self.group_at[unit_id]].residents.values()
            if not any(part in other.demand.models_on(other.units) for other in there):
                self.memory.reserve(Use.MODELS, part, (), 0)
        devices = demand.num_units * demand.profile.duty_ppm
        self.shares.book(demand.tenant, self.kind, sign * devices)
        self.shares.book(demand.tenant, HOST, sign * demand.num_units * demand.parked_bytes * PPM)

    def _new_group(self, units: Gang) -> Group:
        group = Group(
            group_id=self._next_group,
            units=units,
            is_closed=any(unit_id in self.cordoned for unit_id in units),
        )
        self._next_group += 1
        self._enter(group)
        return group

    def _enter(self, group: Group) -> None:
        self.groups[group.group_id] = group
        self.by_size.setdefault(group.size, {})[group.group_id] = group
        self.group_at.update(dict.fromkeys(group.units, group.group_id))

    def _forget(self, group: Group) -> None:
        """Take a group off the lists; its units and jobs are another's then."""
        del self.groups[group.group_id]
        del self.by_size[group.size][group.group_id]
        for unit_id in group.units:
            del self.group_at[unit_id]

    def _merge(self, groups: Sequence[Group], loose: Sequence[UnitId]) -> None:
        """Let the first group take over the others' jobs and units, and loose units."""
        kept, *others = groups
        units = [*(n for group in groups for n in group.units), *loose]
        for group in groups:
            self._forget(group)
        for group in others:
            kept.residents.update(group.residents)
            kept.duty_ppm += group.duty_ppm
        self._span(kept, units)
        self.group_of.update(dict.fromkeys(kept.residents, kept.group_id))

    def _settle(self, group: Group) -> list[Group]:
        """Bring a group that lost a job into order: dissolve it, or split it."""
        if not group.residents:
            self._forget(group)
            self.give_back(group.units)
            return []
        if not group.is_uniform:
            pieces = connected(group.residents.values())
            if len(pieces) > 1 or len(pieces[0][0]) < group.size:
                return self._split(group, pieces)
        group.see_uniform()
        return [group]

    def _split(
        self, group: Group, pieces: list[tuple[set[UnitId], list[ResidentId]]]
    ) -> list[Group]:
        """Divide a group over sets of connected jobs; units without a job become idle."""
        residents, was = group.residents, group.units
        self._forget(group)
        made = []
        # The first piece keeps the number by which plans and lost places know the group.
        for at, (units, jobs) in enumerate(pieces):
            piece = group if at == 0 else self._new_group(self.rooms.in_order(units))
            piece.residents = {j: r for j, r in residents.items() if j in jobs}
            piece.duty_ppm = sum(r.demand.load.duty_ppm for r in piece.residents.values())
            if at == 0:
                self._span(piece, units)
            self.group_of.update(dict.fromkeys(piece.residents, piece.group_id))
            piece.see_uniform()
            made.append(piece)
        self.give_back(n for n in was if n not in self.group_at)
        return made

    def _span(self, group: Group, units: Iterable[UnitId]) -> None:
        """Give a group that is on no list other units, and list it."""
        group.units = self.rooms.in_order(units)
        group.is_closed = any(unit_id in self.cordoned for unit_id in group.units)
        group.see_uniform()
        self._enter(group)
