"""A read-only view of the cluster, for everybody outside the core.

Driver, servicer, simulator and tests read here what the core knows and why it decided so; they
change it by events alone. The records that a view shows are the core's own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial

from plexsvc.ids import DeploymentId, JobId, NodeId, OperationId, TenantId, WpgId
from plexsvc.scheduler.core import awaited
from plexsvc.scheduler.core.accounts import Charge, Usage
from plexsvc.scheduler.core.actions import Action
from plexsvc.scheduler.core.cluster import ClusterState
from plexsvc.scheduler.core.device import learning, space
from plexsvc.scheduler.core.life import deployments
from plexsvc.scheduler.core.place import circles, demands, reasons
from plexsvc.scheduler.core.planning.planner import Planner
from plexsvc.scheduler.core.queues import lanes
from plexsvc.scheduler.core.state import (
    DeploymentEntry,
    Device,
    JobEntry,
    Operation,
    Prefetches,
    Wpg,
)
from plexsvc.scheduler.core.vocabulary import Fault, JobState, Place


class ClusterView:
    """What the core knows at the moment of asking."""

    def __init__(self, cluster: ClusterState) -> None:
        self._cluster = cluster
        queues, placement, devices = cluster.queues, cluster.placement, cluster.devices
        self.limits = cluster.limits
        self.jobs: Mapping[JobId, JobEntry] = cluster.jobs
        self.ended: Mapping[JobId, JobState] = cluster.roll.ended
        self.ended_usage: Mapping[JobId, tuple[TenantId, dict[str, Usage]]] = cluster.roll.used
        self.deployments: Mapping[DeploymentId, DeploymentEntry] = cluster.deployments
        self.relocating: Mapping[DeploymentId, None] = cluster.relocating
        self.wpgs: Mapping[WpgId, Wpg] = cluster.wpgs
        self.operations: Mapping[OperationId, Operation] = queues.operations
        self.nodes: Mapping[NodeId, Sequence[Place]] = placement.nodes
        self.cordoned: Mapping[NodeId, bool] = placement.cordoned
        self.unplaced: Sequence[DeploymentId] = placement.unplaced
        self.homeless: Mapping[tuple[WpgId, int], Fault] = placement.homeless
        self.planners: Mapping[str, Planner] = placement.planners
        self.policy = placement.policy
        self.shares = placement.shares
        self.devices: Mapping[Place, Device] = devices.at
        self.timeline = devices.timeline
        self.waits: Mapping[tuple[JobId, JobId], int] = devices.waits
        self.charges: Collection[Charge] = cluster.turn.charges
        self.prefetches: Prefetches = devices.prefetches
        self.wpg_of = cluster.wpg_of
        self.is_current = cluster.is_current
        self.is_leaving = cluster.is_leaving
        self.carries = partial(awaited.carries, cluster)
        self.awaits = partial(awaited.is_awaited, cluster)
        self.has_gang = partial(reasons.has_gang, placement)
        self.never = partial(deployments.never, placement)
        self.why_stays = partial(reasons.why_stays, placement)
        self.short: Mapping[DeploymentId, None] = placement.short
        self.lead_of = partial(demands.lead_of, placement)
        self.waiting_with = partial(demands.waiting_with, placement)
        self.rollouts_waiting = partial(demands.rollouts_waiting, placement)
        self.in_circles = partial(circles.jobs_in, placement)
        self.head = partial(lanes.head, queues)
        self.first_missing = lanes.first_missing
        self.blocked_by = partial(lanes.dependency, queues)
        self.victims_of = partial(space.victims_of, devices)
        self.pinners = partial(space.pinners, devices)

    @property
    def now_us(self) -> int:
        """Return the time of the last event."""
        return self._cluster.now_us

    def used(self, *, now_us: int) -> dict[JobId, dict[str, Usage]]:
        """Return what jobs have used by kind of work, what runs now until now. `O(jobs + WPGs)`."""
        found = {job.job_id: dict(job.usage) for job in self.jobs.values()}
        for wpg in self.wpgs.values():
            usage = found[wpg.job_id]
            _add(usage, "memory", host_byte_us=wpg.host.spent(now_us))
            held = sum(device.holder == wpg.wpg_id for device in wpg.devices)
            if held and wpg.busy_since_us is not None and wpg.busy_with is not None:
                busy_us = held * max(0, now_us - wpg.busy_since_us)
                _add(usage, wpg.busy_with.kind, device_us=busy_us)
        for deployment in self.deployments.values():
            nbytes_us = deployment.versions.spent(now_us)
            _add(found[deployment.job_id], "memory", host_byte_us=nbytes_us)
        return found

    def resident_bytes(self, place: Place) -> int:
        """Return the bytes that WPGs hold, or are about to hold, on a device."""
        return space.resident_bytes(self._cluster.devices, self.devices[place])

    def knows(self, job_id: JobId, operation_id: OperationId) -> bool:
        """Return whether a job's operation has come, be it long over."""
        job = self.jobs.get(job_id)
        is_released = job is not None and operation_id in job.released
        return is_released or operation_id in self.operations

    def predicted_us(self, operation: Operation) -> int:
        """Return how long an operation is expected to run."""
        return learning.predicted_us(self.deployments[operation.deployment_id], operation)

    def unfinished(self) -> list[Action]:
        """Return the orders whose outcome has not come."""
        return list(awaited.orders(self._cluster))


def _add(usage: dict[str, Usage], kind: str, *, device_us: int = 0, host_byte_us: int = 0) -> None:
    """Have an account tell of more than the core has charged yet, and the core's as it is."""
    if device_us or host_byte_us:
        used = usage.get(kind, Usage())
        usage[kind] = replace(
            used,
            device_us=used.device_us + device_us,
            host_byte_us=used.host_byte_us + host_byte_us,
        )
