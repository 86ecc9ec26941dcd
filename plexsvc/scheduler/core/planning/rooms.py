"""Gangs that units can form: aligned blocks inside a host, or whole hosts.

A unit carries its host and its index there. Ranks that talk a lot get an aligned power-of-two block
inside one host, or whole hosts of equal size.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby, islice

from plexsvc.ids import UnitId

Gang = tuple[UnitId, ...]
Burden = Callable[[UnitId], int]
"""How much of a unit is taken; the least burdened units come first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitRoom:
    """A unit as planning sees it."""

    unit_id: UnitId
    host: str
    index: int = 0
    """Which device of its host it is."""

    parked_bytes: int = 1 << 62
    """Its part of the host's memory for the state of jobs that are not on the devices."""

    @property
    def rank(self) -> tuple[str, int, UnitId]:
        """Return its place among all: by host, position and name."""
        return (self.host, self.index, self.unit_id)


class Rooms:
    """All units, and the gangs they could make; the order in which they came decides nothing.

    >>> rooms = Rooms(UnitRoom(unit_id=UnitId(f"a:{i}"), host="a", index=i) for i in (3, 1, 0, 2))
    >>> list(rooms.gangs(2, among=list(rooms), burden=lambda _: 0))
    [('a:0', 'a:1'), ('a:2', 'a:3')]
    """

    def __init__(self, rooms: Iterable[UnitRoom]) -> None:
        self.by_id = {room.unit_id: room for room in rooms}
        self._blocks: dict[int, dict[str, tuple[Gang, ...]]] = {}
        self._hosts: dict[str, dict[int, UnitId]] = {}
        for room in self.by_id.values():
            self._hosts.setdefault(room.host, {})[room.index] = room.unit_id
        self._alike = Counter(map(len, self._hosts.values()))
        """How many hosts have so many units."""

    def __len__(self) -> int:
        return len(self.by_id)

    def __contains__(self, unit_id: UnitId) -> bool:
        return unit_id in self.by_id

    def __getitem__(self, unit_id: UnitId) -> UnitRoom:
        return self.by_id[unit_id]

    def __iter__(self) -> Iterator[UnitId]:
        return iter(self.by_id)

    def join(self, room: UnitRoom) -> None:
        """Take a unit in."""
        there = self._hosts.setdefault(room.host, {})
        self._alike[len(there)] -= 1
        self.by_id[room.unit_id] = room
        there[room.index] = room.unit_id
        self._has_changed(room.host)

    def leave(self, unit_id: UnitId) -> None:
        """Forget a unit."""
        room = self.by_id.pop(unit_id)
        self._alike[len(self._hosts[room.host])] -= 1
        del self._hosts[room.host][room.index]
        self._has_changed(room.host)

    def of_host(self, host: str) -> Gang:
        """Return the units of a host, in order; none of a host without any."""
        return tuple(unit_id for _, unit_id in sorted(self._hosts.get(host, {}).items()))

    def in_order(self, units: Iterable[UnitId]) -> Gang:
        """Return units by host, position and name."""
        return tuple(sorted(units, key=lambda unit_id: self.by_id[unit_id].rank))

    def gangs(self, num_units: int, *, among: Collection[UnitId], burden: Burden) -> Iterator[Gang]:
        """Yield the gangs that could be made of `among`.

        Each aligned block inside a host comes, in order: it starts at a multiple of the next power
        of two. Of whole hosts, which are interchangeable, only the least burdened come.
        """
        if by_host := self._by_host(num_units):
            among = among if isinstance(among, dict | set) else set(among)
            for host in sorted({self.by_id[unit_id].host for unit_id in among}):
                yield from (b for b in by_host.get(host, ()) if all(unit in among for unit in b))
        else:
            yield from self._whole_hosts(num_units, among=among, burden=burden)

    def first_gang(
        self, num_units: int, *, among: Iterable[UnitId], usable: Callable[[UnitId], bool]
    ) -> Gang | None:
        """Return what `gangs` yields first of the usable units, with no burden.

        They are among `among`, which is `in_order` and is read no further than needed.
        """

        def hosts() -> Iterator[str]:
            for host, _ in groupby(among, key=lambda unit_id: self.by_id[unit_id].host):
                yield host

        if by_host := self._by_host(num_units):
            blocks = (block for host in hosts() for block in by_host.get(host, ()))
            return next((block for block in blocks if all(map(usable, block))), None)
        for size, known in sorted(self._alike.items(), reverse=True):
            count = num_units // max(1, size)
            if count * size == num_units and count <= known:
                alike = (self.of_host(host) for host in hosts() if len(self._hosts[host]) == size)
                whole = (units for units in alike if all(map(usable, units)))
                chosen = list(islice(whole, count))
                if len(chosen) == count:
                    return self.in_order(unit_id for units in chosen for unit_id in units)
        return None

    def has_gang(self, num_units: int, *, without: Collection[UnitId] = ()) -> bool:
        """Return whether `gangs` would yield one of all units but some. `O(without)` mostly."""
        met = {self.by_id[unit_id].host for unit_id in without}
        if by_host := self._by_host(num_units):
            return len(by_host) > len(met & by_host.keys()) or any(
                not any(unit_id in without for unit_id in block)
                for host in met
                for block in by_host.get(host, ())
            )
        left = Counter(self._alike)
        left.subtract(len(self._hosts[host]) for host in met)
        return any(
            size and num_units % size == 0 and n * size >= num_units for size, n in left.items()
        )

    def _has_changed(self, host: str) -> None:
        self._alike[len(self._hosts[host])] += 1
        for num_units, found in self._blocks.items():
            found.pop(host, None)
            if blocks := self._aligned(num_units, host):
                found[host] = blocks

    def _by_host(self, num_units: int) -> dict[str, tuple[Gang, ...]]:
        """Return the blocks of each host that has any."""
        found = self._blocks.get(num_units)
        if found is None:
            aligned = ((host, self._aligned(num_units, host)) for host in self._hosts)
            found = self._blocks[num_units] = {host: blocks for host, blocks in aligned if blocks}
        return found

    def _aligned(self, num_units: int, host: str) -> tuple[Gang, ...]:
        # The next power of two: a gang of three starts where one of four could.
        step, by_index = 1 << (num_units - 1).bit_length(), self._hosts[host]
        gangs: list[Gang] = []
        if len(by_index) < num_units:
            return ()
        for first in range(0, max(by_index, default=-1) + 1, step):
            block = [by_index.get(at) for at in range(first, first + num_units)]
            gang = tuple(unit_id for unit_id in block if unit_id is not None)
            if len(gang) == num_units:
                gangs.append(gang)
        return tuple(gangs)

    def _whole_hosts(
        self, num_units: int, *, among: Collection[UnitId], burden: Burden
    ) -> Iterator[Gang]:
        by_size: dict[int, list[Gang]] = {}
        found = Counter(self.by_id[unit_id].host for unit_id in among)
        for name, count in sorted(found.items()):
            if count == len(self._hosts[name]):
                by_size.setdefault(count, []).append(self.of_host(name))
        for size, hosts in sorted(by_size.items(), reverse=True):
            count = num_units // size
            if count * size == num_units and count <= len(hosts):
                # A gang is as late as its busiest unit.
                hosts.sort(key=lambda host: max(burden(unit_id) for unit_id in host))
                yield self.in_order(unit_id for host in hosts[:count] for unit_id in host)
