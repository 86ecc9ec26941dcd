"""Interval sets against sets of slots."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from plexsvc.scheduler.core.structures.footprint import Footprint, footprint
from plexsvc.scheduler.core.structures.interval_set import (
    IntervalSet,
    gang_windows,
    overlap_by_shift,
)
from plexsvc.scheduler.core.structures.ring import Ring, divisors_of

SIZE = 120
PERIODS = st.sampled_from(divisors_of(SIZE))
POINT = st.integers(0, SIZE)
RANGES = st.lists(st.tuples(POINT, POINT), max_size=8)
FOOTPRINTS = st.builds(
    lambda period, segments, anchor: footprint(
        Ring(SIZE), period=period, segments=segments, anchor=anchor
    ),
    PERIODS,
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 12)), max_size=3),
    st.integers(0, SIZE),
)


def slots_of(ranges: list[tuple[int, int]]) -> set[int]:
    return {slot for start, end in ranges for slot in range(start, end)}


def busy_slots(jobs: list[Footprint]) -> set[int]:
    return {
        slot
        for job in jobs
        for start, end in zip(job.starts, job.ends, strict=True)
        for slot in range(start, end)
    }


@given(RANGES, FOOTPRINTS)
def test_an_insertion_meets_what_is_free_and_what_is_not(
    ranges: list[tuple[int, int]], job: Footprint
) -> None:
    free, busy = slots_of(ranges), busy_slots([job])
    met = IntervalSet(ranges).simulate_insert(job.starts, job.ends)
    assert (met.fits, met.overlaps) == (len(busy & free), len(busy - free))
    assert met.is_clean == (busy <= free)


@given(RANGES)
def test_ranges_in_any_order_make_the_union(ranges: list[tuple[int, int]]) -> None:
    made = IntervalSet(ranges)
    made.check()
    assert slots_of(made.ranges()) == slots_of(ranges)
    assert made.num_slots == len(slots_of(ranges))


@given(st.lists(FOOTPRINTS, max_size=4))
def test_the_complement_is_what_no_job_occupies(jobs: list[Footprint]) -> None:
    free = IntervalSet.complement(SIZE, [(job.starts, job.ends) for job in jobs])
    free.check()
    assert slots_of(free.ranges()) == set(range(SIZE)) - busy_slots(jobs)


@given(st.lists(RANGES, min_size=1, max_size=5))
def test_a_gangs_windows_are_the_slots_free_on_every_node(
    nodes: list[list[tuple[int, int]]],
) -> None:
    sets = [IntervalSet(ranges) for ranges in nodes]
    common = gang_windows([*sets, sets[0]])
    common.check()
    assert slots_of(common.ranges()) == set.intersection(*(slots_of(n) for n in nodes))


def test_a_range_that_only_touches_windows_overlaps() -> None:
    free = IntervalSet([(0, 4), (6, 8)])
    assert free.simulate_insert(np.array([4]), np.array([6])).overlaps == 2


@settings(deadline=None)
@given(FOOTPRINTS, PERIODS, st.tuples(st.integers(0, 60), st.integers(1, 12)))
def test_overlap_by_shift_counts_what_an_insert_would_meet(
    job: Footprint, period: int, segment: tuple[int, int]
) -> None:
    free = IntervalSet.complement(SIZE, [(job.starts, job.ends)])
    overlaps = overlap_by_shift(free.busy_by_phase(SIZE, period=period), [segment])
    for shift in range(period):
        want = footprint(Ring(SIZE), period=period, segments=[segment], anchor=shift)
        assert overlaps[shift] == free.simulate_insert(want.starts, want.ends).overlaps
