"""A machine's clocks that stand where the test put them; sleepers wake when their time has come."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager


class FakeClock:
    """Wall and monotonic time, each set by the test."""

    def __init__(self) -> None:
        self.wall = 1_000_000_000_000
        self.monotonic = 500
        self._numbers = itertools.count()
        self._sleepers: list[tuple[int, int, asyncio.Future[None]]] = []

    def wall_us(self) -> int:
        """Return the wall time."""
        return self.wall

    def monotonic_us(self) -> int:
        """Return the monotonic time."""
        return self.monotonic

    async def sleep(self, duration_us: int) -> None:
        """Return when the monotonic time is `duration_us` later."""
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        due = (self.monotonic + duration_us, next(self._numbers), woken)
        heapq.heappush(self._sleepers, due)
        await woken

    async def passes(self, duration_us: int) -> None:
        """Let time pass in one leap, then everybody run whose time has come."""
        self.wall += duration_us
        self.monotonic += duration_us
        while self._sleepers and self._sleepers[0][0] <= self.monotonic:
            woken = heapq.heappop(self._sleepers)[2]
            if not woken.done():
                woken.set_result(None)
        await settle()

    async def passes_in_steps(self, duration_us: int, *, step_us: int) -> None:
        """Let time pass as a running process sees it."""
        for _ in range(duration_us // step_us):
            await self.passes(step_us)


class FakeHastyClock(FakeClock):
    """Time that passes only in sleeps, which take none: everybody else runs meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.slept_us: list[int] = []

    async def sleep(self, duration_us: int) -> None:
        """Let the time pass."""
        self.slept_us.append(duration_us)
        await self.passes(duration_us)


async def settle() -> None:
    """Let every task of the loop run as far as it gets."""
    for _ in range(10):
        await asyncio.sleep(0)


@asynccontextmanager
async def beside(*runs: Callable[[], Coroutine[None, None, None]]) -> AsyncIterator[None]:
    """Run what runs until it is cancelled, until the block ends."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(run()) for run in runs]
        await settle()
        yield
        for task in tasks:
            task.cancel()
