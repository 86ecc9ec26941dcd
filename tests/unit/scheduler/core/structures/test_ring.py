"""Slots, wrapping and rounded periods."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from plexsvc.scheduler.core.structures.footprint import footprint
from plexsvc.scheduler.core.structures.ring import HORIZON_SLOTS, Ring, divisors_of

RING = Ring(120)
SEGMENTS = st.lists(st.tuples(st.integers(-50, 50), st.integers(0, 40)), max_size=5)


@given(st.integers(0, 10**9), st.integers(0, 300))
def test_pieces_are_the_slots_modulo_the_ring(start: int, length: int) -> None:
    cells = [cell for first, end in RING.pieces(start, length) for cell in range(first, end)]
    assert len(cells) == len(set(cells))
    assert set(cells) == {(start + i) % RING.size for i in range(length)}


@given(st.integers(1, 100_000))
def test_a_period_is_rounded_to_the_nearest_divisor_and_says_by_how_much(slots: int) -> None:
    rounded = Ring().round_period(slots)
    assert HORIZON_SLOTS % rounded.slots == 0
    nearest = min(max(d / slots, slots / d) for d in divisors_of(HORIZON_SLOTS))
    assert max(rounded.slots / slots, slots / rounded.slots) == nearest
    assert rounded.error == rounded.slots / slots - 1


def test_a_period_longer_than_the_horizon_becomes_the_horizon() -> None:
    assert Ring().round_period(10**6).slots == HORIZON_SLOTS


@given(st.sampled_from(divisors_of(120)), SEGMENTS, st.integers(-500, 500))
def test_a_footprint_is_its_segments_repeated_every_period(
    period: int, segments: list[tuple[int, int]], anchor: int
) -> None:
    made = footprint(RING, period=period, segments=segments, anchor=anchor)
    made.check()
    want = {
        (base + (anchor + offset + i) % period)
        for base in range(0, RING.size, period)
        for offset, duration in segments
        for i in range(duration)
    }
    cells = {c for s, e in zip(made.starts, made.ends, strict=True) for c in range(s, e)}
    assert cells == want


def test_time_passing_by_whole_horizons_changes_no_cell() -> None:
    now = footprint(RING, period=24, segments=[(3, 7)], anchor=5)
    later = footprint(RING, period=24, segments=[(3, 7)], anchor=5 + 10 * RING.size)
    assert np.array_equal(now.starts, later.starts)
