"""The units that planning knows: idle ones, those that one holder has for itself, closed ones.

A unit that is neither idle, held nor out of service is in a group (`board`). The pool also counts
the units that are free at each slot of the horizon; holders and closed units lower all slots alike.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from plexsvc.ids import ResidentId, TenantId, UnitId
from plexsvc.scheduler.core.planning.memory import HostMemory
from plexsvc.scheduler.core.planning.profile import NOBODY, PPM
from plexsvc.scheduler.core.planning.rooms import Gang, Rooms, UnitRoom
from plexsvc.scheduler.core.planning.shares import HOST, Shares
from plexsvc.scheduler.core.structures.ring import Ring
from plexsvc.scheduler.core.structures.segment_tree import SegmentTree


class Pool:
    """All units, and whose they are as far as they are in no group."""

    def __init__(
        self,
        units: Iterable[UnitRoom],
        *,
        ring: Ring,
        shares: Shares | None,
        memory: HostMemory | None,
        kind: str,
    ) -> None:
        self.ring = ring
        self.rooms = Rooms(units)
        self.kind = kind
        self.shares = shares or Shares({})
        self.memory = memory or HostMemory()
        for unit_id in self.rooms:
            self.memory.grow(self.rooms[unit_id], 1)
            self._count(self.rooms[unit_id], 1)
        self.idle: dict[UnitId, None] = dict.fromkeys(self.rooms.in_order(self.rooms))
        self._is_idle_sorted = True
        self.num_freed = 0
        """Times a unit became idle: grows with every chance to open a group."""

        self.exclusive: dict[ResidentId, Gang] = {}
        self._payers: dict[ResidentId, TenantId] = {}
        self.cordoned: set[UnitId] = set()
        """Units that take no further work; what lives there goes on."""

        self.out: set[UnitId] = set()
        """Cordoned units on which nothing lives."""

        self.free_units = SegmentTree(ring.size, initial=len(self.rooms))

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
        if self.rooms.has_hosts:
            return self.rooms.first_gang(
                num_units,
                among=self.idle,
                usable=lambda unit_id: unit_id in self.idle and unit_id not in barred,
            )
        if barred:
            among = {unit_id: None for unit_id in self.idle if unit_id not in barred}
            return next(self.rooms.gangs(num_units, among=among, burden=lambda _: 0), None)
        by_size: dict[int, list[UnitId]] = {}
        for unit_id in self.idle:
            same = by_size.setdefault(self.rooms[unit_id].num_devices, [])
            same.append(unit_id)
            if len(same) == num_units:
                return tuple(same)
        return None

    def hold(self, key: ResidentId, units: Sequence[UnitId], *, tenant: TenantId = NOBODY) -> None:
        """Give units to one holder, on account of its tenant: idle ones, or such as others hold."""
        assert key not in self.exclusive, key
        idle = [unit_id for unit_id in units if unit_id in self.idle]
        assert not self._not_held([u for u in units if u not in idle]), units
        for unit_id in idle:
            del self.idle[unit_id]
        self.exclusive[key] = tuple(units)
        self._payers[key] = tenant
        self.shares.book(tenant, self.kind, len(units) * PPM)
        self.free_units.add(0, self.ring.size, -len(idle))

    def release(self, key: ResidentId) -> None:
        """Take back what a holder had for itself, if it had anything."""
        held = self.exclusive.pop(key, ())
        if held:
            self.shares.book(self._payers.pop(key), self.kind, -len(held) * PPM)
        left = self._not_held(held)
        self.free_units.add(0, self.ring.size, len(left))
        self.give_back(left)

    def exchange(self, key: ResidentId, *, gone: UnitId, unit: UnitId) -> None:
        """Give a holder an idle unit for one that it has."""
        self.exclusive[key] = tuple(unit if u == gone else u for u in self.exclusive[key])
        del self.idle[unit]
        left = self._not_held([gone])
        self.free_units.add(0, self.ring.size, len(left) - 1)
        self.give_back(left)

    def _not_held(self, units: Iterable[UnitId]) -> list[UnitId]:
        """Return which of `units` no holder has."""
        held = {unit_id for theirs in self.exclusive.values() for unit_id in theirs}
        return [unit_id for unit_id in units if unit_id not in held]

    def join(self, room: UnitRoom) -> None:
        """Take a new unit in."""
        assert room.unit_id not in self.rooms, room
        self.rooms.join(room)
        self.memory.grow(room, 1)
        self._count(room, 1)
        self.free_units.add(0, self.ring.size, 1)
        self.give_back([room.unit_id])

    def leave(self, unit_id: UnitId) -> None:
        """Forget a cordoned unit on which nothing lives any more."""
        assert unit_id in self.out, unit_id
        self.out.discard(unit_id)
        self.cordoned.discard(unit_id)
        self._count(self.rooms[unit_id], -1)
        self.memory.grow(self.rooms[unit_id], -1)
        self.rooms.leave(unit_id)

    def close(self, unit_id: UnitId) -> None:
        """Give a unit no further work."""
        self.cordoned.add(unit_id)
        if unit_id in self.idle:
            del self.idle[unit_id]
            self._take_out(unit_id)

    def reopen(self, unit_id: UnitId) -> None:
        """Let a unit take work again."""
        self.cordoned.discard(unit_id)
        if unit_id in self.out:
            self.out.discard(unit_id)
            self.free_units.add(0, self.ring.size, 1)
            self.give_back([unit_id])

    def claim(self, units: Sequence[UnitId]) -> None:
        """Take units for a group; by an operator's will also cordoned ones."""
        assert all(unit_id in self.idle or unit_id in self.out for unit_id in units), units
        for unit_id in units:
            if unit_id in self.out:
                self.out.discard(unit_id)
                self.free_units.add(0, self.ring.size, 1)
            else:
                del self.idle[unit_id]

    def give_back(self, units: Iterable[UnitId]) -> None:
        """Take units back that nothing uses any more."""
        for unit_id in units:
            if unit_id in self.cordoned:
                self._take_out(unit_id)
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

    def _take_out(self, unit_id: UnitId) -> None:
        self.out.add(unit_id)
        self.free_units.add(0, self.ring.size, -1)
