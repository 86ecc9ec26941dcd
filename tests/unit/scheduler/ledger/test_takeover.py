"""A scheduler that takes over deletes what is older than it was configured to keep."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

from plexsvc.clock import SystemClock
from plexsvc.scheduler.config import SchedulerConfig
from plexsvc.scheduler.ledger.takeover import DAY_US, take_over
from plexsvc.store.store import Store

NOW_US = 100 * DAY_US


class FakeClock(SystemClock):
    """A clock that stands."""

    def wall_us(self) -> int:
        return NOW_US


class FakeStore:
    """Keeps what it was told to delete."""

    def __init__(self) -> None:
        self.before_us: list[int] = []

    def fail_orphans(self, *, reason: str, ended_us: int) -> int:
        del reason, ended_us
        return 0

    def forget(self, *, before_us: int) -> int:
        self.before_us.append(before_us)
        return 0

    def profiles(self, *, limit: int) -> list[object]:
        del limit
        return []


async def test_history_is_kept_for_as_many_days_as_configured() -> None:
    store = FakeStore()

    async def run(call: Callable[[], Any]) -> Any:
        await asyncio.sleep(0)
        return call()

    for days in (30, 2):
        await take_over(
            cast("Store", store),
            SchedulerConfig(history_days=days),
            clock=FakeClock(),
            run=run,
            post=lambda _fact: asyncio.get_running_loop().create_future(),
        )
    assert store.before_us == [70 * DAY_US, 98 * DAY_US]
