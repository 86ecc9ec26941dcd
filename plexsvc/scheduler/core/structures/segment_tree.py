"""A segment tree over slots: range add, range minimum, first fit; fan-out 32 to suit numpy."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Counts = npt.NDArray[np.int32]
Bools = npt.NDArray[np.bool_]

_FAN: Final = 32


class SegmentTree:
    """Integers by slot with the minimum and maximum of every block of 32, of 1,024, and so on.

    A range add touches its slots and the blocks above them; `add_many` rebuilds all blocks once,
    so a whole periodic footprint costs about as much as a few single ranges.

    >>> free = SegmentTree(10, initial=4)
    >>> free.add(2, 5, -3)
    >>> free.minimum(0, 10), free.first_fit(4, at_least=2)
    (1, 5)
    """

    def __init__(self, size: int, *, initial: int = 0) -> None:
        assert size > 0, size
        self.size = size
        self._lows = [np.full(_padded(size), initial, dtype=np.int32)]
        self._lows[0][size:] = np.iinfo(np.int32).max
        self._highs = [self._lows[0].copy()]
        self._highs[0][size:] = np.iinfo(np.int32).min
        while self._lows[-1].size > _FAN:
            blocks = self._lows[-1].size // _FAN
            self._lows.append(np.full(_padded(blocks), np.iinfo(np.int32).max, dtype=np.int32))
            self._highs.append(np.full(_padded(blocks), np.iinfo(np.int32).min, dtype=np.int32))
        self._rebuild(0, size)

    def values(self) -> Counts:
        """Return a copy of the values by slot. `O(n)`."""
        return self._lows[0][: self.size].copy()

    def add(self, start: int, end: int, delta: int) -> None:
        """Add `delta` to the slots [start, end). `O(end - start + log n)`, vectorised."""
        assert 0 <= start <= end <= self.size, (start, end)
        if start == end:
            return
        self._lows[0][start:end] += delta
        self._highs[0][start:end] += delta
        self._rebuild(start, end)

    def add_many(self, starts: Ints, ends: Ints, *, delta: int) -> None:
        """Add `delta` to every range [starts[i], ends[i]). `O(n + ranges)`, vectorised."""
        if starts.size == 0:
            return
        change = np.zeros(self.size + 1, dtype=np.int32)
        np.add.at(change, starts, delta)
        np.add.at(change, ends, -delta)
        self.add_profile(np.cumsum(change[:-1], dtype=np.int32))

    def add_profile(self, by_slot: Counts) -> None:
        """Add one number a slot. `O(n)`, vectorised."""
        self._lows[0][: self.size] += by_slot
        self._highs[0][: self.size] += by_slot
        self._rebuild(0, self.size)

    def minimum(self, start: int, end: int) -> int:
        """Return the least value in [start, end), which must not be empty. `O(log n)`."""
        assert 0 <= start < end <= self.size, (start, end)
        best = np.iinfo(np.int32).max
        for lows in self._lows:
            first, last = -(-start // _FAN), end // _FAN
            if first >= last or lows is self._lows[-1]:
                return min(best, int(lows[start:end].min()))
            for part in (lows[start : first * _FAN], lows[last * _FAN : end]):
                if part.size:
                    best = min(best, int(part.min()))
            start, end = first, last
        return best  # pragma: no cover - the top level always returns

    def first_fit(self, length: int, *, at_least: int, not_before: int = 0) -> int | None:
        """Return the first start of `length` slots that all hold `at_least`, or None.

        Starts lie at or after `not_before`; windows do not wrap. `O(r log n)` for r runs inspected.
        """
        assert length > 0, length
        start = not_before
        while start + length <= self.size:
            begin = self._next_at_least(start, at_least)
            if begin is None or begin + length > self.size:
                return None
            blocked = self._next_below(begin, at_least)
            if blocked is None or blocked - begin >= length:
                return begin
            start = blocked + 1
        return None

    def check(self) -> None:
        """Assert that every block holds the extremes of what lies under it."""
        for levels, reduce in ((self._lows, np.min), (self._highs, np.max)):
            for below, above in pairwise(levels):
                blocks = below.reshape(-1, _FAN)
                assert np.array_equal(reduce(blocks, axis=1), above[: len(blocks)]), levels

    def _rebuild(self, start: int, end: int) -> None:
        for level in range(1, len(self._lows)):
            start, end = start // _FAN, -(-end // _FAN)
            below = slice(start * _FAN, end * _FAN)
            lows, highs = self._lows[level - 1][below], self._highs[level - 1][below]
            self._lows[level][start:end] = lows.reshape(-1, _FAN).min(axis=1)
            self._highs[level][start:end] = highs.reshape(-1, _FAN).max(axis=1)

    def _next_at_least(self, start: int, bound: int) -> int | None:
        """Return the first slot from `start` that holds `bound` or more. `O(log n)`."""
        return _search(self._highs, start, lambda values: values >= bound)

    def _next_below(self, start: int, bound: int) -> int | None:
        """Return the first slot from `start` that holds less than `bound`. `O(log n)`."""
        return _search(self._lows, start, lambda values: values < bound)


def _search(levels: list[Counts], start: int, is_hit: Callable[[Counts], Bools]) -> int | None:
    """Climb until a block to the right holds a hit, then go down to its first slot."""
    position, level = start, 0
    while position < levels[level].size:
        block_end = min((position // _FAN + 1) * _FAN, levels[level].size)
        hit = _first(is_hit(levels[level][position:block_end]))
        if hit is not None:
            return _descend(levels, level, position + hit, is_hit)
        if level + 1 == len(levels):
            return None
        position, level = block_end // _FAN, level + 1
    return None


def _descend(
    levels: list[Counts], level: int, position: int, is_hit: Callable[[Counts], Bools]
) -> int:
    while level:
        level -= 1
        children = levels[level][position * _FAN : (position + 1) * _FAN]
        hit = _first(is_hit(children))
        assert hit is not None, (level, position)
        position = position * _FAN + hit
    return position


def _first(hits: Bools) -> int | None:
    at = int(hits.argmax())
    return at if hits[at] else None


def _padded(size: int) -> int:
    return -(-size // _FAN) * _FAN
