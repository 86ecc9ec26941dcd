"""Gangs: aligned blocks of a host, or whole hosts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from plexsvc.ids import UnitId
from plexsvc.scheduler.core.planning.rooms import Rooms, UnitRoom


def host(name: str, *indices: int) -> list[UnitRoom]:
    return [UnitRoom(unit_id=UnitId(f"{name}:{at}"), host=name, index=at) for at in indices]


def gangs(rooms: Rooms, num: int, **burdens: int) -> list[str]:
    def burden(unit_id: UnitId) -> int:
        return burdens.get(unit_id.partition(":")[0], 0)

    return [" ".join(gang) for gang in rooms.gangs(num, among=list(rooms), burden=burden)]


def test_blocks_start_at_multiples_of_the_next_power_of_two() -> None:
    rooms = Rooms([*host("b", 0, 1), *host("a", *range(12))])
    assert [block.split()[0] for block in gangs(rooms, 3)] == ["a:0", "a:4", "a:8"]
    assert gangs(rooms, 8) == ["a:0 a:1 a:2 a:3 a:4 a:5 a:6 a:7"]
    assert gangs(rooms, 1)[9:12] == ["a:9", "a:10", "a:11"]


def test_a_block_with_a_missing_device_is_none_until_it_joins_again() -> None:
    rooms = Rooms(host("a", 0, 2, 3))
    assert gangs(rooms, 2) == ["a:2 a:3"]
    (missing,) = host("a", 1)
    rooms.join(missing)
    assert gangs(rooms, 2) == ["a:0 a:1", "a:2 a:3"]
    rooms.leave(UnitId("a:3"))
    assert gangs(rooms, 4) == []


def test_more_than_a_host_takes_the_least_burdened_whole_hosts_of_one_size() -> None:
    rooms = Rooms([*host("a", 0, 1), *host("b", 0, 1), *host("c", 0, 1), *host("d", 0, 1, 2)])
    assert gangs(rooms, 4, a=5) == ["b:0 b:1 c:0 c:1"]
    assert gangs(rooms, 3) == ["d:0 d:1 d:2"]
    assert gangs(rooms, 5) == []


@given(
    st.dictionaries(st.sampled_from("abc"), st.sets(st.integers(0, 3), min_size=1), min_size=1),
    st.sets(st.integers(0, 14)),
    st.sets(st.integers(0, 14)),
)
def test_whether_there_is_a_gang_is_whether_one_is_yielded(
    hosts: dict[str, set[int]], gone: set[int], without: set[int]
) -> None:
    rooms = Rooms([room for name, indices in hosts.items() for room in host(name, *indices)])
    for num in (1, 2):
        rooms.has_gang(num)  # what it keeps of that is dropped when units leave
    for unit_id in [one for at, one in enumerate(list(rooms)) if at in gone]:
        rooms.leave(unit_id)
    barred = {one for at, one in enumerate(rooms) if at in without}
    among = [one for one in rooms if one not in barred]
    for num in range(1, 9):
        found = next(rooms.gangs(num, among=among, burden=lambda _: 0), None)
        assert rooms.has_gang(num, without=barred) == (found is not None), (num, found)
        assert found == rooms.first_gang(
            num, among=rooms.in_order(rooms), usable=lambda unit_id: unit_id not in barred
        )


@given(
    st.dictionaries(st.sampled_from("abc"), st.sets(st.integers(0, 7), min_size=1), min_size=1),
    st.integers(1, 16),
    st.randoms(use_true_random=False),
)
def test_the_order_of_joining_decides_nothing_and_gangs_hold_together(
    hosts: dict[str, set[int]], num: int, dice: object
) -> None:
    every = [room for name, indices in hosts.items() for room in host(name, *indices)]
    shuffled = sorted(every, key=lambda room: hash((str(dice), room.unit_id)))
    found = gangs(Rooms(every), num)
    assert found == gangs(Rooms(shuffled), num)
    for gang in found:
        names = [tuple(name.split(":")) for name in gang.split()]
        assert len(set(names)) == num
        if len({name for name, _ in names}) == 1:
            first = min(int(at) for _, at in names)
            assert sorted(int(at) for _, at in names) == list(range(first, first + num)) or num == (
                len(hosts[names[0][0]])
            )
        else:
            assert all(
                {int(at) for name, at in names if name == one} == hosts[one] for one, _ in names
            )
