"""Timers that still mean something: told to nobody once what they bound is over."""

from __future__ import annotations

import pytest

from plexsvc.scheduler.core.events import PayloadStaged, TimerFired
from tests.fakes.fake_world import FakeWorld, op_id


@pytest.fixture
def world() -> FakeWorld:
    world = FakeWorld()
    world.join()
    world.bring_up("a")
    return world


def keys(world: FakeWorld, kind: str) -> list[str]:
    return [key for key in world.timers if key.startswith(f"{kind}/")]


def test_the_wait_for_a_payload_is_over_when_it_arrived(world: FakeWorld) -> None:
    world.submit("staged", job="a", seq=1, is_staged=False)
    (key,) = keys(world, "stage")
    assert world.core.view.awaits(key)
    world.tell(PayloadStaged(at_us=world.tick(), operation_id=op_id("staged")))
    assert not world.core.view.awaits(key)


def test_the_wait_for_a_missing_number_or_operation_is_over_when_it_came(world: FakeWorld) -> None:
    world.submit("late", job="a", seq=2, after=("before",))
    (gap,) = keys(world, "gap")
    assert world.core.view.awaits(gap)
    world.submit("first", job="a", seq=1)
    assert not world.core.view.awaits(gap)
    world.drain()
    (after,) = keys(world, "after")
    assert world.core.view.awaits(after)
    world.submit("before", job="a", seq=3)  # a circle: refused
    assert not world.core.view.awaits(after)


def test_the_wait_for_processes_is_over_when_they_came_up(world: FakeWorld) -> None:
    (spawn,) = keys(world, "spawn")
    assert not world.core.view.awaits(spawn)
    world.job("b")
    world.deploy("b")
    assert [world.core.view.awaits(key) for key in keys(world, "spawn")] == [False, True]


def test_nothing_is_awaited_of_a_job_that_is_gone_and_nothing_would_follow(
    world: FakeWorld,
) -> None:
    world.submit("staged", job="a", seq=2, is_staged=False)
    world.end("a")
    world.drain()
    assert world.timers
    for key in world.timers:
        assert not world.core.view.awaits(key), key
        assert world.tell(TimerFired(at_us=world.tick(10**12), key=key)) == []
