"""Samples that ended, told to a sampler's client many at once: one request waits for thousands."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from plexsvc.router.http.tinker.sessions import Future, TinkerSession


class FinishedRequests:
    """Requests of one client of a sampler that ended, in the order in which they did.

    Cursors begin with the wall clock, so that those of a router that follows are larger.
    """

    def __init__(self, now_us: int) -> None:
        self._cursor = now_us
        self._kept: dict[int, dict[str, str]] = {}
        self._added = asyncio.Event()

    def add(self, request_id: str, *, failed: bool) -> None:
        """Note that a request ended."""
        self._cursor += 1
        self._kept[self._cursor] = {
            "state": "failed" if failed else "finished",
            "request_id": request_id,
        }
        self._added.set()

    async def after(self, cursor: int, *, hold_s: float) -> dict[str, Any]:
        """Return what ended after a cursor, once something did, or nothing in time."""
        for old in [one for one in self._kept if one <= cursor]:
            del self._kept[old]
        if not self._kept:
            self._added.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(hold_s):
                    await self._added.wait()
        return {"completions": list(self._kept.values()), "cursor": max(self._kept, default=cursor)}


def ended_of(
    session: TinkerSession, sampler_id: str, clone: int, *, now_us: int
) -> FinishedRequests:
    """Return what ended of a sampler's client."""
    key = sampler_id, clone
    if key not in session.ended:
        session.ended[key] = FinishedRequests(now_us)
    found: FinishedRequests = session.ended[key]
    return found


def clone_of(future: Future) -> int:
    """Return which of a sampler's clients made a request: its numbers begin with it."""
    return int(future.request_id.rpartition(":")[2]) // 1_000_000_000
