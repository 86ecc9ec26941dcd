"""Caller of a long call, as the thread that does the work sees it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

from plexsvc.errors import ErrorCode, PlexError
from plexsvc.ids import WpgId

Tell = Callable[[int], None]
"""Takes the bytes of a part of the work that is done."""


def tell_nobody(nbytes: int) -> None:
    """Keep to itself what is done."""
    del nbytes


class Tally:
    """Bytes that were worked on, by WPG: a count that grows while work on its state gets on."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bytes: Counter[WpgId] = Counter()

    def add(self, wpg_id: WpgId, nbytes: int) -> None:
        """Count bytes; ranks of a WPG move at once."""
        with self._lock:
            self._bytes[wpg_id] += nbytes

    def of(self, wpg_id: WpgId) -> int:
        """Return the bytes so far."""
        return self._bytes[wpg_id]

    def forget(self, wpg_id: WpgId) -> None:
        """Drop the count of a WPG that is gone."""
        with self._lock:
            self._bytes.pop(wpg_id, None)


class WaitingCaller:
    """Waits for a call, or has left. What is done for it asks before anything becomes visible."""

    def __init__(self, tell: Tell = tell_nobody) -> None:
        self.tell = tell
        """Notes bytes that were worked on, whether anybody waits or not."""
        self._left = threading.Event()
        self.done_bytes = 0
        """How far the work is: written by the thread that does it, read by the watchdog."""

    def leave(self) -> None:
        """Wait no longer: the deadline passed, or the call was cancelled."""
        self._left.set()

    def check(self) -> None:
        """Go on only if somebody still waits.

        Raises:
            PlexError: `cancelled`.
        """
        if self._left.is_set():
            text = "its caller gave up: the deadline passed, or the call was cancelled"
            raise PlexError(ErrorCode.CANCELLED, f"{text}; nothing of it is visible")

    def advance(self, nbytes: int) -> None:
        """Note that bytes were worked on.

        Raises:
            PlexError: `cancelled`.
        """
        self.check()
        self.done_bytes += nbytes
        self.tell(nbytes)
