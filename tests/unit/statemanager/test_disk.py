"""Parked bytes go to disk and come back, and no fault of the disk loses or changes any."""

from __future__ import annotations

import errno
import mmap
import os
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import numpy as np
import pytest

from plexsvc.errors import ErrorCode, PlexError
from plexsvc.statelink.mapping import Extent
from plexsvc.statemanager import disk as disks
from plexsvc.statemanager.disk import Disk
from plexsvc.statemanager.entries import RegionState
from plexsvc.statemanager.hostcopy import HostCopy
from plexsvc.statemanager.memory import RankMemory
from plexsvc.statemanager.tiers import CpuArena
from plexsvc.weights.checksums import BLOCK_BYTES
from tests.rigs.direct_io import needs_direct_io

pytestmark = needs_direct_io

SIZE = 5 * BLOCK_BYTES + 8192
SPLIT = 2 * BLOCK_BYTES


class FaultyDisk(Disk):
    """A disk that does at one request what a test wants of it."""

    def __init__(self, directory: Path) -> None:
        self.fails = ""
        self.answers = threading.Event()
        super().__init__(directory)

    def pwrite(self, fd: int, data: memoryview, offset: int) -> int:
        if self.fails == "full":
            raise OSError(errno.ENOSPC, "No space left on device")
        if self.fails == "short":
            return super().pwrite(fd, data[: len(data) // 2], offset)
        if self.fails == "stalls":
            self.answers.wait(120)
        done = super().pwrite(fd, data, offset)
        if self.fails == "flips" and offset == BLOCK_BYTES:
            super().pwrite(fd, memoryview(aligned(4096)), offset)
        return done

    def pread(self, fd: int, data: memoryview, offset: int) -> int:
        if self.fails == "stalls":
            self.answers.wait(120)
        done = super().pread(fd, data, offset)
        if self.fails == "flips once":
            self.fails, data[5] = "", data[5] ^ 1
        return done


def aligned(nbytes: int) -> mmap.mmap:
    return mmap.mmap(-1, nbytes)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[FaultyDisk]:
    made = FaultyDisk(tmp_path)
    yield made
    made.answers.set()
    made.close()


@pytest.fixture
def arena() -> Iterator[CpuArena]:
    opened = CpuArena(2 * SIZE, keep_pages=False)
    yield opened
    opened.close()


def random_bytes(nbytes: int, *, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, nbytes, dtype=np.uint8)


def on_disk(disk: Disk, data: np.ndarray) -> HostCopy:
    """A copy in memory of which all is written to disk, and nothing sealed."""
    host = HostCopy(SIZE, disk=disk)
    host.view()[:] = data
    host.to_disk(0)
    return host


def resident_bytes(host: HostCopy) -> int:
    return os.fstat(host.file.fd).st_blocks * 512


@pytest.mark.parametrize("split", [0, SPLIT, SIZE])
def test_a_region_is_parked_on_disk_from_its_split_and_comes_back(
    disk: FaultyDisk, arena: CpuArena, split: int
) -> None:
    memory = RankMemory(arena, disk)
    region = RegionState(name="p", nbytes=SIZE, is_droppable=False, disk_bytes=SIZE - split)
    memory.allocate([region])
    data = random_bytes(SIZE)
    memory.view("p")[:] = data
    assert memory.copy_out([region]) == SIZE
    memory.leave_device()
    assert resident_bytes(memory.hosts["p"]) == split
    region.has_host_copy = True
    memory.reserve([region])
    assert memory.copy_in([region]) == SIZE
    assert np.array_equal(memory.view("p"), data)
    memory.free()


def test_what_is_sealed_leaves_memory_and_what_has_risen_leaves_the_disk(disk: FaultyDisk) -> None:
    data = random_bytes(SIZE)
    host = on_disk(disk, data)
    assert resident_bytes(host) == SIZE
    host.split = SPLIT
    host.let_go()
    assert resident_bytes(host) == SPLIT
    assert host.tail is not None
    host.from_disk(SIZE)
    stored = os.fstat(host.tail.fd).st_blocks
    host.split = 3 * BLOCK_BYTES
    host.let_go()
    assert os.fstat(host.tail.fd).st_blocks < stored
    host.from_disk(SIZE)
    host.split = SIZE
    host.let_go()
    assert host.tail is None
    assert np.array_equal(host.view(), data)
    host.close()


@pytest.mark.parametrize("fails", ["full", "short"])
def test_a_disk_that_takes_no_more_leaves_the_state_in_memory(disk: FaultyDisk, fails: str) -> None:
    data = random_bytes(SIZE)
    host = HostCopy(SIZE, disk=disk)
    host.view()[:] = data
    disk.fails = fails
    with pytest.raises(PlexError, match="the state is where it was") as refused:
        host.to_disk(SPLIT)
    assert refused.value.code is ErrorCode.NO_ROOM
    assert np.array_equal(host.view(), data)
    disk.fails = ""
    host.to_disk(SPLIT)
    host.close()


def test_a_file_system_without_room_is_found_before_anything_is_written(
    disk: FaultyDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    host = HostCopy(SIZE, disk=disk)
    host.view()[:] = 1
    monkeypatch.setattr(os, "posix_fallocate", full)
    disk.fails = "stalls"  # what is written would never return
    with pytest.raises(PlexError, match="No space left"):
        host.to_disk(SPLIT)
    host.close()


def test_a_disk_that_has_answered_is_asked_again_at_once(
    disk: FaultyDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Who waits for a request hears of its end before what else is to be done about it is done.
    monkeypatch.setattr(Future, "_invoke_callbacks", lambda _: None)
    data = random_bytes(SIZE)
    host = on_disk(disk, data)
    host.split = 0
    host.let_go()
    host.from_disk(SIZE)
    host.split = SIZE
    assert np.array_equal(host.view(), data)
    fd = host.file.fd
    host.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_a_disk_that_opens_no_file_leaves_the_state_in_memory(disk: FaultyDisk) -> None:
    data = random_bytes(SIZE)
    host = HostCopy(SIZE, disk=disk)
    host.view()[:] = data
    disk.directory.rmdir()
    with pytest.raises(PlexError, match="the state is where it was") as refused:
        host.to_disk(SPLIT)
    assert refused.value.code is ErrorCode.NO_ROOM
    assert np.array_equal(host.view(), data)
    host.close()


def test_a_flipped_byte_is_found_and_not_handed_on(disk: FaultyDisk) -> None:
    disk.fails = "flips"
    host = on_disk(disk, random_bytes(SIZE))
    host.split = 0
    host.let_go()
    taken: list[Extent] = []
    with pytest.raises(PlexError, match=f"the block at {BLOCK_BYTES} is not") as damaged:
        host.from_disk(SIZE, take=lambda _, part: taken.append(part))
    assert damaged.value.code is ErrorCode.CHECKSUM_MISMATCH
    assert BLOCK_BYTES not in {part.offset for part in taken}
    host.close()


def test_a_byte_that_flips_on_the_way_is_read_again(disk: FaultyDisk) -> None:
    data = random_bytes(SIZE)
    host = on_disk(disk, data)
    host.split = 0
    host.let_go()
    disk.fails = "flips once"
    host.from_disk(SIZE)
    host.split = SIZE
    host.let_go()
    assert np.array_equal(host.view(), data)
    host.close()


def test_a_disk_that_stalls_is_given_up_and_what_it_does_late_changes_nothing(
    disk: FaultyDisk, arena: CpuArena, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disks, "STALL_S", 0.2)
    memory = RankMemory(arena, disk)
    region = RegionState(name="p", nbytes=SIZE, is_droppable=False, disk_bytes=SIZE)
    memory.allocate([region])
    data = random_bytes(SIZE)
    memory.view("p")[:] = data
    disk.fails = "stalls"
    for _ in range(2):
        with pytest.raises(PlexError, match="has not answered") as stalled:
            memory.copy_out([region])
        assert stalled.value.code is ErrorCode.NO_ROOM
    assert np.array_equal(memory.view("p"), data)
    region.disk_bytes = 0  # there is room in memory meanwhile
    memory.copy_out([region])
    disk.answers.set()
    disk._threads.shutdown()
    assert np.array_equal(memory.hosts["p"].view(), data)
    memory.free()


def test_a_stalled_read_leaves_the_state_on_disk(
    disk: FaultyDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = random_bytes(SIZE)
    host = on_disk(disk, data)
    host.split = SPLIT
    host.let_go()
    monkeypatch.setattr(disks, "STALL_S", 0.2)
    disk.fails = "stalls"
    with pytest.raises(PlexError, match="has not answered"):
        host.from_disk(SIZE)
    monkeypatch.undo()
    disk.fails = ""
    disk.answers.set()
    while host._running:
        threading.Event().wait(0.01)
    host.from_disk(SIZE)
    host.split = SIZE
    host.let_go()
    assert np.array_equal(host.view(), data)
    host.close()


def test_blocks_of_one_region_read_as_zeroes_to_the_next(disk: FaultyDisk) -> None:
    host = on_disk(disk, random_bytes(SIZE))
    host.close()
    fd = disk.open()
    os.ftruncate(fd, SIZE)
    disk.allocate(fd, low=0, high=SIZE)
    found = aligned(SIZE)
    assert os.preadv(fd, [found], 0) == SIZE
    assert not np.frombuffer(found, dtype=np.uint8).any()
    os.close(fd)


def test_a_directory_that_takes_no_direct_writes_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no directory")
    with pytest.raises(PlexError, match="disk_dir"):
        Disk(tmp_path / "file")
