"""Phases that stay: who shares by what the cells on the ring have in common."""

from __future__ import annotations

from dataclasses import replace

import pytest

from plexsvc.ids import ResidentId, UnitId
from plexsvc.scheduler.core.planning.board import Board
from plexsvc.scheduler.core.planning.phases import STABLE_PPM, Phases, is_stable, settled_ppm
from plexsvc.scheduler.core.planning.planner import Planner
from plexsvc.scheduler.core.planning.policies import policy_named
from plexsvc.scheduler.core.planning.profile import (
    PPM,
    SECOND_US,
    Demand,
    Mode,
    Profile,
    Segment,
)
from plexsvc.scheduler.core.planning.rooms import UnitRoom
from plexsvc.scheduler.core.structures.ring import Ring


def demand(name: str, *, period: int, busy: int, jitter_ppm: int = 20_000) -> Demand:
    segment = Segment(phase="update", offset_us=0, duration_us=busy * SECOND_US)
    return Demand(
        resident_id=ResidentId(name),
        num_units=1,
        profile=Profile(period_us=period * SECOND_US, segments=(segment,), jitter_ppm=jitter_ppm),
        max_slowdown_ppm=1_500_000,
    )


def planner(name: str = "plex", *, units: int = 2) -> Planner:
    rooms = [UnitRoom(unit_id=UnitId(f"n{i}"), num_devices=8) for i in range(units)]
    return Planner(Board(rooms, ring=Ring(1200)), policy=policy_named(name))


def placed(one: Planner, *demands: Demand, on: str) -> None:
    for each in demands:
        one.place_at(each, [UnitId(on)], now_us=0)


def admitted(one: Planner, each: Demand) -> str | None:
    """Return the unit a job is given, if it is given one."""
    one.submit(each)
    return next((p.units[0] for p in one.admit(0) if p.resident_id == each.resident_id), None)


def lost_ppm(one: Planner, each: Demand, *, most_ppm: int = PPM) -> int | None:
    phases = Phases.of(one.board, each)
    (group,) = one.board.groups.values()
    return None if phases is None else phases.lost_ppm(group.on(group.units), most_ppm=most_ppm)


@pytest.mark.parametrize(
    ("jitter_ppm", "mode", "period_s", "expected"),
    [
        (20_000, Mode.SYNC, 100, True),
        (STABLE_PPM + 1, Mode.SYNC, 100, False),
        (0, Mode.SYNC, 100, False),
        (20_000, Mode.ASYNC1, 100, False),
        (20_000, Mode.SYNC, 19, False),
    ],
)
def test_phases_stay_where_they_were_measured_to(
    jitter_ppm: int, mode: Mode, period_s: int, expected: bool
) -> None:
    profile = replace(
        demand("a", period=period_s, busy=5, jitter_ppm=jitter_ppm).profile, mode=mode
    )
    assert is_stable(profile, slot_us=SECOND_US) is expected


def test_what_is_lost_is_what_must_overlap_at_every_shift() -> None:
    one = planner()
    placed(one, demand("a", period=100, busy=30), demand("b", period=100, busy=40), on="n0")
    assert lost_ppm(one, demand("c", period=100, busy=30)) == 0
    assert lost_ppm(one, demand("d", period=100, busy=40)) == 100_000
    assert lost_ppm(one, demand("e", period=100, busy=40, jitter_ppm=150_000)) is None


def test_jobs_whose_periods_share_no_common_measure_meet() -> None:
    one = planner()
    placed(one, demand("a", period=150, busy=60), on="n0")
    assert lost_ppm(one, demand("b", period=300, busy=90)) == 0
    assert (lost_ppm(one, demand("c", period=200, busy=60)) or 0) > 20_000


def test_the_global_profile_is_asked_before_any_resident(monkeypatch: pytest.MonkeyPatch) -> None:
    one = planner(units=1)
    placed(one, demand("a", period=100, busy=70), on="n0")
    monkeypatch.setattr("plexsvc.scheduler.core.planning.phases.IntervalSet", None)
    assert lost_ppm(one, demand("b", period=100, busy=50), most_ppm=50_000) == 200_000


def test_the_ring_lets_share_who_never_meet_and_keeps_apart_who_always_do() -> None:
    by_ring, by_formula = planner(units=1), planner("plex_no_ring", units=1)
    for one in (by_ring, by_formula):
        placed(one, *(demand(name, period=100, busy=30) for name in "ab"), on="n0")
    fits = demand("c", period=100, busy=29)
    assert (admitted(by_ring, fits), admitted(by_formula, fits)) == ("n0", None)
    by_ring, by_formula = planner(units=1), planner("plex_no_ring", units=1)
    for one in (by_ring, by_formula):
        placed(one, demand("a", period=150, busy=65), on="n0")
    meets = demand("b", period=200, busy=75)
    assert (lost_ppm(by_ring, meets) or 0) > 80_000
    assert (admitted(by_ring, meets), admitted(by_formula, meets)) == (None, "n0")


def test_among_equal_groups_a_job_joins_the_one_whose_cells_it_fits() -> None:
    one = planner()
    placed(one, demand("odd", period=150, busy=40), on="n0")
    placed(one, demand("even", period=200, busy=60), on="n1")
    assert admitted(one, demand("c", period=200, busy=60)) == "n1"


def test_a_job_whose_phases_do_not_stay_is_placed_as_without_the_ring() -> None:
    found = []
    for name in ("plex", "plex_no_ring"):
        one = planner(name)
        placed(one, demand("odd", period=150, busy=40), on="n0")
        placed(one, demand("even", period=200, busy=20), on="n1")
        found.append(admitted(one, demand("c", period=200, busy=20, jitter_ppm=150_000)))
    assert found[0] == found[1] is not None


def test_a_settled_group_is_predicted_by_what_its_cells_share() -> None:
    one = planner()
    placed(one, demand("a", period=100, busy=30), on="n0")
    one.submit(demand("b", period=100, busy=30))
    (group,) = one.board.groups.values()
    assert one.admit(0)
    assert set(one.predicted(group).values()) == {PPM}
    residents = [r for r in group.residents.values() if r.demand.resident_id == "a"]
    assert settled_ppm(residents, slot_us=SECOND_US) == {ResidentId("a"): PPM}


def test_cells_follow_the_measured_phases_of_jobs_whose_phases_stay() -> None:
    one = planner()
    placed(
        one,
        demand("a", period=100, busy=30),
        demand("b", period=200, busy=30, jitter_ppm=0),
        on="n0",
    )
    for name in ("a", "b"):
        one.note_phase(ResidentId(name), 50 * SECOND_US)
    (group,) = one.board.groups.values()
    anchors = {str(n): resident.cells.folded[0][0] for n, resident in group.residents.items()}
    assert anchors["a"] == 50
    assert anchors["b"] != 50
    one.board.check()
