"""Predicted slowdowns of jobs with slack, several bursts and few cycles."""

from __future__ import annotations

from dataclasses import replace

from plexsvc.ids import ResidentId
from plexsvc.scheduler.core.planning.interference import Load, slowdowns_ppm
from plexsvc.scheduler.core.planning.profile import PPM, SECOND_US, Demand, Mode, Profile, Segment
from tests.unit.scheduler.core.planning.test_live_planning import admit, live


def demand(name: str, *bursts: tuple[int, int], period: int = 100, steps: int = 0) -> Demand:
    """Return a job one step behind that trains in bursts, each from a second on for so many."""
    segments = tuple(
        Segment(phase=f"p{at}", offset_us=since * SECOND_US, duration_us=lasts * SECOND_US)
        for at, (since, lasts) in enumerate(bursts)
    )
    profile = Profile(period_us=period * SECOND_US, segments=segments, mode=Mode.ASYNC1)
    return Demand(resident_id=ResidentId(name), num_units=1, profile=profile, expected_steps=steps)


def test_pauses_inside_a_cycles_training_are_no_slack_and_bursts_share_what_is_left() -> None:
    one, three = demand("one", (0, 30)), demand("three", (0, 10), (20, 10), (40, 10))
    assert (one.profile.slack_us, Load.of(one).slack_us) == (70 * SECOND_US, 70 * SECOND_US)
    assert three.profile.slack_us == 50 * SECOND_US
    assert Load.of(three).slack_us == three.profile.slack_us // 3
    other = Load.of(demand("other", (0, 40), period=120))
    assert slowdowns_ppm([Load.of(one), other])[0] == PPM
    assert slowdowns_ppm([Load.of(three), other])[0] > 1_100_000


def test_a_run_of_one_cycle_joins_nobody_who_may_delay_its_end_beyond_its_bound() -> None:
    long = demand("long", (0, 40), steps=50)
    for steps, takes in ((1, False), (2, True), (0, True)):
        planner = live(a=1)
        admit(planner, long)
        assert bool(admit(planner, demand("new", (0, 20), steps=steps))) == takes, steps


def test_a_run_of_one_cycle_is_protected_from_newcomers_too() -> None:
    planner = live(a=1)
    admit(planner, demand("short", (0, 20), steps=1))
    assert admit(planner, demand("new", (0, 40), steps=50)) == {}
    assert admit(planner, replace(demand("brief", (0, 20), steps=50))) == {"brief": "a:0"}
