"""Copies of a WPG's ranks to the host: what several ranks hold with the same bytes is parked once.

Nobody declares such replicas. Before an offload a few pages of a region are compared with those of
the ranks before it. Where they are equal, the ranks share the work: each takes every so many steps
of the region, copies it from the first of them, and compares it with the others while it is in the
processor's cache. Who differs after all is copied as if alone. A rank whose region is parked with
another keeps its place for when they differ, and no memory behind it. What may have been written is
compared at every offload, so a rank changes no other one's state.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from plexsvc.statelink.mapping import PAGE_BYTES, Extent
from plexsvc.statemanager.caller import Tell
from plexsvc.statemanager.entries import RegionState
from plexsvc.statemanager.memory import RankMemory, Twin

STEP_BYTES: Final = 2 << 20
"""What is copied and then compared: small enough for caches, and large enough to pass them by."""

PROBES: Final = 8
"""Pages that are compared before anything else, spread over a region."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaving:
    """A rank that leaves its device: the regions to park, and after how many writes, if known."""

    rank: int
    memory: RankMemory
    regions: Mapping[str, RegionState]
    writes: int = 0


@dataclass(slots=True, kw_only=True)
class Replicas:
    """A region that ranks seem to hold with the same bytes; the first of them parks it."""

    region: RegionState
    is_kept: bool
    """Whether the first one's copy is as it was, so that it is only compared with."""
    ranks: list[Leaving]
    unequal: set[int] = field(default_factory=set)

    @property
    def twins(self) -> list[Leaving]:
        """Those that need no copy of their own."""
        return [one for one in self.ranks[1:] if one.rank not in self.unequal]

    def seems_like(self, other: Leaving) -> bool:
        """Whether a rank seems to hold the same."""
        span, nbytes = other.memory.spans.get(self.region.name), self.region.nbytes
        starts = range(0, nbytes, max(PAGE_BYTES, nbytes // PROBES // PAGE_BYTES * PAGE_BYTES))
        probes = (Extent(offset=at, nbytes=PAGE_BYTES) for at in starts)
        is_alike = span is not None and span.nbytes == nbytes
        return is_alike and all(self._is_equal(other, probe) for probe in probes)

    def work(self, rank: int, tell: Tell) -> None:
        """Do one rank's share.

        Raises:
            PlexError: `no_room` when the machine or its disk lacks the room.
        """
        first, name = self.ranks[0].memory, self.region.name
        span, host = first.spans[name], first.hosts[name]
        for step in self._steps(rank):
            size = min(step.nbytes, host.split - step.offset)
            if size > 0 and not self.is_kept:
                part = Extent(offset=step.offset, nbytes=size)
                first.tier.to_host(span, host.address + step.offset, part, tell)
            for twin in self.twins:
                if self._is_equal(twin, step):
                    tell(step.nbytes)
                else:
                    self.unequal.add(twin.rank)
        if rank == self.ranks[0].rank and not self.is_kept:
            first.tail_to_disk(name, tell)

    def _steps(self, rank: int) -> Iterator[Extent]:
        number = [one.rank for one in self.ranks].index(rank)
        nbytes = self.region.nbytes
        for low in range(number * STEP_BYTES, nbytes, len(self.ranks) * STEP_BYTES):
            yield Extent(offset=low, nbytes=min(STEP_BYTES, nbytes - low))

    def _is_equal(self, other: Leaving, part: Extent) -> bool:
        first, name = self.ranks[0].memory, self.region.name
        theirs = other.memory
        return first.tier.is_equal(first.spans[name], theirs.spans[name], theirs.tier, part)


class Offload:
    """Copies of ranks to the host: `work` for all ranks at once, then `finish`, then `rest`."""

    def __init__(self, ranks: Sequence[Leaving]) -> None:
        """Look what is to be copied, and which of it seems to be the same."""
        self._ranks = {one.rank: one for one in ranks}
        self._kept = _kept(ranks)
        self._shared: list[Replicas] = []
        for one in ranks:
            for name in one.regions.keys() - self._kept[one.rank]:
                one.memory.drop_kept(name)
            for region in one.regions.values():
                if region.may_have_twins and region.name not in one.memory.twins:
                    self._compare(one, region)
        self._shared = [each for each in self._shared if len(each.ranks) > 1]
        for each in self._shared:
            if not each.is_kept:
                each.ranks[0].memory.empty([each.region])

    def work(self, rank: int, tell: Tell) -> int:
        """Do what one rank has to, beside the others; return the bytes copied.

        Raises:
            PlexError: `no_room` when the machine or its disk lacks the room.
        """
        mine = [each for each in self._shared if rank in {one.rank for one in each.ranks}]
        for each in mine:
            each.work(rank, tell)
        names = self._kept[rank] | {each.region.name for each in mine}
        regions = self._ranks[rank].regions
        return self._copy_out(rank, regions.keys() - names, tell)

    def finish(self) -> int:
        """Note what is parked with whom; return the bytes that were copied for all."""
        for each in self._shared:
            first, name = each.ranks[0], each.region.name
            first.memory.note_kept(name, first.writes)
            for one in each.twins:
                one.memory.park_with(one.regions[name], Twin(rank=first.rank, memory=first.memory))
                one.memory.note_kept(name, one.writes)
        return sum(each.region.nbytes for each in self._shared if not each.is_kept)

    def rest(self, rank: int, tell: Tell) -> int:
        """Copy what turned out to differ; return the bytes.

        Raises:
            PlexError: `no_room` when the machine or its disk lacks the room.
        """
        names = {each.region.name for each in self._shared if rank in each.unequal}
        return self._copy_out(rank, names, tell)

    def _compare(self, one: Leaving, region: RegionState) -> None:
        """Add a region to those that it seems to equal."""
        is_kept = region.name in self._kept[one.rank]
        alike = (each for each in self._shared if each.region.name == region.name)
        found = None if is_kept else next((e for e in alike if e.seems_like(one)), None)
        if found is None:
            self._shared.append(Replicas(region=region, is_kept=is_kept, ranks=[one]))
        else:
            found.ranks.append(one)

    def _copy_out(self, rank: int, names: Iterable[str], tell: Tell) -> int:
        one, wanted = self._ranks[rank], set(names)
        regions = [region for name, region in one.regions.items() if name in wanted]
        return one.memory.copy_out(regions, tell, writes=one.writes)


def _kept(ranks: Sequence[Leaving]) -> dict[int, set[str]]:
    """Return the regions of each rank whose copies are as they were, its own or its twin's."""
    kept = {one.rank: one.memory.kept(one.regions.values(), writes=one.writes) for one in ranks}
    for one in ranks:
        twins = one.memory.twins.items()
        kept[one.rank] -= {name for name, twin in twins if name not in kept[twin.rank]}
    return kept
