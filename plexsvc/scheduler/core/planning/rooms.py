"""Gangs that units can form: aligned blocks inside a host, whole hosts, any units of one size.

Live, a planning unit is one device of a host: it carries its host and its index there. Ranks that
talk a lot then get an aligned power-of-two block inside one host, or whole hosts of equal size.
Without hosts any units with the same number of devices make a gang.
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
    num_devices: int = 8
    parked_bytes: int = 1 << 62
    """Host memory and disk for the state of jobs that are not on the devices."""

    host: str = ""
    """The machine it is a device of; empty where a planning unit is a whole machine."""

    index: int = 0
    """Which device of its host it is."""

    @property
    def machine(self) -> str:
        """Return the machine it is, or is a device of."""
        return self.host or self.unit_id

    @property
    def rank(self) -> tuple[str, int, UnitId]:
        """Return its place among all: by host, position and name."""
        return (self.host, self.index, self.unit_id)


class Rooms:
    """All units, and the gangs they could make; the order in which they came decides nothing.

    >>> rooms = Rooms(UnitRoom(unit_id=UnitId(f"a:{i}"), host="a", index=i) for i in (3, 1, 0, 2))
    >>> rooms.blocks(2)
    (('a:0', 'a:1'), ('a:2', 'a:3'))
    """

    def __init__(self, rooms: Iterable[UnitRoom]) -> None:
        self.by_id = {room.unit_id: room for room in rooms}
        self.has_hosts = any(room.host for room in self.by_id.values())
        """Whether units are devices of hosts."""

        self.version = 0
        """Grows with every unit that comes or goes."""

        self._blocks: dict[int, dict[str, tuple[Gang, ...]]] = {}
        self._hosts: dict[str, dict[int, UnitId]] = {}
        for room in self.by_id.values():
            self._host_of(room)[room.index] = room.unit_id
        self._alike = self._counted()
        """How many hosts have so many units; without hosts, how many units so many devices."""

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
        self._count(room.machine, -1)
        self.by_id[room.unit_id] = room
        self._host_of(room)[room.index] = room.unit_id
        if room.host and not self.has_hosts:
            self.has_hosts = True
            self._alike = self._counted()
        else:
            self._count(room.machine, 1)
        self._has_changed(room.machine)

    def leave(self, unit_id: UnitId) -> None:
        """Forget a unit."""
        machine = self.by_id[unit_id].machine
        self._count(machine, -1)
        room = self.by_id.pop(unit_id)
        del self._host_of(room)[room.index]
        self._count(machine, 1)
        self._has_changed(machine)

    def copy(self) -> Rooms:
        """Return the rooms as they are now."""
        return Rooms(self.by_id.values())

    def of_host(self, host: str) -> Gang:
        """Return the units of a host, in order; none of a host without any."""
        return tuple(unit_id for _, unit_id in sorted(self._hosts.get(host, {}).items()))

    def in_order(self, units: Iterable[UnitId]) -> Gang:
        """Return units by host, position and name."""
        return tuple(sorted(units, key=lambda unit_id: self.by_id[unit_id].rank))

    def blocks(self, num_units: int) -> tuple[Gang, ...]:
        """Return every aligned block of `num_units` inside one host, in order.

        A block starts at a multiple of the next power of two.
        """
        return tuple(
            block for _, blocks in sorted(self._by_host(num_units).items()) for block in blocks
        )

    def gangs(self, num_units: int, *, among: Collection[UnitId], burden: Burden) -> Iterator[Gang]:
        """Yield the gangs that could be made of `among`.

        Each block inside a host comes, in order; where units are interchangeable (whole hosts, or
        units without a host) only the least burdened ones do.
        """
        if not self.has_hosts:
            yield from self._by_devices(num_units, among=among, burden=burden)
        elif by_host := self._by_host(num_units):
            among = among if isinstance(among, dict | set) else set(among)
            for host in sorted({self.by_id[unit_id].host or unit_id for unit_id in among}):
                yield from (b for b in by_host.get(host, ()) if all(unit in among for unit in b))
        else:
            yield from self._whole_hosts(num_units, among=among, burden=burden)

    def first_gang(
        self, num_units: int, *, among: Iterable[UnitId], usable: Callable[[UnitId], bool]
    ) -> Gang | None:
        """Return what `gangs` yields first of the usable units, on hosts and with no burden.

        They are among `among`, which is `in_order` and is read no further than needed.
        """

        def hosts() -> Iterator[str]:
            for host, _ in groupby(among, key=lambda unit_id: self.by_id[unit_id].machine):
                yield host

        if by_host := self._by_host(num_units):
            blocks = (block for host in hosts() for block in by_host.get(host, ()))
            return next((block for block in blocks if all(map(usable, block))), None)
        for size, known in sorted(self._alike.items(), reverse=True):
            count = num_units // size
            if count * size == num_units and count <= known:
                alike = (self.of_host(host) for host in hosts() if len(self._hosts[host]) == size)
                whole = (units for units in alike if all(map(usable, units)))
                chosen = list(islice(whole, count))
                if len(chosen) == count:
                    return self.in_order(unit_id for units in chosen for unit_id in units)
        return None

    def has_gang(self, num_units: int, *, without: Collection[UnitId] = ()) -> bool:
        """Return whether `gangs` would yield one of all units but some. `O(without)` mostly."""
        met = {self.by_id[unit_id].host or unit_id for unit_id in without}
        by_host = self._by_host(num_units) if self.has_hosts else {}
        if by_host:
            return len(by_host) > len(met & by_host.keys()) or any(
                not any(unit_id in without for unit_id in block)
                for host in met
                for block in by_host.get(host, ())
            )
        left = Counter(self._alike)
        left.subtract(map(self._size, met))
        if not self.has_hosts:
            return any(count >= num_units for count in left.values())
        return any(num_units % size == 0 and n * size >= num_units for size, n in left.items())

    def _counted(self) -> Counter[int]:
        return Counter(self._size(host) for host, units in self._hosts.items() if units)

    def _count(self, host: str, sign: int) -> None:
        if self._hosts.get(host):
            self._alike[self._size(host)] += sign

    def _size(self, host: str) -> int:
        """Return the units of a host; of a unit without one, its devices."""
        units = self._hosts[host]
        return len(units) if self.has_hosts else self.by_id[UnitId(host)].num_devices

    def _has_changed(self, host: str) -> None:
        self.version += 1
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

    def _by_devices(
        self, num_units: int, *, among: Collection[UnitId], burden: Burden
    ) -> Iterator[Gang]:
        classes: dict[int, list[UnitId]] = {}
        for unit_id in self.in_order(among):
            classes.setdefault(self.by_id[unit_id].num_devices, []).append(unit_id)
        for _, units in sorted(classes.items()):
            if len(units) >= num_units:
                yield self.in_order(sorted(units, key=burden)[:num_units])

    def _whole_hosts(
        self, num_units: int, *, among: Collection[UnitId], burden: Burden
    ) -> Iterator[Gang]:
        by_size: dict[int, list[Gang]] = {}
        found = Counter(self.by_id[unit_id].host or unit_id for unit_id in among)
        for name, count in sorted(found.items()):
            if count == len(self._hosts[name]):
                by_size.setdefault(count, []).append(self.of_host(name))
        for size, hosts in sorted(by_size.items(), reverse=True):
            count = num_units // size
            if count * size == num_units and count <= len(hosts):
                hosts.sort(key=lambda host: max(burden(unit_id) for unit_id in host))
                yield self.in_order(unit_id for host in hosts[:count] for unit_id in host)

    def _host_of(self, room: UnitRoom) -> dict[int, UnitId]:
        """Return the units of a unit's host, by index; a unit without a host is one by itself."""
        return self._hosts.setdefault(room.machine, {})
