"""HRRS as a pure function, and what it does to a burst."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from plexsvc.ids import WpgId
from plexsvc.scheduler.core.order import Candidate, by_response_ratio, smoothed

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


def test_equals_keep_their_order() -> None:
    first, second = candidate("1", 5, 5, 0), candidate("2", 5, 5, 0)
    assert by_response_ratio([first, second]) == [first, second]


def test_smoothing_takes_the_first_measurement_whole_then_a_quarter() -> None:
    assert smoothed(None, 100) == 100
    assert smoothed(100, 200) == 125
    assert smoothed(100, 0) == 75
