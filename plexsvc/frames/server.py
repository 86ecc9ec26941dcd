"""The asyncio end of lines of orders (`orders`): each order answered by a task of its own."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final, cast

from plexsvc.errors import PlexError
from plexsvc.frames import framing
from plexsvc.log import Log

log = Log(__name__)

Answer = Callable[[bytes], Awaitable[bytes]]
"""Returns the reply to an order; an order it fails on, or whose line broke, ends its line."""

MAX_OPEN: Final = 4096
"""Orders of one line under way; more wait in the line."""


@asynccontextmanager
async def serving(host: str, port: int, answer: Answer) -> AsyncIterator[int]:
    """Answer orders on `host`; yield the port, a free one for 0.

    Raises:
        OSError: the address cannot be listened on.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, port), family=family)
    lines: set[_Served] = set()
    failure: BaseException | None = None
    async with asyncio.TaskGroup() as tasks:
        server = await asyncio.get_running_loop().create_server(
            lambda: _Served(answer, tasks=tasks, lines=lines), sock=listener
        )
        try:
            yield listener.getsockname()[1]
        except BaseException as error:  # noqa: BLE001 - raised below, as it was and in no group
            failure = error
        server.close()
        for line in list(lines):
            line.abort()
    if failure is not None:
        raise failure


class _Served(asyncio.Protocol):
    """One connection and the tasks that answer its orders; they are cancelled when it breaks."""

    def __init__(self, answer: Answer, *, tasks: asyncio.TaskGroup, lines: set[_Served]) -> None:
        self._answer = answer
        self._tasks = tasks
        self._lines = lines
        self._reader = framing.FrameReader()
        self._open: set[asyncio.Task[None]] = set()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass of it
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._lines.add(self)

    def data_received(self, data: bytes) -> None:
        try:
            for number, body in self._reader.feed(data):
                task = self._tasks.create_task(self._run(number, body))
                self._open.add(task)
                task.add_done_callback(self._ended)
        except PlexError as error:
            log.warning("line of orders closed", why=error)
            self.abort()
        if len(self._open) >= MAX_OPEN and self._transport is not None:
            self._transport.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._lines.discard(self)
        for task in self._open:
            task.cancel()

    def abort(self) -> None:
        """Give the connection up."""
        if self._transport is not None:
            self._transport.abort()

    async def _run(self, number: int, body: bytes) -> None:
        try:
            frame = framing.encode(number, await self._answer(body))
        except Exception as error:  # noqa: BLE001 - the edge: one order must not end the server
            log.error("order failed", why=error)  # noqa: TRY400 - Log.error adds the traceback
            self.abort()
        else:
            if self._transport is not None and not self._transport.is_closing():
                self._transport.write(frame)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._open.discard(task)
        transport = self._transport
        if len(self._open) == MAX_OPEN - 1 and transport is not None and not transport.is_closing():
            transport.resume_reading()
