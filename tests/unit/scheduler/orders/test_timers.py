"""Timers of the core: durations, whatever happens to the clock."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from plexsvc.clock import TICK_US, ServiceClock
from plexsvc.scheduler.core.actions import SetTimer
from plexsvc.scheduler.core.events import Event, TimerFired
from plexsvc.scheduler.orders.timers import Timers
from tests.fakes.fake_clock import FakeClock, beside

MINUTE_US = 60_000_000


class Running:
    """Timers on a machine's clock, and the keys that fired."""

    def __init__(self) -> None:
        self.machine = FakeClock()
        self.clock = ServiceClock(self.machine, on_gap=lambda _: None)
        self.fired: list[str] = []
        self.moot: set[str] = set()
        self.timers = Timers(
            self.clock, post=self._heard, is_awaited=lambda key: key not in self.moot
        )

    def set(self, key: str, *, in_us: int) -> None:
        """Set a timer as the core does: at a time of its own clock."""
        self.timers.set(SetTimer(key=key, at_us=self.clock.wall_us() + in_us))

    async def passes(self, duration_us: int) -> None:
        """Let time pass while the process runs."""
        await self.machine.passes_in_steps(duration_us, step_us=TICK_US)

    def _heard(self, event: Event) -> None:
        assert isinstance(event, TimerFired)
        self.fired.append(event.key)


@asynccontextmanager
async def running() -> AsyncIterator[Running]:
    world = Running()
    async with beside(world.clock.run, world.timers.run):
        yield world


async def test_timers_fire_in_the_order_of_their_times() -> None:
    async with running() as world:
        world.set("second", in_us=2 * MINUTE_US)
        world.set("first", in_us=MINUTE_US)
        await world.passes(MINUTE_US)
        assert world.fired == ["first"]
        await world.passes(MINUTE_US)
        assert world.fired == ["first", "second"]


async def test_a_step_of_the_wall_clock_fires_nothing_and_delays_nothing() -> None:
    async with running() as world:
        world.set("watch", in_us=10 * MINUTE_US)
        world.machine.wall += 60 * MINUTE_US
        world.set("retry", in_us=TICK_US)
        await world.passes(TICK_US)
        assert world.fired == ["retry"]
        world.machine.wall -= 120 * MINUTE_US
        world.set("again", in_us=TICK_US)
        await world.passes(TICK_US)
        assert world.fired == ["retry", "again"]


async def test_no_timer_fires_for_time_in_which_the_process_stood_still() -> None:
    async with running() as world:
        world.set("watch", in_us=MINUTE_US)
        await world.machine.passes(10 * MINUTE_US)
        assert world.fired == []
        await world.passes(MINUTE_US)
        assert world.fired == ["watch"]


async def test_a_timer_that_nobody_awaits_any_more_is_not_told() -> None:
    async with running() as world:
        world.set("stage/1", in_us=MINUTE_US)
        world.set("stage/2", in_us=MINUTE_US)
        world.moot = {"stage/1"}
        await world.passes(MINUTE_US)
        assert world.fired == ["stage/2"]
        world.moot.clear()
        await world.passes(MINUTE_US)
        assert world.fired == ["stage/2"]
