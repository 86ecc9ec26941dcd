"""Client for node agents, state managers and rollout managers: addresses, fences, deadlines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Final, Protocol, TypeVar

import grpc.aio

from plexclient.wire.v1 import (
    common_pb2,
    node_pb2,
    rollout_pb2,
    service_pb2,
    statemanager_pb2,
    statemanager_pb2_grpc,
    worker_pb2,
)
from plexsvc.clock import Clock
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.ids import NodeId, VersionId, WpgId
from plexsvc.rpc.retry import Patience, retry
from plexsvc.scheduler.config import SchedulerConfig
from plexsvc.scheduler.core.events import Event
from plexsvc.scheduler.core.vocabulary import NodeBytes
from plexsvc.scheduler.ledger.held import Published
from plexsvc.scheduler.ledger.jobs import Registry
from plexsvc.scheduler.ledger.recorder import Recorder
from plexsvc.scheduler.orders.nodes import NodeLinks
from plexsvc.scheduler.orders.ranks import ASK_S, Rank, Ranks
from plexsvc.scheduler.orders.underway import Underway
from plexsvc.scheduler.orders.versions import Versions
from plexsvc.scheduler.orders.watch import Carrier, HungError, Watch

T = TypeVar("T")

SHOWN: Final = 8
"""Of how many ranks the verdict on what hangs shows the stacks."""
STACKS_S: Final = 2.0
"""How long the verdict on what hangs waits for its stacks."""


GivenUp = Callable[[str, str, str], None]
"""Takes a WPG, the address of one of its instances, and why that is given up."""

Left = Callable[[str, str, bytes], None]
"""Takes a WPG, the address of one that sleeps, and the generate that goes on without it."""

Turned = Callable[[str, int], None]
"""Takes a WPG, and for how many microseconds its instances sampled turns, all together."""


class RolloutPort(Protocol):
    """The rollout managers."""

    async def execute(self, request: worker_pb2.ExecuteRequest) -> worker_pb2.ExecuteReply:
        """Run an operation of a rollout deployment."""

    async def cancel(self, request: worker_pb2.CancelRequest) -> None:
        """End a generate early."""

    def adopt(
        self,
        deployment_id: str,
        *,
        fence: common_pb2.Fence,
        wpg_id: str,
        addresses: Sequence[str],
    ) -> bool:
        """Lead a deployment of an earlier service; return whether it is known there."""

    def pulled(self, deployment_id: str, operation_id: bytes) -> int | None:
        """Return the version that a pull loaded, unless another was loaded since."""

    async def replace(self, deployment_id: str, *, index: int, address: str) -> None:
        """Let a new instance take the place of one that was lost."""

    async def locate(self, source: statemanager_pb2.PublishedVersion) -> None:
        """Say where the version that instances serve lies; without holders it is lost."""

    async def move(
        self, deployment_id: str, *, fence: common_pb2.Fence, to: rollout_pb2.InstancesMove
    ) -> rollout_pb2.MoveInstancesReply:
        """Have all instances of a deployment sleep or wake."""

    def report_to(self, given_up: GivenUp) -> None:
        """Say from now on which instances do not come back by themselves."""

    def report_left_to(self, left: Left) -> None:
        """Say from now on which instances sleep because a generate does without them."""

    def report_turns_to(self, turned: Turned) -> None:
        """Say from now on what turns took of instances."""

    async def forget(self, deployment_id: str) -> None:
        """End a deployment: drop its records and connections."""

    def address_of(self, deployment_id: str) -> str:
        """Return where a deployment's tokens are streamed from; empty before it is initialised."""

    async def instances(self) -> list[service_pb2.InstanceView]:
        """Return every instance and spot device; `device` of a dedicated one is its address."""

    def drain(self, device: str) -> None:
        """Have the samples of an instance go on elsewhere, and close its device or engine."""

    def open(self, device: str) -> None:
        """Open a spot device or engine that `drain` closed."""

    def bill(self, deployment_id: str, use: service_pb2.JobUse) -> None:
        """Add to `use` what a deployment had of spot devices and lent engines, and its cost."""

    def offer(self, request: service_pb2.LendInstanceRequest) -> None:
        """Let jobs have the guest of a serving engine until its lease ends; 0 withdraws it."""

    def versions_in_use(self) -> set[VersionId]:
        """Return the versions that instances serve or load, or would after a restart."""

    async def progress(self, deployment_id: str, operation_id: bytes) -> int:
        """Return a count that grows while an operation gets on: tokens recorded, weights loaded."""

    async def release(self, deployment_id: str, operation_id: bytes) -> None:
        """Drop the record of an acknowledged operation."""


