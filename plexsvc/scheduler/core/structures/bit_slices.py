"""Bit slices: which of many groups are busy in each slot, 64 groups in a word of the slot.

A question about a shift is then answered for 64 groups at once: fold the ring on the period, smear
the busy bits over each segment's length, and read the row of the shift. The answer prefilters
(group, shift) pairs; interval sets verify what is chosen and hold the truth.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from plexsvc.scheduler.core.structures.footprint import Footprint

Words = npt.NDArray[np.uint64]
Ints = npt.NDArray[np.int64]

LANES: Final = 64
"""Groups in one slice."""


class BitSlice:
    """Up to 64 groups over a ring: `words[t]` has bit `lane` set when that group is busy in slot t.

    >>> from plexsvc.scheduler.core.structures.footprint import footprint
    >>> from plexsvc.scheduler.core.structures.ring import Ring
    >>> busy = BitSlice(12)
    >>> busy.paint(5, footprint(Ring(12), period=6, segments=[(0, 2)], anchor=0))
    >>> blocked = busy.blocked(period=6, segments=[(0, 3)])
    >>> [bool(int(word) >> 5 & 1) for word in blocked]
    [True, True, False, False, True, True]
    """

    __slots__ = ("_words", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self._words: Words = np.zeros(size, dtype=np.uint64)

    def paint(self, lane: int, job: Footprint) -> None:
        """Mark a footprint busy. One strided write a range: `O(slots)`, vectorised."""
        bit = np.uint64(1 << lane)
        cycles = self._words.reshape(-1, job.period)
        for start, end in job.folded:
            cycles[:, start:end] |= bit

    def clear(self, lane: int) -> None:
        """Mark a group free in all slots. `O(n)`, vectorised."""
        self._words &= ~np.uint64(1 << lane)

    def blocked(self, *, period: int, segments: Sequence[tuple[int, int]]) -> Words:
        """Return, by shift in [0, period), the groups in which some segment would overlap.

        `O(n + s P log d)` for s segments of d slots in a period of P, vectorised over 64 groups.
        """
        folded: Words = np.bitwise_or.reduce(self._words.reshape(-1, period), axis=0)
        out: Words = np.zeros(period, dtype=np.uint64)
        for offset, duration in segments:
            smeared, turn = _smeared(folded, duration), offset % period
            out[: period - turn] |= smeared[turn:]
            out[period - turn :] |= smeared[:turn]
        return out

    def load(self, lane: int, *, period: int) -> Ints:
        """Return, by slot of the period, in how many cycles of the ring it is busy. `O(n)`."""
        is_busy = (self._words & np.uint64(1 << lane)) != 0
        counts: Ints = np.add.reduce(
            is_busy.view(np.uint8).reshape(-1, period), axis=0, dtype=np.int64
        )
        return counts

    def busy_slots(self, lane: int) -> int:
        """Return in how many slots a group is busy. `O(n)`."""
        return int(np.count_nonzero(self._words & np.uint64(1 << lane)))


class Lanes:
    """A lane of some slice for each of any number of groups; slices are made as they are needed.

    >>> lanes = Lanes(12)
    >>> slices, lane = lanes.take()
    >>> lanes.give_back(slices, lane)
    >>> lanes.take() == (slices, lane)
    True
    """

    __slots__ = ("_slices", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self._slices: list[tuple[BitSlice, list[int]]] = []

    def take(self) -> tuple[BitSlice, int]:
        """Return a slice and a lane of it that is clear. `O(slices)`."""
        for slices, lanes in self._slices:
            if lanes:
                return slices, lanes.pop()
        slices, lanes = BitSlice(self.size), list(range(LANES - 1, -1, -1))
        self._slices.append((slices, lanes))
        return slices, lanes.pop()

    def give_back(self, slices: BitSlice, lane: int) -> None:
        """Clear a lane and let another have it. `O(n)`."""
        slices.clear(lane)
        for known, lanes in self._slices:
            if known is slices:
                lanes.append(lane)


def overlap_by_shift(load: Ints, segments: Sequence[tuple[int, int]]) -> Ints:
    """Return, by shift, how many busy slots of the whole ring segments would overlap.

    `load` is the busy count by slot of the period. `O(s P)`, vectorised.

    >>> overlap_by_shift(np.array([2, 2, 0, 0]), [(0, 2)]).tolist()
    [4, 2, 0, 2]
    """
    period = load.size
    before = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(np.tile(load, 3))))
    shifts = np.arange(period)
    total = np.zeros(period, dtype=np.int64)
    for offset, duration in segments:
        first = shifts + offset % period
        total += before[first + min(duration, period)] - before[first]
    return total


def _smeared(busy: Words, length: int) -> Words:
    """Return at t the bits of any of `length` slots from t on, cyclically, by doubling."""
    period = busy.size
    length = min(length, period)
    if length == 0:
        return np.zeros_like(busy)
    out = np.concatenate((busy, busy[: length - 1]))
    reach = 1
    while reach < length:
        step = min(reach, length - reach)
        out = out[: out.size - step] | out[step:]
        reach += step
    return out
