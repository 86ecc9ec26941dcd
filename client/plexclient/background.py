"""The event loop thread of a connection: every call runs on it as a coroutine."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Generic, TypeVar

from plexclient.errors import ErrorCode, PlexError, bad_request

R = TypeVar("R")
JOIN_S = 10.0


class Background:
    """A running loop; `start` hands it work to await, `close` cancels what is left and joins it."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._ready = threading.Event()
        self._lock = threading.Lock()
        self._is_closed = False
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._main()), name="plexclient", daemon=True
        )
        self._thread.start()
        self._ready.wait()

    def start(
        self, make: Callable[[], Awaitable[R]], *, future: Future[R] | None = None
    ) -> Future[R]:
        """Run `make()` on the loop, in the order of the calls to `start`; return its future.

        The future is already running: giving up waiting for it does not undo the operation.
        """
        future = Future() if future is None else future
        future.set_running_or_notify_cancel()
        if not self.is_own:
            future.set_exception(
                bad_request(
                    "this connection was made in another process, of which this one is a fork; "
                    "connect here, or make the calls there"
                )
            )
            return future
        with self._lock:
            if self._is_closed:
                future.set_exception(_closed())
            else:
                self._loop.call_soon_threadsafe(self._group.create_task, _settle(make, future))
        return future

    def run(self, make: Callable[[], Awaitable[R]]) -> R:
        """Return what `make()` returns on the loop.

        Raises:
            PlexError: what it raised; `bad_request`, when called from a future's callback.
        """
        self.check_may_block()
        return self.start(make).result()

    def pull(self, source: AsyncGenerator[R]) -> Generator[R]:
        """Yield what `source` yields on the loop; left early, it is closed there."""
        pulled = _Pulled(source)
        try:
            while (item := self.run(pulled.next)) is not None:
                yield item
        finally:
            self.start(pulled.aclose)

    async def pull_aio(self, source: AsyncGenerator[R]) -> AsyncGenerator[R]:
        """Yield the same on the caller's own event loop."""
        pulled = _Pulled(source)
        try:
            while (item := await asyncio.wrap_future(self.start(pulled.next))) is not None:
                yield item
        finally:
            self.start(pulled.aclose)

    @property
    def is_own(self) -> bool:
        """Whether this is the process that made the loop: a fork has its memory and no thread."""
        return os.getpid() == self._pid

    def check_may_block(self) -> None:
        """Refuse to block the loop's own thread.

        Raises:
            PlexError: `bad_request`, when called from a future's callback.
        """
        if threading.get_ident() == self._thread.ident:
            raise bad_request(
                "a blocking call was made from a future's callback, which runs on the thread that "
                "would answer it; use .submit there"
            )

    def close(self) -> None:
        """Cancel what still runs, answer its futures with `cancelled`, and join the thread."""
        if not self.is_own:
            return
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(JOIN_S)

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(_report)
        self._stop = asyncio.Event()
        with suppress(asyncio.CancelledError):
            async with asyncio.TaskGroup() as self._group:
                self._ready.set()
                await self._stop.wait()
                # What was started before `close` has made its first step by now, so it hears of
                # this and answers its future.
                raise asyncio.CancelledError


class _Pulled(Generic[R]):
    """A generator of the loop that is read from elsewhere. It yields no None."""

    def __init__(self, source: AsyncGenerator[R]) -> None:
        self._source = source
        self._reading: asyncio.Task[Any] | None = None

    async def next(self) -> R | None:
        """Return the next item, None at the end."""
        self._reading = asyncio.current_task()
        return await anext(self._source, None)

    async def aclose(self) -> None:
        """Close the generator. Whoever was interrupted while it waited has left it at work."""
        if self._reading is not None and not self._reading.done():
            self._reading.cancel()  # a generator at work refuses to be closed
            await asyncio.wait({self._reading})
        await self._source.aclose()


async def _settle(make: Callable[[], Awaitable[R]], future: Future[R]) -> None:
    try:
        value = await make()
    except asyncio.CancelledError:
        future.set_exception(_closed())
        raise
    except Exception as error:  # noqa: BLE001 - every outcome belongs to whoever holds the future
        future.set_exception(error)
    else:
        future.set_result(value)


def _closed() -> PlexError:
    return PlexError(
        ErrorCode.CANCELLED,
        "the connection was closed before the call was answered; keep `with plex.connect(...)` "
        "open until its calls have returned",
    )


def _report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Drop what gRPC's poller, which all loops of a process share, says of others; report the rest.

    Another loop took its wake-up byte, or the loop of an event is closed, with its connection.
    """
    error = context.get("exception")
    is_of_another = isinstance(error, BlockingIOError) or str(error) == "Event loop is closed"
    if is_of_another and "Poller" in str(context):
        return
    loop.default_exception_handler(context)
