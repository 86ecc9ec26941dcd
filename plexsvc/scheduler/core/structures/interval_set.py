"""Sorted disjoint ranges of free slots of one node, and the windows of a gang of nodes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Insertion:
    """What placing ranges into free windows would meet: slots that fit, slots that overlap."""

    fits: int
    overlaps: int

    @property
    def is_clean(self) -> bool:
        """Whether every slot lies in a free window."""
        return self.overlaps == 0


class IntervalSet:
    """Free windows, sorted and disjoint, never touching; binary search over their boundaries.

    >>> IntervalSet([(5, 10), (0, 2), (2, 3)]).ranges()
    [(0, 3), (5, 10)]
    """

    __slots__ = ("_ends", "_starts")

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        """Take ranges in any order; overlapping and touching ones are merged. `O(n log n)`."""
        cells = np.array(sorted((s, e) for s, e in ranges if s < e), dtype=np.int64).reshape(-1, 2)
        self._starts, self._ends = _merge(cells[:, 0], cells[:, 1])

    @classmethod
    def complement(cls, size: int, busy: Sequence[tuple[Ints, Ints]]) -> IntervalSet:
        """Return [0, size) without the given sorted (starts, ends). `O(n log n)`, vectorised."""
        made = cls()
        starts = np.concatenate([s for s, _ in busy]) if busy else np.zeros(0, dtype=np.int64)
        ends = np.concatenate([e for _, e in busy]) if busy else np.zeros(0, dtype=np.int64)
        if len(busy) > 1:
            order = np.argsort(starts, kind="stable")
            starts, ends = starts[order], ends[order]
        starts, ends = _merge(starts, ends)
        made._take(*_gaps(starts, ends, size))
        return made

    def ranges(self) -> list[tuple[int, int]]:
        """Return the windows in order. `O(n)`."""
        return list(zip(self._starts.tolist(), self._ends.tolist(), strict=True))

    def arrays(self) -> tuple[Ints, Ints]:
        """Return the windows as (starts, ends); do not write to them. `O(1)`."""
        return self._starts, self._ends

    @property
    def num_slots(self) -> int:
        """Return how many slots are free. `O(n)`."""
        return int((self._ends - self._starts).sum())

    def busy_by_phase(self, size: int, *, period: int) -> Ints:
        """Return, by slot of a period, in how many cycles of a ring of `size` it is busy. `O(n)`.

        >>> IntervalSet([(2, 6)]).busy_by_phase(6, period=3).tolist()
        [1, 1, 0]
        """
        steps = np.zeros(size + 1, dtype=np.int64)
        np.add.at(steps, self._starts, -1)
        np.add.at(steps, self._ends, 1)
        busy: Ints = (1 + np.cumsum(steps[:-1])).reshape(-1, period).sum(axis=0)
        return busy

    def simulate_insert(self, starts: Ints, ends: Ints) -> Insertion:
        """Say what placing the ranges would meet, changing nothing. `O(m log n)`, vectorised.

        >>> free = IntervalSet([(0, 4), (8, 12)])
        >>> free.simulate_insert(np.array([1, 6]), np.array([3, 9]))
        Insertion(fits=3, overlaps=2)
        """
        free = self._free_before(ends) - self._free_before(starts)
        return Insertion(fits=int(free.sum()), overlaps=int(((ends - starts) - free).sum()))

    def intersection(self, other: IntervalSet) -> IntervalSet:
        """Return the slots free in both. `O((n + m) log(n + m))`, vectorised.

        >>> IntervalSet([(0, 5), (8, 10)]).intersection(IntervalSet([(3, 9)])).ranges()
        [(3, 5), (8, 9)]
        """
        made = IntervalSet()
        first = other._ends.searchsorted(self._starts, side="right")
        last = other._starts.searchsorted(self._ends, side="left")
        counts = np.maximum(last - first, 0)
        mine = np.repeat(np.arange(self._starts.size), counts)
        skipped = np.repeat(np.cumsum(counts) - counts, counts)
        theirs = np.arange(mine.size) - skipped + np.repeat(first, counts)
        made._take(
            np.maximum(self._starts[mine], other._starts[theirs]),
            np.minimum(self._ends[mine], other._ends[theirs]),
        )
        return made

    def check(self) -> None:
        """Assert that windows are not empty, sorted, and do not touch."""
        assert np.all(self._starts < self._ends), self.ranges()
        assert np.all(self._ends[:-1] < self._starts[1:]), self.ranges()

    def _free_before(self, points: Ints) -> Ints:
        """Return how many free slots lie before each point."""
        if not self._starts.size:
            return np.zeros_like(points)
        lengths = self._ends - self._starts
        before = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(lengths)))
        at = self._starts.searchsorted(points, side="right") - 1
        inside = np.minimum(points - self._starts[at], lengths[at])
        return np.where(at < 0, 0, before[at] + inside)

    def _take(self, starts: Ints, ends: Ints) -> None:
        self._starts, self._ends = starts, ends


def gang_windows(nodes: Sequence[IntervalSet]) -> IntervalSet:
    """Return the slots free on every node; nodes that share one set are looked at once.

    `O(g n log n)` for g distinct sets of n windows.

    >>> gang_windows([IntervalSet([(0, 9)]), IntervalSet([(2, 4), (6, 12)])]).ranges()
    [(2, 4), (6, 9)]
    """
    assert nodes, "a gang has at least one node"
    distinct = list({id(windows): windows for windows in nodes}.values())
    common = distinct[0]
    for windows in distinct[1:]:
        common = common.intersection(windows)
    return common


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


def _merge(starts: Ints, ends: Ints) -> tuple[Ints, Ints]:
    """Return sorted ranges with overlapping and touching ones joined."""
    if starts.size < 2:
        return starts.copy(), ends.copy()
    reach = np.maximum.accumulate(ends)
    is_new = np.concatenate(([True], starts[1:] > reach[:-1]))
    is_last = np.concatenate((is_new[1:], [True]))
    return starts[is_new], reach[is_last]


def _gaps(starts: Ints, ends: Ints, size: int) -> tuple[Ints, Ints]:
    lows = np.concatenate((np.zeros(1, dtype=np.int64), ends))
    highs = np.concatenate((starts, np.full(1, size, dtype=np.int64)))
    keep = lows < highs
    return lows[keep], highs[keep]
