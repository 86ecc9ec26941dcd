"""The disk tier: blocks of parked state in nameless files, by direct I/O, several at once.

Theory of operation. A region's file has the size of the region, and only the blocks of its tail are
allocated. The file has no name: it ends with the last process that holds it, so nothing is left to
clean up, and the file system gives no block to another file that does not read as zeroes. Blocks
are allocated before they are written, so that a full disk is found before anything has moved. Each
has a checksum, kept in memory, that is compared whenever it is read. A disk that does not finish a
single block for `STALL_S` has stalled: callers that wait are answered, and the state stays where
it was.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Final, TypeVar

import xxhash

from plexsvc.errors import ErrorCode, PlexError, bad_request
from plexsvc.log import Log
from plexsvc.statelink import mapping
from plexsvc.weights.checksums import BLOCK_BYTES

log = Log(__name__)

T = TypeVar("T")

DEPTH: Final = 8
"""Requests that are under way at once. As many blocks of memory are in use beside the budgets."""

SUM_BYTES: Final = 16
"""Bytes of a block's checksum."""

STALL_S: Final = 20.0
"""Longest wait for the next block; less than the scheduler waits for the next byte of a move."""


def blocks(low: int, high: int) -> Iterator[tuple[int, int]]:
    """Yield offset and size of the blocks of a region between two offsets.

    >>> [(at >> 20, size >> 20) for at, size in blocks(4 << 20, 14 << 20)]
    [(4, 4), (8, 4), (12, 2)]
    """
    for at in range(low, high, BLOCK_BYTES):
        yield at, min(BLOCK_BYTES, high - at)


class Disk:
    """A directory that parked state goes to. Thread-safe."""

    def __init__(self, directory: Path) -> None:
        """Try whether it takes direct I/O.

        Raises:
            PlexError: `bad_request` for a directory that cannot be used.
        """
        self.directory = directory
        self._threads = ThreadPoolExecutor(DEPTH, thread_name_prefix="disk")
        self._own = threading.local()
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.close(self.open())
        except OSError as error:
            raise bad_request(
                f"disk_dir {directory} takes no nameless file for direct I/O ({error}); give a "
                "directory on a local disk, ext4 or xfs"
            ) from error

    def open(self) -> int:
        """Return a descriptor of an empty file that ends with its last descriptor.

        Raises:
            OSError: the file system has no such files.
        """
        # Direct, because the page cache would keep in memory what is to leave it.
        flags = os.O_TMPFILE | os.O_RDWR | os.O_DIRECT | os.O_CLOEXEC
        return os.open(self.directory, flags, 0o600)

    @property
    def buffer(self) -> int:
        """Address of a block of memory that the calling thread has for itself.

        What a stalled disk writes late, it writes there.
        """
        if not hasattr(self._own, "memory"):
            self._own.memory = mmap.mmap(-1, BLOCK_BYTES)
        return ctypes.addressof(ctypes.c_uint8.from_buffer(self._own.memory))

    def write(self, fd: int, address: int, *, offset: int, nbytes: int) -> bytes:
        """Write a block from memory and return its checksum.

        Raises:
            OSError: also for a short write.
        """
        data = memoryview(mapping.buffer_at(address, nbytes)).cast("B")
        checksum = xxhash.xxh3_128_digest(data)
        if (done := self.pwrite(fd, data, offset)) != nbytes:
            raise OSError(f"{done} of {nbytes} bytes were written")
        return checksum

    def read(self, fd: int, address: int, *, offset: int, nbytes: int, checksum: bytes) -> None:
        """Read a block into memory and compare it, a second time if the first was damaged.

        Raises:
            PlexError: `checksum_mismatch`.
            OSError: also for a short read.
        """
        data = memoryview(mapping.buffer_at(address, nbytes)).cast("B")
        for _ in range(2):
            if (done := self.pread(fd, data, offset)) != nbytes:
                raise OSError(f"{done} of {nbytes} bytes were read")
            if xxhash.xxh3_128_digest(data) == checksum:
                return
        raise PlexError(
            ErrorCode.CHECKSUM_MISMATCH,
            f"parked state in {self.directory} is damaged: the block at {offset} is not what was "
            "written; it is not used: deploy again to go on, and look at the disk",
        )

    def pwrite(self, fd: int, data: memoryview, offset: int) -> int:
        """Write at an offset and return how many bytes."""
        return os.pwritev(fd, [data], offset)

    def pread(self, fd: int, data: memoryview, offset: int) -> int:
        """Read at an offset and return how many bytes."""
        return os.preadv(fd, [data], offset)

    def each(
        self,
        wanted: Iterable[tuple[int, int]],
        work: Callable[[int, int], T],
        *,
        running: set[Future[T]],
        tell: Callable[[int], None],
    ) -> dict[int, T]:
        """Do `work(offset, nbytes)` for blocks, `DEPTH` at once; return what each gave, by offset.

        What still runs is in `running`, also once this has been given up for a disk that stalls.

        Raises:
            PlexError: what `work` raised, the first after all have ended; `no_room` for an
                `OSError`, and for a disk that stalls or has not answered since it did.
        """
        if running:
            raise self.trouble("it has not answered what it was asked before")
        found: dict[int, T] = {}
        failures: list[BaseException] = []
        left = iter(wanted)
        sizes: dict[Future[T], tuple[int, int]] = {}
        while True:
            while len(sizes) < DEPTH and not failures and (one := next(left, None)) is not None:
                future = self._threads.submit(work, *one)
                sizes[future] = one
                running.add(future)
                future.add_done_callback(running.discard)
            if not sizes:
                break
            done, _ = wait(sizes, timeout=STALL_S, return_when=FIRST_COMPLETED)
            if not done:
                for future in sizes:
                    future.cancel()
                raise self.trouble(f"it has not answered for {STALL_S:.0f} s")
            for future in done:
                running.discard(future)  # its callback may come after those who wait were woken
                at, nbytes = sizes.pop(future)
                if (error := future.exception()) is not None:
                    failures.append(error)
                else:
                    found[at] = future.result()
                    tell(nbytes)
        if failures and isinstance(failures[0], OSError):
            raise self.trouble(str(failures[0])) from failures[0]
        if failures:
            raise failures[0]
        return found

    def allocate(self, fd: int, *, low: int, high: int) -> None:
        """Have blocks for bytes of a file.

        Raises:
            PlexError: `no_room` when the disk is full.
        """
        try:
            os.posix_fallocate(fd, low, high - low)
        except OSError as error:
            raise self.trouble(str(error)) from error

    def close(self) -> None:
        """Wait for nothing that is under way."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def trouble(self, found: str) -> PlexError:
        """Return the error for what was found, and log it."""
        log.error("disk of parked state", directory=self.directory, found=found)
        return PlexError(
            ErrorCode.NO_ROOM,
            f"the disk of parked state, {self.directory}, cannot be used: {found}; the state is "
            "where it was: free the disk, or lower disk_bytes, and try again",
            tier="disk",
        )
