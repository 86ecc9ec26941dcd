"""Pages of this process's memory: given back to the system, addresses kept, and counted."""

from __future__ import annotations

import ctypes
import mmap
from typing import Final

_libc: Final = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p)


def keep_small(address: int, nbytes: int) -> None:
    """Have a range use small pages, so that any part of it can be given back by itself."""
    _advise(address, nbytes, mmap.MADV_NOHUGEPAGE)


def give_back(address: int, nbytes: int) -> None:
    """Give the whole pages within a range back; they read as zeros from then on."""
    _advise(address, nbytes, mmap.MADV_DONTNEED)


def resident_bytes(address: int, nbytes: int) -> int:
    """Return how much of a range is in memory, in whole pages. `O(pages)`."""
    start, end = _whole_pages(address, nbytes)
    if end <= start:
        return 0
    vector = ctypes.create_string_buffer((end - start) // mmap.PAGESIZE)
    if _libc.mincore(start, end - start, vector):
        raise OSError(ctypes.get_errno(), "mincore failed")
    return sum(byte & 1 for byte in vector.raw[: len(vector)]) * mmap.PAGESIZE


def _advise(address: int, nbytes: int, advice: int) -> None:
    start, end = _whole_pages(address, nbytes)
    if end > start and _libc.madvise(start, end - start, advice):
        raise OSError(ctypes.get_errno(), f"madvise({advice}) failed")


def _whole_pages(address: int, nbytes: int) -> tuple[int, int]:
    start = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
    return start, (address + nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
