"""The order of a contest, asked again and again, and how long a burst is awaited."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from plexsvc.ids import ResidentId
from plexsvc.residency import Residency
from plexsvc.scheduler.core.actions import MoveState
from plexsvc.scheduler.core.device.contest import Expected, in_turn, linger_us, next_arrival
from plexsvc.scheduler.core.device.learning import smoothed
from plexsvc.scheduler.core.planning.runtime_rules import HRRS, PLEX_RULES, Entry, Rules, choose
from tests.fakes.fake_world import FakeWorld

NOW_US = 10**12
TIMES = st.integers(0, 10**11)


def entry(
    name: str, *, waited_us: int, service_us: int = 50, setup_us: int = 0, burst: bool = False
) -> Entry:
    return Entry(
        resident_id=ResidentId(name),
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


A, B = ResidentId("a"), ResidentId("b")


def expected(
    resident_id: ResidentId, at_us: int, *, spread_us: int = 10, switch_us: int = 5
) -> Expected:
    return Expected(resident_id=resident_id, at_us=at_us, spread_us=spread_us, switch_us=switch_us)


def brought_in(
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
    assert brought_in(expected(A, 90), expected(B, 50)) == B
    assert brought_in(expected(B, 50), expected(A, 90)) == B


def test_nobody_comes_in_when_the_first_is_there_costs_nothing_or_is_not_clear() -> None:
    assert brought_in(expected(A, 50), expected(B, 90), resident=A) is None
    assert brought_in(expected(A, 50, switch_us=0), expected(B, 90)) is None
    assert brought_in(expected(A, 50, spread_us=100), expected(B, 90)) is None
    assert brought_in() is None


def test_a_job_brought_in_is_left_alone_until_its_time_has_come() -> None:
    candidates = expected(A, 50), expected(B, 90)
    assert brought_in(*candidates, resident=B, prefetched=B, now_us=40) is None
    assert brought_in(*candidates, resident=B, prefetched=B, now_us=50) == A


def test_confidence_is_a_share_of_the_spread_of_both_whoever_else_there_is() -> None:
    sure = replace(PLEX_RULES, confidence_ppm=1_000_000)
    first = expected(A, 50, spread_us=30)
    assert brought_in(first, expected(B, 100, spread_us=40), rules=sure) == A
    assert brought_in(first, expected(B, 99, spread_us=40), rules=sure) is None
    clear = expected(ResidentId("c"), 200, spread_us=1)
    assert brought_in(first, clear, expected(B, 300, spread_us=40), rules=sure) == A
    assert brought_in(first, clear, expected(B, 300, spread_us=400), rules=sure) is None


def test_a_job_with_slack_is_brought_in_only_when_that_is_clearer() -> None:
    rules = replace(PLEX_RULES, confidence_ppm=500_000, slack_confidence_ppm=2_000_000)
    first, other = expected(A, 50, spread_us=30), expected(B, 100, spread_us=40)
    assert brought_in(first, other, rules=rules) == A
    assert brought_in(replace(first, has_slack=True), other, rules=rules) is None
    later = expected(B, 150, spread_us=40)
    assert brought_in(replace(first, has_slack=True), later, rules=rules) == A


def test_a_load_says_whose_state_is_needed_after_it() -> None:
    world = FakeWorld(device_bytes=100)
    world.join(nbytes=100)
    for job in "abcd":
        world.bring_up(job)
    for job in "abc":
        world.submit(f"{job}1", job=job, seq=1)
        world.drain()
    for job in "bca":
        world.submit(f"{job}2", job=job, seq=2)
    world.drain()
    loads = [a for a in world.log if isinstance(a, MoveState) and a.to is Residency.DEVICE]
    told = [(one.following, after.wpg_id) for one, after in pairwise(loads) if one.following]
    assert len(told) >= 3
    assert all(following[0] == wpg_id for following, wpg_id in told)
