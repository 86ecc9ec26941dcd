"""Host memory: booked by host, whatever the devices, and told by what it is for."""

from __future__ import annotations

from plexsvc.ids import ResidentId, UnitId
from plexsvc.scheduler.core.planning.memory import HostMemory, Use
from plexsvc.scheduler.core.planning.profile import GUESS, Demand
from tests.rigs.core_invariants import check_memory
from tests.unit.scheduler.core.planning.test_live_planning import rooms

A0, A1, B0 = map(UnitId, ("a:0", "a:1", "b:0"))


def job(nbytes: int, *, name: str = "new", model: str = "") -> Demand:
    return Demand(
        resident_id=ResidentId(name),
        num_units=1,
        profile=GUESS,
        state_bytes=nbytes,
        model=model,
        model_bytes=600 if model else 0,
    )


def memory_of(**hosts: int) -> HostMemory:
    memory = HostMemory()
    for room in rooms(**hosts):
        memory.grow(room, 1)
    return memory


def test_what_is_booked_on_one_device_of_a_host_is_missing_on_the_others() -> None:
    memory = memory_of(a=2, b=1)
    memory.reserve(Use.STATE, "one", [A0], 1500)
    assert memory.holds([A1], job(500))
    assert memory.without_room([A1, B0], job(501)) == [A1]
    memory.reserve(Use.STATE, "one", [], 1500)
    assert memory.holds([A0, A1], job(1000))


def test_a_gang_needs_room_for_each_of_its_units_on_a_host() -> None:
    memory = memory_of(a=2)
    memory.reserve(Use.STATE, "one", [A0], 1)
    assert memory.holds([A0, A1], job(999))
    assert not memory.holds([A0, A1], job(1000))


def test_an_empty_host_takes_whatever_comes_and_a_copy_books_by_itself() -> None:
    memory = memory_of(a=2)
    assert memory.holds([A0], job(1 << 60))
    copied = memory.copy()
    copied.reserve(Use.STATE, "one", [A0], 1)
    assert not copied.holds([A0], job(1 << 60))
    assert memory.holds([A0], job(1 << 60))


def test_a_frozen_model_takes_its_room_once_a_device() -> None:
    memory = memory_of(a=2)
    memory.book(job(100, name="one", model="m"), [A0])
    memory.book(job(100, name="two", model="m"), [A0])
    assert memory.uses_at(A0) == {Use.STATE: 200, Use.MODELS: 600}
    assert memory.holds([A0], job(1200, model="m"))
    assert not memory.holds([A1], job(1200, model="m")), "it is not on that device"
    assert not memory.holds([A0], job(1200, model="other"))


def test_what_is_there_counts_where_it_is_more_than_what_is_reserved() -> None:
    memory = memory_of(a=2, b=1)
    memory.reserve(Use.VERSIONS, "one", [A0, A1], 100)
    memory.note(Use.VERSIONS, "one", {"a": 150, "b": 70})
    assert (memory.booked_at(A0), memory.booked_at(B0)) == (200, 70)
    memory.note(Use.VERSIONS, "one", {"a": 250})
    assert (memory.booked_at(A0), memory.booked_at(B0)) == (250, 0)
    memory.reserve(Use.VERSIONS, "one", [], 0)
    assert memory.booked_at(A1) == 250, "versions outlive what published them"
    memory.note(Use.VERSIONS, "one", {})
    check_memory(memory)
    assert memory.booked_at(A1) == 0


def test_a_host_says_what_is_booked_for_what() -> None:
    memory = memory_of(a=2)
    memory.reserve(Use.STATE, "one", [A0], 300)
    memory.reserve(Use.STATE, "two", [A1], 200)
    memory.reserve(Use.COPIES, "two", [A1], 100)
    assert memory.uses_at(A0) == {Use.STATE: 500, Use.COPIES: 100}
    assert memory.told(A0) == "host a has 600 B of 2000 B booked (state 500 B, copies 100 B)"
