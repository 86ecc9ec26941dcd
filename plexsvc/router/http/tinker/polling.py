"""Samples that ended, told to a sampler's client many at once: one request waits for thousands."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, Final

from plexsvc.router.http.tinker.sessions import TinkerSession

MAX_ENDED: Final = 4096
"""Clients of a session's samplers that are known; others are told as new ones."""


class FinishedRequests:
    """Requests of one client of a sampler that ended, in the order in which they did.

    Cursors begin with the wall clock, so that those of a router that follows are larger.
    """

    def __init__(self, now_us: int) -> None:
        self._cursor = now_us
        self._kept: dict[str, tuple[int, str]] = {}
        """Cursor and state, by request."""
        self._added = asyncio.Event()

    def add(self, request_id: str, *, failed: bool) -> None:
        """Note that a request ended."""
        self._cursor += 1
        self._kept[request_id] = self._cursor, "failed" if failed else "finished"
        self._added.set()

    def forget(self, request_id: str) -> None:
        """Tell of a request no longer: its answer was read."""
        self._kept.pop(request_id, None)

    async def after(self, cursor: int, *, hold_s: float) -> dict[str, Any]:
        """Return what ended after a cursor, once something did, or nothing in time."""
        for old in [name for name, (at, _) in self._kept.items() if at <= cursor]:
            del self._kept[old]
        if not self._kept:
            self._added.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(hold_s):
                    await self._added.wait()
        completions = [
            {"state": state, "request_id": request_id}
            for request_id, (_, state) in self._kept.items()
        ]
        newest = max((at for at, _ in self._kept.values()), default=cursor)
        return {"completions": completions, "cursor": newest}


def ended_of(
    session: TinkerSession, sampler_id: str, clone: int, *, now_us: int
) -> FinishedRequests:
    """Return what ended of a sampler's client."""
    key = sampler_id, clone
    if key not in session.ended:
        if len(session.ended) >= MAX_ENDED:
            del session.ended[next(iter(session.ended))]
        session.ended[key] = FinishedRequests(now_us)
    found: FinishedRequests = session.ended.pop(key)
    session.ended[key] = found  # the last that was used
    return found
