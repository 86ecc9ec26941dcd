"""The device tier of a GPU on a driver that counts: copies, leaks, stale bytes, budgets."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from plexclient.wire.v1.statemanager_pb2 import CanonicalPiece
from plexsvc.errors import PlexError
from plexsvc.ids import JobId, VersionId, WpgId
from plexsvc.residency import Residency
from plexsvc.statelink import cuda
from plexsvc.statelink.client import ExportReport
from plexsvc.statelink.mapping import Extent
from plexsvc.statemanager import snapshot
from plexsvc.statemanager.book import Book
from plexsvc.statemanager.caller import WaitingCaller
from plexsvc.statemanager.config import StateManagerConfig, TierConfig
from plexsvc.statemanager.cuda import CudaDevice
from plexsvc.statemanager.devices import check_budgets
from plexsvc.statemanager.entries import RegionState
from plexsvc.statemanager.hostcopy import HostCopy
from plexsvc.statemanager.links import RankLink
from plexsvc.statemanager.memory import RankMemory
from plexsvc.statemanager.node import ManagedNode, region_state
from tests.fakes.fake_cuda import GRANULARITY, FakeCuda
from tests.rigs.memory_files import open_files

LAYERS, HIDDEN = 24, 64
WPG = WpgId("w")


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCuda]:
    fake = FakeCuda()
    monkeypatch.setattr(cuda, "load_api", lambda: fake)
    cuda.open_driver.cache_clear()
    yield fake
    cuda.open_driver.cache_clear()


def failing_at_each_call(fake: FakeCuda, act: Callable[[], None]) -> int:
    """Fail each driver call of `act` in turn; return how many there are."""
    for number in range(1, 100):
        fake.fail_at = number
        try:
            act()
        except PlexError:
            fake.fail_at = None
        else:
            fake.fail_at = None
            return number - 1
    raise AssertionError("it has no end")


def test_whatever_call_fails_in_an_allocation_nothing_is_kept(fake: FakeCuda) -> None:
    device = CudaDevice(0)
    before = open_files()

    def allocate() -> None:
        memory = RankMemory(device)
        regions = [RegionState(name=n, nbytes=GRANULARITY, is_droppable=False) for n in "ab"]
        try:
            memory.allocate(regions)
        except PlexError:
            assert fake.is_balanced
            assert open_files() == before
            raise
        fake.fail_at = None
        memory.free()

    assert failing_at_each_call(fake, allocate) > 15
    assert fake.is_balanced
    assert open_files() == before


def test_whatever_call_fails_in_a_release_the_rest_is_given_back(fake: FakeCuda) -> None:
    device = CudaDevice(0)

    def release() -> None:
        fail_at, fake.fail_at = fake.fail_at, None
        span = device.reserve(GRANULARITY, is_zeroed=False)
        fake.fail_at = fail_at
        try:
            device.release(span, is_final=True)
        finally:
            assert fake.is_balanced

    assert failing_at_each_call(fake, release) == 5


def test_a_rank_maps_what_it_was_granted_whatever_call_failed_before(fake: FakeCuda) -> None:
    device = CudaDevice(0)
    span = device.reserve(GRANULARITY, is_zeroed=True)
    memory = cuda.CudaMemory(GRANULARITY)
    held, before = dict(fake.handles), open_files()

    def attach() -> None:
        try:
            memory.attach(span.fd, span.extents)
        finally:
            memory.park()
            assert fake.handles == held
            assert open_files() == before

    number = failing_at_each_call(fake, attach)
    assert number > 5
    address = memory.address
    memory.attach(span.fd, span.extents)
    assert memory.address == address
    memory.park()


def test_a_device_without_room_says_so(fake: FakeCuda) -> None:
    device = CudaDevice(0)
    fake.nbytes = 0
    with pytest.raises(PlexError, match=r"no_room.*cuMemCreate on GPU 0"):
        device.reserve(GRANULARITY, is_zeroed=True)


def test_bytes_of_the_last_owner_are_nowhere_in_a_granule_that_is_loaded(fake: FakeCuda) -> None:
    device = CudaDevice(0)
    nbytes = GRANULARITY + 4096
    source, whole = HostCopy(nbytes), HostCopy(2 * GRANULARITY)
    source.view()[:] = 7
    span = device.reserve(nbytes, is_zeroed=False)
    device.from_host(span, source.address, Extent(offset=0, nbytes=span.nbytes))
    (address,) = (r.mapping.address for r in fake.ranges.values())
    cuda.open_driver(0).to_host(whole.address, address, 2 * GRANULARITY)
    assert (whole.view()[:nbytes] == 7).all()
    assert not whole.view()[nbytes:].any()
    device.release(span, is_final=True)


def test_a_ledger_counts_what_a_region_takes_on_its_device() -> None:
    def taken(nbytes: int, granule: int) -> int:
        return region_state("r", nbytes, is_droppable=False, granule=granule).nbytes

    assert taken(4097, 4096) == 8192
    assert taken(4097, GRANULARITY) == GRANULARITY


def test_host_memory_is_locked_when_it_is_allocated_and_not_in_a_move(fake: FakeCuda) -> None:
    memory = RankMemory(CudaDevice(0))
    region = RegionState(name="p", nbytes=GRANULARITY, is_droppable=False)
    memory.allocate([region])
    assert fake.calls["cuMemHostRegister"] == 1
    memory.copy_out([region])
    memory.copy_in([region])
    assert fake.calls["cuMemHostRegister"] == 1
    memory.free()
    assert fake.is_balanced


def test_a_successor_finds_the_bytes_of_what_was_on_the_device(fake: FakeCuda) -> None:
    first, host = CudaDevice(0), HostCopy(GRANULARITY)
    span, whole = first.reserve(GRANULARITY, is_zeroed=False), Extent(offset=0, nbytes=GRANULARITY)
    host.view()[:] = 7
    first.from_host(span, host.address, whole)
    kept = os.dup(span.fd)  # by the vault
    first.close()
    assert fake.is_balanced, "the descriptor alone keeps the memory"
    second = CudaDevice(0)
    claimed = second.claim(span.nbytes, span.extents, fd=kept)
    host.view()[:] = 0
    second.to_host(claimed, host.address, whole)
    assert (np.asarray(host.view()) == 7).all()
    second.release(claimed, is_final=True)
    host.close()
    assert fake.is_balanced


def test_whatever_call_fails_as_memory_is_claimed_nothing_is_kept(fake: FakeCuda) -> None:
    first = CudaDevice(0)
    span = first.reserve(GRANULARITY, is_zeroed=True)
    second, before = CudaDevice(0), open_files()

    def claim() -> None:
        claimed = second.claim(span.nbytes, span.extents, fd=os.dup(span.fd))
        second.release(claimed, is_final=True)

    assert failing_at_each_call(fake, claim) >= 3
    first.close()
    assert fake.is_balanced
    assert open_files() < before


def test_memory_that_the_vault_still_has_is_waited_for_once(fake: FakeCuda) -> None:
    asked = list[str]()

    def let_go() -> None:
        asked.append("once")
        fake.nbytes = 2 * GRANULARITY

    device = CudaDevice(0, let_go=let_go)
    fake.nbytes = GRANULARITY
    device.reserve(GRANULARITY, is_zeroed=True)
    assert not asked
    device.reserve(GRANULARITY, is_zeroed=True)
    assert asked == ["once"]
    with pytest.raises(PlexError, match="no_room"):
        device.reserve(GRANULARITY, is_zeroed=True)
    assert asked == ["once"] * 2
    device.close()
    assert fake.is_balanced


def test_copies_run_on_a_stream_for_each_direction_and_end_before_they_are_told_of(
    fake: FakeCuda,
) -> None:
    device = CudaDevice(0)
    span, host = device.reserve(GRANULARITY, is_zeroed=False), HostCopy(GRANULARITY)
    device.to_host(span, host.address, Extent(offset=0, nbytes=span.nbytes))
    device.from_host(span, host.address, Extent(offset=0, nbytes=span.nbytes))
    assert fake.calls["cuStreamCreate"] == 2
    assert not fake.unfinished
    assert fake.calls["cuCtxSynchronize"] == 0, "it would wait for other regions' copies"
    device.close()
    assert fake.is_balanced


def test_budgets_of_one_gpu_fit_together_or_are_refused(fake: FakeCuda) -> None:
    fake.nbytes = 100
    half = TierConfig(index=0, gpu=0, bytes_total=50, memory="cuda")
    other = TierConfig(index=1, gpu=0, bytes_total=51, memory="cuda", kind="rollout")
    check_budgets([half, TierConfig(index=1, gpu=0, bytes_total=50, memory="cuda")])
    with pytest.raises(PlexError, match=r"bad_request.*GPU 0 have 101 bytes.*the GPU has 100"):
        check_budgets([half, other])
    wide = TierConfig(index=1, gpu=0, bytes_total=100, memory="cuda", kind="rollout", tp=2)
    check_budgets([half, wide])
    with pytest.raises(PlexError, match="GPU 1 have 101 bytes"):
        check_budgets([wide, TierConfig(index=0, gpu=1, bytes_total=51, memory="cuda")])


def test_a_copy_takes_each_region_off_the_device_once(fake: FakeCuda, tmp_path: Path) -> None:
    device = TierConfig(index=0, bytes_total=1 << 30, memory="cuda")
    config = StateManagerConfig(node_id="n", runtime_dir=tmp_path, devices=(device,))
    node = ManagedNode(config, book=Book(), arenas={})
    pieces = model_pieces()
    nbytes = sum(4 * int(np.prod(piece.size)) for piece in pieces)
    add_resident_rank(node, pieces, nbytes=nbytes)
    taken = snapshot.take(node, WPG)
    key = VersionId("d", 1, 1)
    draft = node.publisher.draft(
        key, taken.index, job_id=JobId("j"), region=taken.region, progress=None
    )
    assert node.publisher.enter(draft, WaitingCaller()).nbytes == nbytes
    assert nbytes <= fake.moved["off"] <= 1.05 * nbytes
    node.close()


def model_pieces() -> list[CanonicalPiece]:
    """Return the tensors of 24 layers of 12 and two more, as a model of half a billion has."""
    names = [f"{layer}.{part}" for layer in range(LAYERS) for part in range(12)]
    found = []
    for at, name in enumerate([*names, "embed", "norm"]):
        found.append(
            CanonicalPiece(
                kind="param",
                name=name,
                dtype="F32",
                region="params",
                global_shape=[HIDDEN, HIDDEN * 8],
                start=[0, 0],
                size=[HIDDEN, HIDDEN * 8],
                offset=at * HIDDEN * HIDDEN * 32,
                stride=[HIDDEN * 8, 1],
            )
        )
    return found


def add_resident_rank(node: ManagedNode, pieces: list[CanonicalPiece], *, nbytes: int) -> None:
    node.ledger.register(WPG, rank=0, incarnation=1, device_index=0, job_id=JobId("j"))
    link = AskedNothing(
        None, client_id=1, wpg_id=WPG, rank=0, job_id=JobId("j"), memory=RankMemory(node.tiers[0])
    )
    node.links[WPG, 0] = link
    region = region_state(
        "params", nbytes, is_droppable=False, granule=link.memory.tier.granule_bytes
    )
    node.allocate(link, [region])
    node.set_index(link, pieces)
    assert node.state_of(WPG).residency is Residency.DEVICE


class AskedNothing(RankLink):
    """A rank whose state is as it last said."""

    def export(self, *, beside: bool = False) -> ExportReport:
        del beside
        return self.last_export
