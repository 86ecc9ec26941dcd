"""The timeline of a simulated rollout: what happens when, in virtual microseconds."""

from __future__ import annotations

import heapq
from collections.abc import Callable


class Timeline:
    """A clock, and what is due; things due together happen in the order in which they were told."""

    def __init__(self) -> None:
        self.now_us = 0
        self._due: list[tuple[int, int, Callable[[], None]]] = []
        self._count_due = 0

    @property
    def is_empty(self) -> bool:
        """Whether nothing is due any more."""
        return not self._due

    def after(self, us: float, happens: Callable[[], None]) -> None:
        """Have something happen later."""
        self._count_due += 1
        heapq.heappush(self._due, (self.now_us + round(us), self._count_due, happens))

    def happen(self) -> None:
        """Let the next thing happen; there is one."""
        self.now_us, _, happens = heapq.heappop(self._due)
        happens()
