"""Order line to a rank: requests and replies as frames, without gRPC.

Theory of operation. One connection to the Unix socket of each rank, opened with the first
order, carries frames (`framing`) both ways; replies come by number. A process that dies ends its
connections, so whoever waits hears of it at once. A process that is stopped does not. While an
answer is due, the line therefore looks every second at the gRPC channel to the rank, which pings.
It is given up when the channel has not been alive for as long as gRPC itself would wait. The sender
then asks again, which attaches to what runs or gets the recorded answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Generic, TypeVar, cast

from google.protobuf.message import DecodeError, Message

from plexsvc.errors import PlexError
from plexsvc.frames import framing

Reply = TypeVar("Reply", bound=Message)

LOOK_S: Final = 1.0
"""How often a line that owes an answer is looked at; its deadlines are that coarse."""

SILENT_LOOKS: Final = 3
"""Looks in a row that find the peer silent before its line is given up."""


class OrderLine(Generic[Reply]):
    """Orders to one peer, any number at a time; opened when first used and again when it broke."""

    def __init__(self, path: str, *, reply: type[Reply], is_alive: Callable[[], bool]) -> None:
        self._reply = reply
        self._path = path
        self._is_alive = is_alive
        self._silent_looks = 0
        self._opening = asyncio.Lock()
        self._line: _Line[Reply] | None = None
        self._is_closed = False

    async def execute(self, request: Message, *, timeout_s: float) -> Reply:
        """Return the peer's reply.

        Raises:
            OSError: the line broke or the time is over (`TimeoutError`); whether the operation ran
                is not known, and asking again is safe.
            PlexError: `payload_too_large`; it was not sent.
        """
        line = self._line
        if line is None or line.is_lost:
            line = await self._open(timeout_s=timeout_s)
        return await line.ask(request.SerializeToString(), timeout_s=timeout_s)

    def close(self) -> None:
        """Close the line; whoever waits gets `ConnectionAbortedError`."""
        self._is_closed = True
        if self._line is not None:
            self._line.abort("the line was closed")

    async def _open(self, *, timeout_s: float) -> _Line[Reply]:
        async with self._opening, asyncio.timeout(timeout_s):
            line = self._line
            if line is None or line.is_lost:
                _, line = await asyncio.get_running_loop().create_unix_connection(
                    lambda: _Line(self._reply, self._is_silent), self._path
                )
                self._line = line
        if self._is_closed:
            line.abort("the line was closed")
            raise ConnectionAbortedError("the line was closed")
        return line

    def _is_silent(self) -> bool:
        """Look once more; return whether enough looks in a row found nobody, on whatever line."""
        self._silent_looks = 0 if self._is_alive() else self._silent_looks + 1
        return self._silent_looks >= SILENT_LOOKS


class _Line(asyncio.Protocol, Generic[Reply]):
    """One connection and the futures of the replies due on it."""

    def __init__(self, reply: type[Reply], is_silent: Callable[[], bool]) -> None:
        self._reply = reply
        self._is_silent = is_silent
        self._loop = asyncio.get_running_loop()
        self._reader = framing.FrameReader()
        self._due: dict[int, tuple[asyncio.Future[Reply], float]] = {}
        self._last = 0
        self._transport: asyncio.Transport | None = None
        self._why = "the other end closed the line"
        self._looking: asyncio.TimerHandle | None = None
        self.is_lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass of it

    def data_received(self, data: bytes) -> None:
        try:
            for number, body in self._reader.feed(data):
                future, _ = self._due.pop(number, (None, 0.0))
                if future is not None and not future.done():
                    future.set_result(self._reply.FromString(body))
        except (PlexError, DecodeError) as error:
            self.abort(str(error))

    def connection_lost(self, exc: Exception | None) -> None:
        self._lose(f"{type(exc).__name__}: {exc}" if exc is not None else self._why)

    async def ask(self, body: bytes, *, timeout_s: float) -> Reply:
        """Send one order and return the reply."""
        if self.is_lost or self._transport is None:
            raise ConnectionResetError(self._why)
        self._last += 1
        number = self._last
        frame = framing.encode(number, body)
        future: asyncio.Future[Reply] = self._loop.create_future()
        self._due[number] = (future, self._loop.time() + timeout_s)
        self._transport.write(frame)
        if self._looking is None:
            self._looking = self._loop.call_later(LOOK_S, self._look)
        try:
            return await future
        finally:
            self._due.pop(number, None)

    def abort(self, why: str) -> None:
        """Give the connection up."""
        if self._transport is not None:
            self._transport.abort()
        self._lose(why)

    def _look(self) -> None:
        """See that a peer that owes answers is alive, and end the waits whose time is over."""
        self._looking = None
        if not self._due or self.is_lost:
            return
        now = self._loop.time()
        for future, end in self._due.values():
            if end <= now and not future.done():
                future.set_exception(TimeoutError("no answer in time"))
        if self._is_silent():
            self.abort("it does not answer pings")
            return
        self._looking = self._loop.call_later(LOOK_S, self._look)

    def _lose(self, why: str) -> None:
        if self.is_lost:
            return
        self.is_lost, self._why = True, why
        if self._looking is not None:
            self._looking.cancel()
        for future, _ in self._due.values():
            if not future.done():
                future.set_exception(ConnectionResetError(why))
