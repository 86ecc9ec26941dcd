"""Admission: order, backfill, bounds, gangs whole or not at all, and the reasons."""

from __future__ import annotations

from dataclasses import replace

import pytest

from plexsvc.errors import PlexError
from plexsvc.ids import ResidentId, UnitId
from plexsvc.scheduler.core.planning.answers import why
from plexsvc.scheduler.core.planning.board import Board
from plexsvc.scheduler.core.planning.planner import Planner
from plexsvc.scheduler.core.planning.policies import NO_BOUND_PPM, POLICIES, Policy, policy_named
from plexsvc.scheduler.core.planning.profile import SECOND_US, Demand, Mode, Profile, Segment
from plexsvc.scheduler.core.planning.rooms import UnitRoom
from tests.rigs.core_invariants import check_board

HOUR_US = 3600 * SECOND_US


def planner(policy: str | Policy, *, units: int = 4, parked_bytes: int = 100) -> Planner:
    rooms = [
        UnitRoom(unit_id=UnitId(f"n{i}"), host=f"n{i}", parked_bytes=parked_bytes)
        for i in range(units)
    ]
    chosen = policy if isinstance(policy, Policy) else POLICIES[policy]
    return Planner(Board(rooms), policy=chosen)


def demand(
    name: str,
    *,
    units: int = 1,
    period: int = 100,
    busy: int = 20,
    mode: Mode = Mode.ASYNC1,
    state_bytes: int = 0,
    arrived_us: int = 0,
    max_slowdown_ppm: int = 1_500_000,
) -> Demand:
    segment = Segment(phase="update", offset_us=0, duration_us=busy * SECOND_US)
    return Demand(
        resident_id=ResidentId(name),
        num_units=units,
        profile=Profile(period_us=period * SECOND_US, segments=(segment,), mode=mode),
        state_bytes=state_bytes,
        arrived_us=arrived_us,
        expected_us=HOUR_US,
        max_slowdown_ppm=max_slowdown_ppm,
    )


def admit(one: Planner, *demands: Demand) -> dict[str, tuple[str, ...]]:
    for each in demands:
        one.submit(each)
    placed = {
        p.resident_id: p.units for p in one.admit(max((d.arrived_us for d in demands), default=0))
    }
    check_board(one.board)
    return placed  # type: ignore[return-value]  # ids are strings


def test_isolated_gives_every_job_its_own_nodes_first_come_first_served() -> None:
    one = planner("isolated")
    placed = admit(one, demand("a", units=3), demand("b", units=2), demand("c"))
    assert placed == {"a": ("n0", "n1", "n2")}
    assert list(one.waiting) == ["b", "c"]


def test_backfill_lets_a_small_job_pass_a_blocked_one() -> None:
    one = planner("isolated_backfill")
    placed = admit(one, demand("a", units=3), demand("b", units=2), demand("c"))
    assert placed == {"a": ("n0", "n1", "n2"), "c": ("n3",)}


def test_pack_joins_before_it_opens_and_spread_opens_before_it_joins() -> None:
    packed = admit(planner("pack"), demand("a"), demand("b"))
    assert packed["a"] == packed["b"]
    spread = admit(planner("spread"), demand("a"), demand("b"))
    assert spread["a"] != spread["b"]


def test_no_group_passes_its_number_of_jobs_or_its_duty_cap() -> None:
    one = planner("plex", units=1)
    jobs = [demand(f"j{i}", busy=28, period=100) for i in range(4)]
    assert len(admit(one, *jobs)) == 3
    assert "duty would pass 90%" in why(one, next(iter(one.waiting)), now_us=0)
    two = planner("spread_backfill", units=1)
    assert len(admit(two, *(demand(f"j{i}", busy=5) for i in range(3)))) == 2
    assert "max_jobs" in why(two, ResidentId("j2"), now_us=0)


