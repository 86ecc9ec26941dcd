"""Bound on restarts: at most so many within a window, however long each process lived."""

from __future__ import annotations

from collections import deque

from plexsvc.clock import Clock
from plexsvc.node.config import AgentConfig


class RestartRate:
    """Restarts of one thing. A service that runs for months may lose it as often as it must."""

    def __init__(self, most: int, *, window_us: int, clock: Clock) -> None:
        self._most = most
        self._window_us = window_us
        self._clock = clock
        self._at_us: deque[int] = deque()

    def note(self) -> int:
        """Note a restart; return how many more the window allows, below 0 when this is too many."""
        self._at_us.append(self._clock.monotonic_us())
        self._forget_old()
        return self._most - len(self._at_us)

    async def wait(self) -> None:
        """Return when the restarts within the window are no more than there may be."""
        while len(self._at_us) > self._most:
            # When this one leaves the window, as many as there may be are in it.
            frees_us = self._at_us[-self._most - 1] + self._window_us
            await self._clock.sleep(max(1, frees_us - self._clock.monotonic_us()))
            self._forget_old()

    def _forget_old(self) -> None:
        before_us = self._clock.monotonic_us() - self._window_us
        while self._at_us and self._at_us[0] <= before_us:
            self._at_us.popleft()


def restart_rate(config: AgentConfig, *, clock: Clock) -> RestartRate:
    """Return the bound on restarts of one of a node's parts."""
    return RestartRate(config.max_restarts, window_us=config.restart_window_us, clock=clock)
