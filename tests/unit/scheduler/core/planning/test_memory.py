"""Host memory: booked by host, whatever the devices."""

from __future__ import annotations

from plexsvc.ids import UnitId
from plexsvc.scheduler.core.planning.memory import HostMemory
from plexsvc.scheduler.core.planning.rooms import Rooms
from tests.unit.scheduler.core.planning.test_live_planning import rooms

A0, A1, B0 = map(UnitId, ("a:0", "a:1", "b:0"))


def test_what_is_booked_on_one_device_of_a_host_is_missing_on_the_others() -> None:
    memory = HostMemory(Rooms(rooms(a=2, b=1)))
    memory.book([A0], 1500)
    assert memory.holds([A1], 500)
    assert memory.without_room([A1, B0], 501) == [A1]
    memory.book([A0], -1500)
    assert memory.holds([A0, A1], 1000)


def test_a_gang_needs_room_for_each_of_its_units_on_a_host() -> None:
    memory = HostMemory(Rooms(rooms(a=2)))
    memory.book([A0], 1)
    assert memory.holds([A0, A1], 999)
    assert not memory.holds([A0, A1], 1000)


def test_an_empty_host_takes_whatever_comes_and_a_copy_books_by_itself() -> None:
    there = Rooms(rooms(a=2))
    memory = HostMemory(there)
    assert memory.holds([A0], 1 << 60)
    copied = memory.copy(there)
    copied.book([A0], 1)
    assert not copied.holds([A0], 1 << 60)
    assert memory.holds([A0], 1 << 60)
