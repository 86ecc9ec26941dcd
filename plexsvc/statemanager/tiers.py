"""The memory tiers behind one protocol: device arenas that grant extents, and host copies.

A CPU device is one anonymous memory file of the configured size, which cannot grow: what a real
device's memory is. A region is a set of its extents. Parking gives the extents back to the arena,
and their pages to the machine unless they are kept for the next WPG. With huge pages, which the
arena takes where it can, returning and populating cost less than the copies; with small ones, eight
times as much. Fresh regions read as zeroes; loaded ones are overwritten in full. When a WPG is
forgotten its pages go back to the machine in any case.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Protocol

import numpy as np

from plexsvc.errors import ErrorCode, PlexError, internal
from plexsvc.log import Log
from plexsvc.statelink import mapping
from plexsvc.statelink.mapping import Extent, FixedMapping
from plexsvc.statemanager import hugefiles
from plexsvc.statemanager.caller import Tell, tell_nobody
from plexsvc.statemanager.disk import Disk, blocks
from plexsvc.statemanager.extents import ExtentPool
from plexsvc.statemanager.memfiles import MemoryFile
from plexsvc.weights.pieces import Bytes

log = Log(__name__)

PART_BYTES: Final = 256 << 20
"""What is copied at once: whoever watches over a move hears of each part."""

_SEALS: Final = fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL


@dataclass(slots=True, kw_only=True)
class Span:
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
        """The file that a successor takes over, None for memory that ends with its owner."""

    def claim(self, nbytes: int, extents: tuple[Extent, ...]) -> Span:
        """Return a region that a predecessor had reserved.

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

    def reserve(self, nbytes: int, *, is_zeroed: bool, tell: Tell = tell_nobody) -> Span:
        """Return device memory for a region, zero-filled when asked; the ledger has admitted it.

        Say of each part that it is done.

        Raises:
            PlexError: `no_room` when the machine itself lacks the memory.
        """

    def release(self, span: Span, *, is_final: bool) -> None:
        """Take a span back; `is_final` returns its pages to the machine."""

    def to_host(self, span: Span, address: int, part: Extent, tell: Tell = tell_nobody) -> None:
        """Copy a part of the region to memory at `address`; say of each piece that it is done."""

    def from_host(self, span: Span, address: int, part: Extent, tell: Tell = tell_nobody) -> None:
        """Fill a part of the region from memory at `address`; say of each piece that it is done."""

    def view(self, span: Span, host: HostCopy) -> Bytes:
        """Return the span's bytes as one readable array, by way of `host` where they must move."""

    def close(self) -> None:
        """Free everything."""


def parts(nbytes: int) -> Iterator[tuple[int, int]]:
    """Yield start and size of the parts in which `nbytes` are copied.

    >>> [size >> 20 for _, size in parts(600 << 20)]
    [256, 256, 88]
    """
    for low in range(0, nbytes, PART_BYTES):
        yield low, min(PART_BYTES, nbytes - low)


