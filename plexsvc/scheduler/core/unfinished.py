"""Orders that a core has given and whose outcome it awaits: what a service that takes over repeats.

They follow from the records alone. Timers do not: whoever replays a journal notes their times.
"""

from __future__ import annotations

from collections.abc import Iterator

from plexsvc.residency import Residency
from plexsvc.scheduler.core.actions import (
    Action,
    ComputePlan,
    ForgetWpg,
    MoveState,
    SpawnInstance,
    StartOperation,
    StopWpg,
)
from plexsvc.scheduler.core.cluster import Cluster
from plexsvc.scheduler.core.device import switch
from plexsvc.scheduler.core.relocate.relocation import carry_order
from plexsvc.scheduler.core.state import Wpg
from plexsvc.scheduler.core.vocabulary import RelocationStage, WpgState


def orders(cluster: Cluster) -> Iterator[Action]:
    """Yield every order whose outcome has not come."""
    for wpg in cluster.wpgs.values():
        yield from _of_life(cluster, wpg)
        yield from _of_state(wpg)
    for deployment_id in cluster.relocating:
        deployment = cluster.deployments[deployment_id]
        relocation, old = deployment.relocation, cluster.wpg_of(deployment)
        if relocation is None or relocation.stage is not RelocationStage.CARRYING:
            continue
        if relocation.move_id is not None and old is not None:
            yield carry_order(deployment, relocation, old=old, move_id=relocation.move_id)
    planners = cluster.placement.planning.planners
    for (kind, goal), attempt in cluster.placement.plans.items():
        base = planners[kind].board.version
        yield ComputePlan(device_kind=kind, goal=goal, base=base, attempt=attempt)


def _of_life(cluster: Cluster, wpg: Wpg) -> Iterator[Action]:
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


def _of_state(wpg: Wpg) -> Iterator[Action]:
    if wpg.move_id is not None:
        to = Residency.DEVICE if wpg.residency is Residency.LOADING else Residency.HOST
        yield MoveState(wpg_id=wpg.wpg_id, move_id=wpg.move_id, to=to, lease_no=wpg.lease_no)
    for operation_id in (*wpg.running, *wpg.writing):
        yield StartOperation(operation_id=operation_id, wpg_id=wpg.wpg_id, lease_no=wpg.lease_no)
