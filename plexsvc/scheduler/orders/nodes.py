"""Links to nodes: each node's agent and state manager, the lease it holds, its events.

A link is *up* from the moment its lease was granted until its renewals have failed for
`node_lease_us` (`leases`). Then the node is lost, and its WPGs with it. Its agent kills their ranks
when it has heard of nobody for `node_grace_us`, and before the node is lost if its host is cut off
from all others. A link that comes back joins anew: what still runs
there is stopped before anything is placed there. One that stays away for `node_forget_us` is
forgotten.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import grpc

from plexclient.wire.v1 import (
    common_pb2,
    node_pb2,
    node_pb2_grpc,
    service_pb2,
    statemanager_pb2_grpc,
)
from plexsvc.clock import Clock
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.ids import NodeId, WpgId
from plexsvc.log import Log
from plexsvc.rpc.errors import checked, error_from, first_failure
from plexsvc.rpc.keys import ClusterKeys
from plexsvc.rpc.peers import Peers
from plexsvc.scheduler.config import SchedulerConfig
from plexsvc.scheduler.core.events import NodeForgotten, NodeJoined, NodeLost, Post, ProcExited
from plexsvc.scheduler.core.vocabulary import DeviceFacts, Place
from plexsvc.scheduler.orders.leases import Leases, Renewed
from plexsvc.store.rows import NodeRow

log = Log(__name__)

STREAM_S: Final = 3600
"""The event stream is reopened after so long: every call has a deadline."""

SIGKILL: Final = 9

MANAGER: Final = "manager"
"""Image of rollout managers, with which the names of their processes begin."""


RanksOn = Callable[[NodeId], Iterable[tuple[WpgId, int, int]]]
"""Returns (WPG, rank, incarnation) of the processes that should run on a node."""

Dial = Callable[[str], grpc.aio.Channel]
"""Opens a channel to a process of the cluster."""


@dataclass(slots=True, kw_only=True)
class Remembered:
    """What a former scheduler knew of nodes: what of it is found again goes on."""

    up: set[NodeId] = field(default_factory=set)
    """Nodes that the core counts as up."""
    procs: set[tuple[str, int]] = field(default_factory=set)
    """Name and incarnation of the processes that the core counts on."""


class NodeLink:
    """Keeps a node agent's lease and tells its events; holds the stubs others call."""

    def __init__(
        self,
        target: str,
        *,
        config: SchedulerConfig,
        clock: Clock,
        post: Post,
        ranks_on: RanksOn,
        peers: Peers,
        leases: Leases,
        node_id: str = "",
    ) -> None:
        """Lead the agent at `target`: whatever node that is, or `node_id`, which was added once."""
        self.target = target
        self.was_added = bool(node_id)
        self.remembered = Remembered()
        self._config = config
        self._clock = clock
        self._leases = leases
        self._post = post
        self._ranks_on = ranks_on
        self._after_index = 0
        self._peers = peers
        self.dial: Dial = peers.dial
        self._channel = self.dial(target)
        self._state_channels: list[grpc.aio.Channel] = []
        self.agent = node_pb2_grpc.NodeStub(self._channel)
        self.description = node_pb2.NodeDescription(node_id=node_id)
        self.spot_places: tuple[Place, ...] = ()
        self.is_up = False
        self.is_gone = False
        self._lost_us = clock.monotonic_us()
        self.reason = ""
        self.joined = asyncio.Event()

    @property
    def node_id(self) -> NodeId:
        """The node's name; empty before it was described."""
        return NodeId(self.description.node_id)

    @property
    def address(self) -> service_pb2.NodeAddress:
        """Where the node's services answer."""
        return service_pb2.NodeAddress(
            node_id=self.node_id,
            agent=self.target,
            state_manager=self.description.state_manager,
        )

    @property
    def state(self) -> statemanager_pb2_grpc.StateManagerAsyncStub:
        """The stub of the node's state manager."""
        assert self._state is not None, self.target
        return self._state

    _state: statemanager_pb2_grpc.StateManagerAsyncStub | None = None

    async def run(self) -> None:
        """Join the node, keep its lease, tell its events; again whenever it was lost.

        Return when it was lost for `node_forget_us`, or is known to be gone; one that is configured
        and never joined is awaited for ever.
        """
        while not self._is_forgotten():
            try:
                await self._join()
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._leases.keep(self.target))
                    group.create_task(self._tell_events())
            except* (grpc.aio.AioRpcError, PlexError) as group:
                self._lose(error_from(first_failure(group)).message)
            await self._clock.sleep(self._config.connect_retry_us)

    def _is_forgotten(self) -> bool:
        if self.is_gone and not self.is_up:
            return True
        away_us = self._clock.monotonic_us() - self._lost_us
        is_known = self.was_added or self.joined.is_set()
        return is_known and away_us >= self._config.node_forget_us

    async def has_agent(self) -> bool:
        """Whether the node's agent answers; then its state manager is there, or comes back."""
        try:
            await self.agent.Describe(node_pb2.NodeDescribeRequest(), timeout=self._timeout_s)
        except grpc.aio.AioRpcError:
            return False
        return True

    @property
    def renewed(self) -> Renewed | None:
        """The last renewal of its lease."""
        return self._leases.renewed(self.target)

    async def close(self) -> None:
        """Close the channels."""
        await self._channel.close()
        for channel in self._state_channels:
            await channel.close()

    async def _join(self) -> None:
        shown = await self._peers.node_at(self.target)
        await self.renew()
        self.description = await self.agent.Describe(
            node_pb2.NodeDescribeRequest(), timeout=self._timeout_s
        )
        check_shown(shown, self.description, target=self.target)
        self.spot_places = tuple(
            Place(node_id=self.node_id, device=device.index)
            for device in self.description.devices
            if device.kind == "spot"
        )
        self._open_state_manager()
        goes_on = self.node_id in self.remembered.up
        await self._stop_strays(spares=f"{MANAGER}-" if goes_on else None)
        if goes_on and self.node_id not in self.remembered.up:
            raise PlexError(ErrorCode.UNAVAILABLE, "it was given up while it joined: it joins anew")
        self.is_up = True
        if goes_on:
            self.remembered.up.discard(self.node_id)
            self._after_index = self.description.next_event_index - 1  # the rest is described
        else:
            self._post(
                NodeJoined(
                    node_id=self.node_id,
                    host_bytes=self.description.host_bytes,
                    disk_bytes=self.description.disk_bytes,
                    devices=tuple(
                        DeviceFacts(index=d.index, kind=d.kind, bytes_total=d.bytes_total)
                        for d in self.description.devices
                    ),
                )
            )
        self.joined.set()
        log.info("node joined", node=self.node_id, devices=len(self.description.devices))

    async def _stop_strays(self, *, spares: str | None) -> None:
        """End the ranks of WPGs that were given up with the node, or with another scheduler.

        Processes whose names begin with `spares` go on.
        """
        for proc in self.description.procs:
            if (proc.proc_id, proc.incarnation) in self.remembered.procs:
                continue
            if spares is not None and proc.proc_id.startswith(spares):
                continue
            log.warning("stray process stopped", node=self.node_id, proc=proc.proc_id)
            fence = common_pb2.Fence(
                scheduler_epoch=self._leases.epoch, incarnation=proc.incarnation
            )
            request = node_pb2.StopRequest(fence=fence, proc_id=proc.proc_id)
            await self.agent.Stop(request, timeout=self._timeout_s)

    async def renew(self, *, certificate: str = "") -> None:
        """Renew the lease once, and give the node a certificate if there is one.

        Raises:
            grpc.aio.AioRpcError: it does not answer.
            PlexError: `stale_fence`.
        """
        timeout_s = min(self._timeout_s, self._config.node_lease_us / 3e6)
        request = self._leases.request(self.target)
        request.certificate = certificate
        checked(await self.agent.Renew(request, timeout=timeout_s))

    async def _tell_events(self) -> None:
        """Follow the agent's event log; after a break, ask first whose processes still live."""
        while True:
            try:
                await self._reconcile()
                stream = self.agent.Events(
                    node_pb2.EventsRequest(after_index=self._after_index), timeout=STREAM_S
                )
                async for event in stream:
                    self._after_index = event.index
                    self._tell(event)
            except grpc.aio.AioRpcError as error:
                log.warning("event stream broke", node=self.node_id, error=error.details())
            await self._clock.sleep(self._config.connect_retry_us)

    async def _reconcile(self) -> None:
        found = await self.agent.Describe(node_pb2.NodeDescribeRequest(), timeout=self._timeout_s)
        if found.next_event_index <= self._after_index:
            self._after_index = 0  # a new agent: its log starts over
        if found.state_manager != self.description.state_manager:
            self.description = found
            self._open_state_manager()
        living = {(proc.wpg_id, proc.rank) for proc in found.procs}
        for wpg_id, rank, incarnation in self._ranks_on(self.node_id):
            if (wpg_id, rank) not in living:
                self._post(
                    ProcExited(
                        wpg_id=wpg_id,
                        incarnation=incarnation,
                        rank=rank,
                        exit_code=0,
                        signal=SIGKILL,
                        log_tail="its node agent no longer knows it",
                    )
                )

    def _tell(self, event: node_pb2.NodeEvent) -> None:
        kind = event.WhichOneof("event")
        if kind == "exited":
            wpg_id, _, rank = event.exited.proc_id.rpartition("/")
            self._post(
                ProcExited(
                    wpg_id=WpgId(wpg_id),
                    incarnation=event.exited.incarnation,
                    rank=int(rank),
                    exit_code=event.exited.exit_code,
                    signal=event.exited.signal,
                    log_tail=event.exited.log_tail,
                )
            )
        elif kind == "state_manager_restarted":
            self.description.state_manager = event.state_manager_restarted.address
            self._open_state_manager()
            log.warning("state manager restarted", node=self.node_id)

    def _open_state_manager(self) -> None:
        """Use the state manager of the description; calls under way end on the old channel."""
        channel = self.dial(self.description.state_manager)
        self._state_channels.append(channel)
        self._state = statemanager_pb2_grpc.StateManagerStub(channel)

    def _lose(self, reason: str) -> None:
        self.reason = reason
        if self.is_up:
            self.is_up, self._lost_us = False, self._clock.monotonic_us()
            log.error("node lost", node=self.node_id, reason=reason)
            self._post(NodeLost(node_id=self.node_id, reason=reason))
        else:
            log.warning("node agent does not answer", target=self.target, reason=reason)

    @property
    def _timeout_s(self) -> float:
        return self._config.rpc_timeout_us / 1e6


