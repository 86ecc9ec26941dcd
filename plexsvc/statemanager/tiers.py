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
from bisect import insort
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from plexsvc.errors import ErrorCode, PlexError
from plexsvc.log import Log
from plexsvc.statemanager import hugefiles
from plexsvc.transport import mapping
from plexsvc.transport.mapping import Extent, FixedMapping

log = Log(__name__)

Bytes = npt.NDArray[np.uint8]

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

    def reserve(self, nbytes: int, *, is_zeroed: bool) -> Span:
        """Return device memory for a region, zero-filled when asked; the ledger has admitted it.

        Raises:
            PlexError: `no_room` when the machine itself lacks the memory.
        """
        ...

    def release(self, span: Span, *, is_final: bool) -> None:
        """Take a span back; `is_final` returns its pages to the machine."""
        ...

    def to_host(self, span: Span, host: HostCopy) -> None:
        """Copy the span to host memory."""
        ...

    def from_host(self, span: Span, host: HostCopy) -> None:
        """Fill the span from host memory."""
        ...

    def view(self, span: Span, host: HostCopy) -> Bytes:
        """Return the span's bytes as one readable array, by way of `host` where they must move."""
        ...

    def close(self) -> None:
        """Free everything."""
        ...


class HostCopy:
    """Host memory of one region: an anonymous memory file, faulted in at its first use and kept."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = mapping.round_to_pages(nbytes)
        self._mapping: FixedMapping | None = None
        self._unpin: Callable[[int], None] | None = None

    @property
    def address(self) -> int:
        """Where it is mapped in this process; allocates it.

        Raises:
            PlexError: `no_room` when the machine lacks the memory.
        """
        if self._mapping is None:
            self._mapping = _map_anonymous("plexsvc-host", self.nbytes)
        return self._mapping.address

    def view(self) -> Bytes:
        """Return its bytes as an array that must not outlive it."""
        return _array(self.address, self.nbytes)

    def pin(self, pin: Callable[[int, int], None], unpin: Callable[[int], None]) -> None:
        """Page-lock it once, in the way of the device it is copied to; undone by `close`."""
        if self._unpin is None:
            pin(self.address, self.nbytes)
            self._unpin = unpin

    def close(self) -> None:
        """Free it."""
        if self._mapping is not None and self._unpin is not None:
            self._unpin(self._mapping.address)
            self._unpin = None
        if self._mapping is not None:
            self._mapping.close()
            self._mapping = None


class ExtentPool:
    """Free extents of an arena: first fit, whole where possible, in pieces otherwise. `O(n)`.

    All whole units of a region (huge pages) are taken at multiples of the unit while there are
    any, so that they map as such; what is left over comes from where it breaks the fewest units.

    >>> pool = ExtentPool(12288)
    >>> first = pool.take(8192); pool.take(4096)
    (Extent(offset=8192, nbytes=4096),)
    >>> pool.give(first); pool.take(4096)
    (Extent(offset=0, nbytes=4096),)
    """

    def __init__(self, nbytes: int, *, unit: int = 1) -> None:
        self._free: list[tuple[int, int]] = [(0, nbytes)] if nbytes else []
        self._unit = unit

    @property
    def free_bytes(self) -> int:
        """Bytes not taken."""
        return sum(nbytes for _, nbytes in self._free)

    def take(self, nbytes: int) -> tuple[Extent, ...]:
        """Return extents of `nbytes` in all; the caller knows that they fit."""
        assert nbytes <= self.free_bytes, (nbytes, self._free)
        taken = self._take_units(nbytes // self._unit * self._unit)
        taken += self._take_rest(nbytes - sum(size for _, size in taken))
        return tuple(Extent(offset=at, nbytes=size) for at, size in _joined(taken))

    def give(self, extents: tuple[Extent, ...]) -> None:
        """Take extents back and join neighbours."""
        for extent in extents:
            insort(self._free, (extent.offset, extent.nbytes))
        self._free = _joined(self._free)

    def widened(self, extent: Extent) -> Extent:
        """Return a free extent widened to whole units as far as its neighbours are free."""
        start, end = extent.offset, extent.offset + extent.nbytes
        at, size = next(run for run in self._free if run[0] <= start < sum(run))
        low = max(at, start // self._unit * self._unit)
        high = min(at + size, -(-end // self._unit) * self._unit)
        return Extent(offset=low, nbytes=high - low)

    def _take_units(self, nbytes: int) -> list[tuple[int, int]]:
        runs = [_whole_units(run, self._unit) for run in self._free]
        whole = next((run for run in runs if run[1] >= nbytes), None)
        return self._take_from(runs if whole is None else [whole], nbytes)

    def _take_rest(self, nbytes: int) -> list[tuple[int, int]]:
        fitting = [run for run in self._free if run[1] >= nbytes]
        if not fitting:
            return self._take_from(list(self._free), nbytes)
        at, size = min(fitting, key=lambda run: (run[1], run[0]))
        return self._take_from([(at + size - nbytes, nbytes)], nbytes)

    def _take_from(self, runs: list[tuple[int, int]], nbytes: int) -> list[tuple[int, int]]:
        """Take up to `nbytes` from the starts of `runs`, which lie in free ones."""
        taken: list[tuple[int, int]] = []
        for offset, size in runs:
            used = min(size, nbytes)
            if used > 0:
                self._cut(offset, used)
                taken.append((offset, used))
                nbytes -= used
        return taken

    def _cut(self, offset: int, nbytes: int) -> None:
        run = next(run for run in self._free if run[0] <= offset < sum(run))
        self._free.remove(run)
        for at, end in ((run[0], offset), (offset + nbytes, sum(run))):
            if at < end:
                insort(self._free, (at, end - at))


class CpuArena:
    """A device on a CPU host: one memory file of fixed size that ranks map extents of."""

    kind = "cpu"

    def __init__(self, bytes_total: int, *, keep_pages: bool, huge_pages: bool = True) -> None:
        self.nbytes = bytes_total // mapping.PAGE_BYTES * mapping.PAGE_BYTES
        self._keep_pages = keep_pages
        is_worth_it = huge_pages and self.nbytes >= mapping.HUGE_PAGE_BYTES
        huge = _open_huge(self.nbytes) if is_worth_it else None
        self.page_bytes = mapping.PAGE_BYTES if huge is None else mapping.HUGE_PAGE_BYTES
        self._fd = _open_plain(self.nbytes) if huge is None else huge
        self._pool = ExtentPool(self.nbytes, unit=self.page_bytes)
        self._pool_lock = threading.Lock()
        self._mapping = FixedMapping(max(1, self.nbytes))
        if self.nbytes:
            whole = Extent(offset=0, nbytes=self.nbytes)
            self._mapping.attach(self._fd, [whole], is_populated=False)

    @property
    def resident_bytes(self) -> int:
        """Bytes of the machine's memory the arena holds."""
        return os.fstat(self._fd).st_blocks * 512

    def reserve(self, nbytes: int, *, is_zeroed: bool) -> Span:
        """Return extents with pages behind them.

        Raises:
            PlexError: `no_room` when the machine lacks the memory.
        """
        with self._pool_lock:
            extents = self._pool.take(mapping.round_to_pages(nbytes))
        span = Span(nbytes=nbytes, extents=extents, fd=self._fd)
        try:
            for extent in extents:
                self._populate(extent, is_zeroed=is_zeroed)
        except PlexError:
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

    def to_host(self, span: Span, host: HostCopy) -> None:
        """Copy at memcpy speed."""
        target = host.address
        for extent in span.extents:
            mapping.copy(target, self._mapping.address + extent.offset, extent.nbytes)
            target += extent.nbytes

    def from_host(self, span: Span, host: HostCopy) -> None:
        """Copy at memcpy speed."""
        source = host.address
        for extent in span.extents:
            mapping.copy(self._mapping.address + extent.offset, source, extent.nbytes)
            source += extent.nbytes

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

    def _populate(self, extent: Extent, *, is_zeroed: bool) -> None:
        address = self._mapping.address + extent.offset
        _populate(address, extent.nbytes)
        if is_zeroed and self._keep_pages:  # pages from the machine are zero
            mapping.fill_zero(address, extent.nbytes)


