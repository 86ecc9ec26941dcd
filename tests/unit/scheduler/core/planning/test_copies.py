"""Copies of planners: they answer as the planner did, whatever happens to it afterwards."""

from __future__ import annotations

from plexsvc.ids import ResidentId
from plexsvc.scheduler.core.planning.answers import what_if
from plexsvc.scheduler.core.planning.copies import copy_of
from plexsvc.scheduler.core.planning.groups import Group
from plexsvc.scheduler.core.planning.planner import Planner
from plexsvc.scheduler.core.planning.profile import SECOND_US
from tests.unit.scheduler.core.planning.test_live_planning import admit, demand, live

ONE = ResidentId("one")


def said(planner: Planner) -> list[object]:
    """Return what planning reads of a planner."""
    board = planner.board
    groups = {name: _said(group) for name, group in board.groups.items()}
    sizes = {size: list(same) for size, same in board.by_size.items()}
    names = (board.group_at, board.group_of, board.exclusive, board.cordoned, board.out)
    return [groups, sizes, *map(repr, names), list(board.idle), list(board.rooms)]


def _said(group: Group) -> list[object]:
    residents = [(r.demand, r.units, r.anchor_slot, r.load) for r in group.residents.values()]
    marks = (group.late, group.probing, group.paused, group.is_closed, group.is_uniform)
    return [group.units, residents, repr(marks), group.duty_ppm]


def late(planner: Planner) -> None:
    for cycle in range(20):
        planner.note_phase(ONE, 170 * cycle * SECOND_US)


def test_a_copy_stays_as_it_was_and_answers_so() -> None:
    planner = live(a=4, b=4)
    admit(planner, demand("one", 2), demand("two", 4))
    copied, asked = copy_of(planner), demand("new", 2)
    before, answer = said(planner), what_if(planner, asked, now_us=SECOND_US)
    assert said(copied) == before
    late(planner)
    planner.remove(ResidentId("two"))
    admit(planner, demand("three", 4), demand("four", 1))
    planner.board.cordon(planner.board.rooms.of_host("b")[0])
    assert said(planner) != before
    assert said(copied) == before
    assert what_if(copied, asked, now_us=SECOND_US) == answer


def test_the_next_copy_shares_the_groups_that_did_not_change() -> None:
    planner = live(a=4, b=4)
    admit(planner, demand("one", 4, busy=50), demand("two", 4, busy=50))
    first = copy_of(planner)
    late(planner)
    second = copy_of(planner, before=first)
    assert said(second) == said(planner)
    shared = [first.board.groups[name] is group for name, group in second.board.groups.items()]
    assert shared == [False, True]
    assert second.board.rooms is first.board.rooms


def test_a_copy_knows_units_that_came_since_the_copy_before() -> None:
    planner, other = live(a=2), live(b=2)
    first = copy_of(planner)
    for name in other.board.rooms:
        planner.board.join(other.board.rooms[name])
    assert list(copy_of(planner, before=first).board.rooms) == list(planner.board.rooms)
    assert len(first.board.rooms) == 2
