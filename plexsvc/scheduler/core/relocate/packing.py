"""Packing: which deployments should live elsewhere, looked at after every event.

Deployments that wait are placed if something changed for them. Deployments leave draining nodes. A
job whose measured cycle passed its bound is relieved. Devices whose reservation is due are emptied
for whom they are kept. Groups are emptied for those who wait where that pays.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from plexsvc.ids import DeploymentId, NodeId, ResidentId, WpgId
from plexsvc.scheduler.core.cluster import Cluster
from plexsvc.scheduler.core.life import deployments
from plexsvc.scheduler.core.planning.planner import Planner
from plexsvc.scheduler.core.planning.repack import Move, Repacking, propose, relieve
from plexsvc.scheduler.core.relocate import departures

RELIEF_EVERY_US: Final = 10_000_000
"""Shortest time between two looks at groups in which a job is late."""


def settle(cluster: Cluster) -> None:
    """Do what follows from the event in hand."""
    placement, now_us = cluster.placement, cluster.now_us
    planning = placement.planning
    if planning.moved:
        departures.book_as_it_is(cluster)
    if placement.unplaced and planning.has_news:
        deployments.place_waiting(cluster)
    if placement.cordoned and any(placement.cordoned.values()):
        _drain(cluster)
    every_us = planning.policy.repack_every_us
    for planner in planning.planners.values():
        if now_us - planner.relieved_us >= RELIEF_EVERY_US:
            planner.relieved_us = now_us
            if planner.needs_relief:
                _relieve(cluster, planner)
            _make_room(cluster, planner)
        if planner.waiting and every_us and now_us - planner.repacked_us >= every_us:
            planner.repacked_us = now_us
            _repack(cluster, planner, wanted=None)


def repack_all(cluster: Cluster) -> None:
    """Empty as many groups as the bounds allow: an operator asked."""
    for planner in cluster.placement.planning.planners.values():
        _repack(cluster, planner, wanted=len(planner.board.rooms))


def _drain(cluster: Cluster) -> None:
    """Move what lives on draining nodes to wherever there is a place within bounds."""
    for wpg_id, node_id in _on_draining(cluster).items():
        wpg = cluster.wpgs[wpg_id]
        deployment = cluster.deployments[wpg.deployment_id]
        if cluster.is_current(wpg) and departures.may_leave(cluster, deployment):
            reason = f"node {node_id} is drained"
            if deployment.is_rollout:
                departures.send_instances(cluster, deployment, reason=reason)
            elif not departures.send(cluster, deployment, reason=reason):
                departures.try_later(cluster, deployment)


def _on_draining(cluster: Cluster) -> dict[WpgId, NodeId]:
    """Return who lives on draining nodes; asked after every event, so it looks at those alone."""
    nodes, cordoned = cluster.placement.nodes, cluster.placement.cordoned
    draining = [nodes[n] for n, leaves in cordoned.items() if leaves and n in nodes]
    return {
        wpg_id: node.node_id
        for node in draining
        for place in node.devices
        for wpg_id in cluster.devices.at[place].ranks
    }


def _make_room(cluster: Cluster, planner: Planner) -> None:
    """Send away who lives where a reservation is due, one after another until its job fits in."""
    busy = None
    for resident_id in planner.in_the_way(now_us=cluster.now_us):
        busy = _busy(cluster, planner) if busy is None else busy
        if resident_id in busy or resident_id not in planner.in_the_way(now_us=cluster.now_us):
            continue
        deployment = cluster.deployments[DeploymentId(resident_id)]
        departures.send(cluster, deployment, reason="its devices are reserved for another job")


def _relieve(cluster: Cluster, planner: Planner) -> None:
    relief = relieve(planner, busy=_busy(cluster, planner), rules=_rules(cluster))
    for key in (*relief.paused, *relief.resumed):
        cluster.touch(cluster.deployments[DeploymentId(key)].wpg_id)
    _carry_out(cluster, relief.moves, reason="a job of its group waits past its bound")


def _repack(cluster: Cluster, planner: Planner, *, wanted: int | None) -> None:
    moves = propose(
        planner,
        busy=_busy(cluster, planner),
        rules=_rules(cluster),
        now_us=cluster.now_us,
        wanted=wanted,
    )
    _carry_out(cluster, moves, reason="its group is emptied into others")


def _carry_out(cluster: Cluster, moves: Iterable[Move], *, reason: str) -> None:
    for move in moves:
        deployment = cluster.deployments[DeploymentId(move.resident_id)]
        departures.send_to(cluster, deployment, move.units, reason=reason)


def _rules(cluster: Cluster) -> Repacking:
    return Repacking(link_bytes_s=cluster.limits.link_bytes_s)


def _busy(cluster: Cluster, planner: Planner) -> set[ResidentId]:
    """Return the residents that stay where they are for now."""
    residents = {key: cluster.deployments[DeploymentId(key)] for key in planner.board.group_of}
    return {
        key
        for key, deployment in residents.items()
        if not departures.may_leave(cluster, deployment)
        or cluster.jobs[deployment.job_id].is_pinned
    }
