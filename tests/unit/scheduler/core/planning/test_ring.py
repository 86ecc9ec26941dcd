"""The ring: windows and rounds of sharp jobs, the mean of flat ones, slack, few cycles, pools."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plexsvc.ids import ResidentId, UnitId
from plexsvc.scheduler.api.views.newcomer import what_if
from plexsvc.scheduler.core.planning.planner import Placed, Planner
from plexsvc.scheduler.core.planning.profile import (
    PPM,
    SECOND_US,
    SHARP_PPM,
    Demand,
    Load,
    Lodger,
    Mode,
    Profile,
    Segment,
    is_sharp,
)
from plexsvc.scheduler.core.planning.ring import (
    CycleStage,
    Turns,
    play,
    together,
    turned,
)
from tests.unit.scheduler.core.planning.test_live_planning import admit, live

HERE = (UnitId("n0"),)


def forecasts(*demands: Demand) -> dict[str, int]:
    """Return what jobs that live on one unit lose."""
    lodgers = [Lodger(resident_id=d.resident_id, load=Load.of(d), units=HERE) for d in demands]
    return {str(name): ppm for name, ppm in turned(lodgers).slowdowns.items()}


def paces(jobs: list[Turns]) -> list[int]:
    """Return what jobs that are all ready at once lose."""
    return [course.slowdown_ppm for course in play(jobs)]


def job(
    *stages: tuple[str, int], switch_us: int = 0, period_us: int = 0, most_ppm: int = PPM
) -> Turns:
    """Return a job that works so long on units with one letter each, one after another."""
    return Turns(
        period_us=period_us or sum(busy_us for _, busy_us in stages),
        stages=tuple(
            CycleStage(units=tuple(map(UnitId, units)), busy_us=busy_us, switch_us=switch_us)
            for units, busy_us in stages
        ),
        most_ppm=most_ppm,
    )


def test_a_long_and_a_short_rollout_fill_both_pools_and_cost_nobody_anything() -> None:
    pair = [job(("r", 750), ("t", 250)), job(("r", 250), ("t", 750))]
    assert paces(pair) == [PPM, PPM]


def test_jobs_that_share_one_pool_alone_wait_there_alone() -> None:
    rolls_here, rolls_there = job(("r", 500), ("t", 500)), job(("s", 500), ("t", 500))
    assert paces([rolls_here, rolls_there]) == [PPM, PPM]
    third = job(("u", 500), ("t", 500))
    assert paces([rolls_here, rolls_there, third]) == [1_500_000] * 3


def test_a_switch_comes_on_top_when_another_was_there_before() -> None:
    pair = [job(("r", 500), ("t", 500), switch_us=50) for _ in range(2)]
    assert paces(pair) == [1_100_000, 1_100_000]
    assert paces(pair[:1]) == [PPM]


def test_a_gang_waits_for_the_last_of_its_units() -> None:
    wide, narrow = job(("rs", 600), ("t", 400)), job(("s", 600), ("u", 400))
    assert min(paces([wide, narrow])) >= 1_190_000


def test_together_are_those_who_meet_directly_or_over_others() -> None:
    one, two, three, other = (job((units, 1)) for units in ("a", "ab", "b", "c"))
    assert together(one, [three, other, two]) == [one, two, three]


def test_a_job_that_pauses_by_itself_leaves_its_devices_to_others() -> None:
    idle = job(("r", 100), ("t", 100), period_us=1000)
    assert paces([idle, job(("r", 700), ("t", 300))]) == [PPM, 1_000_000]


def bursts(name: str, *bursts: tuple[int, int], period: int = 100, steps: int = 0) -> Demand:
    """Return a job one step behind that trains in bursts, each from a second on for so many."""
    segments = tuple(
        Segment(phase=f"p{at}", offset_us=since * SECOND_US, duration_us=lasts * SECOND_US)
        for at, (since, lasts) in enumerate(bursts)
    )
    profile = Profile(period_us=period * SECOND_US, segments=segments, mode=Mode.ASYNC1)
    return Demand(resident_id=ResidentId(name), num_units=1, profile=profile, expected_steps=steps)


def test_pauses_inside_a_cycles_training_are_no_slack_and_bursts_share_what_is_left() -> None:
    one, three = bursts("one", (0, 30)), bursts("three", (0, 10), (20, 10), (40, 10))
    assert (one.profile.slack_us, Load.of(one).slack_us) == (70 * SECOND_US, 70 * SECOND_US)
    assert three.profile.slack_us == 50 * SECOND_US
    assert Load.of(three).slack_us == three.profile.slack_us // 3
    other = bursts("other", (0, 40), period=120)
    assert forecasts(one, other)["one"] == PPM
    assert forecasts(three, other)["three"] > 1_100_000


def test_a_run_of_one_cycle_joins_nobody_who_may_delay_its_end_beyond_its_bound() -> None:
    long = bursts("long", (0, 40), steps=50)
    for steps, takes in ((1, False), (2, True), (0, True)):
        planner = live(a=1)
        admit(planner, long)
        assert bool(admit(planner, bursts("new", (0, 20), steps=steps))) == takes, steps


def test_a_run_of_one_cycle_is_protected_from_newcomers_too() -> None:
    planner = live(a=1)
    admit(planner, bursts("short", (0, 20), steps=1))
    assert admit(planner, bursts("new", (0, 40), steps=50)) == {}
    assert admit(planner, replace(bursts("brief", (0, 20), steps=50))) == {"brief": "a:0"}


def test_only_runs_of_one_cycle_with_slack_end_in_their_only_burst() -> None:
    one = bursts("one", (0, 20), steps=1)
    assert one.profile.mode is Mode.ASYNC1
    end_us = 7 * SECOND_US + one.profile.period_us
    assert one.last_burst(began_us=7 * SECOND_US) == (
        end_us - 20 * SECOND_US - one.profile.switch_us,
        end_us,
    )
    assert bursts("two", (0, 20), steps=2).last_burst(began_us=0) is None
    assert bursts("any", (0, 20)).last_burst(began_us=0) is None


@pytest.mark.parametrize(("after_s", "takes"), [(0, False), (10, False), (20, True), (50, True)])
def test_a_run_of_one_cycle_joins_another_that_trains_at_another_time(
    after_s: int, takes: bool
) -> None:
    planner = live(a=1)
    admit(planner, bursts("first", (0, 20), steps=1))
    planner.submit(bursts("second", (0, 20), steps=1))
    asked = what_if(planner, planner.waiting[ResidentId("second")], now_us=after_s * SECOND_US)
    assert bool(planner.admit(after_s * SECOND_US)) is bool(asked.units) is takes


def test_a_run_that_moves_ends_as_long_after_its_start_as_before() -> None:
    planner = live(a=2)
    one = bursts("one", (0, 20), steps=1)
    planner.submit(one)
    planner.admit(7 * SECOND_US)
    planner.move(one.resident_id, (UnitId("a:1"),), now_us=50 * SECOND_US)
    assert planner.board.resident(one.resident_id).began_us == 7 * SECOND_US


def regular(name: str, *, period: int, busy: int, jitter_ppm: int = 20_000) -> Demand:
    """Return a synchronous job of one burst; as sharp as its jitter lets it be."""
    segment = Segment(phase="update", offset_us=0, duration_us=busy * SECOND_US)
    return Demand(
        resident_id=ResidentId(name),
        num_units=1,
        profile=Profile(period_us=period * SECOND_US, segments=(segment,), jitter_ppm=jitter_ppm),
    )


@pytest.mark.parametrize(
    ("jitter_ppm", "mode", "expected"),
    [
        (20_000, Mode.SYNC, True),
        (SHARP_PPM + 1, Mode.SYNC, False),
        (0, Mode.SYNC, False),
        (20_000, Mode.ASYNC1, False),
    ],
)
def test_a_synchronous_job_whose_cycles_vary_little_is_sharp(
    jitter_ppm: int, mode: Mode, expected: bool
) -> None:
    profile = regular("a", period=100, busy=5, jitter_ppm=jitter_ppm).profile
    assert is_sharp(replace(profile, mode=mode)) is expected


def test_sharp_jobs_wait_only_for_what_does_not_fit_beside_each_other() -> None:
    one, two = regular("one", period=100, busy=50), regular("two", period=100, busy=50)
    assert forecasts(one, two) == {"one": PPM, "two": PPM}
    three = regular("three", period=100, busy=20)
    assert forecasts(one, two, three) == dict.fromkeys(("one", "two", "three"), 1_200_000)


def test_flat_jobs_lose_the_mean_of_a_queue_with_one_server() -> None:
    one = regular("one", period=100, busy=20, jitter_ppm=0)
    two = regular("two", period=100, busy=40, jitter_ppm=0)
    rest_us, idle_ppm = 40 * 40 * SECOND_US // 200, 600_000
    assert forecasts(one, two)["one"] == PPM + rest_us * PPM // idle_ppm // 100
    assert forecasts(one)["one"] == PPM


def test_a_sharp_job_loses_its_rounds_and_the_mean_of_the_flat_ones() -> None:
    sharp = [regular(name, period=100, busy=55) for name in ("one", "two")]
    flat = regular("flat", period=2000, busy=200, jitter_ppm=0)
    rounds, beside = forecasts(*sharp), forecasts(sharp[0], flat)
    assert rounds["one"] == 1_100_000
    assert beside["one"] > PPM
    assert forecasts(*sharp, flat)["one"] == rounds["one"] + beside["one"] - PPM


def test_a_sharp_job_joins_whom_it_never_meets_and_no_flat_job_does() -> None:
    for jitter_ppm, takes in ((20_000, True), (0, False)):
        planner = live(a=1)
        there = [regular(n, period=100, busy=30, jitter_ppm=jitter_ppm) for n in "xy"]
        for each in there:
            planner.place_at(each, [UnitId("a:0")], now_us=0)
        new = regular("new", period=100, busy=29, jitter_ppm=jitter_ppm)
        assert bool(admit(planner, new)) is takes


def test_a_new_job_slides_into_what_those_who_were_seen_leave_free() -> None:
    planner = live(a=1)
    first = regular("first", period=100, busy=60)
    admit(planner, first)
    planner.note_phase(first.resident_id, 1000 * SECOND_US)
    new = regular("new", period=100, busy=20)
    (placed,) = enter(planner, new, at_s=1050)
    taken = planner.taken[new.resident_id]
    assert placed.units == ("a:0",)
    assert taken.course is not None
    # It rolls out for 80 s and is ready at 1130 s; the other has 1100-1160 s, and so each cycle.
    assert taken.course.windows[0] == (1160 * SECOND_US, 1180 * SECOND_US)
    start_us, end_us = taken.course.window
    assert (start_us // SECOND_US % 100, end_us // SECOND_US % 100) == (60, 80)
    assert taken.course.shift_us == 30 * SECOND_US
    assert (taken.slowdown_ppm, taken.others_ppm) == (PPM, PPM)
    assert "least predicted loss" in taken.why


def enter(planner: Planner, new: Demand, *, at_s: int) -> list[Placed]:
    """Have a job wait and admit it at a time."""
    planner.submit(new)
    return planner.admit(at_s * SECOND_US)


def test_what_is_shown_are_the_windows_by_which_was_decided() -> None:
    planner = live(a=1, b=1)
    for name, unit, at_s in (("one", "a:0", 1000), ("two", "b:0", 1040)):
        planner.place_at(regular(name, period=100, busy=55), [UnitId(unit)], now_us=0)
        planner.note_phase(ResidentId(name), at_s * SECOND_US)
    new = regular("new", period=100, busy=25)
    asked = what_if(planner, new, now_us=1050 * SECOND_US)
    enter(planner, new, at_s=1050)
    taken, group = planner.taken[new.resident_id], planner.group_of(new.resident_id)
    assert asked.taken == taken
    assert taken.course is not None
    seen_us = taken.course.windows[3][0]
    planner.note_phase(new.resident_id, seen_us)
    shown = planner.ring(group, now_us=seen_us).courses[new.resident_id]
    assert set(taken.course.windows[3:]) <= set(shown.windows)


def test_a_flat_job_has_no_window_and_one_alone_took_nothing() -> None:
    planner = live(a=1)
    for name in ("one", "two"):
        enter(planner, regular(name, period=1000, busy=20, jitter_ppm=0), at_s=1)
    assert ResidentId("one") not in planner.taken
    taken = planner.taken[ResidentId("two")]
    assert (taken.course, taken.duty_ppm, taken.at_us) == (None, 20_000, SECOND_US)
    planner.remove(ResidentId("two"))
    assert planner.taken == {}


@given(st.lists(st.tuples(st.integers(5, 60), st.integers(0, 300)), min_size=2, max_size=4))
def test_windows_on_one_unit_never_overlap_and_go_on_from_what_was_seen(
    jobs: list[tuple[int, int]],
) -> None:
    stage = [CycleStage(units=HERE, busy_us=b, switch_us=3, pause_us=100 - b) for b, _ in jobs]
    turns = [
        Turns(period_us=100, stages=(one,), most_ppm=PPM, since_us=1000 + since)
        for one, (_, since) in zip(stage, jobs, strict=True)
    ]
    courses = play(turns, now_us=1200)
    windows = sorted(window for course in courses for window in course.windows)
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(windows))
    for course, (busy, _), one in zip(courses, jobs, turns, strict=True):
        assert all(end - start == busy for start, end in course.windows)
        first_us = min(w[0] for w in course.windows)
        assert first_us > max(1200, *(t.since_us for t in turns)) - 100
        assert 0 <= course.shift_us < one.period_us
