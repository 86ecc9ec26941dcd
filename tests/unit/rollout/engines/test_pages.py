"""Pages that are given back are not in memory, and read as zeros."""

from __future__ import annotations

import ctypes
import mmap

from plexsvc.rollout.engines import pages

PAGE = mmap.PAGESIZE
PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS


def test_given_back_pages_are_not_resident_and_the_rest_is_kept() -> None:
    memory = mmap.mmap(-1, 8 * PAGE, flags=PRIVATE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    pages.keep_small(address, 8 * PAGE)
    memory[:] = b"x" * (8 * PAGE)
    assert pages.resident_bytes(address, 8 * PAGE) == 8 * PAGE
    pages.give_back(address + 1, 4 * PAGE)  # whole pages within: the second to the fourth
    assert pages.resident_bytes(address, 8 * PAGE) == 5 * PAGE
    assert memory[:PAGE] == b"x" * PAGE
    assert memory[PAGE : 2 * PAGE] == bytes(PAGE)
    assert memory[4 * PAGE :] == b"x" * (4 * PAGE)


def test_a_part_of_a_page_is_nothing() -> None:
    memory = mmap.mmap(-1, PAGE, flags=PRIVATE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    memory[:] = b"x" * PAGE
    pages.give_back(address + 8, PAGE - 8)
    assert memory[:] == b"x" * PAGE
    assert pages.resident_bytes(address + 8, PAGE - 8) == 0
