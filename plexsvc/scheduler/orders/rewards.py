"""Hosts of reward workers: one process on each node with devices of kind `reward`.

The core places nothing on such devices: which worker runs where is decided by the reward proxy,
which is told here, again and again, what each node has and where its host serves. A proxy that
takes nothing for `SILENT_US` is killed, and whoever started it starts a successor. A host lives
under its node's lease like every rank.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import grpc.aio

from plexclient.wire.v1 import node_pb2
from plexclient.wire.v1 import reward_pb2 as pb
from plexsvc.clock import Clock
from plexsvc.errors import PlexError
from plexsvc.ids import NodeId
from plexsvc.log import Log
from plexsvc.rpc import services
from plexsvc.rpc.errors import checked
from plexsvc.scheduler.orders.nodes import NodeLink
from plexsvc.scheduler.orders.reach import Reach

log = Log(__name__)

KIND: Final = "reward"
LOOK_US: Final = 500_000
"""How often hosts are looked at, and the proxy is told."""
PAUSE_US: Final = 2_000_000
"""After a host that did not come up, before the next is started."""
TELL_S: Final = 5.0
SILENT_US: Final = 15_000_000

SERVICE: Final = pb.DESCRIPTOR.services_by_name["Reward"]


class RewardHosts:
    """The nodes with devices of kind `reward`."""

    def __init__(self, reach: Reach, clock: Clock, *, is_open: Callable[[NodeId], bool]) -> None:
        """Say of a node by `is_open` whether it takes further work."""
        self._reach, self._clock, self._is_open = reach, clock, is_open
        self._procs: dict[NodeId, str] = {}
        self._spawned = 0
        self._again_us: dict[NodeId, int] = {}
        """When a node whose host did not come up is looked at again."""
        self._has_told = True

    async def run(self, proxy: str, *, kill: Callable[[], None]) -> None:
        """Keep a host on each node, and tell the proxy at this address of them, until cancelled.

        `kill` ends a proxy that hangs.
        """
        async with self._reach.nodes.dial(proxy) as channel:
            told_us = self._clock.monotonic_us()
            while True:
                links = [
                    link
                    for link in self._reach.nodes.links
                    if any(device.kind == KIND for device in link.description.devices)
                ]
                hosts = await asyncio.gather(*(self._host(link) for link in links))
                await self._tell(channel, hosts)
                if self._has_told:
                    told_us = self._clock.monotonic_us()
                elif self._clock.monotonic_us() - told_us > SILENT_US:
                    kill()
                    told_us = self._clock.monotonic_us()  # its successor has as long
                await self._clock.sleep(LOOK_US)

    async def _tell(self, channel: grpc.aio.Channel, hosts: list[pb.HostFacts]) -> None:
        """Tell the proxy; one that starts anew is told the next time."""
        fence = self._reach.fence(lease_no=0)
        request = pb.UseHostsRequest(fence=fence, hosts=hosts)
        method = SERVICE.methods_by_name["UseHosts"]
        try:
            await services.call(channel, method, request, pb.UseHostsReply, timeout_s=TELL_S)
        except PlexError as error:
            if self._has_told:
                log.warning("the reward proxy was not told of its hosts", error=error)
            self._has_told = False
        else:
            self._has_told = True

    async def _host(self, link: NodeLink) -> pb.HostFacts:
        """Return what a node has for workers; have a host there, and say where it serves."""
        devices = [d for d in link.description.devices if d.kind == KIND]
        slots = [device for device in devices if not device.is_reward_gpu]
        address = ""
        if link.is_up and self._again_us.get(link.node_id, 0) <= self._clock.monotonic_us():
            try:
                address = await self._address(link)
            except (PlexError, grpc.aio.AioRpcError) as error:
                self._again_us[link.node_id] = self._clock.monotonic_us() + PAUSE_US
                log.warning("no host of reward workers", node=link.node_id, error=error)
        return pb.HostFacts(
            node_id=link.node_id,
            address=address,
            cpus=sum(device.cpus for device in slots),
            memory_bytes=sum(device.bytes_total for device in slots),
            gpus=len(devices) - len(slots),
            is_open=self._is_open(link.node_id),
        )

    async def _address(self, link: NodeLink) -> str:
        """Return where the host of a node serves, empty until it does; start one where none lives.

        Raises:
            PlexError: why it did not come up.
            AioRpcError: the agent does not answer, or the host takes its time, which goes on.
        """
        reach = self._reach
        found = await link.agent.Describe(node_pb2.NodeDescribeRequest(), timeout=reach.rpc_s)
        known = self._procs.get(link.node_id)
        living = {proc.proc_id: proc.address for proc in found.procs}
        if known in living:
            return living[known]
        self._spawned += 1
        wpg_id = f"reward-{reach.epoch}-{self._spawned}"
        proc_id = self._procs[link.node_id] = f"{wpg_id}/0"
        spec = node_pb2.ProcSpec(proc_id=proc_id, image=KIND, wpg_id=wpg_id)
        request = node_pb2.SpawnRequest(fence=reach.fence(lease_no=0), spec=spec)
        reply = checked(await link.agent.Spawn(request, timeout=reach.rpc_s))
        log.info("host of reward workers started", node=link.node_id, proc=proc_id)
        return reply.address
