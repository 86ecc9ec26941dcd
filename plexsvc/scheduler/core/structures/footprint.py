"""Footprint of a job on the ring: its segments, repeated every period, as sorted cell ranges.

With it comes what a cycle meets of others' footprints, by how far it slides (micro-shift).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from plexsvc.scheduler.core.structures.ring import Ring

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Footprint:
    """The cells of a periodic demand.

    `folded` holds the ranges of one period, sorted, disjoint, inside [0, period); `starts` and
    `ends` hold the ranges of the whole ring.
    """

    ring_size: int
    period: int
    folded: tuple[tuple[int, int], ...]
    starts: Ints
    ends: Ints

    def check(self) -> None:
        """Assert that ranges are sorted, disjoint and in the ring."""
        assert self.ring_size % self.period == 0, self
        assert np.all(self.starts < self.ends), self
        assert np.all(self.ends[:-1] < self.starts[1:]), self
        if self.starts.size:
            assert self.starts[0] >= 0, self
            assert self.ends[-1] <= self.ring_size, self


def footprint(
    ring: Ring,
    *,
    period: int,
    segments: Sequence[tuple[int, int]],
    anchor: int,
) -> Footprint:
    """Return the footprint of `segments` (offset, duration) whose cycle starts at slot `anchor`.

    Segments may wrap in the period and are clipped to it; overlapping ones are merged.
    `O(R + s log s)` for s segments and R ranges on the ring.

    >>> f = footprint(Ring(12), period=6, segments=[(0, 2), (4, 2)], anchor=1)
    >>> f.folded, f.starts.tolist(), f.ends.tolist()
    (((0, 3), (5, 6)), [0, 5, 11], [3, 9, 12])

    Raises:
        AssertionError: the period does not divide the ring.
    """
    assert ring.size % period == 0, (ring.size, period)
    cycle = Ring(period)
    pieces = sorted(
        piece for offset, duration in segments for piece in cycle.pieces(anchor + offset, duration)
    )
    folded = _merged(pieces)
    if not folded:
        empty = np.zeros(0, dtype=np.int64)
        return Footprint(ring_size=ring.size, period=period, folded=(), starts=empty, ends=empty)
    bases = np.arange(0, ring.size, period, dtype=np.int64)[:, None]
    cells = np.array(folded, dtype=np.int64)
    starts = (bases + cells[:, 0]).ravel()
    ends = (bases + cells[:, 1]).ravel()
    joined = starts[1:] == ends[:-1]
    keep_start = np.concatenate(([True], ~joined))
    keep_end = np.concatenate((~joined, [True]))
    return Footprint(
        ring_size=ring.size,
        period=period,
        folded=tuple(folded),
        starts=starts[keep_start],
        ends=ends[keep_end],
    )


def busy_by_phase(cells: Sequence[Footprint], *, ring_size: int, period: int) -> Ints:
    """Return, by slot of a period, in how many cycles of the ring somebody is there. `O(n)`.

    >>> job = footprint(Ring(6), period=6, segments=[(0, 2)], anchor=0)
    >>> busy_by_phase([job], ring_size=6, period=3).tolist()
    [1, 1, 0]
    """
    steps = np.zeros(ring_size + 1, dtype=np.int64)
    for one in cells:
        steps[one.starts] += 1
        steps[one.ends] -= 1
    busy: Ints = (np.cumsum(steps[:-1]) > 0).reshape(-1, period).sum(axis=0)
    return busy


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


def _merged(pieces: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for start, end in pieces:
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged
