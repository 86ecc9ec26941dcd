"""A stream of operations to a router on a port: any number, any order, each with its answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, TypeAlias

import grpc.aio
import pytest

from plexclient.wire.v1 import operations_pb2 as ops
from plexsvc.errors import ErrorCode
from plexsvc.router.config import RouterConfig
from plexsvc.rpc.errors import error_from
from tests.rigs.router_rig import TENANT, TOKEN, Rig, batch, metadata, start_rig, until

pytestmark = pytest.mark.process

LARGE = batch([400] * 40)
Stream: TypeAlias = "grpc.aio.StreamStreamCall[Any, Any]"
PPO = ops.ForwardBackward(loss="ppo")


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with start_rig() as started:
        yield started


def open_stream(rig: Rig, *, token: str = TOKEN) -> Stream:
    """Return a stream as a client opens it: it waits for the headers before it writes."""
    return rig.client.stub.Operate(metadata=metadata(token), timeout=120)


async def send(stream: Stream, *operations: ops.Operation | bytes) -> None:
    await stream.initial_metadata()
    for operation in operations:
        await stream.write(operation)


def noop(rig: Rig) -> ops.Operation:
    return rig.client.operation(noop=ops.Noop())


def waiting(rig: Rig) -> ops.Operation:
    """Return an operation that is answered when its payload is staged."""
    return rig.client.operation(LARGE, forward_backward=PPO)


async def known(rig: Rig, *operations: ops.Operation) -> None:
    """Return when the scheduler has these operations."""
    await until(lambda: all(op.operation_id in rig.scheduler.records for op in operations))


async def answer(stream: Stream) -> ops.OperationResult:
    result = await stream.read()
    assert isinstance(result, ops.OperationResult)
    return result


async def ended_with(stream: Stream) -> ErrorCode:
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await stream.read()
    return error_from(failure.value).code


async def test_operations_are_answered_as_by_calls_of_their_own(rig: Rig) -> None:
    stream = open_stream(rig)
    good, bad, nameless = noop(rig), noop(rig), noop(rig)
    bad.ClearField("noop")
    bad.forward_backward.loss = "pp0"
    nameless.operation_id = b"short"
    await send(stream, good, bad, nameless)
    found = {}
    for _ in range(3):
        result = await answer(stream)
        found[result.operation_id] = result
    assert found[good.operation_id].state == ops.OPERATION_STATE_ANSWERED
    assert found[bad.operation_id].error.code == ErrorCode.UNKNOWN_LOSS
    assert found[nameless.operation_id].error.code == ErrorCode.BAD_REQUEST
    assert rig.scheduler.records[good.operation_id].operation.tenant == TENANT
    assert (await rig.client.submit(good)).state == ops.OPERATION_STATE_ANSWERED
    assert rig.scheduler.effects == [good.operation_id]


async def test_an_answer_does_not_wait_for_those_before_it(rig: Rig) -> None:
    stream = open_stream(rig)
    first, second = waiting(rig), noop(rig)
    await send(stream, first, second)
    assert (await answer(stream)).operation_id == second.operation_id
    await rig.client.stage(first, LARGE)
    assert (await answer(stream)).operation_id == first.operation_id


@pytest.mark.parametrize("token", ["wrong", ""])
async def test_a_stream_without_a_known_token_is_refused_before_it_is_read(
    rig: Rig, token: str
) -> None:
    stream = open_stream(rig, token=token)
    await stream.initial_metadata()
    assert await ended_with(stream) == ErrorCode.UNAUTHENTICATED


async def test_another_tenants_operations_are_not_found(rig: Rig) -> None:
    stream = open_stream(rig, token="other")
    await send(stream, noop(rig))
    assert (await answer(stream)).error.code == ErrorCode.NOT_FOUND


async def test_bytes_that_are_no_operation_end_the_stream_and_not_what_runs(rig: Rig) -> None:
    method: Any = rig.client.channel.stream_stream("/plexsvc.v1.Router/Operate")
    stream = method(metadata=metadata(), timeout=120)
    operation = waiting(rig)
    await send(stream, operation.SerializeToString())  # as bytes
    await known(rig, operation)
    await stream.write(b"\xff\xff\xff")
    assert await ended_with(stream) == ErrorCode.BAD_REQUEST
    await rig.client.stage(operation, LARGE)
    again = open_stream(rig)
    await send(again, operation)
    assert (await answer(again)).state == ops.OPERATION_STATE_ANSWERED


async def test_beyond_the_limit_an_operation_is_refused_and_what_is_behind_it_is_read() -> None:
    config = RouterConfig(tokens={TOKEN: TENANT}, max_operations_per_stream=2)
    async with start_rig(config=config) as rig:
        stream = open_stream(rig)
        first, second, third = waiting(rig), waiting(rig), noop(rig)
        await send(stream, first, second)
        await known(rig, first, second)
        for _ in range(3):
            await send(stream, third)
            refused = await answer(stream)
            assert refused.operation_id == third.operation_id
            assert refused.error.code == ErrorCode.QUEUE_FULL
            assert refused.error.retryable
            assert "router.max_operations_per_stream" in refused.error.message
        await send(stream, first)  # is under way: takes no further place
        await rig.client.stage(first, LARGE)
        assert (await answer(stream)).operation_id == first.operation_id
        await send(stream, third)
        assert (await answer(stream)).state == ops.OPERATION_STATE_ANSWERED


async def test_an_operation_sent_again_while_under_way_is_answered_once(rig: Rig) -> None:
    stream = open_stream(rig)
    operation, last = waiting(rig), noop(rig)
    await send(stream, operation)
    await known(rig, operation)
    await send(stream, operation, operation, last)
    assert (await answer(stream)).operation_id == last.operation_id
    await rig.client.stage(operation, LARGE)
    await stream.done_writing()
    assert (await answer(stream)).operation_id == operation.operation_id
    assert await stream.read() is grpc.aio.EOF


async def test_a_bug_in_one_operation_answers_it_and_leaves_the_rest(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = open_stream(rig)
    other, broken = waiting(rig), noop(rig)
    await send(stream, other)
    await known(rig, other)

    async def bug(*_: object) -> ops.OperationResult:
        raise ZeroDivisionError("one by none")

    with monkeypatch.context() as patch:
        patch.setattr(rig.scheduler, "submit", bug)
        await send(stream, broken)
        result = await answer(stream)
    assert (result.operation_id, result.error.code) == (broken.operation_id, ErrorCode.INTERNAL)
    await rig.client.stage(other, LARGE)
    assert (await answer(stream)).operation_id == other.operation_id


async def test_a_client_that_has_sent_all_still_gets_its_answers(rig: Rig) -> None:
    stream = open_stream(rig)
    operation = waiting(rig)
    await send(stream, operation)
    await stream.done_writing()
    await known(rig, operation)
    await rig.client.stage(operation, LARGE)
    assert (await answer(stream)).operation_id == operation.operation_id
    assert await stream.read() is grpc.aio.EOF


async def test_nobody_waits_for_a_client_that_is_gone(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    async def wait(*_: object) -> ops.OperationResult:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        raise AssertionError

    monkeypatch.setattr(rig.scheduler, "submit", wait)
    stream = open_stream(rig)
    await send(stream, noop(rig))
    await began.wait()
    assert not ended.is_set()
    stream.cancel()
    assert await asyncio.wait_for(ended.wait(), 120)


async def test_a_router_that_stops_ends_its_streams_when_they_owe_nothing(rig: Rig) -> None:
    idle, busy = open_stream(rig), open_stream(rig)
    operation = waiting(rig)
    await idle.initial_metadata()
    await send(busy, operation)
    await known(rig, operation)
    rig.router.stop()
    assert await ended_with(idle) == ErrorCode.UNAVAILABLE
    await rig.client.stage(operation, LARGE)
    assert (await answer(busy)).operation_id == operation.operation_id
    assert await ended_with(busy) == ErrorCode.UNAVAILABLE
    late = open_stream(rig)
    await late.initial_metadata()
    assert await ended_with(late) == ErrorCode.UNAVAILABLE
