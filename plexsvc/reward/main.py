"""Process of the reward proxy: `python -m plexsvc.reward.main --config FILE --parent-death PID`.

The file holds the keys of `RewardConfig`. When routers can connect it prints one JSON line with the
address; it dies with its parent.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from plexclient.wire.v1 import reward_pb2 as pb
from plexsvc import config as configuration
from plexsvc import log as logging
from plexsvc.clock import ServiceClock, SystemClock
from plexsvc.errors import PlexError
from plexsvc.log import Log
from plexsvc.reward.config import RewardConfig
from plexsvc.reward.core.machine import Limits, RewardCore
from plexsvc.reward.proxy import RewardProxy
from plexsvc.reward.workers import LocalWorkers
from plexsvc.rpc import loops
from plexsvc.rpc.channels import listen, new_server
from plexsvc.rpc.keys import read_keys
from plexsvc.rpc.services import add_service
from plexsvc.tether import die_with_parent

SERVICE: Final = pb.DESCRIPTOR.services_by_name["Reward"]
STOP_GRACE_S: Final = 0.5

log = Log(__name__)


@asynccontextmanager
async def serving(config: RewardConfig) -> AsyncIterator[tuple[RewardProxy, str]]:
    """Serve a proxy with local workers; yield it and its address.

    Raises:
        PlexError: `bad_request` when it cannot listen or has no keys.
    """
    keys = read_keys(config.keys_file)
    clock = ServiceClock(SystemClock(), on_gap=lambda us: log.warning("stood still", us=us))
    core = RewardCore(
        Limits(
            min_workers=config.min_workers,
            max_workers=max(config.max_workers or os.cpu_count() or 1, config.min_workers),
            idle_us=config.idle_us,
            start_us=config.worker_start_us,
        )
    )
    proxy = RewardProxy(config, clock, core, LocalWorkers)
    server = new_server(keys)
    add_service(
        server,
        SERVICE,
        calls={"GetRewards": lambda request, _: proxy.view(request)},
        streams={"Score": lambda request, _: proxy.score(request)},
    )
    address = listen(server, config.listen, keys, key="reward.listen")
    async with asyncio.TaskGroup() as tasks:
        kept = [tasks.create_task(clock.run()), tasks.create_task(proxy.run())]
        await server.start()
        try:
            yield proxy, address
        finally:
            await server.stop(STOP_GRACE_S)
            for task in kept:
                task.cancel()


async def run(config: RewardConfig) -> None:
    """Serve until SIGTERM or SIGINT."""
    stopped = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, stopped.set)
    async with serving(config) as (_, address):
        loops.keep_what_is_there()
        sys.stdout.write(json.dumps({"address": address}) + "\n")
        sys.stdout.flush()
        await stopped.wait()


def main() -> int:
    """Run a reward proxy; return the exit status."""
    parser = argparse.ArgumentParser(prog="plexsvc.reward", description=__doc__)
    parser.add_argument("--config", type=Path, required=True, help="TOML file of RewardConfig")
    parser.add_argument("--parent-death", type=int, help="die with this process")
    arguments = parser.parse_args()
    if arguments.parent_death is not None:
        die_with_parent(arguments.parent_death)
    logging.setup()
    try:
        loops.run(run(configuration.load(arguments.config, RewardConfig)))
    except PlexError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
