"""HRRS as a pure function, and what it does to a burst."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from plexsvc.ids import WpgId
from plexsvc.scheduler.core.order import PATIENCE, Candidate, by_response_ratio, in_turn, smoothed

TIMES = st.integers(0, 10**12)


def candidate(name: str, wait_us: int, service_us: int, setup_us: int) -> Candidate:
    return Candidate(wpg_id=WpgId(name), wait_us=wait_us, service_us=service_us, setup_us=setup_us)


@given(st.lists(st.builds(candidate, st.just("w"), TIMES, TIMES, TIMES), max_size=12))
def test_order_is_by_exact_response_ratio(candidates: list[Candidate]) -> None:
    ordered = by_response_ratio(candidates)
    ratios = [Fraction(c.wait_us + c.effective_us, c.effective_us) for c in ordered]
    assert ratios == sorted(ratios, reverse=True)


def test_a_resident_operation_goes_before_one_that_needs_a_switch() -> None:
    switching = candidate("s", 100, 50, 1000)
    resident = candidate("r", 100, 50, 0)
    assert by_response_ratio([switching, resident]) == [resident, switching]


def test_a_long_wait_overcomes_the_switch() -> None:
    switching = candidate("s", 100_000, 50, 1000)
    resident = candidate("r", 100, 50, 0)
    assert by_response_ratio([resident, switching]) == [switching, resident]


def test_a_follow_up_that_has_not_waited_loses_to_any_waiter() -> None:
    follow_up = candidate("f", 0, 50, 0)
    waiter = candidate("w", 1, 50, 10_000_000)
    assert by_response_ratio([follow_up, waiter]) == [waiter, follow_up]


def follow_up(service_us: int) -> Candidate:
    return Candidate(
        wpg_id=WpgId("f"), wait_us=0, service_us=service_us, setup_us=0, is_follow_up=True
    )


def test_a_follow_up_shorter_than_two_switches_ends_its_burst_first() -> None:
    waiter = candidate("w", 300, 100, 50)
    short, long = follow_up(100), follow_up(101)
    assert in_turn([waiter, short]) == [short, waiter]
    assert in_turn([waiter, long]) == [waiter, long]


def test_a_follow_up_gives_way_to_a_neighbour_that_needs_no_switch() -> None:
    resident = candidate("r", 1, 100, 0)
    assert in_turn([resident, follow_up(1)]) == [resident, follow_up(1)]


@given(st.integers(0, 10**6), st.integers(1, 10**6))
def test_nobody_waits_for_a_burst_beyond_its_patience(service_us: int, setup_us: int) -> None:
    effective_us = service_us + setup_us
    patient = candidate("w", PATIENCE * effective_us, service_us, setup_us)
    tired = candidate("w", PATIENCE * effective_us + 1, service_us, setup_us)
    short = follow_up(min(1, setup_us))
    assert in_turn([patient, short])[0] == short
    assert in_turn([tired, short])[0] == tired


def test_equals_keep_their_order() -> None:
    first, second = candidate("1", 5, 5, 0), candidate("2", 5, 5, 0)
    assert by_response_ratio([first, second]) == [first, second]


def test_smoothing_takes_the_first_measurement_whole_then_a_quarter() -> None:
    assert smoothed(None, 100) == 100
    assert smoothed(100, 200) == 125
    assert smoothed(100, 0) == 75
