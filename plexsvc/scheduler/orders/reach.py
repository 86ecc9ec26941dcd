"""What carrying out an order takes: whom to call, under which numbers, and for how long."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

import grpc.aio

from plexclient.wire.v1 import common_pb2, statemanager_pb2_grpc
from plexsvc.clock import Clock
from plexsvc.ids import NodeId
from plexsvc.rpc.retry import Patience, retry
from plexsvc.scheduler.config import SchedulerConfig
from plexsvc.scheduler.ledger.jobs import Registry
from plexsvc.scheduler.orders.nodes import Nodes
from plexsvc.scheduler.orders.versions import Versions

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

        async def ask_once() -> T:
            return await ask(self.nodes.link(node_id).state)

        async def has_successor(error: grpc.aio.AioRpcError) -> bool:
            is_gone = error.code() is grpc.StatusCode.UNAVAILABLE
            return is_gone and await self.nodes.link(node_id).has_agent()

        return await retry(
            ask_once,
            on=grpc.aio.AioRpcError,
            again=has_successor,
            clock=self.clock,
            patience=Patience(
                pause_us=self.config.connect_retry_us,
                within_us=self.config.state_manager_retry_us,
            ),
            what=f"state manager of {node_id}",
        )

    def fence(self, *, lease_no: int, incarnation: int = 1) -> common_pb2.Fence:
        """Return the numbers that an order carries."""
        return common_pb2.Fence(
            scheduler_epoch=self.epoch, lease_no=lease_no, incarnation=incarnation
        )
