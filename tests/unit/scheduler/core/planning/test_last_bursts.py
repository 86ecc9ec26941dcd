"""Runs of one cycle share devices where their last bursts are not expected to meet."""

from __future__ import annotations

import pytest

from plexsvc.ids import ResidentId
from plexsvc.scheduler.core.planning.answers import what_if
from plexsvc.scheduler.core.planning.last_bursts import Endings, LastBurst
from plexsvc.scheduler.core.planning.profile import SECOND_US, Mode
from tests.unit.scheduler.core.planning.test_interference import demand
from tests.unit.scheduler.core.planning.test_live_planning import admit, live


@pytest.mark.parametrize(
    ("since_s", "is_met"), [(-25, False), (-15, True), (15, True), (20, False)]
)
def test_bursts_meet_where_they_are_expected_to_overlap(since_s: int, is_met: bool) -> None:
    burst = LastBurst(start_us=80 * SECOND_US, end_us=100 * SECOND_US)
    other = LastBurst(
        start_us=burst.start_us + since_s * SECOND_US, end_us=burst.end_us + since_s * SECOND_US
    )
    assert burst.meets(other) is other.meets(burst) is is_met


def test_only_runs_of_one_cycle_with_slack_end_in_their_only_burst() -> None:
    one = demand("one", (0, 20), steps=1)
    assert LastBurst.of(one, began_us=0) is not None
    assert LastBurst.of(demand("two", (0, 20), steps=2), began_us=0) is None
    assert LastBurst.of(demand("any", (0, 20)), began_us=0) is None
    assert one.profile.mode is Mode.ASYNC1


@pytest.mark.parametrize(("after_s", "takes"), [(0, False), (10, False), (20, True), (50, True)])
def test_a_run_of_one_cycle_joins_another_that_trains_at_another_time(
    after_s: int, takes: bool
) -> None:
    planner = live(a=1)
    admit(planner, demand("first", (0, 20), steps=1))
    planner.submit(demand("second", (0, 20), steps=1))
    asked = what_if(planner, planner.waiting[ResidentId("second")], now_us=after_s * SECOND_US)
    assert bool(planner.admit(after_s * SECOND_US)) is bool(asked.units) is takes


def test_a_run_that_moves_ends_as_long_after_its_start_as_before() -> None:
    planner = live(a=2)
    admit(planner, demand("first", (0, 20), steps=1), demand("second", (0, 20), steps=1))
    (second,) = planner.group_of(ResidentId("second")).residents.values()
    moved = Endings(planner.paces, second.demand, now_us=50 * SECOND_US)
    (first,) = planner.group_of(ResidentId("first")).residents.values()
    assert moved.meets(first)
