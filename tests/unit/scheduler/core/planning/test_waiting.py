"""Reservations: which units are kept, for whom, from whom, and until when."""

from __future__ import annotations

from dataclasses import replace

from plexsvc.ids import ResidentId, UnitId
from plexsvc.scheduler.api.views.newcomer import what_if
from plexsvc.scheduler.core.planning.answers import why
from plexsvc.scheduler.core.planning.planner import Planner
from plexsvc.scheduler.core.planning.policies import POLICIES, Policy
from plexsvc.scheduler.core.planning.profile import SECOND_US, Demand
from plexsvc.scheduler.core.planning.rooms import UnitRoom
from plexsvc.scheduler.core.planning.waiting import RETURN_US
from tests.rigs.core_invariants import check_board
from tests.unit.scheduler.core.planning.test_planner import HOUR_US, admit, demand, planner

SERVICE = POLICIES["plex"]
ALONE = replace(SERVICE, max_jobs=1)


def small(name: str, *, hours: float = 1, busy: int = 40) -> Demand:
    return replace(demand(name, busy=busy), expected_us=round(hours * HOUR_US))


def gang(units: int, *, priority: int = 1, busy: int = 20, arrived_us: int = 0) -> Demand:
    wide = demand("gang", units=units, busy=busy, arrived_us=arrived_us)
    return replace(wide, priority=priority)


def stream(policy: Policy, wide: Demand, *, units: int, every_us: int, until_us: int) -> int | None:
    """Return when a gang starts that comes second into a stream of jobs of one unit and an hour."""
    one, ends = planner(policy, units=units), dict[ResidentId, int]()
    now_us = 0
    while now_us < until_us:
        for resident_id in [r for r, end_us in ends.items() if end_us <= now_us]:
            del ends[resident_id]
            one.remove(resident_id)
        one.submit(replace(small(f"s{now_us}"), arrived_us=now_us))
        if now_us == every_us:
            one.submit(replace(wide, arrived_us=now_us))
        for placed in one.admit(now_us):
            if placed.resident_id == wide.resident_id:
                return now_us
            ends[placed.resident_id] = now_us + HOUR_US
        check_board(one.board)
        now_us += every_us
    return None


