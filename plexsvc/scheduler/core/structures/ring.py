"""The ring of slots that planning covers: absolute slots, addressed modulo the horizon."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

HORIZON_SLOTS: Final = 28_800
"""Eight hours of one-second slots."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundedPeriod:
    """A period that divides the horizon, and how far it is from what was asked."""

    slots: int
    asked: int

    @property
    def error(self) -> float:
        """Return the relative rounding error: positive when the planned period is longer."""
        return self.slots / self.asked - 1


@dataclass(frozen=True, slots=True)
class Ring:
    """`size` slots holding the absolute slots [now, now + size): slot t lies at `t % size`.

    As every planned period divides `size`, a recurring segment that leaves at the head enters at
    the tail on the same cells: nothing is moved when time passes.

    >>> ring = Ring(12)
    >>> ring.cell(25), ring.pieces(10, 5), ring.round_period(5).slots
    (1, [(10, 12), (0, 3)], 6)
    """

    size: int = HORIZON_SLOTS

    def __post_init__(self) -> None:
        assert self.size > 0, self

    def cell(self, absolute: int) -> int:
        """Return where an absolute slot lies. `O(1)`."""
        return absolute % self.size

    def pieces(self, absolute: int, length: int) -> list[tuple[int, int]]:
        """Return the half-open cell ranges of `length` slots from `absolute`; two when they wrap.

        A stretch as long as the ring, or longer, is the whole ring. `O(1)`.
        """
        assert length >= 0, length
        if length >= self.size:
            return [(0, self.size)]
        start = self.cell(absolute)
        end = start + length
        if end <= self.size:
            return [(start, end)] if length else []
        return [(start, self.size), (0, end - self.size)]

    def round_period(self, slots: int) -> RoundedPeriod:
        """Return the divisor of the ring's size nearest to `slots` by ratio, the longer on a tie.

        A period longer than the ring becomes the ring's size. `O(log d)` for d divisors.

        >>> Ring().round_period(289)
        RoundedPeriod(slots=288, asked=289)
        """
        assert slots > 0, slots
        divisors = divisors_of(self.size)
        at = bisect_left(divisors, slots)
        if at == len(divisors):
            return RoundedPeriod(slots=self.size, asked=slots)
        above = divisors[at]
        below = divisors[at - 1] if at else above
        chosen = below if below * above > slots * slots else above
        return RoundedPeriod(slots=chosen, asked=slots)


@lru_cache(maxsize=64)
def divisors_of(number: int) -> tuple[int, ...]:
    """Return all divisors in rising order. `O(sqrt n)` once a number.

    >>> divisors_of(12)
    (1, 2, 3, 4, 6, 12)
    """
    low = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return tuple(sorted({*low, *(number // d for d in low)}))
