"""The inner port of a cluster, where routers that run apart reach its scheduler."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Final

import grpc.aio

from plexsvc.cluster.config import WILDCARDS, ClusterConfig
from plexsvc.errors import bad_request
from plexsvc.rpc.channels import listen, new_server
from plexsvc.rpc.keys import ClusterKeys
from plexsvc.scheduler.api.servicer import SchedulerServicer
from plexsvc.scheduler.api.servicer import add_to_server as add_scheduler

STOP_GRACE_S: Final = 2.0
"""How long calls have to end when a server stops."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner:
    """The port for routers that run apart: bound before it is known what will be served on it."""

    server: grpc.aio.Server | None = None
    address: str = ""

    async def serve(self, stack: AsyncExitStack, scheduler: SchedulerServicer) -> None:
        """Serve the scheduler until the stack unwinds; nothing without a port."""
        if self.server is None:
            return
        add_scheduler(scheduler, self.server)
        stack.push_async_callback(self.server.stop, STOP_GRACE_S)
        stack.callback(scheduler.stop)
        await self.server.start()


def open_inner(config: ClusterConfig, keys: ClusterKeys) -> Inner:
    """Bind the port, if the configuration names one.

    Raises:
        PlexError: `bad_request` for an address that routers elsewhere cannot use.
    """
    if not config.scheduler_listen:
        return Inner()
    apart = [node.node_id for node in config.nodes if not node.address]
    if config.launcher == "local" and apart and config.scheduler_listen.startswith(WILDCARDS):
        raise bad_request(
            f"scheduler_listen = {config.scheduler_listen!r} is for routers on other hosts, which "
            f"read tokens and results from nodes; set the address of node {apart[0]} to this "
            "host's as they reach it"
        )
    server = new_server(keys)
    address = listen(server, config.scheduler_listen, keys, key="scheduler_listen")
    return Inner(server=server, address=address)
