"""Looks at files whose file system hangs."""

from __future__ import annotations

import asyncio
import threading
from functools import partial

import pytest

from plexsvc.errors import ErrorCode, PlexError
from plexsvc.ids import TenantId
from plexsvc.router.looks import LOOK_S, Looks

A, B = TenantId("team-a"), TenantId("team-b")


async def test_files_that_hang_hold_one_thread_and_their_own_tenant() -> None:
    made, answers = Looks(limit_s=0.05), threading.Event()
    before = threading.active_count()
    for _ in range(3):
        with pytest.raises(PlexError, match="'team-a' could not be looked at") as caught:
            await made.look(A, answers.wait)
        assert caught.value.code is ErrorCode.UNAVAILABLE
        assert threading.active_count() == before + 1
        assert await made.look(B, lambda: "theirs") == "theirs"
    answers.set()
    made.limit_s = LOOK_S
    assert await made.look(A, lambda: "its own") == "its own"


async def test_a_caller_that_leaves_frees_no_thread() -> None:
    made, answers, ran = Looks(), threading.Event(), list[int]()

    def work(number: int) -> None:
        ran.append(number)
        answers.wait()

    async with asyncio.TaskGroup() as group:
        for number in range(3):
            asked = group.create_task(made.look(A, partial(work, number)))
            for _ in range(3):
                await asyncio.sleep(0)
            asked.cancel()
    assert ran == [0]
    answers.set()
    assert await made.look(A, ran.copy) == [0]


async def test_what_a_look_raises_is_its_callers() -> None:
    made = Looks()
    with pytest.raises(ZeroDivisionError):
        await made.look(A, lambda: 1 // 0)
    assert await made.look(A, lambda: 1) == 1
