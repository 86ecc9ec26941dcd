"""The retry loop of failed calls: bounded, with pauses that may double and are jittered."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Final, TypeVar

from plexsvc.clock import Clock
from plexsvc.log import Log

log = Log(__name__)

T = TypeVar("T")
E = TypeVar("E", bound=Exception)

JITTER: Final = (0.75, 1.25)
"""Each pause is this much shorter or longer, so that callers that failed together spread out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How often, and for how long, a failed call is tried again. A bound of 0 is off."""

    pause_us: int
    """The first pause, before its jitter."""

    longest_pause_us: int = 0
    """Pauses double up to this; 0 keeps them as the first."""

    max_tries: int = 0
    """Calls in all."""

    within_us: int = 0
    """Time from the first call; no pause reaches beyond it."""

    def pauses(self, clock: Clock) -> Iterator[int]:
        """Yield the pause before each further call, until patience is over."""
        assert self.max_tries or self.within_us, self
        started_us, mean_us = clock.monotonic_us(), self.pause_us
        for calls in count(1):
            pause_us = max(1, int(mean_us * random.uniform(*JITTER)))
            if self.within_us:
                # So that the last call is made while its answer is still wanted.
                pause_us = min(pause_us, started_us + self.within_us - clock.monotonic_us())
            if calls == self.max_tries or pause_us <= 0:
                return
            yield pause_us
            mean_us = min(2 * mean_us, max(self.pause_us, self.longest_pause_us))


async def retry(
    call: Callable[[], Awaitable[T]],
    *,
    on: type[E] | tuple[type[E], ...],
    clock: Clock,
    patience: Patience,
    what: str,
    again: Callable[[E], Awaitable[bool]] | None = None,
) -> T:
    """Return the first answer of `call`, made again when it raises `on` and `again` allows it.

    Raises:
        E: the last failure, when `again` forbids another call or patience is over.
    """
    pauses = patience.pauses(clock)
    while True:
        try:
            return await call()
        except on as error:
            pause_us = None if again is not None and not await again(error) else next(pauses, None)
            if pause_us is None:
                raise
            log.warning("call failed, trying again", what=what, error=error)
        await clock.sleep(pause_us)
