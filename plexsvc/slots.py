"""Slots and bytes that tenants share, of which each may hold as many as are left free.

So nobody holds more than half, and whoever has none gets one while any is free. As slots come
back, n tenants that want all of them settle at one part in n + 1 each, and one part stays free
(dynamic thresholds: Choudhury and Hahne, IEEE/ACM ToN 1998).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from plexsvc.errors import ErrorCode, PlexError


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """How many of something there may be at once, and how a further one is refused."""

    total: int
    what: str
    """What they are, in the plural."""
    key: str
    """Name of the bound: the key of the configuration that sets `total`, or a fixed value's."""
    code: ErrorCode = ErrorCode.QUEUE_FULL

    @property
    def most(self) -> int:
        """How many a tenant may hold where nobody else holds any."""
        return (self.total + 1) // 2

    def check(self, tenant: str, *, held: int, taken: int, more: int = 1) -> None:
        """Let a tenant that holds some of those that are taken have `more`.

        Raises:
            PlexError: `code`, which may be tried again where `more` is `most` or less.
        """
        if held + 2 * more > self.total - taken + 1:
            raise PlexError(
                self.code,
                f"{taken} of {self.total} {self.what} are taken ({self.key}), {held} of them "
                f"tenant {tenant!r}'s, which may have as many as are left free; try again when "
                "some have ended",
                need=more,
                free=self.total - taken,
                limit=self.total,
            )


class Slots:
    """Who holds how many."""

    def __init__(self, limit: Limit) -> None:
        self._limit = limit
        self._held: Counter[str] = Counter()

    @contextmanager
    def hold(self, tenant: str) -> Iterator[None]:
        """Hold one.

        Raises:
            PlexError: as the limit says.
        """
        self._limit.check(tenant, held=self._held[tenant], taken=self.taken)
        self._held[tenant] += 1
        try:
            yield
        finally:
            self._held[tenant] -= 1
            if not self._held[tenant]:
                del self._held[tenant]

    @property
    def taken(self) -> int:
        """How many are held."""
        return self._held.total()
