"""Bit slices against sets of slots, one a group."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from plexsvc.scheduler.core.structures.bit_slices import LANES, BitSlice, overlap_by_shift
from plexsvc.scheduler.core.structures.footprint import Footprint, footprint
from plexsvc.scheduler.core.structures.interval_set import IntervalSet
from plexsvc.scheduler.core.structures.ring import Ring, divisors_of

SIZE = 120
PERIODS = st.sampled_from(divisors_of(SIZE))
SEGMENTS = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 12)), min_size=1, max_size=3)
FOOTPRINTS = st.builds(
    lambda period, segments, anchor: footprint(
        Ring(SIZE), period=period, segments=segments, anchor=anchor
    ),
    PERIODS,
    SEGMENTS,
    st.integers(0, SIZE),
)
GROUPS = st.dictionaries(st.integers(0, LANES - 1), FOOTPRINTS, max_size=4)


def painted(groups: dict[int, Footprint]) -> BitSlice:
    slices = BitSlice(SIZE)
    for lane, job in groups.items():
        slices.paint(lane, job)
    return slices


@settings(deadline=None)
@given(GROUPS, PERIODS, SEGMENTS)
def test_the_prefilter_blocks_exactly_the_shifts_that_interval_sets_refuse(
    groups: dict[int, Footprint], period: int, segments: list[tuple[int, int]]
) -> None:
    blocked = painted(groups).blocked(period=period, segments=segments)
    for lane, job in groups.items():
        free = IntervalSet.complement(SIZE, [(job.starts, job.ends)])
        for shift in range(period):
            want = footprint(Ring(SIZE), period=period, segments=segments, anchor=shift)
            is_blocked = bool(int(blocked[shift]) >> lane & 1)
            assert is_blocked == (not free.simulate_insert(want.starts, want.ends).is_clean)


@given(FOOTPRINTS, PERIODS, st.tuples(st.integers(0, 60), st.integers(1, 12)))
def test_overlap_by_shift_counts_what_an_insert_would_meet(
    job: Footprint, period: int, segment: tuple[int, int]
) -> None:
    load = painted({7: job}).load(7, period=period)
    overlaps = overlap_by_shift(load, [segment])
    free = IntervalSet.complement(SIZE, [(job.starts, job.ends)])
    for shift in range(period):
        want = footprint(Ring(SIZE), period=period, segments=[segment], anchor=shift)
        assert overlaps[shift] == free.simulate_insert(want.starts, want.ends).overlaps


@given(GROUPS)
def test_clearing_a_group_leaves_the_others(groups: dict[int, Footprint]) -> None:
    slices = painted(groups)
    slices.clear(3)
    assert slices.busy_slots(3) == 0
    for lane, job in groups.items():
        assert lane == 3 or slices.busy_slots(lane) == job.num_slots


def test_groups_that_share_no_slot_with_the_job_stay_open() -> None:
    slices = painted({0: footprint(Ring(SIZE), period=10, segments=[(0, 5)], anchor=0)})
    blocked = slices.blocked(period=10, segments=[(0, 5)])
    assert np.flatnonzero(blocked == 0).tolist() == [5]
