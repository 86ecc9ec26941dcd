"""The service's clock: steps of the machine's time, and standing still."""

from __future__ import annotations

from plexsvc.clock import MAX_LATE_US, TICK_US, ServiceClock
from tests.fakes.fake_clock import FakeClock, beside

HOUR_US = 3_600_000_000


async def test_a_step_of_the_wall_clock_is_not_seen() -> None:
    machine = FakeClock()
    start_us = machine.wall
    clock = ServiceClock(machine, on_gap=_never)
    await machine.passes(7)
    machine.wall += HOUR_US
    assert clock.wall_us() == start_us + 7
    machine.wall -= 2 * HOUR_US
    assert clock.wall_us() == start_us + 7


async def test_while_the_process_stands_still_wall_time_passes_and_monotonic_time_does_not() -> (
    None
):
    machine, gaps = FakeClock(), list[int]()
    start_us = machine.wall
    clock = ServiceClock(machine, on_gap=gaps.append)
    async with beside(clock.run):
        before_us = clock.monotonic_us()
        await machine.passes(30_000_000)
        assert clock.monotonic_us() - before_us == TICK_US
        assert clock.wall_us() == start_us + 30_000_000
    assert gaps == [30_000_000 - TICK_US]


async def test_the_first_reader_after_a_gap_sees_no_time_pass() -> None:
    machine, gaps = FakeClock(), list[int]()
    clock = ServiceClock(machine, on_gap=gaps.append)
    async with beside(clock.run):
        before_us = clock.monotonic_us()
        machine.monotonic += 30_000_000  # whoever reads it comes before the clock's own tick
        assert clock.monotonic_us() - before_us == TICK_US
    assert len(gaps) == 1


async def test_time_that_is_merely_late_passes() -> None:
    machine = FakeClock()
    clock = ServiceClock(machine, on_gap=_never)
    async with beside(clock.run):
        before_us = clock.monotonic_us()
        await machine.passes(TICK_US + MAX_LATE_US)
        assert clock.monotonic_us() - before_us == TICK_US + MAX_LATE_US


async def test_a_clock_that_does_not_run_finds_no_gaps() -> None:
    machine = FakeClock()
    clock = ServiceClock(machine, on_gap=_never)
    before_us = clock.monotonic_us()
    await machine.passes(HOUR_US)
    assert clock.monotonic_us() - before_us == HOUR_US


def _never(late_us: int) -> None:
    raise AssertionError(late_us)
