"""Memory of one rank's regions on every tier: extents of its device, and copies on the host.

Tiers are used nowhere else, so a new one is added in one place. Whoever holds the WPG's lock may
use a rank's memory.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any, Final

from plexsvc.errors import PlexError
from plexsvc.residency import Home
from plexsvc.statelink.dataplane import Message
from plexsvc.statelink.mapping import Extent
from plexsvc.statelink.regions import on_host
from plexsvc.statemanager.caller import Tell, tell_nobody
from plexsvc.statemanager.disk import Disk
from plexsvc.statemanager.entries import RegionState, SharedState
from plexsvc.statemanager.hostcopy import HostCopy, Pass, Tail
from plexsvc.statemanager.tiers import DeviceExtents, DeviceTier
from plexsvc.weights.pieces import Bytes

NONE: Final[Mapping[str, Sequence[Any]]] = MappingProxyType({})


class RankMemory:
    """What a rank has: `spans` of its device while it is there, and a host copy per region.

    What it reads in `shared` regions, by its names of them, is not its own. A region that another
    rank of its WPG holds with the same bytes is parked there alone (`replicas`).
    """

    def __init__(self, tier: DeviceTier, disk: Disk | None = None) -> None:
        self.tier = tier
        self._disk = disk
        self.spans: dict[str, DeviceExtents] = {}
        self.hosts: dict[str, HostCopy] = {}
        self.mapped: dict[str, str] = {}
        """Regions whose host copies the rank maps, and its names of these."""
        self.shared: dict[str, SharedRegion] = {}
        self.twins: dict[str, Twin] = {}
        """Ranks before it in whose host copies its regions are parked, because they are equal."""

    def allocate(self, regions: Sequence[RegionState], tell: Tell = tell_nobody) -> None:
        """Take zeroed device memory and host memory for new regions, all or none, part by part.

        Raises:
            PlexError: `no_room` when the machine itself lacks the memory.
            OSError: what `tell` raises.
        """
        new = RankMemory(self.tier, self._disk)
        try:
            for region in regions:
                is_lent = region.home is not Home.DEVICE
                host = HostCopy(region.nbytes, disk=self._disk, split=region.split, is_lent=is_lent)
                new.hosts[region.name] = host
                new._lend(region)
                if region.home is Home.HOST:
                    host.fill(tell)
                    continue
                new.spans[region.name] = self.tier.reserve(region.nbytes, is_zeroed=True, tell=tell)
                self.prepare(host, tell)
        except (PlexError, OSError):
            new.free()
            raise
        self.spans |= new.spans
        self.hosts |= new.hosts
        self.mapped |= new.mapped

    def adopt(
        self,
        region: RegionState,
        *,
        host_fd: int,
        tail: Tail | None,
        extents: tuple[Extent, ...] | None,
        span_fd: int | None = None,
    ) -> None:
        """Take over a region that a predecessor had allocated; `extents` while on the device.

        `span_fd` is of device memory that is in no arena.

        Raises:
            PlexError: `internal` when it cannot have been.
        """
        self.hosts[region.name] = HostCopy(
            region.nbytes, fd=host_fd, disk=self._disk, split=region.split, tail=tail
        )
        self._lend(region)
        if extents is not None:
            self.spans[region.name] = self.tier.claim(region.nbytes, extents, fd=span_fd)

    def reserve(self, regions: Iterable[RegionState]) -> None:
        """Take device memory for a load; what has no host copy to be loaded is zeroed.

        Raises:
            PlexError: `no_room` when the machine itself lacks the memory.
        """
        for region in regions:
            if region.home is Home.HOST:
                continue
            is_zeroed = not region.has_host_copy
            self.spans[region.name] = self.tier.reserve(region.nbytes, is_zeroed=is_zeroed)

    def kept(self, regions: Iterable[RegionState], *, writes: int) -> set[str]:
        """Return the regions that have not been written since they were copied out.

        `writes` counts what may have, 0 if that is not known.
        """
        # Gradients, which are droppable, change without being counted.
        return {
            region.name
            for region in regions
            if writes > 0 and not region.is_droppable and region.home is not Home.HOST
            if (host := self.hosts[region.name]).is_kept and host.writes == writes
            if host.split == region.split
        }

    def empty(self, regions: Iterable[RegionState]) -> None:
        """Make the copies of regions ready to be filled.

        Raises:
            PlexError: `no_room` when the machine itself lacks the memory.
        """
        for region in regions:
            host = self.hosts[region.name]
            host.empty(region.split)
            self.prepare(host)

    def copy_out(
        self, regions: Iterable[RegionState], tell: Tell = tell_nobody, *, writes: int = 0
    ) -> int:
        """Copy regions from the device to where they are parked; return the bytes.

        `writes` counts what may have written them until now, 0 if that is not known.

        Raises:
            PlexError: `no_room` when the machine or its disk lacks the room.
        """
        nbytes = 0
        for region in regions:
            if region.home is Home.HOST:
                continue
            self.empty([region])
            span, host = self.spans[region.name], self.hosts[region.name]
            self.tier.to_host(span, host.address, Extent(offset=0, nbytes=host.split), tell)
            self.tail_to_disk(region.name, tell)
            self.note_kept(region.name, writes)
            nbytes += host.nbytes
        return nbytes

    def tail_to_disk(self, name: str, tell: Tell) -> None:
        """Copy from the device what of a region is parked on disk.

        Raises:
            PlexError: `no_room`.
        """
        host, span = self.hosts[name], self.spans[name]
        if host.split < host.nbytes:
            host.to_disk(host.split, fill=partial(self.tier.to_host, span), tell=tell)

    def note_kept(self, name: str, writes: int) -> None:
        """Note that a region is parked as it is after so many writes."""
        host = self.hosts[name]
        host.is_kept, host.writes = True, writes

    def drop_kept(self, name: str) -> None:
        """Note that what is parked of a region is not as it is."""
        self.twins.pop(name, None)
        self.hosts[name].is_kept = False

    def park_with(self, region: RegionState, twin: Twin) -> None:
        """Have a region parked with another rank, which holds the same bytes."""
        host = self.hosts[region.name]
        host.empty(region.split)
        host.vacate()
        self.twins[region.name] = twin

    def copy_in(
        self,
        regions: Iterable[RegionState],
        tell: Tell = tell_nobody,
        *,
        readers: Mapping[str, Sequence[RankMemory]] = NONE,
    ) -> int:
        """Copy regions from where they are parked to the device; return the bytes.

        What is on disk is read for those too that have it parked here, the `readers` of a region.

        Raises:
            PlexError: `checksum_mismatch` for a damaged block; `no_room` for a disk that fails.
        """
        nbytes = 0
        for region in regions:
            if region.home is Home.HOST:
                continue
            name, span, host = region.name, self.spans[region.name], self._parked(region.name)
            self.tier.from_host(span, host.address, Extent(offset=0, nbytes=host.split), tell)
            nbytes += host.nbytes
            if name in self.twins:
                continue
            takers = [self, *readers.get(name, ())]
            takes = [partial(one.tier.from_host, one.spans[name]) for one in takers]

            def take(address: int, part: Extent, takes: Sequence[Pass] = takes) -> None:
                for each in takes:
                    each(address, part)

            host.from_disk(host.nbytes, take=take, tell=tell)
        return nbytes

    def leave_device(self, *, is_final: bool = False) -> None:
        """Give the device memory back; `is_final` returns its pages to the machine."""
        spans, self.spans = self.spans, {}
        with ExitStack() as releases:  # one that fails keeps none of the others
            for span in spans.values():
                releases.callback(self.tier.release, span, is_final=is_final)

    def free(self) -> None:
        """Give everything back."""
        hosts, self.hosts, self.twins = self.hosts, {}, {}
        with ExitStack() as closes:
            for host in hosts.values():
                closes.callback(host.close)
            self.leave_device(is_final=True)

    def view(self, name: str) -> Bytes:
        """Return a region's bytes from where it is, as an array that must not outlive it."""
        if name in self.spans:
            return self.tier.view(self.spans[name], self.hosts[name])
        return self._parked(name).view()

    @property
    def replica_bytes(self) -> int:
        """Bytes of its regions that are parked in other ranks' copies alone."""
        known = list(self.twins.items())  # asked beside moves
        return sum(t.memory.hosts[name].nbytes for name, t in known if name in t.memory.hosts)

    def prepare(self, host: HostCopy, tell: Tell = tell_nobody) -> None:
        """Make a copy ready that lies in memory: what lies on disk passes through other memory."""
        if host.split == host.nbytes:
            self.tier.prepare(host, tell)

    def grant(self) -> Message:
        """Return what the rank needs to map its spans, and its host memory."""
        lent = {name: one for name, one in self.shared.items() if self.spans}
        spans = self.spans | {name: one.span for name, one in lent.items()}
        filled = {name for name, one in lent.items() if one.state.is_filled}
        files = {name: self.hosts[region] for region, name in self.mapped.items()}
        all_fds = [span.fd for span in spans.values()] + [host.file.fd for host in files.values()]
        # All regions of an arena share its descriptor, and a message carries only so many.
        fds = tuple(dict.fromkeys(all_fds))
        regions = {
            name: {
                "fd": fds.index(span.fd),
                "extents": [[extent.offset, extent.nbytes] for extent in span.extents],
                "read_only": name in filled,
            }
            for name, span in spans.items()
        }
        regions |= {
            name: {"fd": fds.index(host.file.fd), "extents": [[0, host.nbytes]]}
            for name, host in files.items()
        }
        return Message(header={"regions": regions}, fds=fds)

    def _parked(self, name: str) -> HostCopy:
        """Return the copy that a region is parked in."""
        twin = self.twins.get(name)
        return (self if twin is None else twin.memory).hosts[name]

    def _lend(self, region: RegionState) -> None:
        if region.home is not Home.DEVICE:
            name = region.name
            self.mapped[name] = name if region.home is Home.HOST else on_host(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Twin:
    """A rank of the same WPG that parks a region."""

    rank: int
    memory: RankMemory


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedRegion:
    """Memory of a region that several ranks read; `lock` is held to bring it to its device."""

    state: SharedState
    memory: RankMemory
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def span(self) -> DeviceExtents:
        """Where it lies on its device."""
        return self.memory.spans[self.state.region.name]

    @property
    def host(self) -> HostCopy:
        """Its copy on the host."""
        return self.memory.hosts[self.state.region.name]
