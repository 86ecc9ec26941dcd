"""What several ranks hold with the same bytes is parked once, and stays each one's own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from plexsvc.errors import ErrorCode, PlexError
from plexsvc.statelink.mapping import PAGE_BYTES
from plexsvc.statemanager.caller import Tell, tell_nobody
from plexsvc.statemanager.disk import Disk
from plexsvc.statemanager.entries import RegionState
from plexsvc.statemanager.memory import RankMemory
from plexsvc.statemanager.replicas import STEP_BYTES, Leaving, Offload
from plexsvc.statemanager.tiers import CpuArena
from plexsvc.weights.checksums import BLOCK_BYTES

SIZE = 2 * STEP_BYTES + PAGE_BYTES
PARAMS = RegionState(name="params", nbytes=SIZE, is_droppable=False, has_host_copy=True)
SUMS = RegionState(name="sums", nbytes=PAGE_BYTES, is_droppable=True, has_host_copy=True)


class CountedDisk(Disk):
    """A disk that counts what is read, and may be full."""

    reads = 0
    is_full = False

    def pread(self, fd: int, data: memoryview, offset: int) -> int:
        self.reads += 1
        return super().pread(fd, data, offset)

    def pwrite(self, fd: int, data: memoryview, offset: int) -> int:
        if self.is_full:
            raise OSError(28, "no space left")
        return super().pwrite(fd, data, offset)


class Ranks:
    """Ranks on devices of their own, whose state is parked and comes back."""

    def __init__(self, stack: ExitStack, count: int, disk: Disk | None = None) -> None:
        self.arenas = [CpuArena(2 * SIZE, keep_pages=False, huge_pages=False) for _ in range(count)]
        self.memories = [RankMemory(arena, disk) for arena in self.arenas]
        self.regions = [{"params": replace(PARAMS), "sums": replace(SUMS)} for _ in self.arenas]
        self.writes = [0] * count
        self.threads = stack.enter_context(ThreadPoolExecutor(count))
        for arena in self.arenas:
            stack.callback(arena.close)
        for memory in self.memories:
            stack.callback(memory.free)

    def allocate(self) -> Ranks:
        for memory, regions in zip(self.memories, self.regions, strict=True):
            memory.allocate(list(regions.values()))
        return self

    def fill(self, *values: int) -> None:
        for memory, value in zip(self.memories, values, strict=True):
            memory.view("params")[:] = value
            memory.view("sums")[:] = 1

    def park(self) -> int:
        offload = Offload(
            [
                Leaving(rank=rank, memory=memory, regions=regions, writes=writes)
                for rank, (memory, regions, writes) in enumerate(
                    zip(self.memories, self.regions, self.writes, strict=True)
                )
            ]
        )
        nbytes = self.on_all(offload.work)
        nbytes += offload.finish()
        nbytes += self.on_all(offload.rest)
        for memory in self.memories:
            memory.leave_device()
        return nbytes - len(self.memories) * PAGE_BYTES  # of the sums, each copied

    def on_all(self, step: Callable[[int, Tell], int]) -> int:
        ranks = range(len(self.memories))
        futures = [self.threads.submit(step, rank, tell_nobody) for rank in ranks]
        wait(futures)  # as a move does, nothing copies any more when a failure is told
        return sum(future.result() for future in futures)

    def load(self) -> None:
        for memory, regions in zip(self.memories, self.regions, strict=True):
            memory.reserve(regions.values())
        for rank, memory in reversed(list(enumerate(self.memories))):
            readers = [m for m in self.memories if (t := m.twins.get("params")) and t.rank == rank]
            memory.copy_in(self.regions[rank].values(), readers={"params": readers})

    @property
    def values(self) -> list[list[int]]:
        return [sorted(set(memory.view("params").tolist())) for memory in self.memories]

    @property
    def held(self) -> list[int]:
        files = [memory.hosts["params"].file.fd for memory in self.memories]
        return [os.fstat(fd).st_blocks * 512 for fd in files]


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


def test_what_ranks_hold_with_the_same_bytes_is_parked_once(stack: ExitStack) -> None:
    ranks = Ranks(stack, 5).allocate()
    ranks.fill(7, 8, 7, 8, 9)
    assert ranks.park() == 3 * SIZE
    assert ranks.held == [SIZE, SIZE, 0, 0, SIZE]
    assert [memory.replica_bytes for memory in ranks.memories] == [0, 0, SIZE, SIZE, 0]
    assert ranks.values == [[7], [8], [7], [8], [9]], "read while it is parked"
    ranks.load()
    assert ranks.values == [[7], [8], [7], [8], [9]]


@pytest.mark.parametrize("at", [1, STEP_BYTES + 1, SIZE - 1])
def test_a_rank_that_changes_its_state_changes_no_other_one(stack: ExitStack, at: int) -> None:
    ranks = Ranks(stack, 3).allocate()
    ranks.fill(7, 7, 7)
    assert ranks.park() == SIZE
    ranks.load()
    ranks.memories[1].view("params")[at] = 8
    assert ranks.park() == 2 * SIZE
    assert ranks.held == [SIZE, SIZE, 0]
    assert ranks.values == [[7], [7, 8], [7]]
    ranks.load()
    assert ranks.values == [[7], [7, 8], [7]]
    ranks.fill(9, 9, 9)
    assert ranks.park() == SIZE
    assert ranks.held == [SIZE, 0, 0], "the second copy is given back"


def test_a_replica_is_kept_while_neither_it_nor_what_it_is_parked_in_was_written(
    stack: ExitStack,
) -> None:
    ranks = Ranks(stack, 2).allocate()
    ranks.fill(7, 7)
    ranks.writes = [1, 1]
    assert ranks.park() == SIZE
    ranks.load()
    assert ranks.park() == 0
    ranks.load()
    ranks.memories[0].view("params")[:] = 8
    ranks.writes = [2, 1]
    assert ranks.park() == 2 * SIZE
    assert ranks.values == [[8], [7]]
    ranks.load()
    ranks.memories[1].view("params")[:] = 8
    ranks.writes = [2, 2]
    assert ranks.park() == 0, "the first is kept, and the second is parked with it"
    assert ranks.held == [SIZE, 0]
    assert ranks.values == [[8], [8]]


def test_what_lies_on_disk_is_read_once_for_all(stack: ExitStack, tmp_path: Path) -> None:
    disk = CountedDisk(tmp_path)
    stack.callback(disk.close)
    ranks = Ranks(stack, 3, disk)
    for regions in ranks.regions:
        regions["params"].disk_bytes = SIZE - BLOCK_BYTES
    ranks.allocate().fill(7, 7, 7)
    assert ranks.park() == SIZE
    ranks.load()
    assert disk.reads == 1
    assert ranks.values == [[7], [7], [7]]


def test_an_offload_that_fails_leaves_no_replica_behind(stack: ExitStack, tmp_path: Path) -> None:
    disk = CountedDisk(tmp_path)
    stack.callback(disk.close)
    ranks = Ranks(stack, 2, disk)
    for regions in ranks.regions:
        regions["params"].disk_bytes = SIZE - BLOCK_BYTES
    ranks.allocate().fill(7, 7)
    ranks.writes = [1, 1]
    ranks.park()
    ranks.load()
    ranks.memories[0].view("params")[-1] = 8
    disk.is_full = True
    ranks.writes = [2, 1]  # the second one's own was not written, and what it is parked in was
    with pytest.raises(PlexError) as refused:
        ranks.park()
    assert refused.value.code is ErrorCode.NO_ROOM
    disk.is_full = False
    assert ranks.park() == 2 * SIZE
    ranks.load()
    assert ranks.values == [[7, 8], [7]]
