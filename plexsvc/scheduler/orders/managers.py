"""Processes of rollout managers: spawned on nodes, and found there by the next service.

The core does not know them. A manager lives under its node's lease like every rank.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final, TypeAlias

import grpc.aio

from plexclient.wire.v1 import node_pb2
from plexsvc.errors import PlexError
from plexsvc.ids import DeploymentId, NodeId
from plexsvc.log import Log
from plexsvc.rpc.errors import checked, error_from
from plexsvc.scheduler.orders.nodes import MANAGER, NodeLink
from plexsvc.scheduler.orders.reach import Reach
from plexsvc.store.rows import RecordGone, RecordRow

log = Log(__name__)

Remember: TypeAlias = Callable[[RecordRow | RecordGone], Awaitable[None]]

NOTES: Final = "led/"
"""With which the keys of notes about deployments begin, among what is remembered for no tenant."""


class ManagerHosts:
    """The nodes, as hosts of rollout managers."""

    def __init__(
        self, reach: Reach, *, is_open: Callable[[NodeId], bool], remember: Remember
    ) -> None:
        """Say of a node by `is_open` whether it takes further work; keep notes by `remember`."""
        self._reach, self._is_open, self._remember = reach, is_open, remember
        self.epoch = reach.epoch
        self.notes: Mapping[str, bytes] = {}

    def recall(self, rows: Iterable[RecordRow]) -> None:
        """Take the notes of the service before."""
        self.notes = {row.key.removeprefix(NOTES): row.body for row in rows}

    async def keep(self, deployment_id: str, note: bytes | None) -> None:
        """Keep what the next service needs to lead a deployment; None: it has ended."""
        key = f"{NOTES}{deployment_id}"
        gone = RecordGone(tenant="", key=key)
        await self._remember(gone if note is None else RecordRow(tenant="", key=key, body=note))

    def nodes(self) -> Mapping[str, bool]:
        """Return the nodes that are up and reach every instance; whether each takes further work.

        Where processes of some nodes listen on Unix sockets alone, only those nodes reach them.
        """
        links = [link for link in self._reach.nodes.links if link.is_up]
        here = [link for link in links if not link.description.hostname]
        return {link.node_id: self._is_open(link.node_id) for link in here or links}

    def places(self, deployment_id: str) -> Sequence[str]:
        """Return the node of each dedicated instance of a deployment."""
        record = self._reach.registry.deployments.get(DeploymentId(deployment_id))
        wpg = None if record is None else record.wpg
        return () if wpg is None else [place.node_id for place in wpg.places]

    async def start(self, node_id: str, number: int, *, config_json: str) -> str:
        """Return where a manager of a node serves; start one where none lives.

        Raises:
            PlexError: `node_lost`, or why it did not come up; one that takes its time goes on.
        """
        reach, link = self._reach, self._reach.nodes.link(NodeId(node_id))
        try:
            living = await self._living(link, number)
            if living is not None and living.address:
                return living.address
            name = f"{MANAGER}-{number}-{reach.clock.wall_us()}"
            proc_id = f"{name}/0" if living is None else living.proc_id
            spec = node_pb2.ProcSpec(
                proc_id=proc_id,
                image=MANAGER,
                wpg_id=proc_id.rpartition("/")[0],
                rank=number,
                config_json=config_json,
            )
            request = node_pb2.SpawnRequest(fence=reach.fence(lease_no=0), spec=spec)
            reply = checked(await link.agent.Spawn(request, timeout=reach.rpc_s))
        except grpc.aio.AioRpcError as error:
            raise error_from(error) from error
        log.info("rollout manager started", node=node_id, proc=proc_id)
        return reply.address

    async def kill(self, node_id: str, number: int) -> None:
        """Kill a manager that hangs; where its node is away, nothing is done."""
        try:
            link = self._reach.nodes.link(NodeId(node_id))
            living = await self._living(link, number)
            if living is not None:
                fence = self._reach.fence(lease_no=0)
                request = node_pb2.StopRequest(fence=fence, proc_id=living.proc_id)
                await link.agent.Stop(request, timeout=self._reach.rpc_s)
        except (PlexError, grpc.aio.AioRpcError) as error:
            log.warning("rollout manager not killed", node=node_id, error=error)

    async def _living(self, link: NodeLink, number: int) -> node_pb2.ProcSummary | None:
        found = await link.agent.Describe(node_pb2.NodeDescribeRequest(), timeout=self._reach.rpc_s)
        prefix = f"{MANAGER}-{number}-"
        return next((proc for proc in found.procs if proc.proc_id.startswith(prefix)), None)
