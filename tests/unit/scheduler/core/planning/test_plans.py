"""Moves of repacking and relief."""

from __future__ import annotations

from plexsvc.ids import ResidentId, UnitId
from plexsvc.scheduler.core.planning.answers import why
from plexsvc.scheduler.core.planning.board import Board
from plexsvc.scheduler.core.planning.places import Spot
from plexsvc.scheduler.core.planning.planner import Planner
from plexsvc.scheduler.core.planning.plans import empty, lacking, relieve
from plexsvc.scheduler.core.planning.policies import PLEX
from plexsvc.scheduler.core.planning.profile import SECOND_US, Demand, Mode, Profile, Segment
from plexsvc.scheduler.core.planning.rooms import UnitRoom
from tests.rigs.core_invariants import check_board

LINK_BYTES_S = 10
NOW_US = 40 * 170 * SECOND_US


def demand(name: str, *, units: int = 1, state_bytes: int = 100, busy: int = 10) -> Demand:
    segment = Segment(phase="update", offset_us=0, duration_us=busy * SECOND_US)
    profile = Profile(period_us=100 * SECOND_US, segments=(segment,), mode=Mode.ASYNC1)
    return Demand(
        resident_id=ResidentId(name),
        num_units=units,
        profile=profile,
        expected_us=1000 * SECOND_US,
        state_bytes=state_bytes,
    )


Moves = list[tuple[str, list[int], tuple[str, ...]]]
"""Who moves, to which groups and to which of their units."""


def told(moves: dict[ResidentId, Spot]) -> Moves:
    return [(name, [g.group_id for g in spot.groups], spot.units) for name, spot in moves.items()]


def emptying(planner: Planner, *, busy: frozenset[ResidentId] = frozenset()) -> Moves:
    """Return the moves that empty groups for those who wait."""
    moves = empty(
        planner,
        wanted=lacking(planner),
        is_busy=busy.__contains__,
        link_bytes_s=LINK_BYTES_S,
        now_us=0,
    )
    return told(moves)


def relieving(
    planner: Planner, *, busy: frozenset[ResidentId] = frozenset()
) -> list[tuple[ResidentId, tuple[UnitId, ...]]]:
    """Relieve groups that are over their bounds; return who went where."""
    went: list[tuple[ResidentId, tuple[UnitId, ...]]] = []

    def send(resident_id: ResidentId) -> bool:
        units = None if resident_id in busy else planner.rehome(resident_id, now_us=0)
        went.extend([] if units is None else [(resident_id, units)])
        return units is not None

    relieve(planner, send=send, now_us=0)
    return went


def two_lonely_groups(*, state_bytes: int = 100, busy: int = 10) -> Planner:
    rooms = [UnitRoom(unit_id=UnitId(f"n{i}"), host=f"n{i}") for i in range(2)]
    planner = Planner(Board(rooms), policy=PLEX)
    for name in ("a", "b"):
        asked = demand(name, state_bytes=state_bytes, busy=busy)
        group = planner.board.gather(planner.board.idle_gang(1) or ())
        planner.board.commit(group, asked)
    return planner


def test_nothing_moves_while_nobody_waits() -> None:
    assert emptying(two_lonely_groups()) == []


def test_one_of_two_lonely_groups_moves_in_with_the_other() -> None:
    planner = two_lonely_groups()
    planner.submit(demand("big", units=2, busy=85))
    planner.submit(demand("one", busy=99))
    assert planner.admit(0) == []
    there = (UnitId("n1"),)
    assert emptying(planner) == [("a", [2], there)]
    planner.move(ResidentId("a"), there, now_us=0)
    check_board(planner.board)
    assert [p.resident_id for p in planner.admit(1)] == ["one"]


def test_a_job_that_runs_stays() -> None:
    planner = two_lonely_groups()
    planner.submit(demand("big", units=2))
    assert emptying(planner, busy=frozenset(planner.board.group_of)) == []


def test_moves_that_cost_more_than_they_gain_are_not_made() -> None:
    planner = two_lonely_groups(state_bytes=10**6)
    planner.submit(demand("big", units=2))
    assert emptying(planner) == []


def test_no_move_breaks_a_duty_cap() -> None:
    planner = two_lonely_groups(busy=60)
    planner.submit(demand("big", units=2))
    assert emptying(planner) == []


def test_a_late_jobs_group_takes_no_other_and_the_worst_fitting_one_moves() -> None:
    planner = two_lonely_groups()
    group = planner.board.groups[1]
    planner.board.commit(group, demand("long", busy=40))
    for cycle in range(40):
        planner.note_phase(ResidentId("a"), cycle * 170 * SECOND_US)
    assert list(group.late) == ["a"]
    planner.submit(demand("c"))
    assert [p.group_id for p in planner.admit(0)] == [2]
    planner.submit(demand("d", busy=75))
    assert planner.admit(0) == []
    assert "a there waits past its bound" in why(planner, ResidentId("d"), now_us=0)
    there = (UnitId("n1"),)
    assert relieving(planner) == [("long", there)]
    for cycle in range(40):
        planner.note_phase(ResidentId("a"), (7000 + cycle * 100) * SECOND_US)
    assert not planner.in_trouble()


def crowd(*busy: int, units: int = 1) -> Planner:
    """Return one group of jobs `j0`, `j1`, ... that ran one cycle alone, and `units - 1` idle."""
    rooms = [UnitRoom(unit_id=UnitId(f"n{i}"), host=f"n{i}") for i in range(units)]
    planner = Planner(Board(rooms), policy=PLEX)
    group = planner.board.gather(planner.board.idle_gang(1) or ())
    for at, one in enumerate(busy):
        asked = demand(f"j{at}", busy=one)
        planner.board.commit(group, asked)
        planner.note_phase(asked.resident_id, 0)
        planner.note_phase(asked.resident_id, 100 * SECOND_US)
    return planner


def grow(planner: Planner, name: str, *, busy: int) -> ResidentId:
    profile = demand(name, busy=busy).profile
    planner.learned(ResidentId(name), profile)
    return ResidentId(name)


def test_a_group_over_its_bounds_is_relieved_of_the_job_that_grew_before_anybody_is_late() -> None:
    planner = crowd(40, 20, 20, units=2)
    assert not planner.in_trouble()
    grown = grow(planner, "j2", busy=45)
    assert planner.in_trouble()
    assert relieving(planner, busy=frozenset(planner.board.group_of)) == []
    idle = (UnitId("n1"),)
    assert relieving(planner) == [(grown, idle)]
    assert not relieving(planner)
    assert not planner.in_trouble()
    check_board(planner.board)


def test_a_job_that_grew_within_everybodys_bounds_stays() -> None:
    planner = crowd(20, 20, units=2)
    grow(planner, "j1", busy=30)
    assert relieving(planner) == []
    assert not planner.in_trouble()
