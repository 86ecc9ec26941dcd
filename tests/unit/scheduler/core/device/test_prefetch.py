"""Whose state comes in ahead: the clear first, not twice, not for nothing."""

from __future__ import annotations

from dataclasses import replace

from plexsvc.ids import ResidentId
from plexsvc.scheduler.core.device.prefetch import Expected, next_arrival
from plexsvc.scheduler.core.planning.runtime_rules import HRRS, PLEX_RULES, Rules

A, B = ResidentId("a"), ResidentId("b")


def expected(
    resident_id: ResidentId, at_us: int, *, spread_us: int = 10, switch_us: int = 5
) -> Expected:
    return Expected(resident_id=resident_id, at_us=at_us, spread_us=spread_us, switch_us=switch_us)


def choose(
    *candidates: Expected,
    resident: ResidentId | None = None,
    prefetched: ResidentId | None = None,
    rules: Rules = PLEX_RULES,
    now_us: int = 0,
) -> ResidentId | None:
    return next_arrival(
        candidates, resident=resident, prefetched=prefetched, rules=rules, now_us=now_us
    )


def test_the_first_expected_comes_in_whatever_the_order_given() -> None:
    assert choose(expected(A, 90), expected(B, 50)) == B
    assert choose(expected(B, 50), expected(A, 90)) == B


def test_nobody_comes_in_when_the_first_is_there_costs_nothing_or_is_not_clear() -> None:
    assert choose(expected(A, 50), expected(B, 90), resident=A) is None
    assert choose(expected(A, 50, switch_us=0), expected(B, 90)) is None
    assert choose(expected(A, 50, spread_us=100), expected(B, 90)) is None
    assert choose() is None
    assert choose(expected(A, 50), rules=HRRS) is None


def test_a_job_brought_in_is_left_alone_until_its_time_has_come() -> None:
    candidates = expected(A, 50), expected(B, 90)
    assert choose(*candidates, resident=B, prefetched=B, now_us=40) is None
    assert choose(*candidates, resident=B, prefetched=B, now_us=50) == A


def test_confidence_is_a_share_of_the_spread_of_both_whoever_else_there_is() -> None:
    sure = replace(PLEX_RULES, confidence_ppm=1_000_000)
    first = expected(A, 50, spread_us=30)
    assert choose(first, expected(B, 100, spread_us=40), rules=sure) == A
    assert choose(first, expected(B, 99, spread_us=40), rules=sure) is None
    clear = expected(ResidentId("c"), 200, spread_us=1)
    assert choose(first, clear, expected(B, 300, spread_us=40), rules=sure) == A
    assert choose(first, clear, expected(B, 300, spread_us=400), rules=sure) is None


def test_a_job_with_slack_is_brought_in_only_when_that_is_clearer() -> None:
    rules = replace(PLEX_RULES, confidence_ppm=500_000, slack_confidence_ppm=2_000_000)
    first, other = expected(A, 50, spread_us=30), expected(B, 100, spread_us=40)
    assert choose(first, other, rules=rules) == A
    assert choose(replace(first, has_slack=True), other, rules=rules) is None
    later = expected(B, 150, spread_us=40)
    assert choose(replace(first, has_slack=True), later, rules=rules) == A
