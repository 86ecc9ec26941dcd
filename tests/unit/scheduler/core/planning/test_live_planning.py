"""Planning on devices of hosts: blocks, groups that grow and split, cold jobs, operator's moves."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from plexsvc.ids import ResidentId, UnitId
from plexsvc.scheduler.api.views.newcomer import what_if
from plexsvc.scheduler.core.planning.answers import why
from plexsvc.scheduler.core.planning.board import Board
from plexsvc.scheduler.core.planning.groups import Group
from plexsvc.scheduler.core.planning.places import Search
from plexsvc.scheduler.core.planning.planner import Planner
from plexsvc.scheduler.core.planning.plans import relieve
from plexsvc.scheduler.core.planning.policies import PLEX, POLICIES, Policy
from plexsvc.scheduler.core.planning.profile import GUESS, SECOND_US, Demand, Mode, Profile, Segment
from plexsvc.scheduler.core.planning.rooms import UnitRoom
from tests.rigs.core_invariants import check_board

LIVE = PLEX


def rooms(**devices: int) -> list[UnitRoom]:
    return [
        UnitRoom(
            unit_id=UnitId(f"{host}:{at}"),
            parked_bytes=1000,
            host=host,
            index=at,
        )
        for host, count in devices.items()
        for at in reversed(range(count))
    ]


def live(*, policy: Policy = LIVE, **devices: int) -> Planner:
    return Planner(Board(rooms(**devices)), policy=policy)


def demand(
    name: str,
    num: int = 1,
    *,
    busy: int = 10,
    period: int = 60,
    mode: Mode = Mode.ASYNC1,
    state_bytes: int = 0,
    is_cold: bool = False,
) -> Demand:
    segment = Segment(phase="update", offset_us=0, duration_us=busy * SECOND_US)
    return Demand(
        resident_id=ResidentId(name),
        num_units=num,
        profile=Profile(period_us=period * SECOND_US, segments=(segment,), mode=mode),
        expected_us=3600 * SECOND_US,
        state_bytes=state_bytes,
        is_cold=is_cold,
    )


def admit(planner: Planner, *demands: Demand, now_us: int = 0) -> dict[str, str]:
    for each in demands:
        planner.submit(each)
    placed = {str(p.resident_id): " ".join(p.units) for p in planner.admit(now_us)}
    check_board(planner.board)
    return placed


def shape(planner: Planner) -> dict[str, list[str]]:
    """Return the jobs of each group by its units."""
    return {
        " ".join(group.units): sorted(group.residents) for group in planner.board.groups.values()
    }


def test_a_gang_is_an_aligned_block_of_one_host_first_by_name_whatever_joined_first() -> None:
    planner = live(b=4, a=2)
    assert admit(planner, demand("one"), demand("two", 2)) == {"one": "a:0", "two": "b:0 b:1"}
    assert admit(planner, demand("three", 3, busy=50)) == {}
    planner.remove(ResidentId("two"))
    assert admit(planner) == {"three": "b:0 b:1 b:2"}


def test_a_gang_larger_than_any_host_takes_whole_hosts_of_one_size() -> None:
    planner = live(a=2, b=4, c=2, d=2)
    assert admit(planner, demand("six", 6)) == {"six": "a:0 a:1 c:0 c:1 d:0 d:1"}
    assert live(a=2, b=4).board.idle_gang(6) is None


def test_a_smaller_job_joins_a_larger_group_on_its_least_busy_block() -> None:
    planner = live(a=4)
    admit(planner, demand("all", 4))
    assert admit(planner, demand("left", 2)) == {"left": "a:0 a:1"}
    assert admit(planner, demand("right", 2)) == {"right": "a:2 a:3"}
    group = planner.board.groups[1]
    assert not group.is_uniform
    resident = group.residents[ResidentId("left")]
    assert resident.units == ("a:0", "a:1")


def test_a_job_takes_no_part_of_a_larger_group_while_there_is_one_of_its_size() -> None:
    planner = live(policy=replace(LIVE, max_jobs=2), a=2, b=1)
    admit(planner, demand("both", 2), demand("one"))
    assert admit(planner, demand("two")) == {"two": "b:0"}
    assert admit(planner, demand("three")) == {}
    assert "groups of its size: holds 2 jobs" in why(planner, ResidentId("three"), now_us=0)
    planner.remove(ResidentId("one"))
    assert admit(planner) == {"three": "b:0"}
    planner.submit(demand("four"))
    planner.remove(ResidentId("two"))
    planner.remove(ResidentId("three"))
    planner.board.cordon(UnitId("b:0"))
    assert admit(planner) == {"four": "a:0"}, "there is none of its size any more"


def test_nothing_is_merged_while_there_is_a_group_of_the_size() -> None:
    planner = live(policy=replace(LIVE, max_jobs=3), a=2, b=2)
    admit(planner, demand("p"), demand("q"))
    admit(planner, *(demand(name, 2) for name in "rst"))
    assert shape(planner) == {"a:0": ["p", "q"], "b:0 b:1": ["r", "s", "t"]}
    assert admit(planner, demand("both", 2)) == {}
    planner.remove(ResidentId("s"))
    assert admit(planner) == {"both": "b:0 b:1"}


def test_a_job_leaves_a_drained_host_for_a_part_if_no_group_of_its_size_takes_it() -> None:
    planner = live(a=1, b=2, c=1)
    admit(planner, demand("one", busy=20), demand("pair", 2), demand("busy", busy=50))
    assert shape(planner) == {"a:0": ["one"], "b:0 b:1": ["pair"], "c:0": ["busy"]}
    planner.board.cordon(UnitId("a:0"))
    assert planner.rehome(ResidentId("one"), now_us=1) == ("b:0",)


def test_jobs_that_share_no_node_count_against_no_common_cap() -> None:
    planner = live(a=2)
    admit(planner, demand("both", 2, busy=15))
    assert admit(planner, demand("l", busy=20)) == {"l": "a:0"}
    assert admit(planner, demand("r", busy=20)) == {"r": "a:1"}
    assert admit(planner, demand("too", busy=30)) == {}
    assert "duty would pass 90%" in why(planner, ResidentId("too"), now_us=0)
    slowdowns = planner.ring(planner.board.groups[1]).slowdowns
    assert slowdowns[ResidentId("l")] == slowdowns[ResidentId("r")]


def test_a_job_that_needs_two_nodes_holds_each_neighbour_up_by_the_other() -> None:
    planner = live(a=2)
    admit(planner, demand("both", 2, busy=15), demand("l", busy=30))
    assert admit(planner, demand("r", busy=30)) == {}
    assert "max_slowdown" in why(planner, ResidentId("r"), now_us=0)


def test_a_group_splits_where_its_jobs_no_longer_share_units() -> None:
    planner = live(a=4)
    admit(planner, demand("all", 4), demand("l", 2), demand("r", 1))
    assert shape(planner) == {"a:0 a:1 a:2 a:3": ["all", "l", "r"]}
    planner.remove(ResidentId("all"))
    check_board(planner.board)
    assert shape(planner) == {"a:0 a:1": ["l"], "a:2": ["r"]}
    assert list(planner.board.idle) == ["a:3"]
    assert planner.has_news is False
    planner.submit(demand("next"))
    assert planner.has_news


def test_a_larger_job_makes_one_group_of_smaller_ones_and_idle_units() -> None:
    planner = live(a=4)
    admit(planner, demand("l", 1), demand("r", 2))
    assert shape(planner) == {"a:0": ["l"], "a:2 a:3": ["r"]}
    planner.submit(demand("all", 4))
    (placed,) = planner.admit(0)
    check_board(planner.board)
    assert placed.group_id == 1
    assert list(planner.board.groups) == [1]
    assert shape(planner) == {"a:0 a:1 a:2 a:3": ["all", "l", "r"]}
    planner.remove(ResidentId("all"))
    assert shape(planner) == {"a:0": ["l"], "a:2 a:3": ["r"]}


def test_nothing_merges_against_a_bound_or_without_the_policy() -> None:
    for policy, busy in ((LIVE, 50), (POLICIES["spread_backfill"], 10)):
        planner = live(policy=policy, a=2)
        for name, unit in (("l", "a:0"), ("r", "a:1")):
            planner.place_at(demand(name, busy=busy), [UnitId(unit)], now_us=0)
        assert admit(planner, demand("both", 2)) == {}
        assert shape(planner) == {"a:0": ["l"], "a:1": ["r"]}


def test_cold_jobs_take_idle_nodes_and_only_then_share_the_least_crowded_group() -> None:
    planner = live(a=2)
    warm, cold = demand("warm"), demand("cold", is_cold=True)
    assert admit(planner, warm, cold) == {"warm": "a:0", "cold": "a:1"}
    assert admit(planner, demand("second", is_cold=True)) == {"second": "a:0"}
    assert admit(planner, demand("third", is_cold=True)) == {"third": "a:1"}
    group = planner.board.groups[2]
    assert {n for n, r in group.residents.items() if r.demand.is_cold} == {"cold", "third"}
    planner.learned(ResidentId("cold"), demand("x", busy=12).profile)
    check_board(planner.board)
    assert [n for n, r in group.residents.items() if r.demand.is_cold] == ["third"]


def test_few_cold_jobs_share_a_group_until_some_are_known_to_leave_room() -> None:
    planner = live(a=1)
    jobs = [replace(demand(f"j{at}", is_cold=True), profile=GUESS) for at in range(4)]
    assert list(admit(planner, *jobs)) == ["j0", "j1", "j2"]
    for known in ("j0", "j1"):
        planner.learned(ResidentId(known), demand("x", busy=5).profile)
    assert list(admit(planner)) == ["j3"]


def test_a_cold_job_that_turns_out_not_to_fit_is_the_one_that_moves() -> None:
    planner = live(a=2)
    warm = [demand("at-a0", busy=30), demand("at-a1", busy=10)]
    admit(planner, *warm, demand("cold", is_cold=True))
    planner.move(ResidentId("cold"), (UnitId("a:0"),), now_us=0)
    planner.learned(ResidentId("cold"), demand("x", busy=25).profile)
    relieve(planner, send=lambda name: planner.rehome(name, now_us=0) is not None, now_us=0)
    assert planner.board.resident(ResidentId("cold")).units == ("a:1",)
    assert [planner.board.resident(one.resident_id).units for one in warm] == [("a:0",)] * 2


def test_a_waiting_cold_job_is_offered_a_group_that_lost_a_job() -> None:
    planner = live(policy=replace(LIVE, max_jobs=2), a=1)
    jobs = [demand(name, is_cold=True) for name in ("one", "two", "three")]
    assert list(admit(planner, *jobs)) == ["one", "two"]
    planner.remove(ResidentId("one"))
    assert planner.has_news
    assert admit(planner) == {"three": "a:0"}


def test_a_full_group_is_asked_once_for_a_waiting_cold_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    planner = live(policy=replace(LIVE, max_jobs=1), a=8)
    admit(planner, *(demand(f"in-{at}", is_cold=True) for at in range(8)))
    admit(planner, *(demand(f"out-{at}", is_cold=True) for at in range(9)))
    asked: list[str] = []
    is_full = Search.is_full

    def asking(self: Search, group: Group, demand: Demand) -> bool:
        asked.append(demand.resident_id)
        return is_full(self, group, demand)

    monkeypatch.setattr(Search, "is_full", asking)
    planner.touch(planner.board.group_of[ResidentId("in-3")])
    assert admit(planner) == {}
    assert asked == [f"out-{at}" for at in range(9)]


def test_a_cold_job_shares_with_nobody_who_asked_for_a_tighter_bound_than_the_default() -> None:
    planner = live(a=1)
    strict = replace(demand("strict"), max_slowdown_ppm=1_000_000)
    admit(planner, strict, demand("cold", is_cold=True))
    assert shape(planner) == {"a:0": ["strict"]}
    assert "strict asked for a tighter bound" in why(planner, ResidentId("cold"), now_us=0)
    planner.remove(ResidentId("strict"))
    assert admit(planner) == {"cold": "a:0"}
    assert admit(planner, replace(strict, resident_id=ResidentId("later"))) == {}, "nor the reverse"
    planner.learned(ResidentId("cold"), demand("x", busy=5).profile)
    assert "tighter bound" not in why(planner, ResidentId("later"), now_us=0)


def test_held_nodes_are_idle_ones_in_order_and_come_back_with_news() -> None:
    planner = live(b=1, a=2)
    idle = planner.board.first_idle(2)
    assert idle == ("a:0", "a:1")
    planner.board.hold(ResidentId("rollout"), idle)
    assert planner.board.first_idle(2) is None
    admit(planner, demand("two", 2))
    assert not planner.has_news
    planner.board.release(ResidentId("rollout"))
    assert planner.has_news
    assert admit(planner) == {"two": "a:0 a:1"}


def test_place_at_puts_a_job_exactly_there_against_every_bound() -> None:
    planner = live(policy=LIVE, a=4)
    admit(planner, demand("l", busy=50), demand("r", 2, busy=50))
    planner.place_at(demand("big", 4, busy=50), rooms_of("a", 4), now_us=5)
    check_board(planner.board)
    assert list(shape(planner).values()) == [["big", "l", "r"]]
    planner.move(ResidentId("big"), rooms_of("a", 4)[:2], now_us=0)
    check_board(planner.board)
    assert planner.group_of(ResidentId("big")).residents[ResidentId("big")].units == ("a:0", "a:1")


def test_what_is_found_running_on_a_cordoned_node_is_taken_in_there() -> None:
    planner = live(a=2)
    planner.board.cordon(UnitId("a:0"))
    planner.place_at(demand("found"), [UnitId("a:0")], now_us=0)
    check_board(planner.board)
    assert planner.group_of(ResidentId("found")).is_closed
    planner.remove(ResidentId("found"))
    check_board(planner.board)
    assert planner.board.out == {UnitId("a:0")}


def rooms_of(host: str, count: int) -> tuple[UnitId, ...]:
    return tuple(UnitId(f"{host}:{at}") for at in range(count))


def test_a_job_of_a_drained_host_is_booked_elsewhere_or_stays_as_it_was() -> None:
    planner = live(a=2, b=2)
    admit(planner, demand("one", 2), demand("two", 2, busy=50), demand("three"))
    assert shape(planner) == {"a:0 a:1": ["one", "three"], "b:0 b:1": ["two"]}
    for unit_id in rooms_of("a", 2):
        planner.board.cordon(unit_id)
    before = shape(planner)
    assert planner.rehome(ResidentId("one"), now_us=9) is None
    check_board(planner.board)
    assert shape(planner) == before
    planner.learned(ResidentId("two"), demand("x", busy=20).profile)
    assert planner.rehome(ResidentId("one"), now_us=9) == rooms_of("b", 2)
    check_board(planner.board)
    assert planner.rehome(ResidentId("three"), now_us=9, onto=[UnitId("b:1")]) == ("b:1",)
    assert planner.board.out == set(rooms_of("a", 2))
    planner.move(ResidentId("three"), (UnitId("a:0"),), now_us=0)
    check_board(planner.board)


def test_a_lost_node_joins_again_under_its_name() -> None:
    planner = live(a=2)
    admit(planner, demand("one", 2))
    lost = UnitId("a:1")
    planner.board.cordon(lost)
    planner.remove(ResidentId("one"))
    planner.board.leave(lost)
    check_board(planner.board)
    assert admit(planner, demand("two", 2)) == {}
    planner.board.join(next(room for room in rooms(a=2) if room.unit_id == lost))
    assert admit(planner) == {"two": "a:0 a:1"}


def test_what_if_says_where_a_job_would_go_what_it_costs_whom_and_changes_nothing() -> None:
    planner = live(policy=LIVE, a=2)
    admit(planner, demand("one", 2, busy=20))
    for cycle in range(3):
        planner.note_phase(ResidentId("one"), (60 * cycle + 25) * SECOND_US)
    before = copy.deepcopy(planner)
    answer = what_if(planner, demand("new", busy=20), now_us=180 * SECOND_US)
    assert (answer.units, answer.group_ids, answer.opens) == (("a:0",), (1,), False)
    (meeting,) = answer.meets
    assert (meeting.resident_id, meeting.before_ppm) == ("one", 1_000_000)
    assert meeting.after_ppm >= meeting.before_ppm
    assert shape(planner) == shape(before)
    assert planner.board.resident(ResidentId("one")).pace_ppm == 1_000_000
    planner.submit(demand("new", busy=20))
    (placed,) = planner.admit(180 * SECOND_US)
    assert placed.units == answer.units
    refused = what_if(planner, demand("much", 2, busy=50), now_us=0)
    assert (refused.units, refused.opens) == ((), False)
    assert any("duty would pass 90%" in reason for reason in refused.refusals)


def test_parked_bytes_are_counted_on_each_node_and_follow_a_resize() -> None:
    planner = live(a=2)
    admit(planner, demand("both", 2, state_bytes=400), demand("l", state_bytes=600))
    assert admit(planner, demand("r", state_bytes=600)) == {"r": "a:1"}
    planner.resize(ResidentId("l"), 100)
    assert admit(planner, demand("more", state_bytes=500)) == {"more": "a:0"}
    assert admit(planner, demand("never", state_bytes=1001)) == {}


class LiveHistory(RuleBasedStateMachine):
    """Random jobs, moves, holds, drains and losses; the board's own check is the oracle."""

    def __init__(self) -> None:
        super().__init__()
        self.planner = live(policy=LIVE, a=4, b=4, c=2)
        self.made = 0
        self.now = 0

    @property
    def board(self) -> Board:
        return self.planner.board

    def pick(self, number: int) -> ResidentId:
        jobs = list(self.board.group_of)
        return jobs[number % len(jobs)]

    @rule(num=st.sampled_from([1, 1, 2, 3, 4, 8]), busy=st.integers(1, 40), cold=st.booleans())
    def submit(self, num: int, busy: int, cold: bool) -> None:
        self.made += 1
        self.now += SECOND_US
        asked = demand(f"j{self.made}", num, busy=busy, is_cold=cold, state_bytes=busy)
        before = shape(self.planner)
        answer = what_if(self.planner, asked, now_us=self.now)
        assert shape(self.planner) == before
        self.planner.submit(asked)
        placed = {p.resident_id: p for p in self.planner.admit(self.now)}
        if len(self.planner.waiting) + len(placed) == 1:
            assert (asked.resident_id in placed) == bool(answer.units)
        for each in placed.values():
            self.is_realisable(each.units)

    def is_realisable(self, units: tuple[UnitId, ...]) -> None:
        hosts = {str(unit)[0] for unit in units}
        if len(hosts) > 1:
            assert set(units) == set(rooms_of("a", 4)) | set(rooms_of("b", 4))
        else:
            first = min(int(str(unit)[2:]) for unit in units)
            assert first % (1 << (len(units) - 1).bit_length()) == 0
            assert len({*units}) == len(units)

    @precondition(lambda self: self.board.group_of)
    @rule(number=st.integers(0, 99))
    def remove(self, number: int) -> None:
        self.planner.remove(self.pick(number))

    @precondition(lambda self: self.board.group_of)
    @rule(number=st.integers(0, 99), host=st.sampled_from("abc"))
    def rehome(self, number: int, host: str) -> None:
        resident_id, before = self.pick(number), shape(self.planner)
        units = self.planner.rehome(
            resident_id, now_us=self.now, onto=set(self.board.rooms) - {*rooms_of(host, 4)}
        )
        if units is None:
            assert shape(self.planner) == before
        else:
            assert not {*units} & {*rooms_of(host, 4)}
            self.is_realisable(units)

    @precondition(lambda self: self.board.group_of)
    @rule(number=st.integers(0, 99), at=st.integers(0, 3))
    def move(self, number: int, at: int) -> None:
        resident_id = self.pick(number)
        asked = self.planner.group_of(resident_id).residents[resident_id].demand
        blocks = list(
            self.board.rooms.gangs(asked.num_units, among=set(self.board.rooms), burden=lambda _: 0)
        )
        held = [unit for units in self.board.exclusive.values() for unit in units]
        if blocks and not {*blocks[at % len(blocks)]} & {*held}:
            self.planner.move(resident_id, blocks[at % len(blocks)], now_us=0)

    @precondition(lambda self: self.board.group_of)
    @rule(number=st.integers(0, 99), busy=st.integers(1, 60))
    def learn(self, number: int, busy: int) -> None:
        resident_id = self.pick(number)
        self.planner.learned(resident_id, demand("x", busy=busy).profile)
        self.planner.resize(resident_id, busy)

    @rule(num=st.integers(1, 2))
    def hold(self, num: int) -> None:
        self.made += 1
        idle = self.board.first_idle(num)
        if idle is not None:
            self.board.hold(ResidentId(f"h{self.made}"), idle)

    @precondition(lambda self: self.board.exclusive)
    @rule()
    def release(self) -> None:
        self.planner.board.release(next(iter(self.board.exclusive)))

    @rule(host=st.sampled_from("abc"), at=st.integers(0, 3))
    def cordon(self, host: str, at: int) -> None:
        if UnitId(f"{host}:{at}") in self.board.rooms:
            self.board.cordon(UnitId(f"{host}:{at}"))

    @rule(host=st.sampled_from("abc"), at=st.integers(0, 3))
    def uncordon(self, host: str, at: int) -> None:
        self.board.uncordon(UnitId(f"{host}:{at}"))

    @invariant()
    def holds(self) -> None:
        check_board(self.board)

    def teardown(self) -> None:
        for resident_id in list(self.board.group_of):
            self.planner.remove(resident_id)
        for key in list(self.board.exclusive):
            self.planner.board.release(key)
        check_board(self.board)
        assert not self.board.groups
        assert {*self.board.idle} | self.board.out == {*self.board.rooms}


LiveHistory.TestCase.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
TestLiveHistory = LiveHistory.TestCase
