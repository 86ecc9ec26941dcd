"""Operations on one stream: whose answer is whose, and what its loss means to those who wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest

from plexclient.errors import ErrorCode, PlexError
from plexclient.failures import STATUS_FACT
from plexclient.ids import new_operation_id
from plexclient.operations import Operations
from plexclient.wire.channels import MAX_MESSAGE_BYTES
from plexclient.wire.errors import to_wire
from plexclient.wire.v1 import operations_pb2, service_pb2_grpc

Operation = operations_pb2.Operation
Result = operations_pb2.OperationResult
Script = Callable[["Peer"], Awaitable[None]]
PATIENCE_S = 20.0


class Peer:
    """The other end of one stream, given and taken as bytes."""

    def __init__(self, context: grpc.aio.ServicerContext) -> None:
        self.context = context

    async def greet(self) -> None:
        await self.context.send_initial_metadata(())

    async def take(self, count: int = 1) -> list[Operation]:
        return [Operation.FromString(await self.context.read()) for _ in range(count)]

    async def answer(self, operations: Iterable[Operation]) -> None:
        for operation in operations:
            result = Result(operation_id=operation.operation_id, metrics={"seq": operation.seq})
            await self.context.write(result.SerializeToString())

    async def echo(self) -> None:
        """Answer whatever comes until the client is gone."""
        while (message := await self.context.read()) is not grpc.aio.EOF:
            await self.answer([Operation.FromString(message)])


async def echo(peer: Peer) -> None:
    await peer.greet()
    await peer.echo()


@asynccontextmanager
async def scripted(*scripts: Script) -> AsyncIterator[Operations]:
    """Yield operations on a router whose streams follow `scripts`, one each."""
    left = list(scripts)

    async def operate(_: object, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        await left.pop(0)(Peer(context))

    server = grpc.aio.server()
    handlers: Any = grpc.stream_stream_rpc_method_handler(operate)
    methods = {"Operate": handlers} if scripts else {}
    handler = grpc.method_handlers_generic_handler("plexsvc.v1.Router", methods)
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        operations = Operations(service_pb2_grpc.RouterStub(channel).Operate)
        try:
            yield operations
        finally:
            await operations.aclose()
            await server.stop(0)
    assert not left, "not every stream was opened"


def noop(seq: int) -> Operation:
    return Operation(operation_id=new_operation_id(), seq=seq, noop=operations_pb2.Noop())


async def ask(operations: Operations, operation: Operation) -> float:
    result = await operations.ask(operation, timeout_s=PATIENCE_S)
    return result.metrics["seq"]


async def failure(attempt: Awaitable[object]) -> PlexError:
    with pytest.raises(PlexError) as caught:
        await attempt
    return caught.value


async def test_answers_in_any_order_reach_those_who_asked() -> None:
    async def backwards(peer: Peer) -> None:
        await peer.greet()
        await peer.answer(reversed(await peer.take(8)))
        await peer.echo()

    async with scripted(backwards) as operations:
        asked = [ask(operations, noop(seq)) for seq in range(1, 9)]
        assert await asyncio.gather(*asked) == list(range(1, 9))
        assert await ask(operations, noop(9)) == 9


async def test_operations_are_written_in_the_order_they_were_asked_in() -> None:
    seen: list[int] = []

    async def note(peer: Peer) -> None:
        await peer.greet()
        taken = await peer.take(20)
        seen.extend(operation.seq for operation in taken)
        await peer.answer(taken)

    async with scripted(note) as operations:
        await asyncio.gather(*[ask(operations, noop(seq)) for seq in range(20)])
    assert seen == list(range(20))


async def test_a_lost_stream_fails_all_who_wait_and_the_next_opens_another() -> None:
    async def cut(peer: Peer) -> None:
        await peer.greet()
        await peer.answer((await peer.take(10))[:3])
        await peer.context.abort(grpc.StatusCode.UNAVAILABLE, "cut by the test")

    async with scripted(cut, echo) as operations:
        asked = [ask(operations, noop(seq)) for seq in range(10)]
        found = await asyncio.gather(*asked, return_exceptions=True)
        assert found[:3] == [0, 1, 2]
        errors = [error for error in found[3:] if isinstance(error, PlexError)]
        assert len(errors) == len({id(error) for error in errors}) == 7
        assert all(error.retryable for error in errors)
        assert await ask(operations, noop(7)) == 7


async def test_an_end_without_an_error_is_a_loss_too() -> None:
    async def leave(peer: Peer) -> None:
        await peer.greet()
        await peer.take()

    async with scripted(leave) as operations:
        error = await failure(ask(operations, noop(1)))
    assert error.code == ErrorCode.UNAVAILABLE


async def test_bytes_that_are_no_answer_are_a_loss() -> None:
    async def babble(peer: Peer) -> None:
        await peer.greet()
        await peer.take()
        await peer.context.write(b"\xff\xff\xff")
        await peer.context.read()

    async with scripted(babble, echo) as operations:
        error = await failure(ask(operations, noop(1)))
        assert error.code == ErrorCode.UNAVAILABLE
        assert "no OperationResult" in error.message
        assert await ask(operations, noop(2)) == 2


async def test_a_refused_stream_tells_the_service_s_own_error() -> None:
    refusal = PlexError(ErrorCode.UNAUTHENTICATED, "unknown token")

    async def refuse(peer: Peer) -> None:
        trailing = (("plex-error-bin", to_wire(refusal).SerializeToString()),)
        await peer.context.abort(grpc.StatusCode.UNAUTHENTICATED, "no", trailing)

    async with scripted(*[refuse] * 5) as operations:
        for seq in range(5):
            error = await failure(ask(operations, noop(seq)))
            assert (error.code, error.message) == (refusal.code, refusal.message)


async def test_a_router_that_knows_no_streams_is_told_from_a_lost_line() -> None:
    async with scripted() as operations:
        error = await failure(ask(operations, noop(1)))
    assert not error.retryable
    assert "older than this client" in error.message
    assert error.facts[STATUS_FACT] == "UNIMPLEMENTED"


async def test_one_answer_is_for_all_attempts_of_an_operation() -> None:
    came = asyncio.Event()

    async def once(peer: Peer) -> None:
        await peer.greet()
        await peer.take()
        came.set()
        await peer.answer(await peer.take())

    async with scripted(once) as operations:
        async with asyncio.TaskGroup() as group:
            first = group.create_task(ask(operations, operation := noop(3)))
            await came.wait()
            second = group.create_task(ask(operations, operation))
        assert (first.result(), second.result()) == (3, 3)


async def test_an_attempt_that_is_late_disturbs_nobody() -> None:
    late = noop(1)

    async def ignore_the_first(peer: Peer) -> None:
        await peer.greet()
        await peer.take()
        await peer.echo()

    async with scripted(ignore_the_first) as operations:
        error = await failure(operations.ask(late, timeout_s=0.05))
        assert (error.code, error.facts[STATUS_FACT]) == ("unavailable", "DEADLINE_EXCEEDED")
        assert await ask(operations, noop(2)) == 2
        assert await ask(operations, late) == 1


async def test_an_operation_given_up_before_it_was_written_is_not_written() -> None:
    greeted = asyncio.Event()
    seen: list[int] = []

    async def slow(peer: Peer) -> None:
        await greeted.wait()
        await peer.greet()
        taken = await peer.take()
        seen.extend(operation.seq for operation in taken)
        await peer.answer(taken)
        await peer.echo()

    async with scripted(slow) as operations:
        await failure(operations.ask(noop(1), timeout_s=0.02))
        greeted.set()
        assert await ask(operations, noop(2)) == 2
    assert seen == [2]


async def test_an_operation_larger_than_a_message_is_refused_and_cuts_nothing() -> None:
    huge = noop(2)
    huge.payload.inline.data = bytes(MAX_MESSAGE_BYTES)
    async with scripted(echo) as operations:
        assert await ask(operations, noop(1)) == 1
        error = await failure(ask(operations, huge))
        assert error.code == ErrorCode.PAYLOAD_TOO_LARGE
        assert await ask(operations, noop(3)) == 3


async def test_closing_cancels_those_who_wait() -> None:
    came = asyncio.Event()

    async def silent(peer: Peer) -> None:
        await peer.greet()
        await peer.take()
        came.set()
        await peer.context.read()

    async with scripted(silent) as operations, asyncio.TaskGroup() as group:
        waiting = group.create_task(ask(operations, noop(1)))
        await came.wait()
        await operations.aclose()
    assert waiting.cancelled()
