"""Inbox of the driver: facts that wait to be decided, and callers that wait for what follows."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from plexsvc.clock import Clock
from plexsvc.errors import unavailable
from plexsvc.scheduler.core.actions import Action
from plexsvc.scheduler.core.events import Event

Decision = asyncio.Future[list[Action]]
"""The actions that follow from an event."""


class Posted(NamedTuple):
    """An event on its way to the core."""

    event: Event
    decision: Decision
    """Done once the actions are under way; raises `PlexError` (`unavailable`) when the driver stops
    before."""


class Inbox:
    """Stamps facts in the order in which they come: `at_us = max(last + 1, wall)`."""

    def __init__(self, clock: Clock, *, max_waiting: int, max_batch: int) -> None:
        self._clock = clock
        self._max_waiting = max_waiting
        self._max_batch = max_batch
        self._waiting: deque[Posted] = deque()
        self._taken: Sequence[Posted] = ()
        self._arrived = asyncio.Event()
        self.last_us = 0
        """When the newest fact was taken."""

    def post(self, event: Event) -> Posted:
        """Take a fact for the core; its decision follows."""
        posted = Posted(event, asyncio.get_running_loop().create_future())
        self._waiting.append(posted)
        self._arrived.set()
        return posted

    def check_room(self) -> None:
        """Refuse new work when too much waits to be decided.

        Raises:
            PlexError: `unavailable`.
        """
        if len(self._waiting) >= self._max_waiting:
            raise unavailable(
                f"{len(self._waiting)} events wait to be decided; try again",
                limit=self._max_waiting,
            )

    async def take(self) -> Sequence[Posted]:
        """Return what has gathered, stamped, at most a batch; wait until there is something."""
        await self._arrived.wait()
        taken: list[Posted] = []
        while self._waiting and len(taken) < self._max_batch:
            self.last_us = max(self.last_us + 1, self._clock.wall_us())
            event, decision = self._waiting.popleft()
            taken.append(Posted(replace(event, at_us=self.last_us), decision))
        if not self._waiting:
            self._arrived.clear()
        self._taken = taken
        return taken

    def close(self) -> None:
        """Tell the callers that wait that nothing more is decided."""
        stopped = unavailable("the scheduler stopped; ask the next one")
        for _, decision in [*self._taken, *self._waiting]:
            if not decision.done():
                decision.set_exception(stopped)
                decision.exception()  # most are awaited by nobody, who need not be warned
