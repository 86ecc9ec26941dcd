"""Host memory of a board: what the state of jobs takes on each host, and what the host has.

Devices of one host share its memory. State keeps its room in host memory while it is on a device,
because it will be parked again. Beside it lie the published versions of a job, and, while a job
moves away, its state and a complete copy of it at the old place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from plexsvc.ids import UnitId
from plexsvc.scheduler.core.planning.rooms import Rooms, UnitRoom


class HostMemory:
    """Bytes of each host that are there, and that are booked."""

    def __init__(self, rooms: Rooms) -> None:
        """Begin with nothing booked on the hosts of `rooms`."""
        self._rooms = rooms
        self._total: Counter[str] = Counter()
        self._booked: Counter[str] = Counter()
        for unit_id in rooms:
            self.grow(rooms[unit_id], 1)

    def copy(self, rooms: Rooms) -> HostMemory:
        """Return the same bookings for a copy of the rooms."""
        made = HostMemory(rooms)
        made._booked = self._booked.copy()
        return made

    def grow(self, room: UnitRoom, sign: int) -> None:
        """Take in, or out, a unit's share of its host's memory."""
        self._total[room.machine] += sign * room.parked_bytes

    def book(self, units: Iterable[UnitId], nbytes: int) -> None:
        """Book `nbytes` for each of some units; negative ones are given back."""
        if nbytes:
            for unit_id in units:
                self._booked[self._rooms[unit_id].machine] += nbytes

    def holds(self, units: Sequence[UnitId], nbytes: int) -> bool:
        """Return whether every host has room for `nbytes` more for each of some units."""
        return not self.without_room(units, nbytes)

    def without_room(self, units: Sequence[UnitId], nbytes: int) -> list[UnitId]:
        """Return those of some units whose host has no room for `nbytes` more for each of them.

        A host on which nothing is booked takes whatever comes: nobody else is hurt, and whether it
        fits is for its state manager to say.
        """
        if not nbytes:
            return []
        hosts = [self._rooms[unit_id].machine for unit_id in units]
        full = {
            host
            for host, count in Counter(hosts).items()
            if 0 < self._booked[host] > self._total[host] - count * nbytes
        }
        return [unit_id for unit_id, host in zip(units, hosts, strict=True) if host in full]

    def booked_at(self, unit_id: UnitId) -> int:
        """Return what is booked on a unit's host."""
        return self._booked[self._rooms[unit_id].machine]

    def total_at(self, unit_id: UnitId) -> int:
        """Return what a unit's host has."""
        return self._total[self._rooms[unit_id].machine]

    def check(self, bookings: Iterable[tuple[Iterable[UnitId], int]]) -> None:
        """Assert that these bookings are all there are."""
        wanted: Counter[str] = Counter()
        for units, nbytes in bookings:
            for unit_id in units:
                wanted[self._rooms[unit_id].machine] += nbytes
        assert +wanted == +self._booked, (wanted, self._booked)
        assert min(self._booked.values(), default=0) >= 0, self._booked
