"""Clock of the client, for retries and keepalives; tests bring their own."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class RetryClock(Protocol):
    """Seconds that only differences of mean anything, and a way to let them pass."""

    def monotonic_s(self) -> float:
        """Return seconds of a clock that never goes back."""

    async def sleep(self, duration_s: float) -> None:
        """Return after `duration_s` of this clock."""


class MonotonicClock:
    """The machine's monotonic clock."""

    def monotonic_s(self) -> float:
        """Return seconds of the monotonic clock."""
        return time.monotonic()

    async def sleep(self, duration_s: float) -> None:
        """Sleep on the event loop."""
        await asyncio.sleep(duration_s)
