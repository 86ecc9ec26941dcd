"""Pace of questions: what one tenant may cost everybody by asking.

Questions (status, plan, report) are answered on the event loop that decides for all jobs, from the
state that it decides with. Each is short: what it computes with is bounded. A tenant that asks
without end waits between its questions for a multiple of what the last one took.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from plexsvc.clock import Clock
from plexsvc.errors import queue_full
from plexsvc.newest import Newest

Reply = TypeVar("Reply")

MAX_WAITING: Final = 32
"""Questions of one tenant that are not answered yet; the next is refused with `queue_full`."""

PAUSE: Final = 9
"""Pause after a question, in multiples of what it took: a tenth of the loop for each tenant."""

MAX_PAUSE_US: Final = 250_000
"""Longest pause: a question may also have taken long because a node did not answer."""

MAX_TENANTS: Final = 4096


@dataclass(slots=True)
class _Asker:
    free_us: int = 0
    waiting: int = 0


class Pace:
    """When each tenant may ask next."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._turns = Newest[str, _Asker](MAX_TENANTS)

    async def answer(self, tenant: str, ask: Callable[[], Awaitable[Reply]]) -> Reply:
        """Return what `ask()` returns, once it is the tenant's turn.

        Raises:
            PlexError: `queue_full` when too many of its questions wait.
        """
        turn = self._turns.get(tenant) or _Asker()
        self._turns[tenant] = turn
        if turn.waiting >= MAX_WAITING:
            raise queue_full(
                f"{turn.waiting} questions of tenant {tenant!r} wait to be answered; ask again "
                "when some are",
                limit=MAX_WAITING,
            )
        turn.waiting += 1
        try:
            # Looked at again after each sleep: another question may have been answered meanwhile.
            while (wait_us := turn.free_us - self._clock.monotonic_us()) > 0:
                await self._clock.sleep(wait_us)
            began_us = self._clock.monotonic_us()
            try:
                return await ask()
            finally:
                now_us = self._clock.monotonic_us()
                turn.free_us = now_us + min(PAUSE * (now_us - began_us), MAX_PAUSE_US)
        finally:
            turn.waiting -= 1
