"""What carrying out an order takes: whom to call, under which numbers, and for how long."""

from __future__ import annotations

from dataclasses import dataclass

from plexclient.wire.v1 import common_pb2
from plexsvc.clock import Clock
from plexsvc.scheduler.config import SchedulerConfig
from plexsvc.scheduler.nodes import Nodes
from plexsvc.scheduler.registry import Registry
from plexsvc.scheduler.versions import Versions


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """Shared by everything that acts for one driver."""

    config: SchedulerConfig
    clock: Clock
    epoch: int
    registry: Registry
    nodes: Nodes
    versions: Versions

    @property
    def rpc_s(self) -> float:
        """Deadline of a short call, in seconds."""
        return self.config.rpc_timeout_us / 1e6

    @property
    def move_s(self) -> float:
        """Deadline of a call that moves or writes state, in seconds."""
        return self.config.move_timeout_us / 1e6

    def fence(self, *, lease_no: int, incarnation: int = 1) -> common_pb2.Fence:
        """Return the numbers that an order carries."""
        return common_pb2.Fence(
            scheduler_epoch=self.epoch, lease_no=lease_no, incarnation=incarnation
        )
