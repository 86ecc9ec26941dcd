"""Work of an operation can be cancelled while it runs; a deployment's turns are taken in order."""

from __future__ import annotations

import asyncio

import pytest

from plexsvc.errors import ErrorCode, PlexError
from plexsvc.ids import DeploymentId, OperationId
from plexsvc.scheduler.orders.underway import Underway

OP, OTHER = OperationId(b"op"), OperationId(b"other")
ACTOR, CRITIC = DeploymentId("actor"), DeploymentId("critic")


@pytest.fixture
def underway() -> Underway:
    return Underway()


async def work(underway: Underway, began: asyncio.Event) -> PlexError:
    try:
        with underway.cancellable(OP, kind="save"):
            began.set()
            await asyncio.Event().wait()
    except PlexError as error:
        return error
    raise AssertionError("it waits for ever")


async def test_cancelled_work_ends_with_what_was_cancelled(underway: Underway) -> None:
    began = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(work(underway, began))
        await began.wait()
        underway.cancel(OTHER)
        underway.cancel(OP)
    assert task.result().code is ErrorCode.CANCELLED
    assert "save cancelled with its job" in str(task.result())


async def test_work_that_ends_with_the_service_is_no_cancelled_operation(
    underway: Underway,
) -> None:
    began = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(work(underway, began))
        await began.wait()
        task.cancel()
    assert task.cancelled()


async def test_what_is_over_cannot_be_cancelled(underway: Underway) -> None:
    with underway.cancellable(OP, kind="save"):
        pass
    underway.cancel(OP)
    await asyncio.sleep(0)
    with underway.cancellable(OP, kind="save"):
        await asyncio.sleep(0)


async def test_one_deployment_has_one_turn_at_a_time(underway: Underway) -> None:
    async with underway.turn(ACTOR):
        assert underway.turn(ACTOR).locked()
        assert not underway.turn(CRITIC).locked()
    assert not underway.turn(ACTOR).locked()
