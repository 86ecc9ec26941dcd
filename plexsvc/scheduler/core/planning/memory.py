"""Ledger of host memory: what each host has, and what is booked on it, by use and owner.

Devices of one host share its memory, whatever their kind, so all boards of a cluster share one
ledger. State keeps its room while it is on a device, because it will be parked again. What an owner
has on a host is the larger of what is reserved for it and what is known to be there.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Final

from plexsvc.ids import UnitId
from plexsvc.scheduler.core.planning.profile import Demand
from plexsvc.scheduler.core.planning.rooms import UnitRoom

GIB: Final = 1 << 30
MIB: Final = 1 << 20


class Use(StrEnum):
    """What host memory is booked for."""

    STATE = "state"
    """Of training deployments, parked or on devices."""

    MODELS = "models"
    """Frozen models under adapters, each once for all deployments that read it on a device."""

    VERSIONS = "versions"
    """Published weights: as many as are kept, the next one, and older ones that are in use."""

    COPIES = "copies"
    """What `save`, `export` and `digest` work from, while they do."""

    MOVES = "moves"
    """What deployments that move still have at the old place, and the copy that they take along."""

    READS = "reads"
    """Versions and copies that processes read from another host."""


class HostMemory:
    """Bytes of each host that are there, and that are booked."""

    def __init__(self) -> None:
        """Begin without hosts."""
        self._host_of: dict[UnitId, str] = {}
        self._total: Counter[str] = Counter()
        self._booked: Counter[str] = Counter()
        self._reserved: dict[tuple[Use, str], Mapping[str, int]] = {}
        self._found: dict[tuple[Use, str], Mapping[str, int]] = {}

    def copy(self) -> HostMemory:
        """Return the same hosts with the same bookings."""
        made = copy.copy(self)
        for name, table in vars(self).items():
            setattr(made, name, table.copy())
        return made

    def emptied(self) -> HostMemory:
        """Return the same hosts with nothing booked."""
        made = self.copy()
        for use, owner in {**self._reserved, **self._found}:
            made.reserve_at(use, owner, {})
            made.note(use, owner, {})
        return made

    def grow(self, room: UnitRoom, sign: int) -> None:
        """Take in, or out, a unit and its share of its host's memory."""
        self._total[room.host] += sign * room.parked_bytes
        if sign > 0:
            self._host_of[room.unit_id] = room.host
        else:
            del self._host_of[room.unit_id]

    def reserve(self, use: Use, owner: str, units: Iterable[UnitId], nbytes: int) -> None:
        """Keep `nbytes` for each of some units, in place of what was reserved before.

        Nothing is kept where there are no units or no bytes.
        """
        self.reserve_at(use, owner, self._by_host(units, nbytes))

    def reserve_at(self, use: Use, owner: str, by_host: Mapping[str, int]) -> list[str]:
        """Keep bytes on each of some hosts, in place of what was reserved before.

        Returns the hosts on which less is booked now.
        """
        return self._change(self._reserved, use, owner, by_host)

    def note(self, use: Use, owner: str, by_host: Mapping[str, int]) -> list[str]:
        """Note what an owner has on hosts, in place of what was noted before.

        Returns the hosts on which less is booked now.
        """
        return self._change(self._found, use, owner, by_host)

    def book(self, demand: Demand, units: Sequence[UnitId]) -> None:
        """Reserve what a job takes for each of its units."""
        name = demand.resident_id
        self.reserve(Use.STATE, name, units, demand.parked_bytes)
        self.reserve(Use.VERSIONS, name, units, demand.version_bytes)
        for part, unit_id in demand.models_on(units).items():
            self.reserve(Use.MODELS, part, (unit_id,), demand.model_bytes)

    def holds(self, units: Sequence[UnitId], demand: Demand) -> bool:
        """Return whether every host has room for what a job would take for each of some units."""
        return not self.without_room(units, demand)

    def without_room(self, units: Sequence[UnitId], demand: Demand) -> list[UnitId]:
        """Return those of some units whose host has no room for what a job takes for each of them.

        A host on which nothing is booked takes whatever comes: nobody else is hurt, and whether it
        fits is for its state manager to say.
        """
        needed = Counter[str]()
        for unit_id in units:
            needed[self._host_of[unit_id]] += demand.host_bytes
        for part, unit_id in demand.models_on(units).items():
            if not self._of((Use.MODELS, part)):
                needed[self._host_of[unit_id]] += demand.model_bytes
        full = {
            host
            for host, nbytes in needed.items()
            if nbytes and 0 < self._booked[host] > self._total[host] - nbytes
        }
        return [unit_id for unit_id in units if self._host_of[unit_id] in full]

    def booked_at(self, unit_id: UnitId) -> int:
        """Return what is booked on a unit's host."""
        return self._booked[self._host_of[unit_id]]

    def total_at(self, unit_id: UnitId) -> int:
        """Return what a unit's host has."""
        return self._total[self._host_of[unit_id]]

    def uses_at(self, unit_id: UnitId) -> dict[Use, int]:
        """Return what is booked on a unit's host by use, without what is not. `O(owners)`."""
        host, found = self._host_of[unit_id], Counter[Use]()
        for holding in {**self._reserved, **self._found}:
            found[holding[0]] += self._of(holding).get(host, 0)
        return {use: found[use] for use in Use if found[use]}

    def told(self, unit_id: UnitId) -> str:
        """Say what is booked on a unit's host."""
        uses = ", ".join(f"{use} {size(n)}" for use, n in self.uses_at(unit_id).items())
        booked, total = size(self.booked_at(unit_id)), size(self.total_at(unit_id))
        return f"host {self._host_of[unit_id]} has {booked} of {total} booked ({uses or 'nothing'})"

    def _by_host(self, units: Iterable[UnitId], nbytes: int) -> dict[str, int]:
        counts = Counter(self._host_of[unit_id] for unit_id in units)
        return {host: count * nbytes for host, count in counts.items() if nbytes}

    def _change(
        self,
        table: dict[tuple[Use, str], Mapping[str, int]],
        use: Use,
        owner: str,
        by_host: Mapping[str, int],
    ) -> list[str]:
        holding = (use, owner)
        before = self._of(holding)
        self._booked.subtract(before)
        if by_host:
            table[holding] = dict(by_host)
        else:
            table.pop(holding, None)
        now = self._of(holding)
        self._booked.update(now)
        return [host for host, nbytes in before.items() if now.get(host, 0) < nbytes]

    def _of(self, holding: tuple[Use, str]) -> Mapping[str, int]:
        reserved, found = self._reserved.get(holding, {}), self._found.get(holding, {})
        if not (reserved and found):
            return reserved or found
        return {h: max(reserved.get(h, 0), found.get(h, 0)) for h in {**reserved, **found}}


def size(nbytes: int) -> str:
    """Return bytes as people read them.

    >>> size(3 << 29), size(3 << 19), size(512)
    ('1.5 GiB', '1.5 MiB', '512 B')
    """
    if nbytes < MIB:
        return f"{nbytes} B"
    return f"{nbytes / GIB:.1f} GiB" if nbytes >= GIB else f"{nbytes / MIB:.1f} MiB"
