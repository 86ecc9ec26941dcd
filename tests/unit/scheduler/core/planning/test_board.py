"""The board: jobs, groups and units come, go and move, and their sums stay exact."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from plexsvc.ids import ResidentId, UnitId
from plexsvc.scheduler.core.planning.board import Board
from plexsvc.scheduler.core.planning.profile import SECOND_US, Demand, Profile, Segment
from plexsvc.scheduler.core.planning.rooms import UnitRoom
from tests.rigs.core_invariants import check_board

SIZE = 240


def profile(period_s: int, *segments: tuple[int, int]) -> Profile:
    return Profile(
        period_us=period_s * SECOND_US,
        segments=tuple(
            Segment(phase=f"p{i}", offset_us=o * SECOND_US, duration_us=d * SECOND_US)
            for i, (o, d) in enumerate(segments)
        ),
    )


def board(num_units: int = 6) -> Board:
    rooms = [UnitRoom(unit_id=UnitId(f"n{i}"), host=f"n{i}") for i in range(num_units)]
    return Board(rooms)


class BoardHistory(RuleBasedStateMachine):
    """Random placements, departures, drifts, drains; the board's own check is the oracle."""

    def __init__(self) -> None:
        super().__init__()
        self.board = board()
        self.made = 0

    @rule(
        period=st.integers(5, 400),
        size=st.integers(1, 3),
        pick=st.integers(0, 99),
        anchor=st.integers(0, 10**6),
    )
    def commit(self, period: int, size: int, pick: int, anchor: int) -> None:
        self.made += 1
        demand = Demand(
            resident_id=ResidentId(f"j{self.made}"),
            num_units=size,
            profile=profile(period, (0, max(1, period // 7)), (period // 2, max(1, period // 5))),
        )
        groups = [g for g in self.board.groups.values() if g.size == size]
        gang = self.board.idle_gang(size)
        if groups and (gang is None or pick % 2):
            group = groups[pick % len(groups)]
        elif gang is not None:
            group = self.board.gather(gang)
        else:
            return
        self.board.commit(group, demand)

    @precondition(lambda self: self.board.group_of)
    @rule(pick=st.integers(0, 99))
    def remove(self, pick: int) -> None:
        jobs = list(self.board.group_of)
        self.board.remove(jobs[pick % len(jobs)])

    @precondition(lambda self: self.board.group_of)
    @rule(pick=st.integers(0, 99), anchor=st.integers(0, 10**6))
    def relearn(self, pick: int, anchor: int) -> None:
        resident_id = list(self.board.group_of)[pick % len(self.board.group_of)]
        self.board.relearn(resident_id, profile(60, (0, 1 + pick % 20)))

    @precondition(lambda self: self.board.group_of)
    @rule(pick=st.integers(0, 99), anchor=st.integers(0, 10**6))
    def move(self, pick: int, anchor: int) -> None:
        jobs = list(self.board.group_of)
        resident_id = jobs[pick % len(jobs)]
        left = self.board.groups[self.board.group_of[resident_id]]
        hosts = [g for g in self.board.by_size[left.size] if g != left.group_id]
        if hosts:
            units = self.board.groups[hosts[0]].units
            self.board.move(resident_id, units)
            assert self.board.group_of[resident_id] == hosts[0]

    @rule(unit=st.integers(0, 5))
    def cordon(self, unit: int) -> None:
        self.board.cordon(UnitId(f"n{unit}"))

    @rule(unit=st.integers(0, 5))
    def uncordon(self, unit: int) -> None:
        self.board.uncordon(UnitId(f"n{unit}"))

    @invariant()
    def holds(self) -> None:
        check_board(self.board)

    def teardown(self) -> None:
        for resident_id in list(self.board.group_of):
            self.board.remove(resident_id)
        check_board(self.board)
        assert not self.board.groups
        assert self.board.idle.keys() == set(self.board.rooms) - self.board.out


BoardHistory.TestCase.settings = settings(max_examples=25, stateful_step_count=20, deadline=None)
TestBoardHistory = BoardHistory.TestCase


def test_units_that_a_holder_has_are_not_idle_until_it_releases_them() -> None:
    planned = board(4)
    group = planned.gather(planned.idle_gang(2) or ())
    demand = Demand(resident_id=ResidentId("a"), num_units=2, profile=profile(60, (0, 20)))
    planned.commit(group, demand)
    planned.hold(ResidentId("rollout"), [UnitId("n2")])
    check_board(planned)
    assert list(planned.idle) == ["n3"]
    planned.remove(ResidentId("a"))
    planned.release(ResidentId("rollout"))
    check_board(planned)
    assert len(planned.idle) == 4


def test_a_cordoned_node_takes_no_work_and_returns_idle() -> None:
    planned = board(2)
    planned.cordon(UnitId("n0"))
    assert planned.idle_gang(2) is None
    planned.uncordon(UnitId("n0"))
    assert planned.idle_gang(2) is not None


def test_a_resident_has_the_cycle_that_was_learned() -> None:
    planned = board(1)
    group = planned.gather([UnitId("n0")])
    one = ResidentId("a")
    demand = Demand(resident_id=one, num_units=1, profile=profile(60, (0, 20)))
    planned.commit(group, demand)
    planned.relearn(one, replace(demand.profile, jitter_ppm=7))
    assert planned.groups[group.group_id].residents[one].demand.profile.jitter_ppm == 7


def test_a_frozen_model_is_booked_until_its_last_reader_on_a_device_leaves() -> None:
    planned = board(2)
    names = [ResidentId("a"), ResidentId("b")]
    for name in names:
        demand = Demand(
            resident_id=name,
            num_units=1,
            profile=profile(60, (0, 20)),
            state_bytes=5,
            model="m",
            model_bytes=70,
        )
        planned.commit(planned.gather([UnitId("n0")]), demand)
    assert planned.memory.booked_at(UnitId("n0")) == 80
    planned.resize(names[0], 6)
    planned.remove(names[0])
    assert planned.memory.booked_at(UnitId("n0")) == 75
    planned.move(names[1], [UnitId("n1")])
    assert [planned.memory.booked_at(UnitId(n)) for n in ("n0", "n1")] == [0, 75]
    planned.remove(names[1])
    assert planned.memory.booked_at(UnitId("n1")) == 0
