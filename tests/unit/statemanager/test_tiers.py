"""The contract of device memory, run on every kind this machine has; and the arena's free list."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plexsvc.errors import PlexError
from plexsvc.statelink import cuda
from plexsvc.statelink.mapping import Extent
from plexsvc.statelink.regions import open_memory
from plexsvc.statemanager import hugefiles
from plexsvc.statemanager.config import StateManagerConfig, TierConfig
from plexsvc.statemanager.devices import open_tier
from plexsvc.statemanager.extents import ExtentPool
from plexsvc.statemanager.hostcopy import HostCopy
from plexsvc.statemanager.tiers import ArenaFile, CpuArena, DeviceExtents, DeviceTier
from tests.fakes.fake_cuda import FakeCuda

PAGE = 4096
HUGE = 2 << 20
KINDS = [
    pytest.param("cpu", id="cpu"),
    pytest.param("fake", id="cuda-on-a-fake-driver"),
    pytest.param(
        "cuda",
        id="cuda",
        marks=[
            pytest.mark.gpu,
            pytest.mark.skipif(not cuda.is_available(), reason="no CUDA device here: NOT RUN"),
        ],
    ),
]


def has_huge_pages() -> bool:
    try:
        os.close(hugefiles.open_huge_file(HUGE))
    except OSError:
        return False
    return True


CONFIG = StateManagerConfig(node_id="n0", runtime_dir=Path("/"), keep_pages=True)

needs_huge_pages = pytest.mark.skipif(
    not has_huge_pages(), reason="this kernel or sandbox makes no tmpfs with huge pages: NOT RUN"
)


def whole(span: DeviceExtents) -> Extent:
    return Extent(offset=0, nbytes=span.nbytes)


@pytest.fixture
def tier(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[DeviceTier]:
    fake = FakeCuda() if request.param == "fake" else None
    if fake is not None:
        monkeypatch.setattr(cuda, "load_api", lambda: fake)
    cuda.open_driver.cache_clear()
    memory = "cpu" if request.param == "cpu" else "cuda"
    opened = open_tier(TierConfig(index=0, bytes_total=64 * PAGE, memory=memory), CONFIG)
    yield opened
    opened.close()
    cuda.open_driver.cache_clear()
    assert fake is None or fake.is_balanced


def host_of(data: np.ndarray) -> HostCopy:
    host = HostCopy(data.size)
    host.view()[: data.size] = data
    return host


@pytest.mark.parametrize("tier", KINDS, indirect=True)
def test_what_was_loaded_is_read_and_offloaded_again(tier: DeviceTier) -> None:
    data = np.random.default_rng(0).integers(0, 256, 5 * PAGE - 100, dtype=np.uint8)
    source, target = host_of(data), HostCopy(data.size)
    span = tier.reserve(data.size, is_zeroed=False)
    tier.from_host(span, source.address, whole(span))
    assert np.array_equal(tier.view(span, target)[: data.size], data)
    tier.to_host(span, target.address, whole(span))
    assert np.array_equal(target.view()[: data.size], data)
    tier.release(span, is_final=True)


@pytest.mark.parametrize("tier", KINDS, indirect=True)
def test_memory_of_another_region_is_zeroed_before_reuse(tier: DeviceTier) -> None:
    ones = np.full(64 * PAGE, 1, np.uint8)
    for is_final in (False, True):
        span = tier.reserve(ones.size, is_zeroed=False)
        tier.from_host(span, host_of(ones).address, whole(span))
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
    tier.from_host(span, host_of(data).address, whole(span))
    assert np.array_equal(tier.view(span, HostCopy(data.size)), data)
    memory = open_memory("cpu", 2 * PAGE)
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


def test_without_huge_pages_an_arena_works_in_small_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(nbytes: int) -> int:
        raise PermissionError(nbytes)

    monkeypatch.setattr(hugefiles, "open_huge_file", refuse)
    tier = CpuArena(2 * HUGE, keep_pages=False)
    span = tier.reserve(HUGE + PAGE, is_zeroed=True)
    assert (tier.page_bytes, tier.resident_bytes) == (PAGE, HUGE + PAGE)
    tier.release(span, is_final=False)
    assert tier.resident_bytes == 0
    tier.close()


@needs_huge_pages
def test_regions_of_odd_sizes_share_huge_pages_and_all_memory_goes_back() -> None:
    tier = CpuArena(8 * HUGE, keep_pages=False)
    sizes = [2 * HUGE + 3 * PAGE, HUGE + 5 * PAGE, 7 * PAGE, HUGE - PAGE, 2 * HUGE]
    held = {}
    for number, size in enumerate(sizes, start=1):
        span = tier.reserve(size, is_zeroed=True)
        assert span.extents[0].offset % HUGE == 0 or size < HUGE
        assert not tier.view(span, HostCopy(size)).any()
        tier.from_host(span, host_of(np.full(size, number, np.uint8)).address, whole(span))
        held[number] = span
    while held:
        for number, span in held.items():
            assert (tier.view(span, HostCopy(span.nbytes)) == number).all()
        tier.release(held.pop(min(held)), is_final=False)
    assert tier.resident_bytes == 0
    tier.close()


@needs_huge_pages
def test_a_huge_file_holds_no_more_than_its_size_and_its_descriptor_is_not_inherited() -> None:
    fd = hugefiles.open_huge_file(2 * HUGE + PAGE)
    assert os.fstat(fd).st_size == 2 * HUGE + PAGE
    assert not os.get_inheritable(fd)
    os.pwrite(fd, b"x", 0)
    assert os.fstat(fd).st_blocks * 512 == HUGE
    with pytest.raises(OSError, match="No space"):
        os.posix_fallocate(fd, 0, 4 * HUGE)
    os.close(fd)


@needs_huge_pages
def test_host_copies_take_huge_pages_unless_a_rank_maps_them() -> None:
    for is_lent, resident_bytes in ((False, HUGE), (True, PAGE)):
        host = HostCopy(2 * HUGE, is_lent=is_lent)
        os.pwrite(host.file.fd, b"x", 0)
        assert os.fstat(host.file.fd).st_blocks * 512 == resident_bytes
        if is_lent:
            with pytest.raises(PermissionError):
                os.ftruncate(host.file.fd, 0)
        host.close()


@needs_huge_pages
def test_a_huge_file_can_be_made_inside_a_user_namespace() -> None:
    calls = "h.enter_namespace(); print(os.fstat(h.open_file(h.make_directory(0), 8192)).st_size)"
    code = f"import os; from plexsvc.statemanager import hugefiles as h; {calls}"
    argv = [sys.executable, "-c", code]
    ended = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)
    if "unshare" in ended.stderr:
        pytest.skip("this sandbox allows no user namespaces: NOT RUN")
    assert ended.stdout == "8192\n", ended.stderr


def test_an_arena_cannot_hold_more_than_its_size() -> None:
    tier = CpuArena(2 * PAGE, keep_pages=True)
    tier.reserve(PAGE, is_zeroed=True)
    with pytest.raises(AssertionError):
        tier.reserve(2 * PAGE, is_zeroed=True)
    tier.close()


def test_an_unknown_kind_of_memory_is_refused() -> None:
    with pytest.raises(PlexError, match="bad_request"):
        open_tier(TierConfig(index=0, bytes_total=1, memory="abacus"), CONFIG)


def test_whole_units_are_aligned_and_the_rest_fills_gaps() -> None:
    pool = ExtentPool(20, unit=4)
    assert [(e.offset, e.nbytes) for e in pool.take(6)] == [(0, 4), (18, 2)]
    assert [(e.offset, e.nbytes) for e in pool.take(9)] == [(4, 8), (17, 1)]
    assert [(e.offset, e.nbytes) for e in pool.take(5)] == [(12, 5)]


def test_freed_extents_widen_to_whole_units_only_over_free_neighbours() -> None:
    pool = ExtentPool(12, unit=4)
    first, second, third = pool.take(4), pool.take(2), pool.take(2)
    pool.give(first)
    pool.give(third)
    assert pool.widened(*third) == third[0]
    pool.give(second)
    assert pool.widened(*third).nbytes == 4


@given(
    st.lists(st.tuples(st.booleans(), st.integers(1, 6)), max_size=60),
    st.sampled_from([1, 2, 4]),
)
def test_extents_never_overlap_and_all_come_back(steps: list[tuple[bool, int]], unit: int) -> None:
    pool, held = ExtentPool(16, unit=unit), []
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


def test_an_arena_that_was_left_is_taken_over_with_what_lies_in_it() -> None:
    first = CpuArena(8 * PAGE, keep_pages=False)
    span = first.reserve(2 * PAGE, is_zeroed=True)
    data = np.arange(2 * PAGE, dtype=np.uint8)
    first.from_host(span, host_of(data).address, whole(span))
    forgotten = first.reserve(PAGE, is_zeroed=True)
    first.from_host(forgotten, host_of(data[:PAGE]).address, whole(forgotten))
    left = ArenaFile(fd=os.dup(first.left.fd), page_bytes=first.page_bytes)
    first.close()
    second = CpuArena(8 * PAGE, keep_pages=False, left=left)
    again = second.claim(span.nbytes, span.extents)
    assert np.array_equal(second.view(again, HostCopy(data.size)), data)
    with pytest.raises(PlexError, match="claimed twice"):
        second.claim(span.nbytes, span.extents)
    second.tidy()
    assert second.resident_bytes == 2 * PAGE, "what nobody claims goes back"
    second.close()


def test_an_arena_of_another_size_is_not_taken_over() -> None:
    first = CpuArena(8 * PAGE, keep_pages=False)
    left = ArenaFile(fd=os.dup(first.left.fd), page_bytes=first.page_bytes)
    first.close()
    with pytest.raises(PlexError, match="left with another size"):
        open_tier(TierConfig(index=0, bytes_total=4 * PAGE), CONFIG, left=left)


def test_regions_in_other_extents_are_compared_byte_by_byte() -> None:
    one, other = (CpuArena(8 * PAGE, keep_pages=False, huge_pages=False) for _ in range(2))
    taken = [other.reserve(PAGE, is_zeroed=True) for _ in range(8)]
    for gap in taken[1::2]:
        other.release(gap, is_final=True)
    whole, cut = one.reserve(3 * PAGE, is_zeroed=True), other.reserve(3 * PAGE, is_zeroed=True)
    assert len(cut.extents) == 3
    host = HostCopy(3 * PAGE)
    for tier, span in ((one, whole), (other, cut)):
        tier.view(span, host)[:] = np.arange(3 * PAGE) % 251
    everything, first = Extent(offset=0, nbytes=3 * PAGE), Extent(offset=0, nbytes=PAGE)
    assert one.is_equal(whole, cut, other, everything)
    assert other.is_equal(cut, whole, one, everything)
    other.view(cut, host)[2 * PAGE] ^= 1
    assert not one.is_equal(whole, cut, other, everything)
    assert not other.is_equal(cut, whole, one, Extent(offset=2 * PAGE, nbytes=PAGE))
    assert one.is_equal(whole, cut, other, first)
    one.release(whole, is_final=True)
    other.release(cut, is_final=True)
    for arena in (one, other, host):
        arena.close()
