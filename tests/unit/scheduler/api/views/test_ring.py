"""The ring of slots: rounded periods, the slots of a cycle, and micro-shifts."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from plexsvc.scheduler.api.views.ring import RING_SLOTS, Cycle, laid, least_overlap
from plexsvc.scheduler.core.planning.profile import SECOND_US, Profile, Segment

DIVISORS = [d for d in range(1, RING_SLOTS + 1) if RING_SLOTS % d == 0]
SEGMENTS = st.lists(st.tuples(st.integers(0, 50), st.integers(1, 40)), min_size=1, max_size=4)
CYCLES = st.builds(
    lambda period, start, segments: Cycle(period=period, start=start, segments=tuple(segments)),
    st.sampled_from([d for d in DIVISORS if 4 <= d <= 60]),
    st.integers(0, 500),
    SEGMENTS,
)


def cycle(start: int, *, busy: int, period: int = 60) -> Cycle:
    return Cycle(period=period, start=start, segments=((0, busy),))


def profile(period_us: int, *segments: tuple[int, int]) -> Profile:
    made = (Segment(phase="step", offset_us=o, duration_us=d) for o, d in segments)
    return Profile(period_us=period_us, segments=tuple(made))


def slots_of(one: Cycle) -> set[int]:
    """Return all slots of the ring that a cycle has."""
    return {
        base + (one.start + offset + at) % one.period
        for base in range(0, RING_SLOTS, one.period)
        for offset, duration in one.segments
        for at in range(duration)
    }


@given(st.integers(1, 100_000))
def test_a_period_is_rounded_to_the_nearest_divisor(slots: int) -> None:
    made = Cycle.of(profile(slots * SECOND_US), at_us=0, slot_us=SECOND_US)
    nearest = min(max(d / slots, slots / d) for d in DIVISORS)
    assert max(made.period / slots, slots / made.period) == nearest


def test_a_period_longer_than_the_ring_becomes_the_ring() -> None:
    made = Cycle.of(profile(10**6 * SECOND_US), at_us=0, slot_us=SECOND_US)
    assert made.period == RING_SLOTS


def test_segments_keep_their_share_of_a_rounded_period_and_last_a_slot_at_least() -> None:
    made = Cycle.of(
        profile(289 * SECOND_US, (0, 1), (144_500_000, 1_500_000)),
        at_us=7_900_000,
        slot_us=SECOND_US,
    )
    assert made == Cycle(period=288, start=7, segments=((0, 1), (144, 2)))


@given(CYCLES)
def test_spans_are_the_slots_of_a_period(one: Cycle) -> None:
    spans = one.spans()
    assert {s for start, end in spans for s in range(start, end)} == {
        s for s in slots_of(one) if s < one.period
    }
    assert all(a[1] < b[0] for a, b in itertools.pairwise(spans))


@settings(deadline=None, max_examples=30)
@given(st.lists(CYCLES, max_size=3), CYCLES)
def test_the_shift_is_the_least_of_those_that_meet_others_least(
    others: list[Cycle], new: Cycle
) -> None:
    taken = set().union(*map(slots_of, others))
    fit = least_overlap(new, others)
    shifted = (
        Cycle(period=new.period, start=new.start + shift, segments=new.segments)
        for shift in range(new.period)
    )
    overlaps = [len(slots_of(one) & taken) for one in shifted]
    assert fit.slots == overlaps.index(min(overlaps))
    assert fit.overlap_ppm == min(overlaps) * 1_000_000 // len(slots_of(new))


def test_what_was_just_placed_slides_behind_what_was_seen_and_what_was_placed_before() -> None:
    seen, first, second = (cycle(start, busy=20) for start in (10, 0, 0))
    found = laid([(first, False), (seen, True), (second, False)])
    assert [(one.start, shift) for one, shift in found] == [(30, 30), (10, 0), (50, 50)]
