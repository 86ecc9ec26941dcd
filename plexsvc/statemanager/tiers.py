"""Tiers of device memory behind one protocol, and the arena of a CPU device, which grants extents.

A CPU device is one anonymous memory file of the configured size, which cannot grow: what a real
device's memory is. A region is a set of its extents. Parking gives the extents back to the arena,
and their pages to the machine unless they are kept for the next WPG. With huge pages, which the
arena takes where it can, returning and populating cost less than the copies; with small ones, eight
times as much. Fresh regions read as zeroes; loaded ones are overwritten in full. When a WPG is
forgotten its pages go back to the machine in any case.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Protocol

from plexsvc.errors import PlexError, internal
from plexsvc.log import Log
from plexsvc.statelink import mapping
from plexsvc.statelink.mapping import Extent, FixedMapping
from plexsvc.statemanager import hugefiles
from plexsvc.statemanager.caller import Tell, tell_nobody
from plexsvc.statemanager.extents import ExtentPool
from plexsvc.statemanager.hostcopy import HostCopy, array_at, parts, populate
from plexsvc.weights.pieces import Bytes

log = Log(__name__)

_SEALS: Final = fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL


@dataclass(slots=True, kw_only=True)
class DeviceExtents:
    """Device memory of one region: extents of the device, laid end to end in the rank."""

    nbytes: int
    extents: tuple[Extent, ...]
    fd: int
    stitched: FixedMapping | None = field(default=None)


class DeviceTier(Protocol):
    """One device's memory. Not thread-safe per span; different spans may be used at once."""

    kind: str
    granule_bytes: int
    """Regions take whole multiples of this."""

    @property
    def left(self) -> ArenaFile | None:
        """The file that a successor takes over, None where each region has a descriptor."""

    def claim(
        self, nbytes: int, extents: tuple[Extent, ...], *, fd: int | None = None
    ) -> DeviceExtents:
        """Return a region that a predecessor had reserved; `fd` is its descriptor, if it has one.

        Raises:
            PlexError: `internal` when it cannot have been.
        """

    def tidy(self) -> None:
        """Return the pages of what nobody claimed, unless they are kept."""

    def prepare(self, host: HostCopy, tell: Tell = tell_nobody) -> None:
        """Make a new host copy ready to be copied to and from, so that no move waits for that.

        Say of each part that it is done.

        Raises:
            PlexError: `no_room` when the machine itself lacks the memory.
        """

    def reserve(self, nbytes: int, *, is_zeroed: bool, tell: Tell = tell_nobody) -> DeviceExtents:
        """Return device memory for a region, zero-filled when asked; the ledger has admitted it.

        Say of each part that it is done.

        Raises:
            PlexError: `no_room` when the machine itself lacks the memory.
        """

    def release(self, span: DeviceExtents, *, is_final: bool) -> None:
        """Take a span back; `is_final` returns its pages to the machine."""

    def to_host(
        self, span: DeviceExtents, address: int, part: Extent, tell: Tell = tell_nobody
    ) -> None:
        """Copy a part of the region to memory at `address`; say of each piece that it is done."""

    def from_host(
        self, span: DeviceExtents, address: int, part: Extent, tell: Tell = tell_nobody
    ) -> None:
        """Fill a part of the region from memory at `address`; say of each piece that it is done."""

    def is_equal(
        self, span: DeviceExtents, other: DeviceExtents, of: DeviceTier, part: Extent
    ) -> bool:
        """Whether a part of a region of another device has the same bytes.

        False, too, where telling would take longer than a copy.
        """

    def view(self, span: DeviceExtents, host: HostCopy) -> Bytes:
        """Return the span's bytes as one readable array, by way of `host` where they must move."""

    def close(self) -> None:
        """Free everything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArenaFile:
    """The memory file of an arena and the size of its pages."""

    fd: int
    page_bytes: int


class CpuArena:
    """A device on a CPU host: one memory file of fixed size that ranks map extents of."""

    kind = "cpu"
    granule_bytes = mapping.PAGE_BYTES

    def __init__(
        self,
        bytes_total: int,
        *,
        keep_pages: bool,
        huge_pages: bool = True,
        left: ArenaFile | None = None,
    ) -> None:
        """Create the arena, or take over the file that a predecessor `left`."""
        self.nbytes = bytes_total // mapping.PAGE_BYTES * mapping.PAGE_BYTES
        self._keep_pages = keep_pages
        file = left or _open_arena(self.nbytes, huge_pages=huge_pages)
        self.page_bytes = file.page_bytes
        self._fd = file.fd
        self._pool = ExtentPool(self.nbytes, unit=self.page_bytes)
        self._pool_lock = threading.Lock()
        self._mapping = FixedMapping(max(1, self.nbytes))
        if self.nbytes:
            whole = Extent(offset=0, nbytes=self.nbytes)
            self._mapping.attach(self._fd, [whole], is_populated=False)

    @property
    def left(self) -> ArenaFile:
        """The file it lies in."""
        return ArenaFile(fd=self._fd, page_bytes=self.page_bytes)

    def claim(
        self, nbytes: int, extents: tuple[Extent, ...], *, fd: int | None = None
    ) -> DeviceExtents:
        """Return a region that a predecessor had reserved here.

        Raises:
            PlexError: `internal` when it cannot have been.
        """
        assert fd is None, "all of an arena's regions are in its file"
        if sum(extent.nbytes for extent in extents) != nbytes:
            raise internal(f"{nbytes} device bytes lie in {extents}")
        self._pool.claim(extents)
        return DeviceExtents(nbytes=nbytes, extents=extents, fd=self._fd)

    def tidy(self) -> None:
        """Return the pages of what nobody claimed, unless they are kept."""
        for extent in () if self._keep_pages else self._pool.free_extents():
            mapping.punch(self._fd, extent)

    def prepare(self, host: HostCopy, tell: Tell = tell_nobody) -> None:
        """Do nothing: a copy that is never made needs no pages."""

    @property
    def resident_bytes(self) -> int:
        """Bytes of the machine's memory the arena holds."""
        return os.fstat(self._fd).st_blocks * 512

    def reserve(self, nbytes: int, *, is_zeroed: bool, tell: Tell = tell_nobody) -> DeviceExtents:
        """Return extents with pages behind them.

        Raises:
            PlexError: `no_room` when the machine lacks the memory.
        """
        with self._pool_lock:
            extents = self._pool.take(mapping.round_to_pages(nbytes))
        span = DeviceExtents(nbytes=nbytes, extents=extents, fd=self._fd)
        try:
            for extent in extents:
                for low, size in parts(extent.nbytes):
                    address = self._mapping.address + extent.offset + low
                    populate(address, size)
                    if is_zeroed and self._keep_pages:  # pages from the machine are zero
                        ctypes.memset(address, 0, size)
                    tell(size)
        except (PlexError, OSError):
            self.release(span, is_final=True)  # to a machine that lacks memory
            raise
        return span

    def release(self, span: DeviceExtents, *, is_final: bool) -> None:
        """Return extents to the arena, and their pages to the machine when asked or configured."""
        if span.stitched is not None:
            span.stitched.close()
            span.stitched = None
        is_returned = is_final or not self._keep_pages
        if is_returned:
            for extent in span.extents:
                mapping.unmap_pages(self._mapping.address + extent.offset, extent.nbytes)
        with self._pool_lock:
            self._pool.give(span.extents)
            # Under the lock: free neighbours in the same huge page are punched, too.
            for extent in span.extents if is_returned else ():
                mapping.punch(self._fd, self._pool.widened(extent))

    def to_host(
        self, span: DeviceExtents, address: int, part: Extent, tell: Tell = tell_nobody
    ) -> None:
        """Copy at memcpy speed."""
        for here, there, nbytes in self.pieces(span, part):
            mapping.copy(address + there, here, nbytes)
            tell(nbytes)

    def from_host(
        self, span: DeviceExtents, address: int, part: Extent, tell: Tell = tell_nobody
    ) -> None:
        """Copy at memcpy speed."""
        for here, there, nbytes in self.pieces(span, part):
            mapping.copy(here, address + there, nbytes)
            tell(nbytes)

    def is_equal(
        self, span: DeviceExtents, other: DeviceExtents, of: DeviceTier, part: Extent
    ) -> bool:
        """Compare with another arena in place, up to the first difference."""
        if not isinstance(of, CpuArena):
            return False
        for here, at, size in self.pieces(span, part):
            theirs = Extent(offset=part.offset + at, nbytes=size)
            for there, low, nbytes in of.pieces(other, theirs):
                if not mapping.is_equal(here + low, there, nbytes):
                    return False
        return True

    def pieces(self, span: DeviceExtents, part: Extent) -> Iterator[tuple[int, int, int]]:
        """Yield the address, offset in the part, and bytes of each piece to copy."""
        start = 0
        for extent in span.extents:
            first = max(start, part.offset)
            end = min(start + extent.nbytes, part.offset + part.nbytes)
            for low, nbytes in parts(end - first):
                at = first + low
                here = self._mapping.address + extent.offset + at - start
                yield here, at - part.offset, nbytes
            start += extent.nbytes

    def view(self, span: DeviceExtents, host: HostCopy) -> Bytes:
        """Return the bytes in place; extents are stitched together by mapping, not by copying."""
        del host
        if len(span.extents) == 1:
            return array_at(self._mapping.address + span.extents[0].offset, span.nbytes)
        if span.stitched is None:
            span.stitched = FixedMapping(span.nbytes)
            span.stitched.attach(self._fd, span.extents, is_populated=False)
        return array_at(span.stitched.address, span.nbytes)

    def close(self) -> None:
        """Free the arena; ranks that still map it keep their pages until they end."""
        self._mapping.close()
        os.close(self._fd)


def _open_arena(nbytes: int, *, huge_pages: bool) -> ArenaFile:
    if huge_pages and nbytes >= mapping.HUGE_PAGE_BYTES:
        try:
            fd = hugefiles.open_huge_file(nbytes)
        except OSError as error:
            log.warning("device memory without huge pages: switches take longer", error=error)
        else:
            return ArenaFile(fd=fd, page_bytes=mapping.HUGE_PAGE_BYTES)
    fd = os.memfd_create("plexsvc-device", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, nbytes)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    return ArenaFile(fd=fd, page_bytes=mapping.PAGE_BYTES)
