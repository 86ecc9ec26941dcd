"""Nodes: joined, lost, closed to further work and opened again."""

from __future__ import annotations

from plexsvc.errors import ErrorCode
from plexsvc.ids import NodeId
from plexsvc.scheduler.core.cluster import Devices
from plexsvc.scheduler.core.events import (
    NodeCordoned,
    NodeForgotten,
    NodeJoined,
    NodeLost,
    NodeUncordoned,
)
from plexsvc.scheduler.core.life import deployments, instances, rebuilding
from plexsvc.scheduler.core.place import circles, placing
from plexsvc.scheduler.core.planning.rooms import UnitRoom
from plexsvc.scheduler.core.state import Device
from plexsvc.scheduler.core.vocabulary import Fault, Place


def join(devices: Devices, event: NodeJoined) -> None:
    """Take a node's devices into the cluster; a returning node brings its places back."""
    places = []
    for facts in sorted(event.devices, key=lambda d: d.index):
        place = Place(node_id=event.node_id, device=facts.index)
        places.append(place)
        # A returning node has its devices of before, on which WPGs may still be.
        if place not in devices.at:
            devices.at[place] = Device(
                place=place, kind=facts.kind, bytes_total=facts.bytes_total, since_us=event.at_us
            )
    placement, node_id = devices.placement, event.node_id
    placement.nodes[node_id] = places
    placement.has_changed = True
    for facts in event.devices:
        planner = placement.planner(facts.kind)
        name = Place(node_id=node_id, device=facts.index).unit
        if name in planner.board.rooms:
            # Its loss closed its units. An operator's cordon outlives it.
            if node_id not in placement.cordoned:
                planner.open(name)
            continue
        parked_bytes = (event.host_bytes + event.disk_bytes) // len(event.devices)
        planner.join(
            UnitRoom(unit_id=name, host=node_id, index=facts.index, parked_bytes=parked_bytes)
        )
        if node_id in placement.cordoned:
            planner.board.cordon(name)
    _keep_copies(devices)


def _keep_copies(devices: Devices) -> None:
    """Have a node that takes work again copy what there is one copy of."""
    for deployment in devices.deployments.values():
        rebuilding.keep_beside(devices, deployment)


def lose(devices: Devices, event: NodeLost) -> None:
    """Fail every WPG with a rank on a lost node, or have its instances spawned elsewhere.

    The node's devices come back when it rejoins.
    """
    node_id = event.node_id
    devices.placement.nodes.pop(node_id, None)
    _close(devices, node_id)
    for deployment in devices.deployments.values():
        if deployment.kept_on == node_id:
            deployment.kept_on = None
    fault = Fault(
        code=ErrorCode.NODE_LOST,
        message=f"node {node_id} is lost: {event.reason}; its processes are dead"
        + rebuilding.ADVICE,
        facts=(("node", node_id),),
    )
    for wpg in list(devices.wpgs.values()):
        there = [rank for rank, place in enumerate(wpg.places) if place.node_id == node_id]
        if there and instances.may_respawn(devices, wpg):
            for rank in there:
                instances.lose(devices, wpg, rank, fault)
        elif there:
            placing.lose(devices.placement, wpg)
            deployments.fail_wpg(devices, wpg, fault)


def forget(devices: Devices, event: NodeForgotten) -> None:
    """Drop the devices of a node that stays away, but those that a deployment still waits for."""
    node_id = event.node_id
    if node_id in devices.placement.nodes:
        return  # it is back at another address
    devices.placement.cordoned.pop(node_id, None)
    for device in list(devices.at.values()):
        if device.place.node_id == node_id and not device.ranks:
            devices.placement.planner(device.kind).board.leave(device.place.unit)
            del devices.at[device.place]


def cordon(devices: Devices, event: NodeCordoned) -> None:
    """Let nothing further be placed on a node; `packing` empties it if it is drained."""
    devices.placement.cordoned[event.node_id] = event.is_drained
    _close(devices, event.node_id)


def uncordon(devices: Devices, event: NodeUncordoned) -> None:
    """Let a node take work again; one that is lost only does once it has joined."""
    was_closed = devices.placement.cordoned.pop(event.node_id, None) is not None
    if was_closed and event.node_id in devices.placement.nodes:
        devices.placement.has_changed = True
        for planner in devices.placement.planners.values():
            for unit_id in planner.board.rooms.of_host(event.node_id):
                planner.open(unit_id)
        _keep_copies(devices)


def _close(devices: Devices, node_id: NodeId) -> None:
    """Let nothing further be placed on a node's devices, and look for circles of jobs later.

    A node that is gone gets time to come back.
    """
    placement = devices.placement
    for planner in placement.planners.values():
        for unit_id in planner.board.rooms.of_host(node_id):
            planner.board.cordon(unit_id)
    if placement.unplaced:
        circles.look_later(placement, node_id)
