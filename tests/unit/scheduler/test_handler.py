"""Handlers of actions: whatever work raises comes back as an event."""

from __future__ import annotations

import asyncio
import inspect

import grpc
import grpc.aio
import pytest

from plexsvc.errors import ErrorCode, PlexError
from plexsvc.ids import WpgId
from plexsvc.scheduler.core.actions import StopWpg
from plexsvc.scheduler.core.events import Event, SpawnFailed, WpgStopped
from plexsvc.scheduler.core.vocabulary import Fault
from plexsvc.scheduler.handler import Handler, close_with

WPG = WpgId("wpg-1")
STOP = StopWpg(wpg_id=WPG)
STOPPED = WpgStopped(wpg_id=WPG)
NOTHING = grpc.aio.Metadata()


def refused() -> PlexError:
    return PlexError(ErrorCode.NO_ROOM, "no room")


async def stop(failure: Exception | None) -> Event | None:
    if failure is not None:
        raise failure
    return STOPPED


def failed(action: StopWpg, fault: Fault) -> Event:
    return SpawnFailed(wpg_id=action.wpg_id, fault=fault)


async def outcome(failure: Exception | None) -> Event | None:
    handler = Handler(StopWpg, lambda _: stop(failure), failed)
    work = handler.perform(STOP)
    assert work is not None
    posted: list[Event] = []
    await handler.finish(STOP, work, posted.append)
    return posted[0] if posted else None


async def test_work_returns_the_outcome() -> None:
    assert await outcome(None) == STOPPED


@pytest.mark.parametrize(
    ("failure", "code", "text"),
    [
        (refused(), ErrorCode.NO_ROOM, "no room"),
        (ExceptionGroup("all", [ExceptionGroup("one", [refused()])]), ErrorCode.NO_ROOM, "no room"),
        (
            grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, NOTHING, NOTHING, "gone"),
            ErrorCode.UNAVAILABLE,
            "call failed with UNAVAILABLE: gone",
        ),
        (KeyError("a"), ErrorCode.INTERNAL, "the scheduler failed: KeyError: 'a'"),
    ],
)
async def test_work_that_raises_fails_with_what_it_raised(
    failure: Exception, code: ErrorCode, text: str
) -> None:
    found = await outcome(failure)
    assert isinstance(found, SpawnFailed)
    assert (found.fault.code, found.fault.message) == (code, text)


async def test_work_that_nobody_waits_for_may_fail() -> None:
    handler = Handler(StopWpg, lambda _: stop(refused()))
    posted: list[Event] = []
    await handler.finish(STOP, stop(refused()), posted.append)
    assert posted == []


async def test_work_that_is_cancelled_tells_nothing() -> None:
    async def wait() -> Event | None:
        await asyncio.Event().wait()
        return STOPPED

    handler = Handler(StopWpg, lambda _: wait(), failed)
    posted: list[Event] = []
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await handler.finish(STOP, wait(), posted.append)
    assert posted == []


async def test_work_whose_task_is_cancelled_before_it_begins_is_closed() -> None:
    work = stop(None)
    posted: list[Event] = []
    handler = Handler(StopWpg, lambda _: work)
    async with asyncio.TaskGroup() as tasks:
        finishing = tasks.create_task(handler.finish(STOP, work, posted.append))
        close_with(finishing, work)
        finishing.cancel()
    assert (inspect.getcoroutinestate(work), posted) == (inspect.CORO_CLOSED, [])