def check_shown(shown: str, described: node_pb2.NodeDescription, *, target: str) -> None:
    """Refuse an agent that says it is another node than its certificate does.

    Raises:
        PlexError: `unauthenticated`.
    """
    if shown and shown != described.node_id:
        raise PlexError(
            ErrorCode.UNAUTHENTICATED,
            f"the agent at {target} says that it is node {described.node_id!r}, and shows the "
            f"certificate of {shown!r}; join again with a token for its name",
            node=described.node_id,
        )


class NodeLinks:
    """Links to all nodes."""

    def __init__(
        self,
        targets: Iterable[str],
        *,
        config: SchedulerConfig,
        clock: Clock,
        epoch: int,
        post: Post,
        ranks_on: RanksOn,
        keys: ClusterKeys,
        added: Iterable[NodeRow] = (),
    ) -> None:
        """Lead the agents at `targets`, and those that operators `added`."""
        self.peers = Peers(keys, timeout_s=config.rpc_timeout_us / 1e6)
        self.dial: Dial = self.peers.dial
        self._leases = Leases(
            lease_us=config.node_lease_us,
            ttl_us=max(config.node_lease_us, config.node_grace_us),
            epoch=epoch,
            keys=keys,
        )
        self._lease_us = config.node_lease_us
        self.remembered = Remembered()
        self._new_link = partial(
            NodeLink,
            config=config,
            clock=clock,
            post=post,
            ranks_on=ranks_on,
            peers=self.peers,
            leases=self._leases,
        )
        self._post = post
        self.on_forgotten: Callable[[NodeRow], None] = lambda _: None
        """Called with each node that stayed away for too long."""
        self.absent: dict[NodeId, str] = {}
        """Hosts that have no agent, and why, as their launcher says."""
        self._tasks: asyncio.TaskGroup | None = None
        self._running: dict[str, asyncio.Task[None]] = {}
        self._configured = [self._new_link(target) for target in targets]
        self._added = [self._new_link(row.agent, node_id=row.node_id) for row in added]
        self.links = [*self._configured, *self._added]
        self._by_id: dict[NodeId, NodeLink] = {}
        """The link last found of each node: finding it again looks at no other."""

    async def run(self) -> None:
        """Keep all links until cancelled."""
        async with asyncio.TaskGroup() as self._tasks:
            for link in self.links:
                self._keep(link, self._tasks)
            await asyncio.Event().wait()

    async def ready(self) -> None:
        """Return once every configured node has joined, and each other that was up had time to."""
        for link in self._configured:
            await link.joined.wait()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._lease_us / 1e6):
                for link in self._added:
                    if link.node_id in self.remembered.up:
                        await link.joined.wait()

    async def add(self, target: str, *, timeout_us: int) -> NodeLink:
        """Take one more node agent in; return its link once it has joined.

        Raises:
            PlexError: `unavailable` when it did not join in time; it is not dialed any more then.
        """
        assert self._tasks is not None, target
        link = self._new_link(target)
        self.links.append(link)
        self._keep(link, self._tasks)
        try:
            async with asyncio.timeout(timeout_us / 1e6):
                await link.joined.wait()
        except TimeoutError:
            self.links.remove(link)
            self._running.pop(target).cancel()
            await link.close()
            raise PlexError(
                ErrorCode.UNAVAILABLE,
                f"node agent {target} did not join within {timeout_us / 1e6:g} s; look at its log, "
                "then add it again",
            ) from None
        return link

    def shut_out(self, node_id: NodeId) -> None:
        """Renew a node's lease no more."""
        for link in self.links:
            if link.node_id == node_id:
                link.is_gone = True
                self._leases.let_end(link.target)

    async def close(self) -> None:
        """Close the links."""
        await self._leases.close()
        for link in self.links:
            await link.close()

    def _keep(self, link: NodeLink, tasks: asyncio.TaskGroup) -> None:
        link.remembered = self.remembered
        self._running[link.target] = tasks.create_task(self._run(link))

    async def _run(self, link: NodeLink) -> None:
        """Keep a link until its node is forgotten."""
        await link.run()
        self.links.remove(link)
        self._by_id.pop(link.node_id, None)
        del self._running[link.target]
        log.warning("node forgotten", node=link.node_id, target=link.target)
        self.on_forgotten(NodeRow(agent=link.target, node_id=link.node_id, is_member=False))
        self._post(NodeForgotten(node_id=link.node_id))
        await link.close()

    def link(self, node_id: NodeId) -> NodeLink:
        """Return the link of a node that is up.

        Raises:
            PlexError: `node_lost`.
        """
        link = self._found(node_id)
        if link is None:
            raise PlexError(
                ErrorCode.NODE_LOST, f"node {node_id} is not reachable; deploy again elsewhere"
            )
        return link

    def is_up(self, node_id: NodeId) -> bool:
        """Return whether a node's lease is held."""
        return self._found(node_id) is not None

    def _found(self, node_id: NodeId) -> NodeLink | None:
        """Return a node's link if it is up; a node may come back by another link."""
        known = self._by_id.get(node_id)
        if known is not None and known.is_up and known.node_id == node_id:
            return known
        for link in self.links:
            if link.node_id == node_id and link.is_up:
                self._by_id[node_id] = link
                return link
        return None
