"""Footprint of a job on the ring: its segments, repeated every period, as sorted cell ranges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from plexsvc.scheduler.core.structures.ring import Ring

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Footprint:
    """The cells of a periodic demand: enough to take it off the ring exactly.

    `folded` holds the ranges of one period, sorted, disjoint, inside [0, period); `starts` and
    `ends` hold the ranges of the whole ring.
    """

    ring_size: int
    period: int
    folded: tuple[tuple[int, int], ...]
    starts: Ints
    ends: Ints

    @property
    def num_slots(self) -> int:
        """Return how many slots of the ring it occupies."""
        return int((self.ends - self.starts).sum())

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
    before: Footprint | None = None,
) -> Footprint:
    """Return the footprint of `segments` (offset, duration) whose cycle starts at slot `anchor`.

    Segments may wrap in the period and are clipped to it; overlapping ones are merged. `before` is
    returned itself where it is the same. `O(R + s log s)` for s segments and R ranges on the ring.

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
    if before is not None and (before.ring_size, before.period, before.folded) == (
        ring.size,
        period,
        tuple(folded),
    ):
        return before
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


def _merged(pieces: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for start, end in pieces:
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged
