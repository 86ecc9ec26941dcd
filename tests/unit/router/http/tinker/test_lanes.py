"""The gate of a lane."""

from __future__ import annotations

import asyncio

from plexsvc.router.http.tinker.lanes import OrderedSemaphore


async def test_lower_numbers_come_first_and_one_that_others_wait_for_at_once() -> None:
    gate, order, done = OrderedSemaphore(2), list[int](), asyncio.Event()

    async def run(seq: int) -> None:
        async with gate.through(seq):
            order.append(seq)
            await done.wait()

    async with asyncio.TaskGroup() as group:
        for seq in (3, 4, 9, 7, 8, 2):
            group.create_task(run(seq))
            await asyncio.sleep(0)
        assert order == [3, 4, 2]
        done.set()
    assert order == [3, 4, 2, 7, 8, 9]
