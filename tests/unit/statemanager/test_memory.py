"""A rank's memory keeps its bytes over a move and gives everything back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from plexsvc.errors import ErrorCode, PlexError
from plexsvc.statelink.mapping import PAGE_BYTES
from plexsvc.statemanager.caller import Tell, tell_nobody
from plexsvc.statemanager.entries import RegionState
from plexsvc.statemanager.memory import RankMemory
from plexsvc.statemanager.tiers import CpuArena, DeviceExtents

REGIONS = [
    RegionState(name="params", nbytes=2 * PAGE_BYTES, is_droppable=False, has_host_copy=True),
    RegionState(name="grads", nbytes=PAGE_BYTES, is_droppable=True),
]


class ShortArena(CpuArena):
    """An arena whose machine runs out of memory at the second region."""

    def reserve(self, nbytes: int, *, is_zeroed: bool, tell: Tell = tell_nobody) -> DeviceExtents:
        if nbytes == PAGE_BYTES:
            raise PlexError(ErrorCode.NO_ROOM, "the machine has no memory")
        return super().reserve(nbytes, is_zeroed=is_zeroed, tell=tell)


@pytest.fixture
def arena() -> Iterator[CpuArena]:
    opened = CpuArena(8 * PAGE_BYTES, keep_pages=False, huge_pages=False)
    yield opened
    opened.close()


def test_regions_come_back_from_the_host_and_dropped_ones_as_zeroes(arena: CpuArena) -> None:
    memory = RankMemory(arena)
    memory.allocate(REGIONS)
    assert set(memory.grant().header["regions"]) == {"params", "grads"}
    memory.view("params")[:] = 7
    memory.view("grads")[:] = 9
    assert memory.copy_out(REGIONS[:1]) == 2 * PAGE_BYTES
    memory.leave_device()
    assert arena.resident_bytes == 0
    assert not memory.grant().header["regions"]
    assert np.all(memory.view("params") == 7), "read from the host"
    memory.reserve(REGIONS)
    assert memory.copy_in(REGIONS[:1]) == 2 * PAGE_BYTES
    assert np.all(memory.view("params") == 7)
    assert np.all(memory.view("grads") == 0)
    memory.free()
    assert (memory.spans, memory.hosts, arena.resident_bytes) == ({}, {}, 0)


def test_what_nobody_wrote_since_is_not_copied_out_again(arena: CpuArena) -> None:
    memory = RankMemory(arena)
    grads = replace(REGIONS[1], has_host_copy=True)
    both, nbytes = [REGIONS[0], grads], REGIONS[0].nbytes + grads.nbytes
    memory.allocate(both)
    copied = []
    for value, writes in enumerate([3, 3, 4, 0, 0]):
        if value in {0, 2, 3, 4}:
            memory.view("params")[:] = value
        kept = memory.kept(both, writes=writes)
        written = [region for region in both if region.name not in kept]
        copied.append(memory.copy_out(written, writes=writes))
        memory.leave_device()
        memory.reserve(both)
        memory.copy_in(both)
        assert np.all(memory.view("params") == (value if value != 1 else 0))
    assert copied == [nbytes, grads.nbytes, nbytes, nbytes, nbytes]
    memory.free()


def test_an_allocation_that_fails_takes_nothing() -> None:
    arena = ShortArena(8 * PAGE_BYTES, keep_pages=False, huge_pages=False)
    memory = RankMemory(arena)
    with pytest.raises(PlexError, match="no memory"):
        memory.allocate(REGIONS)
    assert (memory.spans, memory.hosts, arena.resident_bytes) == ({}, {}, 0)
    arena.close()