def test_parked_state_must_fit_the_units() -> None:
    one = planner("plex", units=1, parked_bytes=100)
    admit(one, demand("a", state_bytes=60), demand("b", state_bytes=60))
    assert "no room for it in host memory" in why(one, ResidentId("b"), now_us=0)


def test_a_placement_that_would_break_a_residents_bound_is_refused_with_the_reason() -> None:
    one = planner("plex", units=1)
    tight = demand("tight", mode=Mode.SYNC, max_slowdown_ppm=1_010_000)
    admit(one, tight, demand("b", mode=Mode.SYNC, busy=40))
    assert list(one.waiting) == ["b"]
    assert "max_slowdown" in why(one, ResidentId("b"), now_us=0)


def test_jobs_without_bounds_share_a_device_that_makes_one_slow_beyond_measure() -> None:
    policy = replace(POLICIES["plex_crowded"], default_bound_ppm=NO_BOUND_PPM)
    slow = demand("slow", mode=Mode.SYNC, busy=90, max_slowdown_ppm=NO_BOUND_PPM)
    brief = demand("brief", mode=Mode.SYNC, period=2, busy=1, max_slowdown_ppm=NO_BOUND_PPM)
    assert len(admit(planner(policy, units=1), slow, brief)) == 2
    bounded = replace(brief, max_slowdown_ppm=NO_BOUND_PPM - 1)
    assert len(admit(planner(policy, units=1), slow, bounded)) == 1


def test_a_job_that_left_makes_room_for_one_that_waits() -> None:
    one = planner("isolated", units=1)
    assert admit(one, demand("a"), demand("b")) == {"a": ("n0",)}
    assert not one.has_news
    one.remove(ResidentId("a"))
    assert one.has_news
    assert [p.resident_id for p in one.admit(5)] == ["b"]


def test_a_strict_queue_is_not_looked_at_again_until_something_changed_for_its_head() -> None:
    one = planner("isolated", units=1)
    admit(one, demand("a"), demand("b"), demand("c"))
    assert not one.has_news


@pytest.mark.parametrize("policy", ["isolated", "plex"])
def test_a_blocked_job_that_gives_up_lets_those_behind_it_have_the_idle_units(policy: str) -> None:
    one = planner(replace(POLICIES[policy], max_jobs=1), units=2)
    assert admit(one, demand("a")) == {"a": ("n0",)}
    blocked = demand("wide", units=2, arrived_us=-20 * HOUR_US)
    behind = replace(demand("b"), expected_us=2 * HOUR_US)
    assert admit(one, blocked, behind) == {}
    assert not one.has_news
    one.withdraw(ResidentId("wide"))
    assert one.has_news
    assert [p.resident_id for p in one.admit(1)] == ["b"]


def test_plex_takes_long_jobs_first_until_a_short_one_runs_out_of_patience() -> None:
    policy = replace(POLICIES["plex"], max_jobs=1)
    long, short = demand("long"), replace(demand("short"), expected_us=HOUR_US // 10)
    one = planner(policy, units=1)
    one.submit(short)
    one.submit(long)
    assert [p.resident_id for p in one.admit(0)] == ["long"]
    two = planner(policy, units=1)
    two.submit(short)
    two.submit(long)
    assert [p.resident_id for p in two.admit(2 * HOUR_US)] == ["short"]


def test_a_changed_cycle_is_planned_again_and_over_the_cap_it_takes_no_other() -> None:
    one = planner("plex", units=1)
    admit(one, demand("a", busy=30), demand("b", busy=30))
    one.learned(ResidentId("a"), demand("x", busy=80).profile)
    check_board(one.board)
    admit(one, demand("c", busy=5))
    assert "duty would pass 90%" in why(one, ResidentId("c"), now_us=0)


def test_an_unknown_policy_is_refused_with_the_known_ones() -> None:
    with pytest.raises(PlexError, match="isolated, isolated_backfill, pack"):
        policy_named("fastest")
