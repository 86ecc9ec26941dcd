"""A router as a process of its own: `python -m plexsvc.router.main --config FILE`.

The file holds the keys of `RouterConfig`. When clients can connect it prints one JSON line with the
address; SIGTERM lets running calls end for a few seconds.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final

from plexsvc.clock import SystemClock
from plexsvc.errors import PlexError, bad_request
from plexsvc.router.api import RemoteScheduler
from plexsvc.router.config import RouterConfig
from plexsvc.router.servicer import RouterServicer, add_to_server
from plexsvc.router.tls import client_tls
from plexsvc.rpc import loops
from plexsvc.rpc.channels import bind, new_server, open_channel
from plexsvc.rpc.keys import read_keys

STOP_GRACE_S: Final = 5.0


@asynccontextmanager
async def serving(config: RouterConfig) -> AsyncIterator[str]:
    """Serve a router apart from its scheduler; yield the address clients connect to.

    Raises:
        PlexError: `bad_request` when no scheduler is named or the address cannot be listened on.
    """
    if not config.scheduler:
        raise bad_request("a router apart needs `scheduler = HOST:PORT`")
    keys = read_keys(config.keys_file)
    channel = open_channel(config.scheduler, keys)
    scheduler = RemoteScheduler(channel, config=config)
    router = RouterServicer(scheduler, config=config, clock=SystemClock(), keys=keys)
    server = new_server(
        router.tenants, max_calls=config.max_calls, max_connections=config.max_connections
    )
    add_to_server(router, server)
    try:
        address = bind(server, config.listen, client_tls(config), key="router.listen")
        with suppress(PlexError):  # it serves, and learns them when the scheduler answers
            await router.learn_tokens()
        await server.start()
        async with router.http(), asyncio.TaskGroup() as tasks:
            following = tasks.create_task(router.follow_tokens())
            yield address
            following.cancel()
    finally:
        router.stop()
        await server.stop(STOP_GRACE_S)
        await router.aclose()
        await scheduler.aclose()
        await channel.close()


if __name__ == "__main__":
    sys.exit(loops.serve(RouterConfig, serving))
