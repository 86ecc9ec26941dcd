"""Order line to a rank: requests and replies as frames, without gRPC.

Theory of operation. One connection to the Unix socket of each rank, opened with the first
order, carries frames (`framing`) both ways; replies come by number. A process that dies ends its
connections, so those who wait hear of it at once. A process that is stopped does not: whoever sends
orders watches over the rank meanwhile. A line that broke is opened again by the next order; a
sender that asks again attaches to what runs or gets the recorded answer.
"""

from __future__ import annotations

import asyncio
from typing import Final, Generic, TypeVar, cast

from google.protobuf.message import DecodeError, Message

from plexsvc.errors import PlexError
from plexsvc.frames import framing

Reply = TypeVar("Reply", bound=Message)

CONNECT_S: Final = 10.0
"""Longest time that opening a line may take."""


class OrderLine(Generic[Reply]):
    """Orders to one peer, any number at a time; opened when first used and again when it broke."""

    def __init__(self, path: str, *, reply: type[Reply]) -> None:
        self._reply = reply
        self._path = path
        self._opening = asyncio.Lock()
        self._line: _Connection[Reply] | None = None
        self._is_closed = False

    async def execute(self, request: Message) -> Reply:
        """Return the peer's reply.

        Raises:
            OSError: the line broke, or could not be opened in time (`TimeoutError`); whether the
                operation ran is not known, and asking again is safe.
            PlexError: `payload_too_large`; it was not sent.
        """
        line = self._line
        if line is None or line.is_lost:
            line = await self._open()
        number, reply = line.expect()
        try:
            line.transport.write(framing.encode(number, request.SerializeToString()))
            return await reply
        finally:
            line.leave(number)

    def close(self) -> None:
        """Close the line; callers that wait get `ConnectionAbortedError`."""
        self._is_closed = True
        if self._line is not None:
            self._line.abort("the line was closed")

    async def _open(self) -> _Connection[Reply]:
        async with self._opening, asyncio.timeout(CONNECT_S):
            # Another order may have opened it while this one waited.
            line = self._line
            if line is None or line.is_lost:
                _, line = await asyncio.get_running_loop().create_unix_connection(
                    lambda: _Connection(self._reply), self._path
                )
                self._line = line
        if self._is_closed:
            line.abort("the line was closed")
            raise ConnectionAbortedError("the line was closed")
        return line


class _Connection(asyncio.Protocol, Generic[Reply]):
    """One connection and the futures of the replies due on it."""

    def __init__(self, reply: type[Reply]) -> None:
        self._reply = reply
        self._loop = asyncio.get_running_loop()
        self._reader = framing.FrameReader()
        self._due: dict[int, asyncio.Future[Reply]] = {}
        self._last = 0
        self.transport: asyncio.Transport
        self._why = "the other end closed the line"
        self.is_lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass of it

    def data_received(self, data: bytes) -> None:
        try:
            for number, body in self._reader.feed(data):
                future = self._due.get(number)  # its asker takes it out, read or not
                if future is not None and not future.done():
                    future.set_result(self._reply.FromString(body))
        except (PlexError, DecodeError) as error:
            self.abort(str(error))

    def connection_lost(self, exc: Exception | None) -> None:
        self._lose(f"{type(exc).__name__}: {exc}" if exc is not None else self._why)

    def expect(self) -> tuple[int, asyncio.Future[Reply]]:
        """Return the next order's number, to be left in any case, and its reply to come."""
        if self.is_lost:
            raise ConnectionResetError(self._why)
        self._last += 1
        future: asyncio.Future[Reply] = self._loop.create_future()
        self._due[self._last] = future
        return self._last, future

    def leave(self, number: int) -> None:
        """Wait for a reply no more."""
        self._due.pop(number, None)

    def abort(self, why: str) -> None:
        """Give the connection up."""
        self.transport.abort()
        self._lose(why)

    def _lose(self, why: str) -> None:
        if self.is_lost:
            return
        self.is_lost, self._why = True, why
        for future in self._due.values():
            if not future.done():
                future.set_exception(ConnectionResetError(why))
