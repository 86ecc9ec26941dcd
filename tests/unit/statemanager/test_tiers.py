"""The contract of device memory, run on every kind this machine has; and the arena's free list."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plexsvc.errors import PlexError
from plexsvc.statemanager.config import DeviceConfig
from plexsvc.statemanager.devices import open_tier
from plexsvc.statemanager.tiers import CpuArena, DeviceTier, ExtentPool, HostCopy
from plexsvc.transport import cuda
from plexsvc.transport.regions import open_memory

PAGE = 4096
KINDS = [
    pytest.param("cpu", id="cpu"),
    pytest.param(
        "cuda",
        id="cuda",
        marks=[
            pytest.mark.gpu,
            pytest.mark.skipif(not cuda.is_available(), reason="no CUDA device here: NOT RUN"),
        ],
    ),
]


@pytest.fixture
def tier(request: pytest.FixtureRequest) -> None:
    device = DeviceConfig(index=0, bytes_total=64 * PAGE, memory=request.param)
    opened = open_tier(device, keep_pages=True)
    yield opened
    opened.close()


def host_of(data: np.ndarray) -> HostCopy:
    host = HostCopy(data.size)
    host.view()[: data.size] = data
    return host


@pytest.mark.parametrize("tier", KINDS, indirect=True)
def test_what_was_loaded_is_read_and_offloaded_again(tier: DeviceTier) -> None:
    data = np.random.default_rng(0).integers(0, 256, 5 * PAGE - 100, dtype=np.uint8)
    source, target = host_of(data), HostCopy(data.size)
    span = tier.reserve(data.size, is_zeroed=False)
    tier.from_host(span, source)
    assert np.array_equal(tier.view(span, target)[: data.size], data)
    tier.to_host(span, target)
    assert np.array_equal(target.view()[: data.size], data)
    tier.release(span, is_final=True)


@pytest.mark.parametrize("tier", KINDS, indirect=True)
def test_memory_of_another_region_is_zeroed_before_reuse(tier: DeviceTier) -> None:
    ones = np.full(64 * PAGE, 1, np.uint8)
    for is_final in (False, True):
        span = tier.reserve(ones.size, is_zeroed=False)
        tier.from_host(span, host_of(ones))
        tier.release(span, is_final=is_final)
        fresh = tier.reserve(ones.size, is_zeroed=True)
        assert not tier.view(fresh, HostCopy(ones.size)).any()
        tier.release(fresh, is_final=False)


def test_a_region_in_scattered_extents_reads_and_maps_as_one() -> None:
    tier = CpuArena(4 * PAGE, keep_pages=True)
    spans = [tier.reserve(PAGE, is_zeroed=True) for _ in range(4)]
    for span in (spans[0], spans[2]):
        tier.release(span, is_final=False)
    span = tier.reserve(2 * PAGE, is_zeroed=True)
    assert [extent.offset for extent in span.extents] == [0, 2 * PAGE]
    data = np.arange(2 * PAGE, dtype=np.uint64).astype(np.uint8)
    tier.from_host(span, host_of(data))
    assert np.array_equal(tier.view(span, HostCopy(data.size)), data)
    memory = open_memory("cpu", 2 * PAGE, device_index=0)
    memory.attach(span.fd, span.extents)
    assert np.array_equal(memory.tensor(2 * PAGE).numpy(), data)
    memory.tensor(2 * PAGE)[PAGE] = 77
    assert tier.view(span, HostCopy(data.size))[PAGE] == 77
    memory.park()
    tier.close()


def test_pages_go_back_to_the_machine_when_a_region_is_final_or_nothing_is_kept() -> None:
    for keep_pages, is_final in ((True, True), (False, False)):
        tier = CpuArena(8 * PAGE, keep_pages=keep_pages)
        span = tier.reserve(8 * PAGE, is_zeroed=True)
        assert tier.resident_bytes == 8 * PAGE
        tier.release(span, is_final=is_final)
        assert tier.resident_bytes == 0
        tier.close()


def test_an_arena_cannot_hold_more_than_its_size() -> None:
    tier = CpuArena(2 * PAGE, keep_pages=True)
    tier.reserve(PAGE, is_zeroed=True)
    with pytest.raises(AssertionError):
        tier.reserve(2 * PAGE, is_zeroed=True)
    tier.close()


def test_an_unknown_kind_of_memory_is_refused() -> None:
    with pytest.raises(PlexError, match="bad_request"):
        open_tier(DeviceConfig(index=0, bytes_total=1, memory="abacus"), keep_pages=True)


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 6)), max_size=60))
def test_extents_never_overlap_and_all_come_back(steps: list[tuple[bool, int]]) -> None:
    pool, held = ExtentPool(16), []
    for is_take, amount in steps:
        if is_take and amount <= pool.free_bytes:
            held.append(pool.take(amount))
            assert sum(extent.nbytes for extent in held[-1]) == amount
        elif held:
            pool.give(held.pop(amount % len(held)))
        bytes_held = [b for e in sum(held, ()) for b in range(e.offset, e.offset + e.nbytes)]
        assert len(bytes_held) == len(set(bytes_held)) == 16 - pool.free_bytes
    for extents in held:
        pool.give(extents)
    assert [(extent.offset, extent.nbytes) for extent in pool.take(16)] == [(0, 16)]
