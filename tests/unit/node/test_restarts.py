"""Restarts counted within a window."""

from __future__ import annotations

from plexsvc.node.restarts import RestartRate


class SetClock:
    """A clock that stands still but for sleeps."""

    def __init__(self) -> None:
        self.now_us = 0

    def wall_us(self) -> int:
        return self.now_us

    def monotonic_us(self) -> int:
        return self.now_us

    async def sleep(self, duration_us: int) -> None:
        self.now_us += duration_us


def test_restarts_of_long_ago_do_not_count() -> None:
    clock = SetClock()
    rate = RestartRate(2, window_us=100, clock=clock)
    left = []
    for _ in range(20):
        left.append(rate.note())
        clock.now_us += 60
    assert set(left[1:]) == {0}, "a part that dies once in a while may do so for ever"


def test_too_many_within_the_window_are_told() -> None:
    rate = RestartRate(2, window_us=100, clock=SetClock())
    assert [rate.note() for _ in range(3)] == [1, 0, -1]


async def test_whoever_waits_goes_on_when_the_window_has_passed() -> None:
    clock = SetClock()
    rate = RestartRate(1, window_us=100, clock=clock)
    rate.note()
    await rate.wait()
    assert clock.now_us == 0
    clock.now_us = 30
    rate.note()
    await rate.wait()
    assert clock.now_us == 100
