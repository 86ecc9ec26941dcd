"""Interval sets against sets of slots."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from plexsvc.scheduler.core.structures.footprint import Footprint, footprint
from plexsvc.scheduler.core.structures.interval_set import IntervalSet, gang_windows
from plexsvc.scheduler.core.structures.ring import Ring, divisors_of

SIZE = 120
POINT = st.integers(0, SIZE)
RANGES = st.lists(st.tuples(POINT, POINT), max_size=8)
FOOTPRINTS = st.builds(
    lambda period, segments, anchor: footprint(
        Ring(SIZE), period=period, segments=segments, anchor=anchor
    ),
    st.sampled_from(divisors_of(SIZE)),
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


class IntervalRace(RuleBasedStateMachine):
    """Every operation goes to the interval set and to a set of slots; answers must agree."""

    def __init__(self) -> None:
        super().__init__()
        self.free = IntervalSet([(0, SIZE)])
        self.naive = set(range(SIZE))

    @rule(a=POINT, b=POINT)
    def add(self, a: int, b: int) -> None:
        self.free.add(a, b)
        self.naive |= set(range(a, b))

    @rule(a=POINT, b=POINT)
    def remove(self, a: int, b: int) -> None:
        self.free.remove(a, b)
        self.naive -= set(range(a, b))

    @rule(a=POINT, b=POINT)
    def covers(self, a: int, b: int) -> None:
        assert self.free.covers(a, b) == (set(range(a, b)) <= self.naive)

    @rule(length=st.integers(1, 40), not_before=POINT)
    def first_fit(self, length: int, not_before: int) -> None:
        fits = (
            start
            for start in range(not_before, SIZE)
            if set(range(start, start + length)) <= self.naive
        )
        assert self.free.first_fit(length, not_before=not_before) == next(fits, None)

    @rule(job=FOOTPRINTS)
    def simulate_insert(self, job: Footprint) -> None:
        met = self.free.simulate_insert(job.starts, job.ends)
        busy = busy_slots([job])
        assert met.fits == len(busy & self.naive)
        assert met.overlaps == len(busy - self.naive)
        conflicts = [
            int(s)
            for s, e in zip(job.starts, job.ends, strict=True)
            if not set(range(s, e)) <= self.naive
        ]
        assert met.first_conflict == (conflicts[0] if conflicts else None)
        assert met.is_clean == (not conflicts)

    @invariant()
    def same_slots(self) -> None:
        self.free.check()
        assert slots_of(self.free.ranges()) == self.naive
        assert self.free.num_slots == len(self.naive)


IntervalRace.TestCase.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
TestIntervalRace = IntervalRace.TestCase


@given(RANGES)
def test_ranges_in_any_order_make_the_union(ranges: list[tuple[int, int]]) -> None:
    made = IntervalSet(ranges)
    made.check()
    assert slots_of(made.ranges()) == slots_of(ranges)


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


def test_a_range_that_only_touches_a_window_is_not_covered() -> None:
    free = IntervalSet([(0, 4), (6, 8)])
    assert not free.covers(3, 7)
    assert free.simulate_insert(np.array([4]), np.array([6])).overlaps == 2
