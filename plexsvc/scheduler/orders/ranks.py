"""Connections to the ranks of WPGs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import grpc

from plexclient.wire.v1 import worker_pb2, worker_pb2_grpc
from plexsvc.clock import Clock
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.frames.line import OrderLine
from plexsvc.ids import NodeId, WpgId, show
from plexsvc.rpc.retry import Patience, retry
from plexsvc.scheduler.ledger.jobs import Registry

ASK_S: Final = 10.0
"""How long a process may take to say how far it is."""


@dataclass(slots=True, kw_only=True)
class Rank:
    """One process of a WPG: where it answers."""

    node_id: NodeId
    device: int
    proc_id: str
    incarnation: int
    address: str
    channel: grpc.aio.Channel
    stub: worker_pb2_grpc.WorkerAsyncStub = field(init=False)
    orders: OrderLine[worker_pb2.ExecuteReply] | None = None
    """Where it takes operations without gRPC, if it does."""
    is_closed: bool = False

    def __post_init__(self) -> None:
        """Make the stub."""
        self.stub = worker_pb2_grpc.WorkerStub(self.channel)

    def take_orders(self, path: str) -> None:
        """Send operations to its Unix socket from now on; without one by gRPC."""
        if path and self.orders is None:
            self.orders = OrderLine(path, reply=worker_pb2.ExecuteReply)

    async def execute(
        self, request: worker_pb2.ExecuteRequest, *, clock: Clock, patience: Patience
    ) -> worker_pb2.ExecuteReply:
        """Run an operation, however long it takes: the caller watches over the rank.

        It is sent again if the connection breaks: a repeat attaches to what runs.

        Raises:
            PlexError: `worker_died` when the rank does not come back; by then the node agent has
                usually said more.
        """
        send = self.stub.Execute if self.orders is None else self.orders.execute
        try:
            return await retry(
                partial(send, request),
                on=(grpc.aio.AioRpcError, OSError),
                again=self._is_kept,
                clock=clock,
                patience=patience,
                what=f"execute on {self.proc_id}",
            )
        except (grpc.aio.AioRpcError, OSError) as error:
            raise PlexError(
                ErrorCode.WORKER_DIED,
                f"{self.name} stopped answering during {show(request.operation.operation_id)} "
                f"({_shown(error)}); deploy again to go on",
                worker=self.proc_id,
            ) from error

    async def _is_kept(self, _: Exception) -> bool:
        return not self.is_closed

    @property
    def name(self) -> str:
        """What errors call it."""
        return f"{self.proc_id} at {self.address}"

    def is_alive(self) -> bool:
        """Return whether its gRPC channel, which pings, is connected; connect if it is not."""
        state = self.channel.get_state(try_to_connect=True)
        return state is grpc.ChannelConnectivity.READY

    async def progress(self) -> int:
        """Return a count that grows while its operation gets on.

        Raises:
            AioRpcError: it did not say.
        """
        request = worker_pb2.DescribeRequest()
        reply: worker_pb2.DescribeReply = await self.stub.Describe(request, timeout=ASK_S)
        return reply.progress

    async def close(self) -> None:
        """Close the connections; calls under way are cancelled."""
        self.is_closed = True
        if self.orders is not None:
            self.orders.close()
        await self.channel.close()


def _shown(error: grpc.aio.AioRpcError | OSError) -> str:
    """Return what became of a call or line, in a line."""
    if isinstance(error, OSError):
        return f"{type(error).__name__}: {error}"
    return f"{error.code().name}: {error.details()}"


class Ranks:
    """The ranks of every WPG that was spawned and not forgotten."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._of: dict[WpgId, Sequence[Rank]] = {}

    def of(self, wpg_id: WpgId) -> Sequence[Rank]:
        """Return the ranks of a WPG, in order; none before all answer."""
        return self._of.get(wpg_id, ())

    def add(self, wpg_id: WpgId, ranks: Sequence[Rank]) -> None:
        """Keep the ranks of a WPG that all answer."""
        self._of[wpg_id] = ranks

    async def replace(self, wpg_id: WpgId, index: int, rank: Rank) -> None:
        """Keep a rank in the place of one that is lost."""
        ranks = list(self._of[wpg_id])
        lost, ranks[index] = ranks[index], rank
        self._of[wpg_id] = ranks
        await lost.close()

    async def forget(self, wpg_id: WpgId) -> None:
        """Close the connections to a WPG."""
        for rank in self._of.pop(wpg_id, ()):
            await rank.close()

    async def close(self) -> None:
        """Close all connections."""
        for wpg_id in list(self._of):
            await self.forget(wpg_id)

    def on_node(self, node_id: NodeId) -> Iterable[tuple[WpgId, int, int]]:
        """Return (WPG, rank, incarnation) of the processes that should run on a node."""
        for wpg_id, ranks in self._of.items():
            record = self._registry.by_wpg.get(wpg_id)
            if record is None or record.is_stopping:
                continue
            for index, rank in enumerate(ranks):
                if rank.node_id == node_id:
                    yield wpg_id, index, rank.incarnation
