"""The caller of a long call, as the thread sees it that does the work."""

from __future__ import annotations

import threading

from plexsvc.errors import ErrorCode, PlexError


class Caller:
    """Waits for a call, or has left. What is done for it asks before anything becomes visible."""

    def __init__(self) -> None:
        self._left = threading.Event()
        self.done_bytes = 0
        """How far the work is: written by the thread that does it, read by whoever watches."""

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
