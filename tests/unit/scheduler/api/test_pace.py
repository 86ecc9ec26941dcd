"""Pace of questions: whoever asks without end has a tenth of the loop, and nobody else waits."""

from __future__ import annotations

import asyncio

import pytest

from plexsvc.errors import ErrorCode, PlexError
from plexsvc.scheduler.api.pace import MAX_WAITING, Pace
from tests.fakes.fake_clock import FakeClock, settle

COST_US = 20_000


async def test_a_tenant_that_asks_without_end_gets_a_tenth_and_others_are_answered_at_once() -> (
    None
):
    clock = FakeClock()
    pace, answered = Pace(clock), list[tuple[str, int]]()
    start_us = clock.monotonic

    async def ask(tenant: str) -> None:
        async def question() -> None:
            clock.monotonic += COST_US  # answered in one go, nothing else runs meanwhile
            answered.append((tenant, clock.monotonic - start_us))

        await pace.answer(tenant, question)

    async with asyncio.TaskGroup() as group:
        for _ in range(10):
            group.create_task(ask("greedy"))
        await settle()
        group.create_task(ask("other"))
        await settle()
        assert [tenant for tenant, _ in answered] == ["greedy", "other"]
        while len(answered) < 11:
            await clock.passes(1000)
    assert answered[-1][1] >= 9 * 10 * COST_US


async def test_questions_that_wait_are_bounded() -> None:
    clock = FakeClock()
    pace = Pace(clock)

    async def question() -> None:
        clock.monotonic += COST_US

    await pace.answer("greedy", question)
    async with asyncio.TaskGroup() as group:
        waiting = [group.create_task(pace.answer("greedy", question)) for _ in range(MAX_WAITING)]
        await settle()
        with pytest.raises(PlexError, match="wait to be answered") as refused:
            await pace.answer("greedy", question)
        assert refused.value.code is ErrorCode.QUEUE_FULL
        while not all(task.done() for task in waiting):
            await clock.passes(COST_US)


async def test_questions_that_are_being_computed_count_too() -> None:
    clock = FakeClock()
    pace = Pace(clock)

    async def question() -> None:
        await clock.sleep(COST_US)

    async with asyncio.TaskGroup() as group:
        asked = [group.create_task(pace.answer("greedy", question)) for _ in range(MAX_WAITING)]
        await settle()
        with pytest.raises(PlexError, match="wait to be answered"):
            await pace.answer("greedy", question)
        while not all(task.done() for task in asked):
            await clock.passes(COST_US)


async def test_a_question_that_waited_for_a_silent_node_delays_the_next_a_moment_only() -> None:
    clock = FakeClock()
    pace = Pace(clock)

    async def slow() -> None:
        await clock.sleep(10_000_000)

    async with asyncio.TaskGroup() as group:
        group.create_task(pace.answer("a", slow))
        await settle()
        await clock.passes(10_000_000)
        again = group.create_task(pace.answer("a", slow))
        await clock.passes(250_000)
        await clock.passes(10_000_000)
        assert again.done()
