"""Host copies of regions: parked bytes, the head in memory and the tail on disk.

A copy is a memory file that is faulted in at its first use. It is made in parts, so that whoever
watches over a move hears of each.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Final

import numpy as np

from plexsvc.errors import PlexError
from plexsvc.log import Log
from plexsvc.statelink import mapping
from plexsvc.statelink.mapping import Extent, FixedMapping
from plexsvc.statemanager import hugefiles
from plexsvc.statemanager.caller import Tell, tell_nobody
from plexsvc.statemanager.disk import Disk, blocks
from plexsvc.statemanager.memfiles import MemoryFile, no_room
from plexsvc.weights.pieces import Bytes

log = Log(__name__)

PART_BYTES: Final = 256 << 20
"""What is copied at once: the watchdog of a move hears of each part."""


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
        is_lent: bool = False,
    ) -> None:
        """Create the file, or take over the one behind `fd`, and what a predecessor has on disk.

        What `is_lent` is mapped by a rank, which must not be able to shrink it.

        Raises:
            PlexError: `no_room`.
        """
        self.nbytes = mapping.round_to_pages(nbytes)
        self._is_lent = is_lent
        self.file = self._open_file(fd)
        self.split = self.nbytes if split is None else split
        self.tail = tail
        self.is_kept = False
        """Whether it holds the region as it was after so many `writes`, in memory or on disk."""
        self.writes = 0
        self._disk = disk
        self._backed = 0
        self._mapping: FixedMapping | None = None
        self._lock = threading.Lock()
        self._unpins: list[Callable[[], None]] = []
        self._running: set[Future[Any]] = set()
        if fd is not None and self.split < self.nbytes:
            # A kill may have come between the record of what sank and the return of its memory.
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
        with self._lock:  # several ranks may be loaded from it at once
            mapped = self._attached()
            for low, nbytes in parts(self.split - self._backed):
                populate(mapped.address + self._backed + low, nbytes)
                tell(nbytes)
            self._backed = max(self._backed, self.split)
            return mapped

    def _attached(self) -> FixedMapping:
        if self._mapping is None:
            self._mapping = FixedMapping(self.nbytes)
            whole = Extent(offset=0, nbytes=self.nbytes)
            self._mapping.attach(self.file.fd, [whole], is_populated=False)
        return self._mapping

    def fill(self, tell: Tell = tell_nobody) -> None:
        """Have all of its memory now; it is zeroes where nothing was written.

        Raises:
            PlexError: `no_room` when the machine lacks the memory.
        """
        self._mapped(tell)

    def view(self) -> Bytes:
        """Return its bytes, all of them in memory, as an array that must not outlive it."""
        assert self.split == self.nbytes, (self.split, self.nbytes)
        return array_at(self.address, self.nbytes)

    def empty(self, split: int) -> None:
        """Forget what it holds; it will hold bytes below `split` in memory, the others on disk.

        Memory that a stalled disk may still write to is let be, and other memory taken.
        """
        self.drop_tail()
        self.is_kept = False
        if self._running:
            self.unpin()
            self.file, self._mapping, self._backed = self._open_file(), None, 0
            self._running = set()
        self.split = split
        if split < self.nbytes:
            self.unpin()
        self._give_back(split, self._backed)

    def vacate(self) -> None:
        """Give back all memory of an empty copy, also what a predecessor took."""
        self.unpin()
        self._give_back(0, self.nbytes)

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
        disk, tail, address = self._disk, self.tail, 0
        if take is None:
            with self._lock:
                address = self._attached().address

        def read(at: int, nbytes: int) -> None:
            target = disk.buffer if take is not None else address + at
            if take is None:
                populate(target, nbytes)  # here, so that blocks are zeroed while others are read
            disk.read(tail.fd, target, offset=at, nbytes=nbytes, checksum=tail.checksums[at])
            if take is not None:
                take(target, Extent(offset=at, nbytes=nbytes))

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
        # The number of a descriptor that a stalled request still uses must mean no other file.
        if tail is not None and not self._running:
            os.close(tail.fd)

    def _open_file(self, fd: int | None = None) -> MemoryFile:
        is_huge = self.nbytes >= mapping.HUGE_PAGE_BYTES and not self._is_lent
        if fd is None and is_huge and (directory := _huge_directory()) is not None:
            fd = hugefiles.open_file(directory, self.nbytes)
        return MemoryFile("plexsvc-host", self.nbytes, fd=fd)

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


@cache
def _huge_directory() -> int | None:
    try:
        return hugefiles.open_directory()
    except OSError as error:
        log.warning("host memory in plain files: reads from disk take longer", error=error)
        return None


def _open_tail(disk: Disk, nbytes: int) -> Tail:
    try:
        fd = disk.open()
        os.ftruncate(fd, nbytes)
    except OSError as error:
        raise disk.trouble(str(error)) from error
    return Tail(fd=fd, checksums={})


def populate(address: int, nbytes: int) -> None:
    """Have pages behind an address.

    Raises:
        PlexError: `no_room`.
    """
    try:
        mapping.populate(address, nbytes)
    except OSError as error:
        raise no_room(nbytes, error) from error


def array_at(address: int, nbytes: int) -> Bytes:
    """Return memory as an array that must not outlive it."""
    return np.ctypeslib.as_array(mapping.buffer_at(address, nbytes))
