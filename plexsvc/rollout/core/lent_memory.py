"""The core of lent memory: how much of a device's KV memory a serving engine's guests may hold.

Theory of operation. Serving and guests share `total_bytes`. At each of a guest's steps (a new
version of its weights) the guests' budget is what serving has not used of late, less a headroom.
Between steps the budget never grows. When serving uses half of the headroom the budget is cut to
half, and again until the headroom is there, and stays there until the next step: samples beyond it
go elsewhere. Computed prompts of a guest that nobody uses are kept for a lease.

Several guests have equal parts of the budget: those that had work within a lease, so that a guest
between two batches keeps its part, and one that sleeps leaves it to the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from plexsvc.rollout.core.lending import refuse

HEADROOM: Final = 0.2
"""Part of the memory that serving has beyond its recent use when a budget is set."""

PRESSURE: Final = 0.5
"""Part of the headroom that serving may use before the guest's budget is cut."""

RECENT_US: Final = 30_000_000
"""Recent use is the highest of this period and the one before."""

LEASE_US: Final = 10_000_000
"""How long computed prompts of a guest are kept unused, and its part of the memory."""


@dataclass(slots=True, kw_only=True)
class MemoryBudget:
    """The guests' part of the KV memory, in bytes."""

    total_bytes: int
    share: float = 1.0
    """The owner's bound on the guests' part."""
    guest_bytes: int = 0
    """What the guests may hold now, all together."""
    is_frozen: bool = False
    cuts: int = 0
    used_bytes: int = 0
    """By serving, as of the last look."""
    _peak_bytes: int = 0
    _peak_before_bytes: int = 0
    _period_us: int | None = None

    def __post_init__(self) -> None:
        if self.total_bytes <= 0:
            raise refuse("total_bytes", f"is {self.total_bytes}; lend memory that there is")

    @property
    def serving_bytes(self) -> int:
        """What serving may hold now."""
        return self.total_bytes - self.guest_bytes

    @property
    def headroom_bytes(self) -> int:
        """What serving is left beyond its recent use when a budget is set."""
        return round(HEADROOM * self.total_bytes)

    @property
    def is_short(self) -> bool:
        """Whether serving has less left than it should, and nothing more can be cut."""
        return self.serving_bytes - self.used_bytes < PRESSURE * self.headroom_bytes

    def step_began(self) -> None:
        """Set the budget anew: a guest begins a step."""
        recent = max(self._peak_bytes, self._peak_before_bytes)
        free = self.total_bytes - recent - self.headroom_bytes
        self.guest_bytes = max(0, min(free, round(self.share * self.total_bytes)))
        self.is_frozen = False

    def serving_uses(self, used_bytes: int, *, now_us: int, least_bytes: int) -> None:
        """Take note of what serving holds, and cut the guests' budget under pressure.

        A budget below `least_bytes` is of no use, so it becomes 0.
        """
        if self._period_us is None or now_us - self._period_us >= RECENT_US:
            self._period_us = now_us
            self._peak_before_bytes, self._peak_bytes = self._peak_bytes, 0
        self.used_bytes = used_bytes
        self._peak_bytes = max(self._peak_bytes, used_bytes)
        while self.is_short and self.guest_bytes:
            half = self.guest_bytes // 2
            self.guest_bytes = half if half >= least_bytes else 0
            self.is_frozen = True
            self.cuts += 1

    def reclaim(self) -> None:
        """Take everything back, until the next step of a guest."""
        self.guest_bytes, self.is_frozen = 0, True


class Parts:
    """Who of several guests has a part of their budget.

    >>> parts = Parts(2)
    >>> parts.of(100, [True, False], now_us=0)  # nobody else had work yet
    [100, 0]
    >>> parts.of(100, [False, True], now_us=1)
    [50, 50]
    >>> parts.of(100, [False, True], now_us=LEASE_US)
    [0, 100]
    """

    def __init__(self, guests: int) -> None:
        self._worked_us: list[int | None] = [None] * guests
        self._holders = set(range(guests))

    @property
    def holders(self) -> int:
        """How many guests have a part."""
        return len(self._holders)

    def of(self, nbytes: int, has_work: Sequence[bool], *, now_us: int) -> list[int]:
        """Return each guest's part of `nbytes`; where nobody had work the last ones keep theirs."""
        for place, works in enumerate(has_work):
            if works:
                self._worked_us[place] = now_us
        recent = {
            place
            for place, at_us in enumerate(self._worked_us)
            if at_us is not None and now_us - at_us < LEASE_US
        }
        self._holders = recent or self._holders
        part = nbytes // len(self._holders)
        return [part if place in self._holders else 0 for place in range(len(has_work))]


Key = TypeVar("Key")


@dataclass(slots=True)
class IdlePieces(Generic[Key]):
    """Since when each piece of cache has been unused."""

    _since_us: dict[Key, int] = field(default_factory=dict)

    def expired(self, unused: Iterable[Key], *, now_us: int) -> list[Key]:
        """Return those that have been unused for a lease, and forget what is used again."""
        self._since_us = {key: self._since_us.get(key, now_us) for key in unused}
        return [key for key, at_us in self._since_us.items() if now_us - at_us >= LEASE_US]