def test_a_gang_with_a_priority_starts_within_its_due_time_however_many_small_jobs_come() -> None:
    started_us = stream(SERVICE, gang(4), units=4, every_us=HOUR_US // 8, until_us=20 * HOUR_US)
    assert started_us is not None
    assert started_us <= HOUR_US // 8 + HOUR_US


def test_a_gang_without_one_starts_once_it_waited_past_its_ratio() -> None:
    wide = gang(4, priority=0)
    started_us = stream(SERVICE, wide, units=4, every_us=HOUR_US // 8, until_us=20 * HOUR_US)
    assert started_us is not None
    assert started_us <= 16 * HOUR_US


def test_kept_units_take_who_is_expected_to_be_gone_when_the_reservation_is_due() -> None:
    one = planner(ALONE, units=2)
    assert admit(one, small("a", hours=2)) == {"a": ("n0",)}
    assert admit(one, gang(2), small("long", hours=3), small("short", hours=1)) == {
        "short": ("n1",)
    }
    kept = one.kept.reservations[ResidentId("gang")]
    assert (kept.units, kept.due_us) == (("n0", "n1"), 2 * HOUR_US)
    assert "2 are kept for gang, which goes before it" in why(one, ResidentId("long"), now_us=0)
    told = why(one, ResidentId("gang"), now_us=HOUR_US)
    assert "n0, n1 are kept for it, due in 3600 s" in told
    assert not what_if(one, small("what", hours=3), now_us=0).units


def test_the_gang_whose_residents_are_gone_first_is_kept() -> None:
    one = planner(ALONE, units=3)
    admit(one, small("a", hours=3), small("b", hours=2), small("c", hours=1))
    assert admit(one, gang(2)) == {}
    assert one.kept.reservations[ResidentId("gang")].units == ("n1", "n2")


def test_the_due_time_stays_and_then_nobody_comes_any_more() -> None:
    one = planner(ALONE, units=2)
    admit(one, small("a", hours=1), small("b", hours=1))
    admit(one, gang(2))
    one.remove(ResidentId("b"))
    assert admit(one, replace(small("tiny", hours=0.5), arrived_us=HOUR_US)) == {}
    one.remove(ResidentId("a"))
    assert [p.resident_id for p in one.admit(HOUR_US)] == ["gang"]
    assert not one.kept.reservations


def test_who_waits_is_offered_kept_units_when_their_job_gives_up() -> None:
    one = planner(ALONE, units=2)
    admit(one, small("a", hours=1))
    assert admit(one, gang(2), small("b", hours=2)) == {}
    assert not one.has_news
    one.withdraw(ResidentId("gang"))
    assert one.has_news
    assert [p.resident_id for p in one.admit(1)] == ["b"]


def test_a_higher_priority_takes_a_reservation_over_and_an_equal_one_does_not() -> None:
    one = planner(ALONE, units=2)
    admit(one, small("a", hours=1))
    admit(one, gang(2))
    admit(one, replace(gang(2), resident_id=ResidentId("equal")))
    assert list(one.kept.reservations) == ["gang"]
    admit(one, replace(gang(2, priority=2), resident_id=ResidentId("first")))
    assert list(one.kept.reservations) == ["first"]


def test_a_job_that_holds_devices_passes_a_reservation() -> None:
    one = planner(ALONE, units=2)
    admit(one, small("a", hours=1))
    admit(one, gang(2))
    assert admit(one, replace(small("b", hours=2), has_devices=True)) == {"b": ("n1",)}


def test_a_reservation_ends_with_a_unit_of_it_and_others_are_kept() -> None:
    one = planner(ALONE, units=3)
    admit(one, small("a", hours=1), small("b", hours=1), small("c", hours=2))
    admit(one, gang(2))
    assert one.kept.reservations[ResidentId("gang")].units == ("n1", "n2")
    one.board.cordon(UnitId("n1"))
    one.submit(small("d", hours=3))
    one.admit(1)
    assert one.kept.reservations[ResidentId("gang")].units == ("n0", "n2")


def test_nobody_moves_to_kept_units() -> None:
    one = planner(SERVICE, units=3)
    admit(one, small("a", busy=30), small("b", hours=2, busy=85), small("c", hours=2, busy=85))
    admit(one, gang(2))
    kept = one.kept.reservations[ResidentId("gang")].units
    for resident_id in list(one.board.group_of):
        moved = one.rehome(resident_id, now_us=1)
        assert moved is None or not set(moved) & set(kept)


def test_who_is_in_the_way_is_told_when_the_reservation_is_due_and_not_before() -> None:
    one = planner(ALONE, units=2)
    admit(one, small("a", hours=1))
    admit(one, gang(2))
    assert one.in_the_way(now_us=HOUR_US - 1) == []
    assert one.in_the_way(now_us=HOUR_US) == ["a"]


def test_a_lost_place_goes_before_longer_jobs_but_not_before_a_higher_priority() -> None:
    one = planner(replace(POLICIES["plex"], max_jobs=1), units=1)
    for each in (
        small("long", hours=9),
        replace(small("lost"), lost_place=1),
        replace(small("urgent"), priority=1),
    ):
        one.submit(each)
    assert _order(one) == ["urgent", "lost", "long"]


def _order(one: Planner) -> list[str]:
    order: list[str] = []
    while one.waiting:
        placed = one.admit(SECOND_US)
        order.extend(p.resident_id for p in placed)
        for each in placed:
            one.remove(each.resident_id)
    return order


def test_what_a_lost_place_leaves_is_kept_for_those_that_lived_there() -> None:
    one = planner(ALONE, units=3)
    assert admit(one, demand("wide", units=2)) == {"wide": ("n0", "n1")}
    group_id = one.lose(ResidentId("wide"), now_us=0)
    one.board.cordon(UnitId("n0"))
    one.remove(ResidentId("wide"))
    other = replace(small("other"), lost_place=group_id + 1)
    assert admit(one, small("a"), other) == {"other": ("n2",)}
    assert admit(one, replace(demand("wide", units=2), lost_place=group_id)) == {}
    assert one.kept.reservations[ResidentId("wide")].units == ("n1", "n2")
    one.board.uncordon(UnitId("n0"))
    assert [p.units for p in one.admit(1)] == [("n0", "n1")]


def test_what_a_lost_place_leaves_is_free_again_after_a_while() -> None:
    one = planner(ALONE, units=1)
    admit(one, small("gone"))
    one.lose(ResidentId("gone"), now_us=0)
    one.remove(ResidentId("gone"))
    assert admit(one, small("a")) == {}
    assert [p.resident_id for p in one.admit(RETURN_US)] == ["a"]


def test_jobs_of_a_group_that_lost_a_node_have_its_units_and_other_groups_have_others() -> None:
    one = planner(ALONE, units=4)
    admit(one, *(small(name) for name in "abcd"))
    for name, group_id in (("x", 7), ("y", 7), ("z", 8)):
        admit(one, replace(demand(name, units=2), lost_place=group_id))
    kept = {name: set(each.units) for name, each in one.kept.reservations.items()}
    assert kept["x"] == kept["y"]  # type: ignore[index]  # ids are strings
    assert not kept["x"] & kept["z"]  # type: ignore[index]


def back(name: str, group_id: int, *, busy: int = 20) -> Demand:
    return replace(demand(name, units=2, busy=busy), lost_place=group_id)


def test_what_is_kept_for_a_job_that_lost_its_place_takes_nobody_for_a_while() -> None:
    one = planner(ALONE, units=2)
    admit(one, small("a", hours=2))
    assert admit(one, back("wide", 7), small("short", hours=0.1)) == {}
    assert one.in_the_way(now_us=0) == ["a"]


def test_units_stay_kept_for_those_whose_companion_finds_a_place_elsewhere() -> None:
    one = planner("plex", units=4)
    one.board.cordon(UnitId("n3"))
    other = demand("other", units=2, busy=85)
    assert admit(one, other) == {"other": ("n0", "n1")}
    assert admit(one, back("first", 7)) == {}
    second = replace(back("second", 7, busy=70), expected_us=2 * HOUR_US)
    assert admit(one, second, small("stranger", busy=80)) == {}
    one.learned(other.resident_id, demand("o", busy=25).profile)
    assert [(p.resident_id, p.units) for p in one.admit(1)] == [("first", ("n0", "n1"))]
    assert one.kept.reservations[second.resident_id].units == ("n0", "n2")


def test_jobs_may_live_together_again_though_their_cycles_were_measured_anew() -> None:
    one = planner(SERVICE, units=2)
    apart = replace(demand("a", units=2, busy=48), lost_place=7)
    assert admit(one, apart) == {"a": ("n0", "n1")}
    assert admit(one, demand("stranger", units=2, busy=45)) == {}
    assert admit(one, back("companion", 7, busy=45)) == {"companion": ("n0", "n1")}
    assert admit(one, back("grown", 7, busy=10)) == {}


def test_a_job_comes_back_to_those_that_still_live_where_it_was() -> None:
    one = planner(SERVICE, units=3)
    admit(one, demand("a", units=2, busy=48), small("b", busy=80))
    group_id = one.lose(ResidentId("a"), now_us=0)
    one.remove(ResidentId("b"))
    placed = admit(one, replace(back("wide", group_id, busy=45), num_units=3))
    assert placed == {"wide": ("n0", "n1", "n2")}


def test_a_unit_that_is_back_is_for_one_and_the_other_keeps_what_it_has() -> None:
    one = planner(ALONE, units=5)
    one.board.cordon(UnitId("n4"))
    admit(one, *(small(name, hours=2) for name in "abcd"))
    assert admit(one, back("x", 7), back("y", 8), small("stranger")) == {}
    for gone in "bd":
        one.remove(ResidentId(gone))
    one.open(UnitId("n4"))
    assert [(p.resident_id, p.units) for p in one.admit(1)] == [("x", ("n1", "n4"))]
    one.join(UnitRoom(unit_id=UnitId("n5"), host="n5"))
    assert [(p.resident_id, p.units) for p in one.admit(2)] == [("y", ("n3", "n5"))]


def test_what_is_kept_is_chosen_anew_when_a_unit_is_back() -> None:
    one = planner(SERVICE, units=5)
    one.board.cordon(UnitId("n2"))
    admit(one, demand("full", units=2, busy=85))
    one.place_at(back("companion", 7, busy=40), (UnitId("n3"), UnitId("n4")), now_us=0)
    one.place_at(small("stranger", busy=40), (UnitId("n4"),), now_us=0)
    assert admit(one, back("x", 7, busy=45)) == {}
    one.open(UnitId("n2"))
    assert [(p.resident_id, p.units) for p in one.admit(1)] == [("x", ("n2", "n3"))]


def test_a_stream_of_higher_priorities_holds_nobody_back_for_ever() -> None:
    """One unit, always wanted by jobs of priority 5; a job of 0 starts when it has aged enough."""
    one = planner(ALONE, units=1)
    one.submit(replace(small("old"), priority=0))
    now_us = HOUR_US
    runs = "none"
    while runs != "old":
        one.submit(replace(small(f"s{now_us}"), arrived_us=now_us, priority=5))
        if runs != "none":
            one.remove(ResidentId(runs))
        (placed,) = one.admit(now_us) or one.admit(now_us)  # a reservation may have changed hands
        runs = placed.resident_id
        now_us += HOUR_US
        assert now_us <= 30 * HOUR_US  # twice its patience, plus a job's hour
    assert now_us > 28 * HOUR_US  # not before


def test_a_granted_priority_joins_jobs_up_to_everybodys_own_bound_and_no_others_do() -> None:
    for priority in (0, 1):
        one = planner(SERVICE, units=1)
        admit(one, small("a", hours=9, busy=50))
        one.submit(replace(gang(1, priority=priority, busy=45), arrived_us=1))
        placed = [p.resident_id for p in one.admit(1)]
        assert placed == ["gang"] * priority
        if placed:
            group = one.group_of(ResidentId("gang"))
            assert all(ppm <= 1_375_000 for ppm in one.ring(group).slowdowns.values())


def test_patience_alone_joins_nobody_beyond_the_targets() -> None:
    one = planner(SERVICE, units=1)
    admit(one, small("a", hours=9, busy=50))
    one.submit(gang(1, priority=0, busy=45))
    for now_us in (20 * HOUR_US, 21 * HOUR_US, 22 * HOUR_US):
        assert one.admit(now_us) == []
    assert one.kept.reservations[ResidentId("gang")].due_us < 21 * HOUR_US


def test_a_granted_priority_joins_nobody_of_a_higher_one_and_breaks_no_bound() -> None:
    higher = replace(small("a", hours=9, busy=50), priority=2)
    for resident in (higher, small("a", hours=9, busy=80)):
        one = planner(SERVICE, units=1)
        admit(one, resident)
        one.submit(replace(gang(1, priority=1, busy=45), arrived_us=1))
        assert one.admit(1) == []
