"""Process of the reward proxy: `python -m plexsvc.reward.main --config FILE --parent-death PID`.

The file holds the keys of `RewardServiceConfig`. When routers can connect it prints one JSON line
with the address; it dies with its parent.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

from plexclient.wire.v1 import reward_pb2 as pb
from plexsvc.clock import ServiceClock, SystemClock
from plexsvc.log import Log
from plexsvc.reward.config import RewardServiceConfig
from plexsvc.reward.core.machine import RewardCore
from plexsvc.reward.core.state import PoolLimits
from plexsvc.reward.hosts import HostedWorkers
from plexsvc.reward.plans import PlannerLine
from plexsvc.reward.programs.library import Library
from plexsvc.reward.proxy import RewardProxy
from plexsvc.reward.shelf import Shelf
from plexsvc.reward.workers import Heard, LocalWorkers
from plexsvc.rpc import loops
from plexsvc.rpc.channels import listen, new_server, open_channel
from plexsvc.rpc.keys import read_keys
from plexsvc.rpc.services import add_servicer

SERVICE: Final = pb.DESCRIPTOR.services_by_name["Reward"]
STOP_GRACE_S: Final = 0.5

log = Log(__name__)


@asynccontextmanager
async def serving(config: RewardServiceConfig) -> AsyncIterator[tuple[RewardProxy, str]]:
    """Serve a proxy; yield it and its address.

    Raises:
        PlexError: `bad_request` when it cannot listen or has no keys.
    """
    keys = read_keys(config.keys_file)
    clock = ServiceClock(SystemClock(), on_gap=lambda us: log.warning("stood still", us=us))
    core = RewardCore(
        PoolLimits(
            min_workers=config.min_workers,
            max_workers=max(config.max_workers or os.cpu_count() or 1, config.min_workers),
            idle_us=config.idle_us,
            start_us=config.worker_start_us,
            no_room_us=config.no_room_us,
        )
    )
    shelf = Shelf(config.programs_dir.parent / "spill", max_bytes=config.max_spilled_bytes)
    library = Library(config.programs_dir, max_bytes=config.max_program_bytes)

    def hosted(heard: Heard) -> HostedWorkers:
        return HostedWorkers(heard, keys=keys, clock=clock, told=proxy.know_places)

    launch = hosted if config.on_nodes else LocalWorkers
    proxy = RewardProxy(config, clock, core, launch, library, shelf)
    server = new_server(keys)
    add_servicer(server, SERVICE, proxy)
    address = listen(server, config.listen, keys, key="reward.listen")
    async with AsyncExitStack() as stack, asyncio.TaskGroup() as tasks:
        kept = [tasks.create_task(clock.run()), tasks.create_task(proxy.run())]
        if config.planner:
            channel = await stack.enter_async_context(open_channel(config.planner, keys))
            proxy.planner = PlannerLine(
                config, clock, channel=channel, facts=core.plan_facts, post=proxy.post
            )
            kept.append(tasks.create_task(proxy.planner.run()))
        await server.start()
        try:
            yield proxy, address
        finally:
            await server.stop(STOP_GRACE_S)
            for task in kept:
                task.cancel()


@asynccontextmanager
async def _address(config: RewardServiceConfig) -> AsyncIterator[str]:
    async with serving(config) as (_, address):
        loops.FullPasses.take_over()
        yield address


if __name__ == "__main__":
    sys.exit(loops.serve(RewardServiceConfig, _address))
