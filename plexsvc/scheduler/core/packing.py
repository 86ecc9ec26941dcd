"""The operator's orders, and what follows for placement whenever something changed.

Cordon, drain, pin, move and repack come as events; admission of what waits, moves off a draining
node and repacking follow after every event that changed something for them.
"""

from __future__ import annotations

from typing import assert_never

from plexsvc.scheduler.core import lifecycle, placing
from plexsvc.scheduler.core.events import (
    JobMoveRequested,
    JobPinned,
    NodeCordoned,
    NodeUncordoned,
    RepackRequested,
)
from plexsvc.scheduler.core.state import Cluster

Order = NodeCordoned | NodeUncordoned | JobMoveRequested | JobPinned | RepackRequested


def take_order(cluster: Cluster, event: Order) -> None:
    """Do what an operator asked for; about things that are gone, nothing."""
    match event:
        case NodeCordoned():
            cluster.cordoned[event.node_id] = event.is_drained
            placing.close(cluster, event.node_id)
        case NodeUncordoned():
            if cluster.cordoned.pop(event.node_id, None) is not None:
                placing.reopen(cluster, event.node_id)
        case JobPinned():
            job = cluster.jobs.get(event.job_id)
            if job is not None:
                job.is_pinned = event.is_pinned
        case JobMoveRequested() | RepackRequested():
            pass
        case _:
            assert_never(event)


def settle(cluster: Cluster) -> None:
    """Place what waits if something changed for it."""
    if cluster.unplaced:
        lifecycle.place_waiting(cluster)
