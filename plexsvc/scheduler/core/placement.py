"""Where ranks go: aligned power-of-two blocks, a free one first, else the least shared.

Ties go to the first node by name, so that the order in which nodes join decides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from plexsvc.ids import NodeId
from plexsvc.scheduler.core.words import Place


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """One device as placement sees it: how many WPGs live there."""

    place: Place
    num_wpgs: int


Slots = Mapping[NodeId, Sequence[Slot]]
"""The devices of the wanted kind of each node, by index."""


def training_blocks(slots: Slots, *, world_size: int) -> list[tuple[Slot, ...]]:
    """Return every block that can hold `world_size` ranks.

    Inside one node a block is `world_size` devices from an aligned power-of-two position; a world
    larger than any node takes whole nodes of equal size, least shared first.
    """
    size = 1 << (world_size - 1).bit_length()
    blocks = [
        tuple(devices[first : first + world_size])
        for devices in _by_name(slots)
        for first in range(0, len(devices), size)
        if first + world_size <= len(devices)
    ]
    return blocks or _whole_nodes(slots, world_size=world_size)


def least_shared(blocks: Sequence[tuple[Slot, ...]], *, max_wpgs: int) -> tuple[Slot, ...] | None:
    """Return the block with the fewest WPGs, a free one if there is one; `None` if all are full."""
    open_blocks = [b for b in blocks if _shared(b)[0] < max_wpgs]
    if not open_blocks:
        return None
    return min(open_blocks, key=_shared)


def instance_slots(slots: Slots, *, num_instances: int) -> tuple[Slot, ...] | None:
    """Return one free device an instance, in node order; `None` if too few are free."""
    free = [slot for devices in _by_name(slots) for slot in devices if slot.num_wpgs == 0]
    return tuple(free[:num_instances]) if len(free) >= num_instances else None


def _by_name(slots: Slots) -> list[Sequence[Slot]]:
    return [slots[node_id] for node_id in sorted(slots)]


def _shared(block: tuple[Slot, ...]) -> tuple[int, int]:
    counts = [slot.num_wpgs for slot in block]
    return max(counts), sum(counts)


def _whole_nodes(slots: Slots, *, world_size: int) -> list[tuple[Slot, ...]]:
    by_size: dict[int, list[tuple[Slot, ...]]] = {}
    for devices in _by_name(slots):
        if devices:
            by_size.setdefault(len(devices), []).append(tuple(devices))
    blocks = []
    for size, nodes in sorted(by_size.items(), reverse=True):
        count = world_size // size
        if count * size == world_size and count <= len(nodes):
            chosen = sorted(nodes, key=_shared)[:count]
            blocks.append(tuple(slot for node in chosen for slot in node))
    return blocks
