"""The order of a contest, asked again and again, and how long a burst is awaited."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from plexsvc.ids import ResidentId, WpgId
from plexsvc.residency import Residency
from plexsvc.scheduler.core.actions import MoveState
from plexsvc.scheduler.core.device.contest import in_turn, is_clear, linger_us
from plexsvc.scheduler.core.device.learning import smoothed
from plexsvc.scheduler.core.planning.profile import PPM, Mode, Profile, Segment
from plexsvc.scheduler.core.planning.runtime_rules import Entry, Order, choose
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
    ordered = in_turn(left, order=Order.PLEX, now_us=NOW_US)
    assert len(ordered) == len(left)
    for chosen in ordered:
        assert choose(left, order=Order.PLEX, now_us=NOW_US) is chosen
        left.remove(chosen)


def test_a_burst_is_not_torn_by_a_waiter_until_that_one_starves() -> None:
    follow_up = entry("f", waited_us=0, burst=True)
    patient, waiter = (
        entry("w", waited_us=waited_us, service_us=60, setup_us=100) for waited_us in (1_200, 1_300)
    )
    for other, first in ((patient, "f"), (waiter, "w")):
        assert in_turn([other, follow_up], order=Order.PLEX, now_us=NOW_US)[0].resident_id == first
    assert in_turn([waiter, follow_up], order=Order.HRRS, now_us=NOW_US)[0] is waiter


@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_a_device_is_kept_no_longer_than_the_switch_that_saves(gap_us: int, switch_us: int) -> None:
    kept_us = linger_us(gap_us=gap_us, switch_us=switch_us)
    assert kept_us <= switch_us
    assert kept_us >= gap_us or gap_us > switch_us


def test_smoothing_takes_the_first_measurement_whole_then_a_quarter() -> None:
    assert smoothed(None, 100) == 100
    assert smoothed(100, 200) == 125
    assert smoothed(100, 0) == 75


def arrivals(*facts: tuple[int, int], mode: Mode = Mode.SYNC) -> list[tuple[int, WpgId, Profile]]:
    """Return arrivals by when they are expected and how far off that is; the first has the mode."""
    whole = (Segment(phase="training", offset_us=0, duration_us=1),)
    made = [Profile(period_us=PPM, segments=whole, jitter_ppm=spread_us) for _, spread_us in facts]
    made[0] = replace(made[0], mode=mode)
    return [(at_us, WpgId(str(at_us)), one) for (at_us, _), one in zip(facts, made, strict=True)]


def test_confidence_is_a_share_of_the_spread_of_both_whoever_else_there_is() -> None:
    first = (50, 30)
    assert is_clear(arrivals(first))
    assert is_clear(arrivals(first, (75, 40)))
    assert not is_clear(arrivals(first, (74, 40)))
    assert is_clear(arrivals(first, (200, 1), (300, 40)))
    assert not is_clear(arrivals(first, (200, 1), (300, 600)))


def test_a_job_with_slack_is_brought_in_only_when_that_is_clearer() -> None:
    assert is_clear(arrivals((50, 30), (100, 40)))
    assert not is_clear(arrivals((50, 30), (100, 40), mode=Mode.ASYNC1))
    assert is_clear(arrivals((50, 30), (150, 40), mode=Mode.ASYNC1))


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
