"""The operator's orders and what follows for placement: draining, repacking, relief of the late.

Cordon, drain, pin, move and repack come as events. After every event: what waits is placed if
something changed for it, jobs leave draining nodes, a job whose measured cycle passed its bound is
relieved, and groups are emptied for those who wait where that pays. A move is booked on the board
when it begins; if the relocation fails, the deployment is booked back where it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, assert_never

from plexsvc.errors import ErrorCode
from plexsvc.ids import DeploymentId, NodeId, ResidentId, UnitId, WpgId
from plexsvc.scheduler.core.actions import RelocationChanged
from plexsvc.scheduler.core.cluster import Cluster
from plexsvc.scheduler.core.events import (
    JobMoveRequested,
    JobPinned,
    NodeCordoned,
    NodeUncordoned,
    RelocationRequested,
    RepackRequested,
)
from plexsvc.scheduler.core.life import lifecycle
from plexsvc.scheduler.core.place import placing
from plexsvc.scheduler.core.planning.planner import Planner
from plexsvc.scheduler.core.planning.repack import Move, Repacking, propose, relieve
from plexsvc.scheduler.core.planning.rooms import Gang
from plexsvc.scheduler.core.relocate import relocation
from plexsvc.scheduler.core.state import Deployment
from plexsvc.scheduler.core.timers import DrainTimer
from plexsvc.scheduler.core.vocabulary import DeploymentState, Fault, RelocationStage

Order = (
    NodeCordoned
    | NodeUncordoned
    | JobMoveRequested
    | JobPinned
    | RelocationRequested
    | RepackRequested
)

DRAIN_RETRY_US: Final = 2_000_000
"""Pause before a deployment that found no place off a draining node is tried again."""

RELIEF_EVERY_US: Final = 10_000_000
"""Shortest time between two looks at groups in which a job is late."""


def take_order(cluster: Cluster, event: Order) -> None:
    """Do what an operator asked for; about things that are gone, nothing."""
    match event:
        case NodeCordoned():
            cluster.placement.cordoned[event.node_id] = event.is_drained
            placing.close(cluster.placement, event.node_id)
        case NodeUncordoned():
            if cluster.placement.cordoned.pop(event.node_id, None) is not None:
                placing.reopen(cluster.placement, event.node_id)
        case JobPinned():
            job = cluster.jobs.get(event.job_id)
            if job is not None:
                job.is_pinned = event.is_pinned
        case JobMoveRequested():
            _move_job(cluster, event)
        case RelocationRequested():
            _relocate(cluster, event)
        case RepackRequested():
            for planner in cluster.placement.planning.planners.values():
                _repack(cluster, planner, wanted=len(planner.board.rooms))
        case _:
            assert_never(event)


def settle(cluster: Cluster) -> None:
    """Do what follows from the event in hand."""
    _book_as_it_is(cluster)
    if cluster.placement.unplaced and cluster.placement.planning.has_news:
        lifecycle.place_waiting(cluster)
    if any(cluster.placement.cordoned.values()):
        _drain(cluster)
    for kind, planner in cluster.placement.planning.planners.items():
        if _is_due(cluster, f"relief/{kind}", every_us=RELIEF_EVERY_US) and planner.needs_relief:
            _relieve(cluster, planner)
        every_us = cluster.placement.planning.policy.repack_every_us
        if planner.waiting and every_us and _is_due(cluster, f"repack/{kind}", every_us=every_us):
            _repack(cluster, planner, wanted=None)


def _is_due(cluster: Cluster, what: str, *, every_us: int) -> bool:
    last_us = cluster.placement.planning.looked_us.get(what)
    if last_us is not None and cluster.now_us - last_us < every_us:
        return False
    cluster.placement.planning.looked_us[what] = cluster.now_us
    return True


def _move_job(cluster: Cluster, event: JobMoveRequested) -> None:
    job = cluster.jobs.get(event.job_id)
    for deployment_id in [] if job is None else list(job.deployments):
        deployment = cluster.deployments[deployment_id]
        if deployment.is_rollout:
            continue
        reason = "an operator moved the job"
        wpg = cluster.wpg_of(deployment)
        if wpg is not None and {place.node_id for place in wpg.places} == {event.node_id}:
            _say_there(cluster, deployment, reason=reason)
            continue
        if event.node_id is None:
            is_on_its_way = _send(cluster, deployment, reason=reason)
        else:
            is_on_its_way = _send_to(cluster, deployment, event.node_id, reason=reason)
        if not is_on_its_way:
            _say_stays(cluster, deployment, where=event.node_id)


def _relocate(cluster: Cluster, event: RelocationRequested) -> None:
    """Begin a move to exactly these devices, bounds or not."""
    deployment = cluster.deployments.get(event.deployment_id)
    if deployment is None:
        return
    if deployment.is_rollout:
        units = tuple(map(placing.unit, event.places))
        _send_instances(cluster, deployment, reason=event.reason, units=units)
        return
    fault = relocation.why_not(cluster, deployment, event.places)
    if fault is not None:
        _tell_failed(cluster, deployment, reason=event.reason, fault=fault)
        return
    planner, key = placing.planner_of(cluster.placement, deployment)
    units = tuple(map(placing.unit, event.places))
    planner.move(key, units, now_us=cluster.now_us)
    _begin(cluster, deployment, units, reason=event.reason)


def _send_to(cluster: Cluster, deployment: Deployment, node_id: NodeId, *, reason: str) -> bool:
    """Begin a move to a node: within bounds if they allow it, else where it burdens least."""
    if deployment.relocation is not None or not placing.is_placed(cluster.placement, deployment):
        return False
    planner, key = placing.planner_of(cluster.placement, deployment)
    onto = placing.units_of(cluster.placement, node_id)
    placed = planner.rehome(key, now_us=cluster.now_us, onto=onto)
    units = (
        placed.units if placed else placing.least_used(cluster.placement, deployment, among=onto)
    )
    if units is None:
        return False
    if placed is None:
        planner.move(key, units, now_us=cluster.now_us)
    _begin(cluster, deployment, units, reason=reason)
    return True


def _send(cluster: Cluster, deployment: Deployment, *, reason: str) -> bool:
    """Begin a move to wherever the planner finds a place; return whether it found one."""
    if deployment.relocation is not None or not placing.is_placed(cluster.placement, deployment):
        return False
    planner, key = placing.planner_of(cluster.placement, deployment)
    placed = planner.rehome(key, now_us=cluster.now_us)
    if placed is None:
        return False
    _begin(cluster, deployment, placed.units, reason=reason)
    return True


def _send_instances(
    cluster: Cluster, deployment: Deployment, *, reason: str, units: Gang | None = None
) -> None:
    """Begin to move all instances of a rollout deployment to idle devices, or say why not."""
    idle = placing.idle_for(cluster.placement, deployment, among=units)
    places = tuple(map(placing.place_of, idle or units or ()))
    fault = relocation.why_not(cluster, deployment, places)
    if fault is None and idle is not None:
        relocation.begin(cluster, deployment, places, reason=reason)
        return
    if fault is None or not places:
        fault = _too_few_idle(deployment)
    if deployment.relocation_fault != fault:
        _tell_failed(cluster, deployment, reason=reason, fault=fault)
    deployment.relocation_fault = fault
    _try_later(cluster, deployment)


def _too_few_idle(deployment: Deployment) -> Fault:
    return Fault(
        code=ErrorCode.NO_PLACEMENT,
        message=f"{deployment.deployment_id} stays where it is: its {deployment.num_devices} "
        f"instance(s) move together, each to an idle {deployment.device_kind} device of a node "
        "that takes work; add a node or end what holds them",
    )


def _begin(
    cluster: Cluster, deployment: Deployment, units: Iterable[UnitId], *, reason: str
) -> None:
    """Relocate a deployment to where it is booked; book it back if that cannot begin."""
    places = tuple(map(placing.place_of, units))
    fault = relocation.begin(cluster, deployment, places, reason=reason)
    if fault is not None:
        deployment.relocation_fault = fault
        _tell_failed(cluster, deployment, reason=reason, fault=fault)
        _try_later(cluster, deployment)
    cluster.placement.planning.moved[deployment.deployment_id] = None


def _book_as_it_is(cluster: Cluster) -> None:
    """Book deployments whose relocation is over where their processes are now."""
    for deployment_id in list(cluster.placement.planning.moved):
        deployment = cluster.deployments.get(deployment_id)
        if deployment is not None and deployment.relocation is not None:
            continue
        del cluster.placement.planning.moved[deployment_id]
        wpg = None if deployment is None else cluster.wpg_of(deployment)
        if (
            deployment is None
            or wpg is None
            or not placing.is_placed(cluster.placement, deployment)
        ):
            continue
        planner, key = placing.planner_of(cluster.placement, deployment)
        units = tuple(map(placing.unit, wpg.places))
        if planner.group_of(key).residents[key].units != units:
            planner.move(key, units, now_us=cluster.now_us)
            _try_later(cluster, deployment)


def _drain(cluster: Cluster) -> None:
    """Move what lives on draining nodes to wherever there is a place within bounds."""
    for wpg_id, node_id in _on_draining(cluster).items():
        wpg = cluster.wpgs[wpg_id]
        deployment = cluster.deployments[wpg.deployment_id]
        if cluster.is_current(wpg) and _may_move(cluster, deployment):
            reason = f"node {node_id} is drained"
            if deployment.is_rollout:
                _send_instances(cluster, deployment, reason=reason)
            elif not _send(cluster, deployment, reason=reason):
                _try_later(cluster, deployment)


def _on_draining(cluster: Cluster) -> dict[WpgId, NodeId]:
    """Return who lives on draining nodes; asked after every event, so it looks at those alone."""
    nodes, cordoned = cluster.placement.nodes, cluster.placement.cordoned
    draining = [nodes[n] for n, leaves in cordoned.items() if leaves and n in nodes]
    return {
        wpg_id: node.node_id
        for node in draining
        for place in node.devices
        for wpg_id in cluster.devices.at[place].wpgs
    }


def _relieve(cluster: Cluster, planner: Planner) -> None:
    relief = relieve(planner, busy=_busy(cluster, planner), rules=_rules(cluster))
    for job_id in (*relief.paused, *relief.resumed):
        cluster.touch(cluster.deployments[DeploymentId(job_id)].wpg_id)
    _carry_out(cluster, planner, relief.moves, reason="a job of its group waits past its bound")


def _repack(cluster: Cluster, planner: Planner, *, wanted: int | None) -> None:
    moves = propose(
        planner,
        busy=_busy(cluster, planner),
        rules=_rules(cluster),
        now_us=cluster.now_us,
        wanted=wanted,
    )
    _carry_out(cluster, planner, moves, reason="its group is emptied into others")


def _carry_out(cluster: Cluster, planner: Planner, moves: Iterable[Move], *, reason: str) -> None:
    for move in moves:
        deployment = cluster.deployments[DeploymentId(move.resident_id)]
        planner.move(move.resident_id, move.units, now_us=cluster.now_us)
        _begin(cluster, deployment, move.units, reason=reason)


def _rules(cluster: Cluster) -> Repacking:
    return Repacking(link_bytes_s=cluster.limits.link_bytes_s)


def _busy(cluster: Cluster, planner: Planner) -> set[ResidentId]:
    """Return the residents that stay where they are for now."""
    return {
        key
        for key in planner.board.group_of
        if not _may_move(cluster, cluster.deployments[DeploymentId(key)])
        or cluster.jobs[cluster.deployments[DeploymentId(key)].job_id].is_pinned
    }


def _may_move(cluster: Cluster, deployment: Deployment) -> bool:
    return (
        deployment.relocation is None
        and deployment.state is DeploymentState.READY
        and deployment.stays_until_us <= cluster.now_us
        and cluster.jobs[deployment.job_id].ending is None
    )


def _try_later(cluster: Cluster, deployment: Deployment) -> None:
    deployment.stays_until_us = cluster.now_us + DRAIN_RETRY_US
    cluster.set_timer(DrainTimer(deployment.deployment_id), at_us=deployment.stays_until_us)


def _say_stays(cluster: Cluster, deployment: Deployment, *, where: NodeId | None) -> None:
    there = "elsewhere" if where is None else f"on node {where}"
    found = placing.why_stays(cluster.placement, deployment)
    fault = Fault(
        code=ErrorCode.NO_PLACEMENT,
        message=f"{deployment.deployment_id} stays where it is: no place {there} takes it: {found}",
    )
    _tell_failed(cluster, deployment, reason="an operator moved the job", fault=fault)


def _say_there(cluster: Cluster, deployment: Deployment, *, reason: str) -> None:
    fault = Fault(
        code=ErrorCode.NO_PLACEMENT,
        message=f"{deployment.deployment_id} stays where it is: it lives there already",
    )
    _tell_failed(cluster, deployment, reason=reason, fault=fault)


def _tell_failed(cluster: Cluster, deployment: Deployment, *, reason: str, fault: Fault) -> None:
    cluster.emit(
        RelocationChanged(
            deployment_id=deployment.deployment_id,
            stage=RelocationStage.FAILED,
            places=(),
            reason=reason,
            fault=fault,
        )
    )
