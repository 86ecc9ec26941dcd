"""Timers of the core: `SetTimer` sets one, and `TimerFired` tells that it is due.

The core names a time of day. What is waited for is a duration, on the monotonic clock: a step of
the wall clock fires nothing and delays nothing, and while the process stands still no time passes.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Mapping
from typing import Any

from plexsvc.clock import Clock, wait_at_most
from plexsvc.scheduler.core.actions import SetTimer
from plexsvc.scheduler.core.events import Post, TimerFired
from plexsvc.scheduler.handler import Handler


class Timers:
    """Posts `TimerFired` when a key's time has come; setting a key again replaces its time.

    What nobody awaits any more (`is_awaited(key)`) is not posted: it costs no row of the journal.
    """

    def __init__(self, clock: Clock, *, post: Post, is_awaited: Callable[[str], bool]) -> None:
        self._clock = clock
        self._post = post
        self._is_awaited = is_awaited
        self._due: dict[str, int] = {}
        self._heap: list[tuple[int, str]] = []
        self._changed = asyncio.Event()

    def handlers(self) -> list[Handler[Any]]:
        """Return the handler of timers."""
        return [Handler(SetTimer, self.set, is_internal=True)]

    def set(self, action: SetTimer) -> None:
        """Have a key fire when the time until `at_us` has passed."""
        left_us = action.at_us - self._clock.wall_us()  # read first: no timer may fire early
        due_us = self._clock.monotonic_us() + left_us
        due = (due_us, action.key)
        self._due[action.key] = due_us
        heapq.heappush(self._heap, due)
        if self._heap[0] == due:
            self._changed.set()

    def set_all(self, times: Mapping[str, int]) -> None:
        """Have every key fire at its time."""
        for key, at_us in times.items():
            self.set(SetTimer(key=key, at_us=at_us))

    async def run(self) -> None:
        """Fire keys as they come due, until cancelled."""
        while True:
            self._changed.clear()
            wait_us = self._fire_due()
            if wait_us is None:
                await self._changed.wait()
                continue
            await wait_at_most(self._changed, wait_us, clock=self._clock)

    def _fire_due(self) -> int | None:
        """Fire what is due; return the time to the next, or `None` without one."""
        while self._heap:
            due_us, key = self._heap[0]
            is_current = self._due.get(key) == due_us
            wait_us = due_us - self._clock.monotonic_us()
            if is_current and wait_us > 0:
                return wait_us
            heapq.heappop(self._heap)
            if is_current:
                del self._due[key]
                if self._is_awaited(key):
                    self._post(TimerFired(key=key))
        return None
