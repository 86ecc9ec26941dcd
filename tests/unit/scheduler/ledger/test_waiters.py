"""Whoever waits for an id is told once, and nothing is kept of who left."""

from __future__ import annotations

import asyncio

import pytest

from plexsvc.scheduler.ledger.waiters import Waiters


async def test_all_who_wait_for_an_id_are_told_and_nobody_else() -> None:
    waiters = Waiters[str, int]()
    async with asyncio.TaskGroup() as group:
        first, second = (group.create_task(waiters.wait("a")) for _ in range(2))
        other = group.create_task(waiters.wait("b"))
        await asyncio.sleep(0)
        waiters.tell("a", 1)
        assert [await first, await second] == [1, 1]
        assert not other.done()
        waiters.tell("b", 2)
    assert (other.result(), waiters.waiting) == (2, {})


async def test_one_who_gives_up_leaves_the_others_waiting() -> None:
    waiters = Waiters[str, int]()
    async with asyncio.TaskGroup() as group:
        leaving, staying = (group.create_task(waiters.wait("a")) for _ in range(2))
        await asyncio.sleep(0)
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        waiters.tell("a", 1)
    assert (staying.result(), waiters.waiting) == (1, {})
