"""Process of a rollout manager, which the agent of its node forks.

A benchmark runs it apart: `python -m plexsvc.rollout.main --config FILE`, with the keys of
`ManagerConfig`.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

from plexclient.wire.v1 import rollout_pb2, worker_pb2
from plexsvc import config as configuration
from plexsvc import log as logging
from plexsvc.clock import SystemClock
from plexsvc.rollout.config import ManagerConfig
from plexsvc.rollout.manager import RolloutManager
from plexsvc.rpc import loops
from plexsvc.rpc.channels import listen, new_server
from plexsvc.rpc.keys import ClusterKeys, read_keys
from plexsvc.rpc.services import add_servicer
from plexsvc.tether import set_process_name

WORKER: Final = worker_pb2.DESCRIPTOR.services_by_name["Worker"]
MANAGER: Final = rollout_pb2.DESCRIPTOR.services_by_name["RolloutManager"]
STOP_GRACE_S: Final = 0.5


@asynccontextmanager
async def serve(
    config: ManagerConfig, keys: ClusterKeys
) -> AsyncIterator[tuple[RolloutManager, str]]:
    """Serve a manager; yield it and its address.

    Raises:
        PlexError: `bad_request` when it cannot listen.
    """
    manager = RolloutManager(config, SystemClock(), keys)
    server = new_server(keys, takes_nodes=("KeepCopies",))
    add_servicer(server, WORKER, manager)
    add_servicer(server, MANAGER, manager)
    address = listen(server, config.listen, keys, key="rollout.listen")
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(manager.run())
        await server.start()
        try:
            yield manager, address
        finally:
            await server.stop(STOP_GRACE_S)
            running.cancel()


@asynccontextmanager
async def _address(config: ManagerConfig) -> AsyncIterator[str]:
    async with serve(config, read_keys(config.keys_file)) as (_, address):
        yield address


def main(table: dict[str, Any], ready: Callable[[str], None]) -> None:
    """Be a rollout manager; called in a process that the node's agent forked."""
    set_process_name("plex-manager")
    logging.setup()
    config = configuration.parse(table, ManagerConfig, where="rollout manager")
    config.records_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    loops.run(loops.until_stopped(_address(config), ready=ready))


if __name__ == "__main__":
    sys.exit(loops.serve(ManagerConfig, _address))
