"""What carrying out an order takes: whom to call, under which numbers, and for how long."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

import grpc.aio

from plexclient.wire.v1 import common_pb2, statemanager_pb2_grpc
from plexsvc.clock import Clock
from plexsvc.ids import NodeId
from plexsvc.log import Log
from plexsvc.scheduler.config import SchedulerConfig
from plexsvc.scheduler.ledger.jobs import Registry
from plexsvc.scheduler.orders.nodes import Nodes
from plexsvc.scheduler.orders.versions import Versions

log = Log(__name__)

T = TypeVar("T")


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

    async def ask_state(
        self,
        node_id: NodeId,
        ask: Callable[[statemanager_pb2_grpc.StateManagerAsyncStub], Awaitable[T]],
    ) -> T:
        """Ask a node's state manager, and its successor if it dies; what is asked may be repeated.

        Raises:
            AioRpcError: it failed otherwise, the node's agent is gone too, or no successor answered
                in `state_manager_retry_us`.
            PlexError: `node_lost`; what `ask` raises.
        """
        deadline_us = self.clock.monotonic_us() + self.config.state_manager_retry_us
        while True:
            link = self.nodes.link(node_id)
            try:
                return await ask(link.state)
            except grpc.aio.AioRpcError as error:
                is_gone = error.code() is grpc.StatusCode.UNAVAILABLE
                is_over = self.clock.monotonic_us() >= deadline_us
                if not is_gone or is_over or not await link.has_agent():
                    raise
                log.warning("a state manager is gone", node=node_id, error=error.details())
            await self.clock.sleep(self.config.connect_retry_us)

    def fence(self, *, lease_no: int, incarnation: int = 1) -> common_pb2.Fence:
        """Return the numbers that an order carries."""
        return common_pb2.Fence(
            scheduler_epoch=self.epoch, lease_no=lease_no, incarnation=incarnation
        )
