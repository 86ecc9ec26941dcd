"""Clocks: the only place that reads the time or sleeps; tests and the simulator bring their own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final, Protocol

TICK_US: Final = 250_000
MAX_LATE_US: Final = 1_000_000
"""A process whose clock was not read for so long beyond a tick was stopped, not merely busy."""


class Clock(Protocol):
    """What time it is, in integer microseconds."""

    def wall_us(self) -> int:
        """Return microseconds since the epoch."""

    def monotonic_us(self) -> int:
        """Return microseconds of this node's monotonic clock; only differences mean anything."""

    async def sleep(self, duration_us: int) -> None:
        """Return after `duration_us` of this clock."""


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


class ServiceClock:
    """The time of a process that others rely on: no step of the machine's time reaches it.

    `wall_us` is the wall time of its making and the monotonic time since. `monotonic_us` stands
    still while the process does (SIGSTOP, a suspended machine, a blocked event loop): whoever had
    ten seconds left to be heard has them still when it goes on. It is read at least every tick
    while `run` runs; a longer silence is a gap, and `on_gap` is told its microseconds.
    """

    def __init__(self, clock: Clock, *, on_gap: Callable[[int], None]) -> None:
        self._clock = clock
        self._on_gap = on_gap
        self._start_us = clock.wall_us() - clock.monotonic_us()
        self._stood_us = 0
        self._read_us: int | None = None

    def wall_us(self) -> int:
        """Return microseconds since the epoch; they only grow."""
        return self._start_us + self._clock.monotonic_us()

    def monotonic_us(self) -> int:
        """Return microseconds in which the process ran; only differences mean anything."""
        now_us = self._clock.monotonic_us()
        if self._read_us is not None:
            late_us = now_us - self._read_us - TICK_US
            if late_us > MAX_LATE_US:
                self._stood_us += late_us
                self._on_gap(late_us)
            self._read_us = now_us
        return now_us - self._stood_us

    async def sleep(self, duration_us: int) -> None:
        """Return after `duration_us` of the machine's monotonic clock, which may be too early."""
        await self._clock.sleep(duration_us)

    async def run(self) -> None:
        """Notice gaps until cancelled."""
        self._read_us = self._clock.monotonic_us()
        try:
            while True:
                await self._clock.sleep(TICK_US)
                self.monotonic_us()
        finally:
            self._read_us = None


async def wait_at_most(changed: asyncio.Event, wait_us: int, *, clock: Clock) -> None:
    """Return when `changed` is set; set it after `wait_us`."""

    async def ring() -> None:
        await clock.sleep(wait_us)
        changed.set()

    async with asyncio.TaskGroup() as group:
        alarm = group.create_task(ring())
        await changed.wait()
        alarm.cancel()
