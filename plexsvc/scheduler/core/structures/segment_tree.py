"""A segment tree over slots: range add and range minimum; fan-out 32 to suit numpy."""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

Counts = npt.NDArray[np.int32]

_FAN: Final = 32


class SegmentTree:
    """Integers by slot with the minimum of every block of 32, of 1,024, and so on.

    A range add touches its slots and the blocks above them; `add_profile` rebuilds all blocks once,
    so a whole periodic footprint costs about as much as a few single ranges.

    >>> free = SegmentTree(10, initial=4)
    >>> free.add(2, 5, -3)
    >>> free.minimum(0, 10), free.minimum(5, 10)
    (1, 4)
    """

    def __init__(self, size: int, *, initial: int = 0) -> None:
        assert size > 0, size
        self.size = size
        self._lows = [np.full(_padded(size), initial, dtype=np.int32)]
        self._lows[0][size:] = np.iinfo(np.int32).max
        while self._lows[-1].size > _FAN:
            blocks = self._lows[-1].size // _FAN
            self._lows.append(np.full(_padded(blocks), np.iinfo(np.int32).max, dtype=np.int32))
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
        self._rebuild(start, end)

    def add_profile(self, by_slot: Counts) -> None:
        """Add one number a slot. `O(n)`, vectorised."""
        self._lows[0][: self.size] += by_slot
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

    def check(self) -> None:
        """Assert that every block holds the least of what lies under it."""
        for below, above in pairwise(self._lows):
            blocks = below.reshape(-1, _FAN)
            assert np.array_equal(np.min(blocks, axis=1), above[: len(blocks)]), self._lows

    def _rebuild(self, start: int, end: int) -> None:
        for level in range(1, len(self._lows)):
            start, end = start // _FAN, -(-end // _FAN)
            below = slice(start * _FAN, end * _FAN)
            lows = self._lows[level - 1][below]
            self._lows[level][start:end] = lows.reshape(-1, _FAN).min(axis=1)


def _padded(size: int) -> int:
    return -(-size // _FAN) * _FAN
