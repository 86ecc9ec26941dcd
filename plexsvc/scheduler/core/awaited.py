"""Outcomes of orders, and timers that still mean something: what the core awaits.

A service that takes over repeats the orders. They follow from the records alone. Times of timers do
not, so whoever replays a journal notes them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import assert_never

from plexsvc.ids import DeploymentId, NodeId, OperationId, WpgId
from plexsvc.residency import Residency
from plexsvc.scheduler.core import timers
from plexsvc.scheduler.core.actions import (
    Action,
    CarryState,
    ForgetWpg,
    MoveState,
    SpawnInstance,
    StartOperation,
    StopWpg,
)
from plexsvc.scheduler.core.cluster import ClusterState
from plexsvc.scheduler.core.device import switch
from plexsvc.scheduler.core.relocate.relocation import carry_order
from plexsvc.scheduler.core.state import Wpg
from plexsvc.scheduler.core.timers import Timer
from plexsvc.scheduler.core.vocabulary import OperationState, RelocationStage, WpgState


def orders(cluster: ClusterState) -> Iterator[Action]:
    """Yield every order whose outcome has not come."""
    for wpg in cluster.wpgs.values():
        yield from _of_life(cluster, wpg)
        if wpg.move_id is not None:
            to = Residency.DEVICE if wpg.residency is Residency.LOADING else Residency.HOST
            yield MoveState(wpg_id=wpg.wpg_id, move_id=wpg.move_id, to=to, lease_no=wpg.lease_no)
        for started in (*wpg.running, *wpg.writing):
            yield StartOperation(operation_id=started, wpg_id=wpg.wpg_id, lease_no=wpg.lease_no)
    yield from carries(cluster, RelocationStage.CARRYING)


def carries(cluster: ClusterState, stage: RelocationStage) -> Iterator[CarryState]:
    """Yield the order for the copy of each relocation that has come so far."""
    for deployment_id in cluster.relocating:
        deployment = cluster.deployments[deployment_id]
        relocation, old = deployment.relocation, cluster.wpg_of(deployment)
        if relocation is None or relocation.stage is not stage:
            continue
        if relocation.move_id is not None and old is not None:
            yield carry_order(deployment, relocation, old=old, move_id=relocation.move_id)


def _of_life(cluster: ClusterState, wpg: Wpg) -> Iterator[Action]:
    match wpg.state:
        case WpgState.SPAWNING:
            deployment = cluster.deployments[wpg.deployment_id]
            current, relocation = deployment.wpg_id, deployment.relocation
            is_moving = relocation is not None and relocation.stage is RelocationStage.SPAWNING
            # Engines that share devices start with their first switch, and with a move.
            if not wpg.is_shared or wpg.residency is not Residency.NONE or is_moving:
                yield switch.spawn_order(wpg, replaces=current)
        case WpgState.STOPPING:
            yield StopWpg(wpg_id=wpg.wpg_id)
        case WpgState.FORGETTING:
            yield ForgetWpg(wpg_id=wpg.wpg_id, lease_no=wpg.lease_no)
        case WpgState.READY:
            for rank in wpg.absent:
                if rank not in wpg.asleep and (wpg.wpg_id, rank) not in cluster.placement.homeless:
                    yield SpawnInstance(
                        wpg_id=wpg.wpg_id,
                        rank=rank,
                        incarnation=wpg.incarnation_of(rank),
                    )


def is_awaited(cluster: ClusterState, key: str) -> bool:
    """Return whether the core would do anything were the timer of `key` due now.

    What is not awaited stays so until the timer is set again: it need not be told, nor journaled.
    """
    timer, name = timers.parse(key)
    match timer:
        case Timer.STAGE | Timer.AFTER:
            operation = cluster.queues.operations.get(OperationId(bytes.fromhex(name)))
            waits = OperationState.QUEUED if timer is Timer.STAGE else OperationState.STAGED
            return operation is not None and operation.state is waits
        case Timer.PLACE:
            return DeploymentId(name) in cluster.placement.unplaced
        case Timer.GAP | Timer.PROBE | Timer.DRAIN:
            deployment = cluster.deployments.get(DeploymentId(name))
            if deployment is None or timer is Timer.DRAIN:
                return deployment is not None
            if timer is Timer.GAP:
                return deployment.gap_seq is not None
            return deployment.pattern.cycles.profile is None
        case Timer.CIRCLE:
            placement, node_id = cluster.placement, NodeId(name)
            is_gone = node_id not in placement.nodes or node_id in placement.cordoned
            return is_gone and bool(placement.unplaced)
        case Timer.HOMELESS:
            return any(wpg_id == name for wpg_id, _ in cluster.placement.homeless)
        case Timer.SPAWN | Timer.RELOCATE | Timer.RETRY | Timer.LINGER:
            wpg = cluster.wpgs.get(WpgId(name))
            return wpg is not None and (timer is not Timer.SPAWN or wpg.state is WpgState.SPAWNING)
        case _:
            assert_never(timer)
