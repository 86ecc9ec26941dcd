"""Looks at tenants' files: one at a time for each tenant, on a thread of its own, with a deadline.

A file system that hangs holds one thread of the tenant whose files are on it. That tenant's further
looks are refused until it answers; nobody else waits for it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final, TypeVar

from plexsvc.errors import unavailable
from plexsvc.ids import TenantId

T = TypeVar("T")

LOOK_S: Final = 30.0
"""How long a look may take, those of the same tenant before it included."""


class Looks:
    """The looks of all tenants."""

    def __init__(self, *, limit_s: float = LOOK_S) -> None:
        self.limit_s = limit_s
        self._lanes: dict[TenantId, asyncio.Lock] = {}

    async def look(self, tenant: TenantId, work: Callable[[], T]) -> T:
        """Return what `work` does, which goes on to its end even if its caller leaves.

        Raises:
            PlexError: what `work` raised; `unavailable` when it, or one before it, takes too long.
        """
        lane = self._lanes.setdefault(tenant, asyncio.Lock())
        try:
            async with asyncio.timeout(self.limit_s):
                await lane.acquire()
                # Shielded: the thread goes on when its caller leaves, and tells this very future.
                return await asyncio.shield(_started(lane, work))
        except TimeoutError as error:
            raise unavailable(
                f"files of tenant {tenant!r} could not be looked at in {self.limit_s:g} s; try "
                "again when their file system answers"
            ) from error


def _started(lane: asyncio.Lock, work: Callable[[], T]) -> asyncio.Future[T]:
    """Run `work` on a thread, which frees the lane as it ends."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()
    done.add_done_callback(lambda ended: ended.exception())  # its caller may have left

    def end(tell: Callable[[], None]) -> None:
        lane.release()
        tell()

    def run() -> None:
        try:
            tell = partial(done.set_result, work())
        except BaseException as error:  # noqa: BLE001 - told to the caller
            tell = partial(done.set_exception, error)
        with suppress(RuntimeError):  # the service has ended
            loop.call_soon_threadsafe(end, tell)

    # A daemon: the service ends although a file system hangs.
    threading.Thread(target=run, name="look", daemon=True).start()
    return done
