"""Memory at an address that never changes: reserved once, mapped to memory files, parked.

A parked mapping keeps its addresses and nothing else: touching it ends the process with SIGSEGV,
which is what a rank that computes while it is off the device deserves. Pointers and views stay
valid across `park` and `attach` (resizing torch storages on shared memory crashes instead).
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

PAGE_BYTES: Final = mmap.PAGESIZE
HUGE_PAGE_BYTES: Final = 2 << 20

_PROT_NONE: Final = 0
_MAP_FIXED: Final = 0x10
_MAP_NORESERVE: Final = 0x4000
_MADV_DONTNEED: Final = 4
_MADV_HUGEPAGE: Final = 14
_MADV_POPULATE_READ: Final = 22
_MADV_POPULATE_WRITE: Final = 23
_MADV_COLLAPSE: Final = 25

_FALLOC_FL_PUNCH: Final = 0x03  # PUNCH_HOLE | KEEP_SIZE

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]
_libc.memcmp.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """Bytes `[offset, offset + nbytes)` of a memory file; both are multiples of the page."""

    offset: int
    nbytes: int


def round_to_pages(nbytes: int) -> int:
    """Return `nbytes` rounded up to whole pages, at least one.

    >>> round_to_pages(1), round_to_pages(4096), round_to_pages(4097)
    (4096, 4096, 8192)
    """
    return max(1, -(-nbytes // PAGE_BYTES)) * PAGE_BYTES


class FixedMapping:
    """A reserved range of addresses onto which extents of a memory file are mapped and unmapped."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = round_to_pages(nbytes)
        self._reserved_bytes = self.nbytes + HUGE_PAGE_BYTES  # so that it can begin at a huge page
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
        self._base = _map(None, self._reserved_bytes, _PROT_NONE, flags)
        self.address = -(-self._base // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES
        self.is_attached = False

    def attach(
        self,
        fd: int,
        extents: Iterable[Extent],
        *,
        is_populated: bool = True,
        is_read_only: bool = False,
    ) -> None:
        """Map `extents` of `fd` end to end; `fd` may be closed afterwards.

        With `is_populated` the page tables are filled now (about 70 ms per GiB of present pages),
        so that the first touch does not pay.

        Raises:
            OSError: the kernel refused; the mapping is parked.
        """
        try:
            address = self.address
            for extent in extents:
                access = mmap.PROT_READ | (0 if is_read_only else mmap.PROT_WRITE)
                _map(
                    address, extent.nbytes, access, mmap.MAP_SHARED | _MAP_FIXED, fd, extent.offset
                )
                # A kernel that gives no huge pages for shared memory is no error.
                _libc.madvise(address, extent.nbytes, _MADV_HUGEPAGE)
                if is_populated:
                    _check(_libc.madvise(address, extent.nbytes, _MADV_POPULATE_READ))
                address += extent.nbytes
        except OSError:
            self.park()
            raise
        assert address <= self.address + self.nbytes, (self.nbytes, address - self.address)
        self.is_attached = True

    def park(self) -> None:
        """Make the range inaccessible and let go of its pages; the addresses stay reserved."""
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE | _MAP_FIXED
        _map(self.address, self.nbytes, _PROT_NONE, flags)
        self.is_attached = False

    def close(self) -> None:
        """Give the addresses back; only when nothing points there any more."""
        _check(_libc.munmap(self._base, self._reserved_bytes))


def map_file(
    fd: int, nbytes: int, *, is_writable: bool, then: Callable[[], None] | None = None
) -> memoryview:
    """Return the bytes of a file, mapped until the last view of them goes, and call `then`.

    They begin at a huge page: else each small page of a huge one would be a fault of its own.

    Raises:
        OSError: the kernel refused.
    """
    nbytes = max(1, nbytes)  # nothing empty can be mapped
    mapped = FixedMapping(nbytes)
    access, kind = mmap.PROT_READ, mmap.MAP_PRIVATE
    if is_writable:
        access, kind = access | mmap.PROT_WRITE, mmap.MAP_SHARED
    try:
        _map(mapped.address, mapped.nbytes, access, kind | _MAP_FIXED, fd)
    except OSError:
        mapped.close()
        raise
    buffer = buffer_at(mapped.address, nbytes)
    for end in (mapped.close, then):  # the last one is called first
        if end is not None:
            weakref.finalize(buffer, end).atexit = False  # threads may read until the very end
    view = memoryview(buffer).cast("B")
    return view if is_writable else view.toreadonly()


def populate(address: int, nbytes: int) -> None:
    """Back a writable range with pages now, so that a lack of memory is an error and not a signal.

    Huge pages are asked for, whatever the machine's `shmem_enabled` says: they come in a tenth of
    the time. An older kernel (before 6.1), or one that has none free, gives small ones.

    Raises:
        OSError: there is not enough memory.
    """
    start, end = address // PAGE_BYTES * PAGE_BYTES, address + nbytes
    low = -(-start // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES
    high = end // HUGE_PAGE_BYTES * HUGE_PAGE_BYTES
    for at in range(low, high, HUGE_PAGE_BYTES):
        # What has no page at all is not made huge.
        _check(_libc.madvise(at, PAGE_BYTES, _MADV_POPULATE_WRITE))
    # Making them huge waits for all processors, so what is huge or filled already is let be.
    if low < high and not _is_present(high - PAGE_BYTES):
        _libc.madvise(low, high - low, _MADV_COLLAPSE)
    _check(_libc.madvise(start, end - start, _MADV_POPULATE_WRITE))


def _is_present(address: int) -> bool:
    """Whether there is memory behind a mapped page."""
    found = ctypes.create_string_buffer(1)
    _check(_libc.mincore(address, PAGE_BYTES, found))
    return found.raw != b"\0"


def unmap_pages(address: int, nbytes: int) -> None:
    """Empty this process's page tables for a shared range; the pages stay with their file.

    Punching them out afterwards is cheaper than punching out mapped ones.
    """
    _check(_libc.madvise(address, nbytes, _MADV_DONTNEED))


def punch(fd: int, extent: Extent) -> None:
    """Give the pages of an extent of a memory file back to the machine; they read as zeroes."""
    _check(_libc.fallocate(fd, _FALLOC_FL_PUNCH, extent.offset, extent.nbytes))


def buffer_at(address: int, nbytes: int) -> ctypes.Array[ctypes.c_uint8]:
    """Return mapped bytes as a writable buffer that does not own them; nothing is copied."""
    return (ctypes.c_uint8 * nbytes).from_address(address)


def address_of(mapped: memoryview) -> int:
    """Return where writable bytes begin."""
    return ctypes.addressof(ctypes.c_uint8.from_buffer(mapped))


def copy(target: int, source: int, nbytes: int) -> None:
    """Copy between addresses at memcpy speed, without the interpreter's lock."""
    ctypes.memmove(target, source, nbytes)


def is_equal(one: int, other: int, nbytes: int) -> bool:
    """Compare bytes at two addresses up to the first difference, without the interpreter's lock."""
    return bool(_libc.memcmp(one, other, nbytes) == 0)


def _map(
    address: int | None, nbytes: int, access: int, flags: int, fd: int = -1, offset: int = 0
) -> int:
    found = _libc.mmap(address, nbytes, access, flags, fd, offset)
    if found is None or found == ctypes.c_void_p(-1).value:
        code = ctypes.get_errno()
        raise OSError(code, f"mmap of {nbytes} bytes: {os.strerror(code)}")
    return int(found)


def _check(result: int) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
