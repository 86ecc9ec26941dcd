"""The `Node` service: the wire's view of the agent."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Final

from plexclient.wire.errors import to_wire
from plexclient.wire.v1 import node_pb2
from plexsvc.clock import Clock
from plexsvc.errors import PlexError
from plexsvc.log import Log
from plexsvc.node.config import AgentConfig
from plexsvc.node.event_log import EventLog
from plexsvc.node.examination import examine
from plexsvc.node.lease import NodeLease
from plexsvc.node.reaching import serves
from plexsvc.node.sidecar import Sidecar
from plexsvc.node.table import RankTable
from plexsvc.rpc import certificates
from plexsvc.rpc.keys import ClusterKeys, write_keys, write_shut_out

log = Log(__name__)

SERVICE: Final = node_pb2.DESCRIPTOR.services_by_name["Node"]


class NodeServicer:
    """Checks fences, then hands each call to the part that owns it.

    Each method has its name on the wire, in Python's spelling.
    """

    def __init__(
        self,
        config: AgentConfig,
        *,
        clock: Clock,
        table: RankTable,
        lease: NodeLease,
        events: EventLog,
        sidecar: Sidecar,
        keys: ClusterKeys | None,
    ) -> None:
        """Serve a node; the files of `keys`, where it has its own, are kept as renewals say."""
        self._config = config
        self._clock = clock
        self._table = table
        self._lease = lease
        self._events = events
        self._sidecar = sidecar
        self._keys = keys
        self._told: list[str] | None = None

    async def spawn(self, request: node_pb2.SpawnRequest) -> node_pb2.SpawnReply:
        """Answer once the process is ready, or why it is not."""
        try:
            what = f"spawn of {request.spec.proc_id}"
            self._lease.check_epoch(request.fence.scheduler_epoch, what=what)
            self._lease.check_alive()
            rank = await self._table.spawn(request.spec, incarnation=request.fence.incarnation)
        except PlexError as error:
            return node_pb2.SpawnReply(error=to_wire(error))
        return node_pb2.SpawnReply(pid=rank.pid, address=rank.address, log_path=str(rank.log_path))

    async def stop(self, request: node_pb2.StopRequest) -> node_pb2.StopReply:
        """Answer once the process is gone."""
        what = f"stop of {request.proc_id}"
        self._lease.check_epoch(request.fence.scheduler_epoch, what=what)
        await self._table.stop(
            request.proc_id,
            incarnation=request.fence.incarnation,
            grace_us=request.grace_us,
        )
        return node_pb2.StopReply()

    async def write_stacks(self, request: node_pb2.WriteStacksRequest) -> node_pb2.WriteStacksReply:
        """Answer with what a process wrote of where it is."""
        what = f"stacks of {request.proc_id}"
        self._lease.check_epoch(request.fence.scheduler_epoch, what=what)
        log_path, stacks = await self._table.write_stacks(request.proc_id)
        return node_pb2.WriteStacksReply(log_path=log_path, stacks=stacks)

    async def events(self, request: node_pb2.EventsRequest) -> AsyncIterator[node_pb2.NodeEvent]:
        """Stream the held events above `after_index`, then new ones as they come."""
        async for event in self._events.follow(request.after_index):
            yield event

    async def renew(self, request: node_pb2.RenewRequest) -> node_pb2.RenewReply:
        """Extend the lease, counted from now: the call has just arrived."""
        try:
            self._lease.renew(
                epoch=request.scheduler_epoch,
                ttl_us=request.ttl_us,
                arrived_us=self._clock.monotonic_us(),
                look_us=request.look_us,
                witnesses=tuple(request.witnesses),
            )
        except PlexError as error:
            return node_pb2.RenewReply(
                error=to_wire(error), max_scheduler_epoch=self._lease.max_epoch
            )
        try:
            self._take(request)
        except OSError as error:  # a full disk must not cost the node its lease
            log.error("what the renewal says of certificates is not kept", error=error)
        return node_pb2.RenewReply(
            max_scheduler_epoch=self._lease.max_epoch,
            processes=Counter(
                "ready" if rank.settled.is_set() else "starting" for rank in self._table.living()
            ),
            state_manager_restarts=self._sidecar.restarts,
            serial=certificates.read(self._keys.certificate).serial if self._keys else "",
        )

    def _take(self, request: node_pb2.RenewRequest) -> None:
        """Keep which certificates are refused, and this node's new one."""
        keys = self._keys
        if keys is None or keys.file is None or keys.shut_out is None:
            return
        if self._told != request.shut_out:
            write_shut_out(keys.shut_out, request.shut_out)
            self._told = list(request.shut_out)
        if request.certificate and certificates.is_of(request.certificate, keys.private_key):
            renewed = replace(keys, certificate=request.certificate)
            write_keys(keys.file, renewed)
            self._keys = renewed

    async def describe(self, request: node_pb2.NodeDescribeRequest) -> node_pb2.NodeDescription:
        """Return what the node has and what runs on it."""
        where = self._sidecar.where
        assert where is not None, "the agent serves before its state manager"
        return node_pb2.NodeDescription(
            node_id=self._config.node_id,
            devices=[
                node_pb2.DeviceDescription(
                    index=index,
                    kind=device.placed_as,
                    bytes_total=device.bytes_total,
                    model=device.memory,
                    cpus=device.cpus or 0,
                    is_reward_gpu=device.kind == "reward" and device.gpu is not None,
                )
                for index, device in enumerate(self._config.devices)
            ],
            host_bytes=self._config.host_bytes,
            disk_bytes=self._config.disk_bytes,
            state_manager=where.address,
            data_socket=where.data_socket,
            hostname=self._config.host,
            procs=[
                node_pb2.ProcSummary(
                    proc_id=rank.spec.proc_id,
                    pid=rank.pid,
                    wpg_id=rank.spec.wpg_id,
                    rank=rank.spec.rank,
                    incarnation=rank.incarnation,
                    address=rank.address,
                )
                for rank in self._table.living()
                if not rank.shares
            ],
            next_event_index=self._events.next_index,
            runtime_dir=str(self._config.runtime_dir),
        )

    async def examine(self, request: node_pb2.ExamineRequest) -> node_pb2.Examination:
        """Return what an operator should know of this host."""
        ports = request.reaches
        answers = await asyncio.gather(*map(serves, ports))
        return await asyncio.to_thread(
            examine,
            self._config,
            clock=self._clock,
            roots=request.roots,
            unreached=[port for port, does in zip(ports, answers, strict=True) if not does],
        )
