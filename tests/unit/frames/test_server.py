"""Lines of orders between two event loops' ends: answers as they come, breaks, failures, ports."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest

from plexclient.wire.v1 import operations_pb2 as ops
from plexsvc.frames import framing, server
from plexsvc.frames.line import OrderLine

WAIT_S = 20.0
Line = OrderLine[ops.OperationResult]


class Scheduler:
    """Answers an operation with its id, once its gate (if it has one) is open."""

    def __init__(self) -> None:
        self.gates: dict[bytes, asyncio.Event] = {}
        self.entered = asyncio.Event()
        self.cancelled: asyncio.Queue[bytes] = asyncio.Queue()

    async def answer(self, order: bytes) -> bytes:
        operation_id = ops.Operation.FromString(order).operation_id
        if operation_id == b"bug":
            raise RuntimeError("a bug of the scheduler")
        self.entered.set()
        try:
            if operation_id in self.gates:
                await self.gates[operation_id].wait()
        except asyncio.CancelledError:
            self.cancelled.put_nowait(operation_id)
            raise
        return ops.OperationResult(operation_id=operation_id).SerializeToString()


def new_line(port: int) -> Line:
    return OrderLine("127.0.0.1", port, reply=ops.OperationResult, is_alive=lambda: True)


async def ask(line: Line, operation_id: bytes) -> bytes:
    result = await line.execute(ops.Operation(operation_id=operation_id), timeout_s=WAIT_S)
    return result.operation_id


@pytest.fixture
def scheduler() -> Scheduler:
    return Scheduler()


@pytest.fixture
async def line(scheduler: Scheduler) -> AsyncIterator[Line]:
    async with server.serving("127.0.0.1", 0, scheduler.answer) as port:
        made = new_line(port)
        yield made
        made.close()


async def test_an_order_that_waits_holds_up_no_other(scheduler: Scheduler, line: Line) -> None:
    scheduler.gates[b"slow"] = asyncio.Event()

    async def others() -> list[bytes]:
        await scheduler.entered.wait()
        found = [await ask(line, b"%d" % n) for n in range(9)]
        scheduler.gates[b"slow"].set()
        return found

    slow, found = await asyncio.gather(ask(line, b"slow"), others())
    assert slow == b"slow"
    assert found == [b"%d" % n for n in range(9)]


async def test_a_line_that_breaks_cancels_what_it_asked_for(
    scheduler: Scheduler, line: Line
) -> None:
    scheduler.gates[b"slow"] = asyncio.Event()

    async def leave() -> None:
        await scheduler.entered.wait()
        line.close()

    broken, _ = await asyncio.gather(ask(line, b"slow"), leave(), return_exceptions=True)
    assert isinstance(broken, ConnectionResetError)
    async with asyncio.timeout(WAIT_S):
        assert await scheduler.cancelled.get() == b"slow"


async def test_an_order_that_fails_ends_its_line_and_the_next_opens_another(line: Line) -> None:
    with pytest.raises(ConnectionResetError):
        await ask(line, b"bug")
    assert await ask(line, b"good") == b"good"


async def test_garbage_closes_its_own_line_and_no_other(scheduler: Scheduler) -> None:
    async with server.serving("127.0.0.1", 0, scheduler.answer) as port:
        line = new_line(port)
        assert await ask(line, b"one") == b"one"
        for garbage in (b"GET / HTTP/1.0\r\n\r\n" * 4, framing.encode(1, b"\xff" * 9)):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(garbage)
            async with asyncio.timeout(WAIT_S):
                left = (await asyncio.gather(reader.read(), return_exceptions=True))[0]
            assert left == b"" or isinstance(left, ConnectionResetError)
            writer.close()
        assert await ask(line, b"two") == b"two"
        line.close()


async def test_leaving_ends_waiting_orders_and_raises_what_made_it_leave(
    scheduler: Scheduler,
) -> None:
    scheduler.gates[b"slow"] = asyncio.Event()

    async def serve(told: asyncio.Future[int]) -> None:
        async with server.serving("127.0.0.1", 0, scheduler.answer) as port:
            told.set_result(port)
            await scheduler.entered.wait()
            raise KeyError("something else")

    told: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def wait() -> bytes:
        return await ask(new_line(await told), b"slow")

    served, broken = await asyncio.gather(serve(told), wait(), return_exceptions=True)
    assert isinstance(served, KeyError)
    assert isinstance(broken, ConnectionResetError)


async def test_a_taken_port_is_an_os_error(scheduler: Scheduler) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OSError, match="in use"):
        async with server.serving("127.0.0.1", taken.getsockname()[1], scheduler.answer):
            raise AssertionError("served on a taken port")
