"""Clocks: the only place that reads the time or sleeps; tests and the simulator bring their own."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """What time it is, in integer microseconds."""

    def wall_us(self) -> int:
        """Return microseconds since the epoch."""
        ...

    def monotonic_us(self) -> int:
        """Return microseconds of this node's monotonic clock; only differences mean anything."""
        ...

    async def sleep(self, duration_us: int) -> None:
        """Return after `duration_us` of this clock."""
        ...


class SystemClock:
    """The machine's clocks."""

    def wall_us(self) -> int:
        """Return microseconds since the epoch."""
        return time.time_ns() // 1000

    def monotonic_us(self) -> int:
        """Return microseconds of the monotonic clock (shared by all processes of a Linux host)."""
        return time.monotonic_ns() // 1000

    async def sleep(self, duration_us: int) -> None:
        """Sleep on the event loop."""
        await asyncio.sleep(duration_us / 1e6)


async def wait_at_most(changed: asyncio.Event, wait_us: int, *, clock: Clock) -> None:
    """Return when `changed` is set; set it after `wait_us`."""

    async def ring() -> None:
        await clock.sleep(wait_us)
        changed.set()

    async with asyncio.TaskGroup() as group:
        alarm = group.create_task(ring())
        await changed.wait()
        alarm.cancel()
