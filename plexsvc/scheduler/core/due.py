"""Timers that still mean something when they are due; what others would wake has long settled."""

from __future__ import annotations

from typing import assert_never

from plexsvc.scheduler.core.cluster import Cluster
from plexsvc.scheduler.core.state import Deployment
from plexsvc.scheduler.core.timers import (
    AfterTimer,
    CircleTimer,
    DrainTimer,
    GapTimer,
    HomelessTimer,
    LingerTimer,
    PlaceTimer,
    ProbeTimer,
    RelocateTimer,
    RetryTimer,
    SpawnTimer,
    StageTimer,
    Timer,
)
from plexsvc.scheduler.core.vocabulary import OperationState, WpgState


def is_awaited(cluster: Cluster, timer: Timer) -> bool:
    """Return whether the core would do anything were `timer` due now.

    What is not awaited stays so until the timer is set again: it need not be told, nor journaled.
    """
    match timer:
        case StageTimer() | AfterTimer():
            operation = cluster.queues.operations.get(timer.of)
            is_staging = isinstance(timer, StageTimer)
            waits = OperationState.QUEUED if is_staging else OperationState.STAGED
            return operation is not None and operation.state is waits
        case PlaceTimer():
            return timer.of in cluster.placement.unplaced
        case GapTimer() | ProbeTimer() | DrainTimer():
            deployment = cluster.deployments.get(timer.of)
            return deployment is not None and not _is_settled(deployment, timer)
        case CircleTimer():
            placement, node_id = cluster.placement, timer.of
            is_gone = node_id not in placement.nodes or node_id in placement.cordoned
            return is_gone and bool(placement.unplaced)
        case HomelessTimer():
            return any(wpg_id == timer.of for wpg_id, _ in cluster.placement.homeless)
        case SpawnTimer() | RelocateTimer() | RetryTimer() | LingerTimer():
            wpg = cluster.wpgs.get(timer.of)
            is_up = wpg is None or wpg.state is not WpgState.SPAWNING
            return wpg is not None and not (is_up and isinstance(timer, SpawnTimer))
        case _:
            assert_never(timer)


def _is_settled(deployment: Deployment, timer: GapTimer | ProbeTimer | DrainTimer) -> bool:
    has_gap, is_known = deployment.gap_seq is not None, deployment.pattern.profile is not None
    return (isinstance(timer, GapTimer) and not has_gap) or (
        isinstance(timer, ProbeTimer) and is_known
    )
