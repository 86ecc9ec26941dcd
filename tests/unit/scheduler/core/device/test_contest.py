"""The order of a contest, asked again and again, and how long a burst is awaited."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from plexsvc.ids import ResidentId
from plexsvc.scheduler.core.device.contest import in_turn, linger_us
from plexsvc.scheduler.core.device.learning import smoothed
from plexsvc.scheduler.core.planning.runtime_rules import HRRS, PLEX_RULES, Entry, choose

NOW_US = 10**12
TIMES = st.integers(0, 10**11)


def entry(
    name: str, *, waited_us: int, service_us: int = 50, setup_us: int = 0, burst: bool = False
) -> Entry:
    return Entry(
        resident_id=ResidentId(name),
        phase="step",
        since_us=NOW_US - waited_us,
        service_us=service_us,
        setup_us=setup_us,
        burst_us=service_us,
        deadline_us=NOW_US,
        is_critical=True,
        continues_burst=burst,
    )


@given(st.lists(st.tuples(TIMES, TIMES, TIMES), max_size=8))
def test_each_place_goes_to_the_best_of_those_left(facts: list[tuple[int, int, int]]) -> None:
    left = [
        entry(str(i), waited_us=w, service_us=s, setup_us=c) for i, (w, s, c) in enumerate(facts)
    ]
    ordered = in_turn(left, rules=PLEX_RULES, now_us=NOW_US)
    assert len(ordered) == len(left)
    for chosen in ordered:
        assert choose(left, rules=PLEX_RULES, now_us=NOW_US) is chosen
        left.remove(chosen)


def test_a_burst_is_not_torn_by_a_waiter_until_that_one_starves() -> None:
    follow_up = entry("f", waited_us=0, burst=True)
    patient, waiter = (
        entry("w", waited_us=waited_us, service_us=60, setup_us=100) for waited_us in (1_200, 1_300)
    )
    for other, first in ((patient, "f"), (waiter, "w")):
        assert in_turn([other, follow_up], rules=PLEX_RULES, now_us=NOW_US)[0].resident_id == first
    assert in_turn([waiter, follow_up], rules=HRRS, now_us=NOW_US)[0] is waiter


@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_a_device_is_kept_no_longer_than_the_switch_that_saves(gap_us: int, switch_us: int) -> None:
    kept_us = linger_us(gap_us=gap_us, switch_us=switch_us)
    assert kept_us <= switch_us
    assert kept_us >= gap_us or gap_us > switch_us


def test_smoothing_takes_the_first_measurement_whole_then_a_quarter() -> None:
    assert smoothed(None, 100) == 100
    assert smoothed(100, 200) == 125
    assert smoothed(100, 0) == 75
