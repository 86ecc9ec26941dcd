"""Costs of a trace: operations as sampled, half a switch to go and half to come.

Processes go at once; when they come, each node loads its part of their state. A
deployment holds an equal part of its job's state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from zlib import crc32

import numpy as np

from plexsvc.ids import DeploymentId, OperationId
from plexsvc.residency import Residency
from plexsvc.scheduler.core.vocabulary import Place
from plexsvc.sim.books import Books
from plexsvc.sim.cluster import SimCluster
from plexsvc.sim.costs import Moved, Spawned, Took, Work
from plexsvc.sim.hosts import HostLinks
from plexsvc.sim.nodes import STATE_BYTES


@dataclass(slots=True, kw_only=True)
class TraceCosts:
    """What the actions of one run take."""

    cluster: SimCluster
    seed: int
    books: Books
    """Tell whose a deployment is, and where."""
    durations_us: dict[OperationId, int] = field(default_factory=dict)
    """What each operation will take; its client says so when it submits it."""

    _dice: dict[DeploymentId, np.random.Generator] = field(default_factory=dict)
    """Each deployment's own: who else moves does not change which of its moves are slow."""
    _links: HostLinks = field(init=False)

    def __post_init__(self) -> None:
        self._links = HostLinks(cluster=self.cluster)

    def spawn(
        self, deployment_id: DeploymentId, *, places: Sequence[Place], now_us: int
    ) -> Spawned:
        """Return ranks that answer when they have started and loaded what they hold."""
        ready_us = now_us + self.cluster.start_us(self._state_bytes(deployment_id))
        return Spawned(ready_us=ready_us, device_bytes=(STATE_BYTES,) * len(places))

    def operation(self, work: Work) -> Took:
        """Return the sampled time of an operation."""
        duration_us = self.durations_us.pop(work.operation_id, 1)
        return Took(elapsed_us=duration_us, run_us=duration_us)

    def move(self, deployment_id: DeploymentId, *, to: Residency | None) -> Moved:
        """Return half a switch, or the time of a copy over the link between nodes.

        If the cluster file says so, some of the switches are slow. Instances have no state.
        """
        if deployment_id not in self.books.record_of:
            return Moved(elapsed_us=1, nbytes=0)
        job, faults = self.books.record_of[deployment_id].job, self.cluster.faults
        state_bytes = self._state_bytes(deployment_id)
        if to is None:
            return Moved(elapsed_us=self.cluster.copy_us(state_bytes), nbytes=STATE_BYTES)
        nodes, disk_bytes = self.books.place_of(deployment_id)
        whole_us = job.demand.profile.switch_us // job.deployments
        whole_us += self.cluster.switch.disk_us(disk_bytes)
        # Both halves make the whole, also of an odd one.
        half_us = whole_us // 2 if to is Residency.DEVICE else whole_us - whole_us // 2
        if faults.slow_switch_share and self._roll(deployment_id) < faults.slow_switch_share:
            half_us = round(half_us * faults.slow_switch_factor)
        shared_us = self._links.take_us(nodes, to, nbytes=state_bytes, now_us=self.books.now_us)
        return Moved(elapsed_us=max(half_us, shared_us), nbytes=STATE_BYTES)

    def _state_bytes(self, deployment_id: DeploymentId) -> int:
        """Return what a deployment holds on each of its nodes; an instance holds no state."""
        record = self.books.record_of.get(deployment_id)
        return 0 if record is None else record.job.demand.state_bytes // record.job.deployments

    def _roll(self, deployment_id: DeploymentId) -> float:
        if deployment_id not in self._dice:
            seeds = [self.seed, 78, crc32(deployment_id.encode())]
            self._dice[deployment_id] = np.random.default_rng(seeds)
        return float(self._dice[deployment_id].random())

    def stop_us(self) -> int:
        """Return the least time."""
        return 1

    def forget_us(self) -> int:
        """Return the least time."""
        return 1