def _joined(runs: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return (offset, size) runs with those joined that follow each other without a gap."""
    joined: list[tuple[int, int]] = []
    for offset, nbytes in runs:
        if joined and sum(joined[-1]) == offset:
            joined[-1] = (joined[-1][0], joined[-1][1] + nbytes)
        else:
            joined.append((offset, nbytes))
    return joined


def _whole_units(run: tuple[int, int], unit: int) -> tuple[int, int]:
    start, end = -(-run[0] // unit) * unit, sum(run) // unit * unit
    return start, max(0, end - start)


def _open_huge(nbytes: int) -> int | None:
    try:
        return hugefiles.open_huge_file(nbytes)
    except OSError as error:
        log.warning("device memory without huge pages: switches take longer", error=error)
        return None


def _open_plain(nbytes: int) -> int:
    fd = os.memfd_create("plexsvc-device", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, nbytes)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    return fd


def _map_anonymous(name: str, nbytes: int) -> FixedMapping:
    fd = os.memfd_create(name, os.MFD_CLOEXEC)
    try:
        os.ftruncate(fd, nbytes)
        mapped = FixedMapping(nbytes)
        mapped.attach(fd, [Extent(offset=0, nbytes=nbytes)], is_populated=False)
    finally:
        os.close(fd)
    try:
        _populate(mapped.address, nbytes)
    except PlexError:
        mapped.close()
        raise
    return mapped


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
