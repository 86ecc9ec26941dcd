"""Retry rules: which failures are tried again, after what pause, and for how long."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from plexclient.clock import RetryClock
from plexclient.errors import ErrorCode, PlexError
from plexclient.failures import STATUS_FACT

R = TypeVar("R")
FIRST_PAUSE_S: Final = 0.02
LONGEST_PAUSE_S: Final = 2.0
LONGEST_ALONE_S: Final = 0.5
"""The same where nobody answers: an attempt costs the service nothing, and it may be back soon."""
MAX_SUSPECT: Final = 8
"""UNKNOWN and INTERNAL can be a cut line or a bug of the service: tried again this many times."""


class Retry:
    """The retries of one call. `pause(error)` sleeps before the next attempt, or raises.

    Failures count together until one attempt shows that the service lives: `progress`, or a
    deadline that passed on a healthy connection (a lost one fails sooner than that).
    """

    def __init__(
        self,
        clock: RetryClock,
        *,
        retry_for_s: float,
        give_up_after_s: float,
        what: str,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._clock = clock
        self._retry_for_s = retry_for_s
        self._give_up_after_s = give_up_after_s
        self._what = what
        self._jitter = jitter
        self.progress()

    def progress(self) -> None:
        """Note that the call got further: all patience starts anew."""
        self._started_s = self._clock.monotonic_s()
        # Not by `_recover`: a deadline that passed says nothing of a bug that is met now and then.
        self._suspect = 0
        self._recover()

    def _recover(self) -> None:
        """Note that the service lives."""
        self._failing_since_s: float | None = None
        self._pause_s = FIRST_PAUSE_S

    async def pause(self, error: PlexError) -> None:
        """Return when the call may be tried again.

        Raises:
            PlexError: `error` when it is final or patience is over; `operation_timeout` when the
                call got no further for too long.
        """
        if not error.retryable:
            raise error
        status = error.facts.get(STATUS_FACT)
        if self._clock.monotonic_s() - self._started_s >= self._give_up_after_s:
            raise PlexError(
                ErrorCode.OPERATION_TIMEOUT,
                f"{self._what} was not answered in {self._give_up_after_s:.0f} s; it may still "
                "run: ask `plexctl explain`, or allow it longer (ClientOptions). Last: "
                f"{error.message}",
            ) from error
        if status == "DEADLINE_EXCEEDED":
            # No pause: the attempt has been one.
            self._recover()
            return
        self._suspect += status in {"UNKNOWN", "INTERNAL"}
        now_s = self._clock.monotonic_s()
        since_s = now_s if self._failing_since_s is None else self._failing_since_s
        self._failing_since_s = since_s
        if self._suspect > MAX_SUSPECT or now_s - since_s >= self._retry_for_s:
            raise self._gave_up(error, tried_s=now_s - since_s) from error
        await self._clock.sleep(self._pause_s * (0.5 + self._jitter()))
        longest_s = LONGEST_ALONE_S if status == "UNAVAILABLE" else LONGEST_PAUSE_S
        self._pause_s = min(longest_s, self._pause_s * 2)

    def _gave_up(self, error: PlexError, *, tried_s: float) -> PlexError:
        return PlexError(
            error.code,
            f"{self._what}: {error.message}; gave up after {tried_s:.0f} s of retries "
            "(ClientOptions.retry_for_s)",
            **error.facts,
        )


async def persist(attempt: Callable[[], Awaitable[R]], *, retry: Retry) -> R:
    """Return the first answer of `attempt`, tried again as `retry` allows.

    Raises:
        PlexError: what `retry` would not try again.
    """
    while True:
        try:
            return await attempt()
        except PlexError as error:
            await retry.pause(error)
