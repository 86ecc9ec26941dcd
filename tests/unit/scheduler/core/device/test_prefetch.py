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


def test_confidence_is_a_share_of_the_firsts_spread() -> None:
    sure = replace(PLEX_RULES, confidence_ppm=1_000_000)
    assert choose(expected(A, 50, spread_us=40), expected(B, 90), rules=sure) == A
    assert choose(expected(A, 50, spread_us=41), expected(B, 90), rules=sure) is None
