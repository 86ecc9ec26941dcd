"""Blocks: aligned, free first, then least shared; whole nodes for larger worlds."""

from __future__ import annotations

from plexsvc.ids import NodeId
from plexsvc.scheduler.core.placement import Slot, instance_slots, least_shared, training_blocks
from plexsvc.scheduler.core.words import Place


def slots(**counts: list[int]) -> dict[NodeId, list[Slot]]:
    return {
        NodeId(node): [
            Slot(place=Place(node_id=NodeId(node), device=i), num_wpgs=n)
            for i, n in enumerate(wpgs)
        ]
        for node, wpgs in counts.items()
    }


def devices(block: tuple[Slot, ...] | None) -> list[tuple[str, int]]:
    assert block is not None
    return [(slot.place.node_id, slot.place.device) for slot in block]


def chosen(world_size: int, **counts: list[int]) -> list[tuple[str, int]]:
    blocks = training_blocks(slots(**counts), world_size=world_size)
    return devices(least_shared(blocks, max_wpgs=4))


def test_a_free_block_is_taken_before_a_shared_one() -> None:
    assert chosen(1, n0=[1, 0]) == [("n0", 1)]
    assert chosen(2, n0=[1, 0, 0, 0]) == [("n0", 2), ("n0", 3)]


def test_without_a_free_block_the_least_shared_is_taken() -> None:
    assert chosen(2, n0=[2, 0, 1, 1]) == [("n0", 2), ("n0", 3)]


def test_blocks_are_aligned_to_a_power_of_two() -> None:
    blocks = training_blocks(slots(n0=[0] * 8), world_size=3)
    assert [devices(block)[0][1] for block in blocks] == [0, 4]


def test_a_world_larger_than_a_node_takes_whole_nodes() -> None:
    assert chosen(4, n0=[0, 0], n1=[1, 1], n2=[0, 0]) == [
        ("n0", 0),
        ("n0", 1),
        ("n2", 0),
        ("n2", 1),
    ]


def test_a_world_that_no_set_of_nodes_makes_up_has_no_block() -> None:
    assert training_blocks(slots(n0=[0, 0], n1=[0, 0]), world_size=3) == []
    assert training_blocks(slots(), world_size=1) == []


def test_a_full_device_takes_no_further_wpg() -> None:
    assert least_shared(training_blocks(slots(n0=[4]), world_size=1), max_wpgs=4) is None


def test_instances_take_free_devices_only() -> None:
    assert devices(instance_slots(slots(n0=[1, 0], n1=[0]), num_instances=2)) == [
        ("n0", 1),
        ("n1", 0),
    ]
    assert instance_slots(slots(n0=[1, 0]), num_instances=2) is None


def test_the_order_in_which_nodes_joined_decides_nothing() -> None:
    assert chosen(1, n1=[0], n0=[0]) == chosen(1, n0=[0], n1=[0]) == [("n0", 0)]
    assert chosen(2, n1=[0], n0=[0]) == [("n0", 0), ("n1", 0)]
    assert devices(instance_slots(slots(n1=[0], n0=[0]), num_instances=1)) == [("n0", 0)]
