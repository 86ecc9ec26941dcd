"""Why a deployment has no place yet: whom it waits for, and what would have to come free."""

from __future__ import annotations

from typing import Final

from plexsvc.scheduler.core.planning import answers
from plexsvc.scheduler.core.state import DeploymentEntry
from plexsvc.scheduler.core.view import ClusterView

TOLD_NODES: Final = 3
"""Closed nodes that an answer names."""


def why(cluster: ClusterView, deployment: DeploymentEntry) -> str:
    """Say why a deployment is not placed yet, and which nodes of its kind are closed."""
    return _why_not(cluster, deployment) + _closed(cluster, deployment.device_kind)


def short_of(cluster: ClusterView, deployment: DeploymentEntry) -> str:
    """Return in one word what keeps a deployment waiting.

    `job`: its job's training is placed first. `turn`: enough devices are idle, but others come
    first or its state has no room. `closed`: it would fit if nodes were not cordoned. `devices`:
    there are too few.
    """
    kind = deployment.device_kind
    if deployment.is_rollout:
        lead = cluster.lead_of(deployment)
        comes_with = lead is not None and lead.deployment_id in cluster.unplaced
        may_have = comes_with or (deployment.job_id, kind) in cluster.rollouts_waiting()
        if deployment.where_it_trains or not may_have:
            return "job"
    idle = len(cluster.planners[kind].board.idle)
    if idle >= deployment.num_devices:
        return "turn"
    closed = sum(
        device.kind == kind and device.place.node_id in cluster.cordoned
        for device in cluster.devices.values()
    )
    return "closed" if idle + closed >= deployment.num_devices else "devices"


def _closed(cluster: ClusterView, kind: str) -> str:
    """Name nodes that take no further work, and what opens them; empty without such."""
    nodes = {one.place.node_id for one in cluster.devices.values() if one.kind == kind}
    closed = [node_id for node_id in cluster.cordoned if node_id in nodes]
    if not closed:
        return ""
    told = ", ".join(
        f"{node_id} is {'drained' if cluster.cordoned[node_id] else 'cordoned'}"
        for node_id in closed[:TOLD_NODES]
    )
    more = f" and {len(closed) - TOLD_NODES} more" if len(closed) > TOLD_NODES else ""
    return f"; {told}{more}, so nothing is placed there: `plexctl node uncordon NODE` opens it"


def _why_not(cluster: ClusterView, deployment: DeploymentEntry) -> str:
    planner = cluster.planners[deployment.device_kind]
    lead = cluster.lead_of(deployment)
    if lead is not None and lead.deployment_id in cluster.unplaced:
        return _why_set(cluster, lead)
    if not deployment.is_rollout and deployment.resident_id in planner.waiting:
        return answers.why(planner, deployment.resident_id, now_us=cluster.now_us)
    kind, idle = deployment.device_kind, f"{len(planner.board.idle)} are idle"
    together = cluster.rollouts_waiting().get((deployment.job_id, kind), [])
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


def _why_set(cluster: ClusterView, lead: DeploymentEntry) -> str:
    """Say why a set is not placed yet."""
    planner = cluster.planners[lead.device_kind]
    together = cluster.waiting_with(lead)
    names = ", ".join(one.deployment_id for one in together)
    if lead.deployment_id not in cluster.short:
        told = answers.why(planner, lead.resident_id, now_us=cluster.now_us)
        return f"{names} are placed together: {told}" if len(together) > 1 else told
    instances = [one for one in together if one.is_rollout and not one.where_it_trains]
    needed = " and ".join(f"{one.num_devices} {one.device_kind}" for one in instances)
    idle = ", ".join(
        f"{kind}: {len(cluster.planners[kind].board.idle)}"
        for kind in dict.fromkeys(one.device_kind for one in instances)
    )
    return f"{names} are placed together and wait for {needed} device(s) (idle ones of {idle})"


def circle(cluster: ClusterView, deployment: DeploymentEntry) -> str:
    """Say that a deployment waits in a circle that a lost or closed node closed; else nothing."""
    stuck = cluster.in_circles()
    if deployment.job_id not in stuck:
        return ""
    return (
        f"; it is in a circle of waiting jobs ({' '.join(sorted(stuck))}), whose latest request is "
        "refused if no node is opened or comes back in time"
    )
