"""The memory tiers behind one protocol: device arenas that grant extents, and host copies.

A CPU device is one anonymous memory file of the configured size, sealed against growing: what a
real device's memory is. A region is a set of its extents. Parking gives the extents back to the
arena, where the next WPG takes them: a rank's mapping is gone and the pages are reused, while
asking the machine to free and zero them again would cost ten times the copy. Fresh regions are
written with zeroes; loaded ones are overwritten in full. When a WPG is forgotten its pages go back
to the machine.
"""

from __future__ import annotations

import fcntl
import os
import threading
from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from plexsvc.errors import ErrorCode, PlexError
from plexsvc.transport import mapping
from plexsvc.transport.mapping import Extent, FixedMapping

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

    >>> pool = ExtentPool(12288)
    >>> first = pool.take(8192); pool.take(4096)
    (Extent(offset=8192, nbytes=4096),)
    >>> pool.give(first); pool.take(4096)
    (Extent(offset=0, nbytes=4096),)
    """

    def __init__(self, nbytes: int) -> None:
        self._free: list[tuple[int, int]] = [(0, nbytes)] if nbytes else []

    @property
    def free_bytes(self) -> int:
        """Bytes not taken."""
        return sum(nbytes for _, nbytes in self._free)

    def take(self, nbytes: int) -> tuple[Extent, ...]:
        """Return extents of `nbytes` in all; the caller knows that they fit."""
        assert nbytes <= self.free_bytes, (nbytes, self._free)
        whole = next((at for at in self._free if at[1] >= nbytes), None)
        taken, needed = [], nbytes
        for offset, size in [whole] if whole is not None else list(self._free):
            used = min(size, needed)
            self._free.remove((offset, size))
            if used < size:
                insort(self._free, (offset + used, size - used))
            taken.append(Extent(offset=offset, nbytes=used))
            needed -= used
            if needed == 0:
                break
        return tuple(taken)

    def give(self, extents: tuple[Extent, ...]) -> None:
        """Take extents back and join neighbours."""
        for extent in extents:
            insort(self._free, (extent.offset, extent.nbytes))
        joined: list[tuple[int, int]] = []
        for offset, nbytes in self._free:
            if joined and sum(joined[-1]) == offset:
                joined[-1] = (joined[-1][0], joined[-1][1] + nbytes)
            else:
                joined.append((offset, nbytes))
        self._free = joined


class CpuArena:
    """A device on a CPU host: one sealed memory file that ranks map extents of."""

    kind = "cpu"

    def __init__(self, bytes_total: int, *, keep_pages: bool) -> None:
        self.nbytes = bytes_total // mapping.PAGE_BYTES * mapping.PAGE_BYTES
        self._keep_pages = keep_pages
        self._pool = ExtentPool(self.nbytes)
        self._pool_lock = threading.Lock()
        self._fd = os.memfd_create("plexsvc-device", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self._fd, self.nbytes)
        fcntl.fcntl(self._fd, fcntl.F_ADD_SEALS, _SEALS)
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
        if is_final or not self._keep_pages:
            for extent in span.extents:
                mapping.punch(self._fd, extent)
        with self._pool_lock:
            self._pool.give(span.extents)

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
        if is_zeroed:
            mapping.fill_zero(address, extent.nbytes)


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
