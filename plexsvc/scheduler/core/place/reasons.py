"""Why a deployment has no place: what can never be held, what waits for what, and what stays."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from plexsvc.errors import ErrorCode
from plexsvc.ids import UnitId
from plexsvc.scheduler.core.cluster import Placement
from plexsvc.scheduler.core.place import demands
from plexsvc.scheduler.core.place.demands import is_placed, planner_of, rollouts_waiting
from plexsvc.scheduler.core.planning import answers
from plexsvc.scheduler.core.state import DeploymentEntry
from plexsvc.scheduler.core.vocabulary import Fault, Place

TOLD_NODES: Final = 3
"""Closed nodes that an answer names."""

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


def why(placement: Placement, deployment: DeploymentEntry) -> str:
    """Say why a deployment is not placed yet, and which nodes of its kind are closed."""
    return _why_not(placement, deployment) + _closed(placement, deployment.device_kind)


def short_of(placement: Placement, deployment: DeploymentEntry) -> str:
    """Return in one word what keeps a deployment waiting.

    `job`: its job's training is placed first. `turn`: enough devices are idle, but others come
    first or its state has no room. `closed`: it would fit if nodes were not cordoned. `devices`:
    there are too few.
    """
    kind = deployment.device_kind
    if deployment.is_rollout:
        lead = demands.lead_of(placement, deployment)
        comes_with = lead is not None and lead.deployment_id in placement.unplaced
        may_have = comes_with or (deployment.job_id, kind) in rollouts_waiting(placement)
        if deployment.where_it_trains or not may_have:
            return "job"
    idle = len(placement.planner(kind).board.idle)
    if idle >= deployment.num_devices:
        return "turn"
    closed = sum(
        device.kind == kind and device.place.node_id in placement.cordoned
        for device in placement.devices.values()
    )
    return "closed" if idle + closed >= deployment.num_devices else "devices"


def _closed(placement: Placement, kind: str) -> str:
    """Name nodes that take no further work, and what opens them; empty without such."""
    nodes = {one.place.node_id for one in placement.devices.values() if one.kind == kind}
    closed = [node_id for node_id in placement.cordoned if node_id in nodes]
    if not closed:
        return ""
    told = ", ".join(
        f"{node_id} is {'drained' if placement.cordoned[node_id] else 'cordoned'}"
        for node_id in closed[:TOLD_NODES]
    )
    more = f" and {len(closed) - TOLD_NODES} more" if len(closed) > TOLD_NODES else ""
    return f"; {told}{more}, so nothing is placed there: `plexctl node uncordon NODE` opens it"


def _why_not(placement: Placement, deployment: DeploymentEntry) -> str:
    planner = placement.planner(deployment.device_kind)
    lead = demands.lead_of(placement, deployment)
    if lead is not None and lead.deployment_id in placement.unplaced:
        return _why_set(placement, lead)
    if not deployment.is_rollout and deployment.resident_id in planner.waiting:
        return answers.why(planner, deployment.resident_id, now_us=placement.now_us)
    kind, idle = deployment.device_kind, f"{len(planner.board.idle)} are idle"
    together = rollouts_waiting(placement).get((deployment.job_id, kind), [])
    if not together:
        return f"{deployment.deployment_id} waits for its job's training, which comes first"
    if deployment.where_it_trains:
        count = deployment.num_devices
        waits = f"{deployment.deployment_id} waits for {count} device(s) that its job trains on"
        return f"{waits}: deploy that training first, or both by deploy_all"
    names = " and ".join(one.deployment_id for one in together)
    count = sum(one.num_devices for one in together)
    found = "idle"
    if all(one.is_shared for one in together):
        found = "idle ones, or some whose sharing is predicted to keep all bounds (max_slowdown):"
    return f"{names} waits for {count} {found} {kind} device(s); {idle}"


def _why_set(placement: Placement, lead: DeploymentEntry) -> str:
    """Say why a set is not placed yet."""
    planner, key = planner_of(placement, lead)
    together = demands.waiting_with(placement, lead)
    names = ", ".join(one.deployment_id for one in together)
    if lead.deployment_id not in placement.short:
        told = answers.why(planner, key, now_us=placement.now_us)
        return f"{names} are placed together: {told}" if len(together) > 1 else told
    instances = [one for one in together if one.is_rollout and not one.where_it_trains]
    needed = " and ".join(f"{one.num_devices} {one.device_kind}" for one in instances)
    idle = ", ".join(
        f"{kind}: {len(placement.planner(kind).board.idle)}"
        for kind in dict.fromkeys(one.device_kind for one in instances)
    )
    return f"{names} are placed together and wait for {needed} device(s) (idle ones of {idle})"


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
