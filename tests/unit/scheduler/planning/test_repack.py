"""Repacking: only when nodes are wanted, whole groups, and only when it pays."""

from __future__ import annotations

from plexsvc.ids import JobId, NodeId
from plexsvc.scheduler.core.planning.board import Board, NodeRoom
from plexsvc.scheduler.core.planning.planner import Planner
from plexsvc.scheduler.core.planning.policies import PLEX
from plexsvc.scheduler.core.planning.profile import SECOND_US, Demand, Mode, Profile, Segment
from plexsvc.scheduler.core.planning.repack import Move, Repacking, propose
from plexsvc.scheduler.core.structures.ring import Ring

RULES = Repacking(link_bytes_s=10)


def demand(name: str, *, nodes: int = 1, state_bytes: int = 100, busy: int = 10) -> Demand:
    segment = Segment(phase="update", offset_us=0, duration_us=busy * SECOND_US)
    profile = Profile(period_us=100 * SECOND_US, segments=(segment,), mode=Mode.ASYNC1)
    return Demand(
        job_id=JobId(name),
        num_nodes=nodes,
        profile=profile,
        expected_us=1000 * SECOND_US,
        state_bytes=state_bytes,
    )


def two_lonely_groups(*, state_bytes: int = 100, busy: int = 10) -> Planner:
    rooms = [NodeRoom(node_id=NodeId(f"n{i}")) for i in range(2)]
    planner = Planner(Board(rooms, ring=Ring(1200)), policy=PLEX)
    for name in ("a", "b"):
        asked = demand(name, state_bytes=state_bytes, busy=busy)
        group = planner.board.open_group(planner.board.idle_gang(1) or ())
        planner.board.commit(group, asked, anchor_slot=0, shift_slots=0)
    return planner


def test_nothing_moves_while_nobody_waits() -> None:
    assert propose(two_lonely_groups(), busy=set(), rules=RULES, now_us=0) == []


def test_one_of_two_lonely_groups_moves_in_with_the_other_and_is_charged() -> None:
    planner = two_lonely_groups()
    planner.submit(demand("big", nodes=2))
    planner.submit(demand("one", busy=99))
    assert planner.admit(0) == []
    moves = propose(planner, busy=set(), rules=RULES, now_us=0)
    assert moves == [Move(job_id=JobId("a"), to_group=2, charge_us=10 * SECOND_US, nbytes=100)]
    planner.move(JobId("a"), 2, now_us=0)
    planner.board.check()
    assert [p.job_id for p in planner.admit(1)] == ["one"]


def test_a_job_that_runs_stays() -> None:
    planner = two_lonely_groups()
    planner.submit(demand("big", nodes=2))
    assert propose(planner, busy={JobId("a"), JobId("b")}, rules=RULES, now_us=0) == []


def test_moves_that_cost_more_than_they_gain_are_not_made() -> None:
    planner = two_lonely_groups(state_bytes=10**6)
    planner.submit(demand("big", nodes=2))
    assert propose(planner, busy=set(), rules=RULES, now_us=0) == []


def test_no_move_breaks_a_duty_cap() -> None:
    planner = two_lonely_groups(busy=60)
    planner.submit(demand("big", nodes=2))
    assert propose(planner, busy=set(), rules=RULES, now_us=0) == []