@dataclass(frozen=True, slots=True)
class _StateWork:
    """A state manager, as the carrier of work on one WPG's state."""

    nodes: NodeLinks
    node_id: NodeId
    wpg_id: WpgId

    @property
    def name(self) -> str:
        return f"the state manager of {self.node_id}"

    def is_alive(self) -> bool:
        return True  # its node's agent replaces one that hangs, and calls to it are repeated

    async def progress(self) -> int:
        request = statemanager_pb2.InventoryRequest()
        found = await self.nodes.link(self.node_id).state.Inventory(request, timeout=ASK_S)
        return next((wpg.worked_bytes for wpg in found.wpgs if wpg.wpg_id == self.wpg_id), 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """Processes that the handlers of actions call, and what is known of each."""

    config: SchedulerConfig
    clock: Clock
    epoch: int
    registry: Registry
    recorder: Recorder
    nodes: NodeLinks
    ranks: Ranks
    versions: Versions
    rollout: RolloutPort
    post: Callable[[Event], object]
    """Tells the core a fact before the work of an action is over."""
    watch: Watch
    underway: Underway = field(default_factory=Underway)
    told_bytes: dict[str, tuple[NodeBytes, ...]] = field(default_factory=dict)
    """What the core was last told of host memory (`host_bytes`)."""

    @property
    def rpc_s(self) -> float:
        """Deadline of a short call, in seconds."""
        return self.config.rpc_timeout_us / 1e6

    @property
    def silence_s(self) -> float:
        """How long work on state may not get on before it is given up, in seconds."""
        return self.config.progress_timeout_us / 1e6

    @asynccontextmanager
    async def watched(
        self,
        what: str,
        wpg_id: WpgId,
        carriers: Sequence[Carrier],
        *,
        stuck: ErrorCode = ErrorCode.WORKER_DIED,
    ) -> AsyncIterator[None]:
        """Watch over the work in the body; an error of what hangs says where its ranks are.

        Raises:
            HungError: as `Watch.over`.
        """
        try:
            async with self.watch.over(what, carriers, stuck=stuck):
                yield
        except HungError as verdict:
            where = await asyncio.gather(
                *(self._stacks(rank) for rank in self.ranks.of(wpg_id)[:SHOWN])
            )
            message = "\n".join([verdict.message, *filter(None, where)])
            raise HungError(verdict.code, message, **verdict.facts) from None

    async def _stacks(self, rank: Rank) -> str:
        """Return the Python stacks of a process, and which log has them whole."""
        request = node_pb2.WriteStacksRequest(fence=self.fence(lease_no=0), proc_id=rank.proc_id)
        with suppress(grpc.aio.AioRpcError, PlexError):  # its node hangs too, or is lost
            agent = self.nodes.link(rank.node_id).agent
            found = await agent.WriteStacks(request, timeout=STACKS_S)
            if found.stacks:
                return f"{rank.proc_id} is at ({rank.node_id}: {found.log_path})\n{found.stacks}"
        return ""

    def carriers(self, wpg_id: WpgId, nodes: Iterable[NodeId]) -> list[Carrier]:
        """Return who works on a WPG's state with its ranks: they, and state managers of nodes."""
        return [*self.ranks.of(wpg_id), *self.state_carriers(wpg_id, nodes)]

    def state_carriers(self, wpg_id: WpgId, nodes: Iterable[NodeId]) -> list[Carrier]:
        """Return the state managers that work on a copy of a WPG's state."""
        return [_StateWork(self.nodes, node_id, wpg_id) for node_id in nodes]

    async def ask_state(
        self,
        node_id: NodeId,
        ask: Callable[[statemanager_pb2_grpc.StateManagerAsyncStub], Awaitable[T]],
        *,
        which_asks: NodeId | None = None,
    ) -> T:
        """Ask a node's state manager, and its successor if it dies; what is asked may be repeated.

        Its work may be for another node's state manager (`which_asks`), which may die as well.

        Raises:
            AioRpcError: it failed otherwise, the node's agent is gone too, or no successor answered
                in `state_manager_retry_us`.
            PlexError: `node_lost`; what `ask` raises.
        """

        async def ask_once() -> T:
            return await ask(self.nodes.link(node_id).state)

        async def has_successor(error: grpc.aio.AioRpcError) -> bool:
            both = (node_id, which_asks or node_id)
            is_gone = error.code() is grpc.StatusCode.UNAVAILABLE
            return is_gone and all([await self.nodes.link(one).has_agent() for one in both])

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

    def locate(self, published: Published) -> statemanager_pb2.PublishedVersion:
        """Return a version with where its holders answer now.

        Raises:
            PlexError: `node_lost` when a part lies only on nodes that are not up.
        """
        held = list(zip_longest(published.nodes, published.parts, fillvalue=""))
        # Replicas hold the same part: those that are down are left out while another is up. Where
        # none is, `link` raises and names the node.
        there = {part for node_id, part in held if part and self.nodes.is_up(NodeId(node_id))}
        links = [
            (self.nodes.link(NodeId(node_id)), part)
            for node_id, part in held
            if part not in there or self.nodes.is_up(NodeId(node_id))
        ]
        return statemanager_pb2.PublishedVersion(
            **published.version._asdict(),
            holders=[
                statemanager_pb2.VersionHolder(
                    node_id=link.node_id,
                    data_socket=link.description.data_socket,
                    state_manager=link.description.state_manager,
                    part=part,
                )
                for link, part in links
            ],
        )

    def fence(self, *, lease_no: int, incarnation: int = 1) -> common_pb2.Fence:
        """Return the numbers that an order carries."""
        return common_pb2.Fence(
            scheduler_epoch=self.epoch, lease_no=lease_no, incarnation=incarnation
        )
