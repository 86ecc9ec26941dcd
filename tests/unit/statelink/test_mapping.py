"""Fixed mappings keep their address, their bytes and their views across parking."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from plexsvc.statelink import mapping
from plexsvc.statelink.mapping import Extent, FixedMapping

PAGE = mapping.PAGE_BYTES


@pytest.fixture
def file() -> Iterator[int]:
    fd = os.memfd_create("test")
    os.ftruncate(fd, 4 * PAGE)
    yield fd
    os.close(fd)


def view(mapped: FixedMapping) -> np.ndarray:
    return np.ctypeslib.as_array(mapping.buffer_at(mapped.address, mapped.nbytes))


def test_a_view_made_before_parking_sees_the_bytes_after_it(file: int) -> None:
    mapped = FixedMapping(2 * PAGE)
    address = mapped.address
    mapped.attach(file, [Extent(offset=0, nbytes=2 * PAGE)])
    early = view(mapped)
    early[:] = 5
    mapped.park()
    assert not mapped.is_attached
    mapped.attach(file, [Extent(offset=0, nbytes=2 * PAGE)])
    assert mapped.address == address
    assert early.sum() == 5 * 2 * PAGE
    mapped.close()


def test_extents_appear_end_to_end_in_the_order_given(file: int) -> None:
    os.pwrite(file, b"a" * PAGE + b"b" * PAGE + b"c" * PAGE, 0)
    mapped = FixedMapping(2 * PAGE)
    mapped.attach(file, [Extent(offset=2 * PAGE, nbytes=PAGE), Extent(offset=0, nbytes=PAGE)])
    assert bytes(view(mapped)) == b"c" * PAGE + b"a" * PAGE
    mapped.close()


def test_addresses_are_aligned_for_huge_pages() -> None:
    mapped = FixedMapping(1)
    assert mapped.address % mapping.HUGE_PAGE_BYTES == 0
    mapped.close()


def test_touching_a_parked_mapping_is_a_segmentation_fault(file: int) -> None:
    mapped = FixedMapping(PAGE)
    mapped.attach(file, [Extent(offset=0, nbytes=PAGE)])
    mapped.park()
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGSEGV, signal.SIG_DFL)
        ctypes.string_at(mapped.address, 1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGSEGV
    mapped.close()


def test_a_mapping_the_kernel_refuses_is_left_parked() -> None:
    mapped = FixedMapping(PAGE)
    with pytest.raises(OSError, match="mmap"):
        mapped.attach(-5, [Extent(offset=0, nbytes=PAGE)])
    assert not mapped.is_attached
    mapped.close()


def test_punched_extents_read_as_zeroes(file: int) -> None:
    os.pwrite(file, b"x" * 2 * PAGE, 0)
    mapping.punch(file, Extent(offset=0, nbytes=PAGE))
    assert os.pread(file, 2 * PAGE, 0) == bytes(PAGE) + b"x" * PAGE


def test_memory_that_is_populated_lies_in_huge_pages() -> None:
    """In all of those that lie in it as a whole; what is there stays."""
    nbytes = 4 * mapping.HUGE_PAGE_BYTES
    fd = os.memfd_create("test")
    os.ftruncate(fd, nbytes)
    os.pwrite(fd, b"kept", PAGE)
    mapped = FixedMapping(nbytes)
    mapped.attach(fd, [Extent(offset=0, nbytes=nbytes)], is_populated=False)
    mapping.populate(mapped.address, nbytes - PAGE)
    assert _huge_bytes_at(mapped.address) == 3 * mapping.HUGE_PAGE_BYTES
    assert os.fstat(fd).st_blocks * 512 == nbytes - PAGE
    assert bytes(view(mapped)[PAGE : PAGE + 5]) == b"kept\0"
    mapped.close()
    os.close(fd)


def _huge_bytes_at(address: int) -> int:
    lines = iter(Path("/proc/self/smaps").read_text().splitlines())
    found = (line for line in lines if line.startswith(f"{address:x}-"))
    assert next(found)
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("ShmemPmdMapped"))
