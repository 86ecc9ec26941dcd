"""Why a deployment gets no place, or stays at its own: what decisions say of themselves."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from plexsvc.errors import ErrorCode
from plexsvc.ids import UnitId
from plexsvc.scheduler.core.cluster import Placement
from plexsvc.scheduler.core.place.demands import is_placed, planner_of
from plexsvc.scheduler.core.planning import answers
from plexsvc.scheduler.core.state import DeploymentEntry
from plexsvc.scheduler.core.vocabulary import Fault, Place

MORE: Final = "add nodes, or wait for those that are lost"
"""What to do about deployments that all devices together cannot hold."""


def never(placement: Placement, wanted: Collection[DeploymentEntry]) -> Fault | None:
    """Return the fault of what the devices of all nodes cannot hold at once; None if they can."""
    for one in wanted:
        kind, num_devices = one.device_kind, one.num_devices
        has_place = len(_up(placement, kind)) >= num_devices
        if not one.is_rollout:
            has_place = has_gang(placement, kind=kind, num_devices=num_devices)
        if not has_place:
            return no_placement(placement, one, advice=MORE)
        if one.instance_bytes:
            up = _up(placement, one.device_kind)
            sizes = [placement.devices[Place.of(unit)].bytes_total for unit in up]
            if sum(size >= one.instance_bytes for size in sizes) < one.num_devices:
                return _too_large(one, most=max(sizes))
    instances = [one for one in wanted if one.is_rollout and not one.where_it_trains]
    for kind in dict.fromkeys(one.device_kind for one in instances):
        together = [one for one in instances if one.device_kind == kind]
        if sum(one.num_devices for one in together) > len(_up(placement, kind)):
            return no_placement(placement, *together, advice=MORE)
    return None


def has_gang(placement: Placement, *, kind: str, num_devices: int) -> bool:
    """Return whether some of the devices of nodes that are up make a gang, were they idle."""
    if kind not in placement.planners:
        return False
    rooms = placement.planner(kind).board.rooms
    down = [name for name in rooms if rooms[name].host not in placement.nodes]
    return rooms.has_gang(num_devices, without=down)


def no_placement(
    placement: Placement,
    deployment: DeploymentEntry,
    *others: DeploymentEntry,
    advice: str = "end what holds them",
) -> Fault:
    """Return the fault of a deployment, or of several, for which there is no place."""
    counts: dict[str, int] = {}
    for device in placement.devices.values():
        if device.kind == deployment.device_kind and device.place.node_id in placement.nodes:
            counts[device.place.node_id] = counts.get(device.place.node_id, 0) + 1
    waited_us = placement.now_us - max(deployment.requested_us, deployment.lost_us)
    found = ", ".join(f"{node_id}: {count}" for node_id, count in counts.items()) or "no nodes"
    after = f" after {waited_us // 1_000_000} s" if waited_us else ""
    names = " and ".join(one.deployment_id for one in (deployment, *others))
    needed = sum(one.num_devices for one in (deployment, *others))
    return Fault(
        code=ErrorCode.NO_PLACEMENT,
        message=f"{names} {'need' if others else 'needs'} {needed} "
        f"{deployment.device_kind} device(s); no place found{after} (devices of that kind: "
        f"{found}); ask for fewer devices, or {advice}",
        facts=(("needed", str(needed)), ("kind", deployment.device_kind)),
    )


def _too_large(deployment: DeploymentEntry, *, most: int) -> Fault:
    """Return the fault of instances that devices of their kind are too small for."""
    return Fault(
        code=ErrorCode.NO_PLACEMENT,
        message=f"{deployment.deployment_id} needs {deployment.instance_bytes} bytes on each of "
        f"{deployment.num_devices} {deployment.device_kind} device(s), for weights, KV cache and "
        f"what it computes in; the largest has {most}: ask for a smaller kv_cache_bytes",
        facts=(("needed", str(deployment.instance_bytes)), ("found", str(most))),
    )


def why_stays(placement: Placement, deployment: DeploymentEntry) -> str:
    """Say why a deployment does not move: what it is doing, or what it finds elsewhere."""
    if deployment.relocation is not None:
        return "it is being moved already"
    if not is_placed(placement, deployment):
        return "it is not placed"
    planner, key = planner_of(placement, deployment)
    return answers.why_stays(planner, key, now_us=placement.now_us)


def _up(placement: Placement, kind: str) -> dict[UnitId, None]:
    """Return the devices of nodes that are up; each is looked up once for every gang.

    Who only asks makes no planner: their order decides, and a replay asks nothing.
    """
    if kind not in placement.planners:
        return {}
    rooms = placement.planner(kind).board.rooms
    return dict.fromkeys(name for name in rooms if rooms[name].host in placement.nodes)
