"""The executor steps one engine at a time, takes turns, and runs calls between steps."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial

import pytest

from plexsvc.clock import SystemClock
from plexsvc.rollout.engines.executor import StepExecutor, Steppable
from tests.fakes.fake_clock import FakeClock


class Counter:
    """An engine with a number of steps to make."""

    def __init__(self, name: str, steps: int, trace: list[str]) -> None:
        self.name, self.left, self.trace = name, steps, trace
        self.done = threading.Event()

    def has_work(self) -> bool:
        return self.left > 0

    def step(self) -> None:
        self.left -= 1
        self.trace.append(self.name)
        if not self.left:
            self.done.set()


def test_engines_with_work_take_turns() -> None:
    trace: list[str] = []
    executor = StepExecutor(clock=SystemClock())
    gate = threading.Event()
    first, second = Counter("a", 3, trace), Counter("b", 2, trace)
    holding = executor.call(lambda: gate.wait(120))
    for engine in (first, second):
        executor.call(partial(executor._engines.append, engine))
    gate.set()
    assert holding.result(120)
    assert first.done.wait(120)
    assert second.done.wait(120)
    executor.close()
    assert trace == ["a", "b", "a", "b", "a"]


def test_a_policy_may_hold_everyone_until_a_call_wakes_it() -> None:
    trace: list[str] = []
    is_open = threading.Event()
    executor = StepExecutor(
        lambda ready: ready[0] if ready and is_open.is_set() else None, clock=SystemClock()
    )
    engine = Counter("a", 2, trace)
    executor.add(engine)
    executor.call(lambda: None).result(120)
    assert trace == []
    is_open.set()
    executor.call(lambda: None).result(120)
    assert engine.done.wait(120)
    executor.close()


def test_a_failing_call_tells_its_caller_and_the_thread_goes_on() -> None:
    executor = StepExecutor(clock=SystemClock())
    with pytest.raises(ZeroDivisionError):
        executor.call(lambda: 1 // 0).result(120)
    assert executor.call(lambda: 5).result(120) == 5
    executor.close()


def test_a_removed_engine_is_not_stepped_again() -> None:
    trace: list[str] = []
    executor = StepExecutor(clock=SystemClock())
    engine = Counter("a", 1_000_000_000, trace)
    executor.add(engine)
    executor.remove(engine)
    steps = len(trace)
    executor.call(lambda: None).result(120)
    executor.close()
    assert len(trace) == steps


class Stuck:
    """An engine whose step returns when the test says so."""

    def __init__(self) -> None:
        self.entered, self.leave = threading.Event(), threading.Event()

    def has_work(self) -> bool:
        return not self.leave.is_set()

    def step(self) -> None:
        self.entered.set()
        self.leave.wait(120)


def test_it_tells_how_long_a_step_has_taken_and_nothing_between_steps() -> None:
    clock = FakeClock()
    executor, engine = StepExecutor(clock=clock), Stuck()
    assert executor.step_us == 0
    executor.add(engine)
    assert engine.entered.wait(120)
    clock.monotonic += 5_000_000
    assert executor.step_us == 5_000_000
    engine.leave.set()
    executor.call(lambda: None).result(120)
    assert executor.step_us == 0
    executor.close()


def test_a_policy_that_holds_an_engine_back_is_asked_again() -> None:
    asked = 0

    def fifth(ready: Sequence[Steppable]) -> Steppable | None:
        nonlocal asked
        asked += 1
        return ready[0] if ready and asked > 4 else None

    executor = StepExecutor(fifth, clock=SystemClock())
    engine = Counter("a", 1, [])
    executor.add(engine)
    assert engine.done.wait(120)
    executor.close()


def test_another_policy_can_take_over() -> None:
    executor = StepExecutor(lambda _: None, clock=SystemClock())
    engine = Counter("a", 1, [])
    executor.add(engine)
    executor.follow(lambda ready: ready[0] if ready else None)
    assert engine.done.wait(120)
    executor.close()
