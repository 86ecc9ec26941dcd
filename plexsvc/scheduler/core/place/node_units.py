"""Units on the board: the devices of nodes that join, close, open again and leave."""

from __future__ import annotations

from plexsvc.ids import NodeId, UnitId
from plexsvc.scheduler.core.cluster import Placement
from plexsvc.scheduler.core.planning.planner import Planner
from plexsvc.scheduler.core.planning.rooms import UnitRoom
from plexsvc.scheduler.core.vocabulary import DeviceFacts, Place


def join(
    placement: Placement, node_id: NodeId, *, devices: tuple[DeviceFacts, ...], host_bytes: int
) -> None:
    """Put a node's devices on the board, or open them again when the node is back."""
    placement.planning.has_changed = True
    placement.planning.gangs_known.clear()
    for facts in devices:
        planner = placement.planning.planner(facts.kind)
        name = Place(node_id=node_id, device=facts.index).unit
        if name in planner.board.rooms:
            if node_id not in placement.cordoned:
                planner.open(name)
            continue
        parked_bytes = host_bytes // len(devices)
        planner.join(
            UnitRoom(
                unit_id=name,
                parked_bytes=parked_bytes,
                host=node_id,
                index=facts.index,
            )
        )
        if node_id in placement.cordoned:
            planner.board.cordon(name)


def close(placement: Placement, node_id: NodeId) -> None:
    """Let nothing further be placed on a node's devices."""
    placement.planning.gangs_known.clear()
    for planner, name in _units(placement, node_id):
        planner.board.cordon(name)


def reopen(placement: Placement, node_id: NodeId) -> None:
    """Let a node's devices take work again."""
    placement.planning.has_changed = True
    for planner, name in _units(placement, node_id):
        planner.open(name)


def leave(placement: Placement, place: Place) -> None:
    """Take a device of a node that is gone, on which nothing lives, off the board."""
    kind = placement.devices[place].kind
    placement.planning.planner(kind).board.leave(place.unit)


def units_of(placement: Placement, node_id: NodeId) -> tuple[UnitId, ...]:
    """Return the names on the board of a node's devices."""
    return tuple(name for _, name in _units(placement, node_id))


def _units(placement: Placement, node_id: NodeId) -> list[tuple[Planner, UnitId]]:
    return [
        (planner, name)
        for planner in placement.planning.planners.values()
        for name in planner.board.rooms.of_host(node_id)
    ]