Pass = Callable[[int, Extent], None]
"""Brings a part of a region to memory at an address, or takes it from there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """What of a region lies on disk: a file, and the checksums of the blocks there by offset."""

    fd: int
    checksums: dict[int, bytes]


class HostCopy:
    """Parked bytes of one region: the head in an anonymous memory file, the tail on disk.

    The file is faulted in at its first use and kept. Bytes below `split` are in memory, all others
    on disk, in whole blocks; without a disk, or with room enough, `split` is the region's size.
    """

    def __init__(
        self,
        nbytes: int,
        *,
        fd: int | None = None,
        disk: Disk | None = None,
        split: int | None = None,
        tail: Tail | None = None,
    ) -> None:
        """Create the file, or take over the one behind `fd`, and what a predecessor has on disk.

        Raises:
            PlexError: `no_room`.
        """
        self.nbytes = mapping.round_to_pages(nbytes)
        self.file = _host_file(self.nbytes, fd=fd)
        self.split = self.nbytes if split is None else split
        self.tail = tail
        self.is_kept = False
        """Whether it holds the region as it was after so many `writes`, in memory or on disk."""
        self.writes = 0
        self._disk = disk
        self._backed = 0
        self._mapping: FixedMapping | None = None
        self._unpins: list[Callable[[], None]] = []
        self._running: set[Future[Any]] = set()
        if fd is not None and self.split < self.nbytes:
            past = Extent(offset=self.split, nbytes=self.nbytes - self.split)
            mapping.punch(self.file.fd, past)

    @property
    def address(self) -> int:
        """Where it is mapped in this process; allocates what is in memory.

        Raises:
            PlexError: `no_room` when the machine lacks the memory.
        """
        return self._mapped().address

    def _mapped(self, tell: Tell = tell_nobody) -> FixedMapping:
        if self._mapping is None:
            self._mapping = FixedMapping(self.nbytes)
            whole = Extent(offset=0, nbytes=self.nbytes)
            self._mapping.attach(self.file.fd, [whole], is_populated=False)
        for low, nbytes in parts(self.split - self._backed):
            _populate(self._mapping.address + self._backed + low, nbytes)
            tell(nbytes)
        self._backed = max(self._backed, self.split)
        return self._mapping

    def view(self) -> Bytes:
        """Return its bytes, all of them in memory, as an array that must not outlive it."""
        assert self.split == self.nbytes, (self.split, self.nbytes)
        return _array(self.address, self.nbytes)

    def empty(self, split: int) -> None:
        """Forget what it holds; it will hold bytes below `split` in memory, the others on disk.

        Memory that a stalled disk may still write to is let be, and other memory taken.
        """
        self.drop_tail()
        self.is_kept = False
        if self._running:
            self.unpin()
            self.file, self._mapping, self._backed = _host_file(self.nbytes), None, 0
            self._running = set()
        self.split = split
        if split < self.nbytes:
            self.unpin()
        self._give_back(split, self._backed)

    def to_disk(self, low: int, *, fill: Pass | None = None, tell: Tell = tell_nobody) -> None:
        """Write the bytes from `low` to `split`; with `fill`, which brings each block, to the end.

        What was in memory stays there until `split` is lowered and `let_go` called.

        Raises:
            PlexError: `no_room`; nothing has changed then.
        """
        assert self._disk is not None, self
        high = self.split if fill is None else self.nbytes
        if low == high:
            return
        disk, address = self._disk, 0 if fill is not None else self.address
        tail = self.tail = self.tail or _open_tail(disk, self.nbytes)

        def write(at: int, nbytes: int) -> bytes:
            source = address + at
            if fill is not None:
                source = disk.buffer
                fill(source, Extent(offset=at, nbytes=nbytes))
            return disk.write(tail.fd, source, offset=at, nbytes=nbytes)

        disk.allocate(tail.fd, low=low, high=high)
        tail.checksums.update(disk.each(blocks(low, high), write, running=self._running, tell=tell))

    def from_disk(self, high: int, *, take: Pass | None = None, tell: Tell = tell_nobody) -> None:
        """Read the bytes from `split` to `high` and compare their checksums.

        They stay on disk until `split` is raised and `let_go` called. With `take`, which takes each
        block, they do not come to the copy's own memory.

        Raises:
            PlexError: `checksum_mismatch`; `no_room` for a disk that cannot be read.
        """
        if high == self.split:
            return
        assert self._disk is not None, self
        assert self.tail is not None, self
        disk, file, tail = self._disk, self.file, self.tail

        def read(at: int, nbytes: int) -> None:
            buffer, checksum = disk.buffer, tail.checksums[at]
            disk.read(tail.fd, buffer, offset=at, nbytes=nbytes, checksum=checksum)
            if take is not None:
                take(buffer, Extent(offset=at, nbytes=nbytes))
            else:  # a write of whole pages neither zeroes nor maps them, as a copy would have to
                file.write(at, memoryview(mapping.buffer_at(buffer, nbytes)).cast("B"))

        try:
            disk.each(blocks(self.split, high), read, running=self._running, tell=tell)
        except PlexError:
            self._give_back(self.split, high)
            raise

    def let_go(self) -> None:
        """Give back what is held twice: memory from `split` on, and blocks of the disk below."""
        if self.split < self.nbytes:
            self.unpin()
        self._give_back(self.split, self._backed)
        if self.tail is None:
            return
        if self.split == self.nbytes:
            self.drop_tail()
            return
        if self.split:
            mapping.punch(self.tail.fd, Extent(offset=0, nbytes=self.split))
        for at in [at for at in self.tail.checksums if at < self.split]:
            del self.tail.checksums[at]

    def drop_tail(self) -> None:
        """Free what is on disk."""
        tail, self.tail = self.tail, None
        if tail is not None and not self._running:
            os.close(tail.fd)

    def _give_back(self, low: int, high: int) -> None:
        if low >= high:
            return
        if self._mapping is not None:
            mapping.unmap_pages(self._mapping.address + low, high - low)
        mapping.punch(self.file.fd, Extent(offset=low, nbytes=high - low))
        self._backed = min(low, self._backed)

    def pin(
        self,
        pin: Callable[[int, int], None],
        unpin: Callable[[int], None],
        tell: Tell = tell_nobody,
    ) -> None:
        """Page-lock it once, in the way of the device it is copied to; undone by `close`.

        It is locked in the parts in which it is copied: none of them may span two.
        """
        address = self._mapped(tell).address
        for low, nbytes in () if self._unpins else parts(self.nbytes):
            pin(address + low, nbytes)
            self._unpins.append(partial(unpin, address + low))
            tell(nbytes)

    def unpin(self) -> None:
        """Undo `pin`."""
        unpins, self._unpins = self._unpins, []
        with ExitStack() as steps:
            for unpin in unpins:
                steps.callback(unpin)

    def close(self) -> None:
        """Free it. Memory that a stalled disk may still write to stays mapped."""
        mapped, self._mapping = self._mapping, None
        with ExitStack() as steps:
            steps.callback(self.drop_tail)
            if not self._running:
                steps.callback(self.file.close)
                if mapped is not None:
                    steps.callback(mapped.close)
            steps.callback(self.unpin)


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

    def claim(self, nbytes: int, extents: tuple[Extent, ...]) -> Span:
        """Return a region that a predecessor had reserved here.

        Raises:
            PlexError: `internal` when it cannot have been.
        """
        if sum(extent.nbytes for extent in extents) != nbytes:
            raise internal(f"{nbytes} device bytes lie in {extents}")
        self._pool.claim(extents)
        return Span(nbytes=nbytes, extents=extents, fd=self._fd)

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

    def reserve(self, nbytes: int, *, is_zeroed: bool, tell: Tell = tell_nobody) -> Span:
        """Return extents with pages behind them.

        Raises:
            PlexError: `no_room` when the machine lacks the memory.
        """
        with self._pool_lock:
            extents = self._pool.take(mapping.round_to_pages(nbytes))
        span = Span(nbytes=nbytes, extents=extents, fd=self._fd)
        try:
            for extent in extents:
                for low, size in parts(extent.nbytes):
                    address = self._mapping.address + extent.offset + low
                    _populate(address, size)
                    if is_zeroed and self._keep_pages:  # pages from the machine are zero
                        mapping.fill_zero(address, size)
                    tell(size)
        except (PlexError, OSError):
            self.release(span, is_final=True)
            raise
        return span

    def release(self, span: Span, *, is_final: bool) -> None:
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
            for extent in span.extents if is_returned else ():
                mapping.punch(self._fd, self._pool.widened(extent))

    def to_host(self, span: Span, address: int, part: Extent, tell: Tell = tell_nobody) -> None:
        """Copy at memcpy speed."""
        for here, there, nbytes in self._parts(span, part):
            mapping.copy(address + there, here, nbytes)
            tell(nbytes)

    def from_host(self, span: Span, address: int, part: Extent, tell: Tell = tell_nobody) -> None:
        """Copy at memcpy speed."""
        for here, there, nbytes in self._parts(span, part):
            mapping.copy(here, address + there, nbytes)
            tell(nbytes)

    def _parts(self, span: Span, part: Extent) -> Iterator[tuple[int, int, int]]:
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

    def view(self, span: Span, host: HostCopy) -> Bytes:
        """Return the bytes in place; extents are stitched together by mapping, not by copying."""
        del host
        if len(span.extents) == 1:
            return _array(self._mapping.address + span.extents[0].offset, span.nbytes)
        if span.stitched is None:
            span.stitched = FixedMapping(span.nbytes)
            span.stitched.attach(self._fd, span.extents, is_populated=False)
        return _array(span.stitched.address, span.nbytes)

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


def _host_file(nbytes: int, *, fd: int | None = None) -> MemoryFile:
    return MemoryFile("plexsvc-host", nbytes, fd=fd)


def _open_tail(disk: Disk, nbytes: int) -> Tail:
    fd = disk.open()
    os.ftruncate(fd, nbytes)
    return Tail(fd=fd, checksums={})


def _populate(address: int, nbytes: int) -> None:
    try:
        mapping.populate(address, nbytes)
    except OSError as error:
        raise PlexError(
            ErrorCode.NO_ROOM,
            f"the machine has no memory for {nbytes} bytes of state: {error}; lower the configured "
            "device, host or staging bytes",
            need=nbytes,
        ) from error


def _array(address: int, nbytes: int) -> Bytes:
    return np.ctypeslib.as_array(mapping.buffer_at(address, nbytes))
