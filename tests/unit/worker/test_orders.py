"""A line of orders, both ends: answers by number, breaks, strangers."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from plexclient.wire.channels import MAX_MESSAGE_BYTES
from plexclient.wire.v1 import worker_pb2
from plexsvc.errors import PlexError
from plexsvc.frames import framing
from plexsvc.frames.line import OrderLine
from plexsvc.worker.orders import MAX_LINES, OrderPort
from plexsvc.worker.thread import RankThread

WAIT_S = 120.0
RankLine = OrderLine[worker_pb2.ExecuteReply]


def new_line(path: Path) -> RankLine:
    return OrderLine(str(path), reply=worker_pb2.ExecuteReply)


class Rank:
    """An order port whose operations say their number, once a gate is open."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.thread = RankThread(name="torch")
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()
        self.executed: list[int] = []
        self.fault: Exception | None = None
        self.pad = b""
        OrderPort(self.thread, self._execute).open(path)

    def _execute(
        self,
        request: worker_pb2.ExecuteRequest,
        reply: Callable[[worker_pb2.ExecuteReply], None],
    ) -> None:
        self.entered.set()
        if self.fault is not None:
            raise self.fault
        assert self.gate.wait(WAIT_S)
        seq = request.operation.seq
        self.executed.append(seq)
        reply(worker_pb2.ExecuteReply(applied_seq=seq, digest=self.pad))

    def line(self) -> RankLine:
        """Return a line to it."""
        return new_line(self.path)


def order(seq: int) -> worker_pb2.ExecuteRequest:
    request = worker_pb2.ExecuteRequest()
    request.operation.seq = seq
    return request


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[Rank]:
    made = Rank(tmp_path / "rank.orders")
    yield made
    made.gate.set()
    made.thread.shutdown()


async def test_orders_run_in_the_order_sent_and_replies_find_their_askers(rank: Rank) -> None:
    line = rank.line()
    asked = [line.execute(order(seq)) for seq in range(100)]
    replies = await asyncio.gather(*asked)
    line.close()
    assert [reply.applied_seq for reply in replies] == list(range(100))
    assert rank.executed == list(range(100))


async def test_large_replies_arrive_whole(rank: Rank) -> None:
    rank.pad = bytes(4 << 20)
    line = rank.line()
    replies = await asyncio.gather(*(line.execute(order(seq)) for seq in range(3)))
    line.close()
    assert [len(reply.digest) for reply in replies] == [4 << 20] * 3


async def test_garbage_closes_its_own_line_and_no_other(rank: Rank) -> None:
    line = rank.line()
    await line.execute(order(1))
    for garbage in (b"GET / HTTP/1.0\r\n\r\n" * 4, framing.encode(1, b"\xff" * 9), bytes(70000)):
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.settimeout(WAIT_S)
            stranger.connect(str(rank.path))
            stranger.sendall(garbage)
            left = await asyncio.to_thread(_read_to_end, stranger)
            assert left in {b"", None}
    assert (await line.execute(order(2))).applied_seq == 2
    line.close()
    assert rank.executed == [1, 2]


def _read_to_end(sock: socket.socket) -> bytes | None:
    try:
        return sock.recv(100)
    except ConnectionResetError:
        return None


async def test_an_order_that_raises_closes_its_line_and_is_heard_of(rank: Rank) -> None:
    rank.fault, line = MemoryError("no more"), rank.line()
    with pytest.raises(OSError, match=r"."):
        await line.execute(order(1))
    rank.fault = None
    assert (await line.execute(order(1))).applied_seq == 1
    line.close()


async def test_lines_beyond_the_limit_push_out_the_oldest(rank: Rank) -> None:
    lines = [rank.line() for _ in range(MAX_LINES + 1)]
    for seq, line in enumerate(lines):
        await line.execute(order(seq))
    again = await asyncio.gather(*(line.execute(order(99)) for line in lines[1:]))
    assert len(again) == MAX_LINES
    for line in lines:
        line.close()


async def test_a_line_that_closes_fails_what_waits_and_the_operation_ends(rank: Rank) -> None:
    rank.gate.clear()
    line = rank.line()

    async def close() -> None:
        await asyncio.to_thread(rank.entered.wait, WAIT_S)
        line.close()

    waiting = line.execute(order(1))
    broken, _ = await asyncio.gather(waiting, close(), return_exceptions=True)
    assert isinstance(broken, ConnectionResetError), broken
    with pytest.raises(OSError, match="closed"):
        await line.execute(order(2))
    rank.gate.set()
    again = rank.line()
    assert (await again.execute(order(2))).applied_seq == 2
    again.close()
    assert rank.executed == [1, 2]


async def test_nobody_at_the_socket_is_an_error_at_once(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(tmp_path / "left.orders"))
    with pytest.raises(ConnectionRefusedError):
        await new_line(tmp_path / "left.orders").execute(order(1))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
async def test_a_process_of_another_user_is_not_heard(rank: Rank, tmp_path: Path) -> None:
    rank.path.chmod(0o666)
    for directory in (tmp_path, *tmp_path.parents):
        if directory.stat().st_uid == os.geteuid() and directory.is_relative_to("/tmp"):
            directory.chmod(directory.stat().st_mode | 0o055)
    frame = framing.encode(1, order(1).SerializeToString())
    program = (
        "import os, socket, sys\nos.setgid(65534); os.setuid(65534)\n"
        "line = socket.socket(socket.AF_UNIX); line.connect(sys.argv[1])\n"
        "line.settimeout(20)\n"
        "try:\n    line.sendall(bytes.fromhex(sys.argv[2]))\n    print(len(line.recv(9)))\n"
        "except ConnectionError:\n    print(0)\n"
    )
    process = await asyncio.create_subprocess_exec(  # noqa: TID251 - no gRPC runs yet
        *(sys.executable, "-Ic", program, str(rank.path), frame.hex()),
        stdout=asyncio.subprocess.PIPE,
    )
    said, _ = await process.communicate()
    assert (process.returncode, said, rank.executed) == (0, b"0\n", [])


async def test_an_order_too_large_is_not_sent(rank: Rank) -> None:
    line = rank.line()
    huge = order(1)
    huge.wpg_id = "x" * (MAX_MESSAGE_BYTES + 1)
    with pytest.raises(PlexError) as caught:
        await line.execute(huge)
    assert caught.value.code == "payload_too_large"
    line.close()
    assert rank.executed == []


async def test_a_reply_that_cannot_be_read_ends_the_wait_for_it(tmp_path: Path) -> None:
    """A rank of another release, for instance, whose frames are whole."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(framing.encode(1, b"\xff"))
        await reader.read()
        writer.close()

    path = tmp_path / "rank.orders"
    async with await asyncio.start_unix_server(answer, path):
        line = new_line(path)
        with pytest.raises(ConnectionResetError, match="parsing"):
            await asyncio.wait_for(line.execute(order(1)), WAIT_S)
        line.close()
