"""Packing: which deployments should live elsewhere, looked at after every event.

Deployments that wait are placed if something changed for them. Deployments leave draining nodes. A
job whose measured cycle passed its bound is relieved. Devices whose reservation is due are emptied
for whom they are kept. Groups are emptied for those who wait where that pays.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from plexsvc.ids import DeploymentId, NodeId, ResidentId, WpgId
from plexsvc.scheduler.core.cluster import Devices, Lives
from plexsvc.scheduler.core.events import RepackRequested
from plexsvc.scheduler.core.life import deployments
from plexsvc.scheduler.core.planning.planner import Planner
from plexsvc.scheduler.core.planning.repack import Move, Repacking, propose, relieve
from plexsvc.scheduler.core.relocate import departures

RELIEF_EVERY_US: Final = 10_000_000
"""Shortest time between two looks at groups in which a job is late."""


def settle(lives: Lives) -> None:
    """Do what follows from the event in hand."""
    placement, now_us = lives.devices.placement, lives.now_us
    planning = placement.planning
    if planning.moved:
        departures.book_as_it_is(lives.devices)
    if placement.unplaced and planning.has_news:
        deployments.place_waiting(lives)
    if placement.cordoned and any(placement.cordoned.values()):
        _drain(lives)
    every_us = planning.policy.repack_every_us
    for planner in planning.planners.values():
        if now_us - planner.relieved_us >= RELIEF_EVERY_US:
            planner.relieved_us = now_us
            if planner.needs_relief:
                _relieve(lives, planner)
            _make_room(lives, planner)
        if planner.waiting and every_us and now_us - planner.repacked_us >= every_us:
            planner.repacked_us = now_us
            _repack(lives, planner, wanted=None)


def repack_all(lives: Lives, _: RepackRequested) -> None:
    """Empty as many groups as the bounds allow: an operator asked."""
    for planner in lives.devices.placement.planning.planners.values():
        _repack(lives, planner, wanted=len(planner.board.rooms))


def _drain(lives: Lives) -> None:
    """Move what lives on draining nodes to wherever there is a place within bounds."""
    for wpg_id, node_id in _on_draining(lives.devices).items():
        wpg = lives.wpgs[wpg_id]
        deployment = lives.deployments[wpg.deployment_id]
        if lives.is_current(wpg) and departures.may_leave(lives.devices, deployment):
            reason = f"node {node_id} is drained"
            if deployment.is_rollout:
                departures.send_instances(lives, deployment, reason=reason)
            elif not departures.send(lives, deployment, reason=reason):
                departures.try_later(lives.devices, deployment)


def _on_draining(devices: Devices) -> dict[WpgId, NodeId]:
    """Return who lives on draining nodes; asked after every event, so it looks at those alone."""
    nodes, cordoned = devices.placement.nodes, devices.placement.cordoned
    draining = [nodes[n] for n, leaves in cordoned.items() if leaves and n in nodes]
    return {
        wpg_id: node.node_id
        for node in draining
        for place in node.devices
        for wpg_id in devices.at[place].ranks
    }


def _make_room(lives: Lives, planner: Planner) -> None:
    """Send away who lives where a reservation is due, one after another until its job fits in."""
    busy = None
    for resident_id in planner.in_the_way(now_us=lives.now_us):
        busy = _busy(lives.devices, planner) if busy is None else busy
        if resident_id in busy or resident_id not in planner.in_the_way(now_us=lives.now_us):
            continue
        deployment = lives.deployments[DeploymentId(resident_id)]
        departures.send(lives, deployment, reason="its devices are reserved for another job")


def _relieve(lives: Lives, planner: Planner) -> None:
    relief = relieve(planner, busy=_busy(lives.devices, planner), rules=_rules(lives.devices))
    for key in (*relief.paused, *relief.resumed):
        lives.touch(lives.deployments[DeploymentId(key)].wpg_id)
    _carry_out(lives, relief.moves, reason="a job of its group waits past its bound")


def _repack(lives: Lives, planner: Planner, *, wanted: int | None) -> None:
    moves = propose(
        planner,
        busy=_busy(lives.devices, planner),
        rules=_rules(lives.devices),
        now_us=lives.now_us,
        wanted=wanted,
    )
    _carry_out(lives, moves, reason="its group is emptied into others")


def _carry_out(lives: Lives, moves: Iterable[Move], *, reason: str) -> None:
    for move in moves:
        deployment = lives.deployments[DeploymentId(move.resident_id)]
        departures.send_to(lives, deployment, move.units, reason=reason)


def _rules(devices: Devices) -> Repacking:
    return Repacking(link_bytes_s=devices.limits.link_bytes_s)


def _busy(devices: Devices, planner: Planner) -> set[ResidentId]:
    """Return the residents that stay where they are for now."""
    residents = {key: devices.deployments[DeploymentId(key)] for key in planner.board.group_of}
    return {
        key
        for key, deployment in residents.items()
        if not departures.may_leave(devices, deployment)
        or devices.jobs[deployment.job_id].is_pinned
    }
