"""The node agent's process: state manager, warm zygotes, process table, lease and `Node` service.

`python -m plexsvc.node.agent --config FILE` prints one JSON line `{"address": ..., "node_id": ...}`
on stdout when it serves. TERM ends its ranks, its zygotes and its state manager, then itself; KILL
does the same by the kernel's hand.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
from pathlib import Path

from plexclient.wire.v1 import node_pb2
from plexsvc import config as configuration
from plexsvc import log as logging
from plexsvc.clock import Clock, SystemClock
from plexsvc.errors import PlexError
from plexsvc.log import Log
from plexsvc.node.config import AgentConfig, ImageConfig
from plexsvc.node.event_log import EventLog
from plexsvc.node.lease import NodeLease
from plexsvc.node.logs import keep_bounded
from plexsvc.node.restarts import restart_rate
from plexsvc.node.servicer import SERVICE, NodeServicer
from plexsvc.node.sidecar import Sidecar, SidecarAddress
from plexsvc.node.table import RankTable
from plexsvc.node.warm import WarmImage
from plexsvc.rpc.channels import listen, new_server
from plexsvc.rpc.errors import first_failure
from plexsvc.rpc.keys import ClusterKeys, read_keys
from plexsvc.rpc.services import add_servicer
from plexsvc.statelink.dataplane import allow_many_files
from plexsvc.tether import adopt_orphans, die_with_parent, set_process_name

log = Log(__name__)


class Agent:
    """A node's processes, from the first zygote to the last rank."""

    def __init__(
        self, config: AgentConfig, *, clock: Clock, keys: ClusterKeys, tasks: asyncio.TaskGroup
    ) -> None:
        self._config = config
        self._clock = clock
        self._tasks = tasks
        config.runtime_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._log_dir = config.log_dir or config.runtime_dir / "logs"
        self._log_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._events = EventLog(limit=config.max_events, first_index=clock.wall_us())
        self._table = RankTable(
            config, tasks=tasks, events=self._events, log_dir=self._log_dir, keys=keys
        )
        # Engines may live where their job trains: such a node imports them when the first comes.
        kinds = {"rollout" if d.kind == "spot" else d.kind for d in config.devices}
        on_demand = {"rollout", "manager"} if "train" in kinds else {"manager"}
        self._images = [
            self._warm_image(image, clock=clock)
            for image in config.images
            if image.name in kinds | on_demand
        ]
        for image in self._images:
            if image.name in kinds:
                image.want()
        self._table.use({image.name: image for image in self._images})
        self._sidecar = Sidecar(
            config,
            log_dir=self._log_dir,
            on_lost=self.kill_ranks,
            on_restarted=self._sidecar_is_back,
        )
        self._lease = NodeLease(clock, tasks=tasks, on_expired=self.kill_ranks)
        self.servicer = NodeServicer(
            config,
            clock=clock,
            table=self._table,
            lease=self._lease,
            events=self._events,
            sidecar=self._sidecar,
            keys=keys if keys.authority else None,  # else the service's own host
        )

    async def start(self) -> None:
        """Return once the state manager serves; the images get warm behind the caller's back.

        Raises:
            PlexError: `unavailable` when the state manager does not start.
        """
        for image in self._images:
            self._tasks.create_task(image.run())
        bounded = keep_bounded(
            self._log_dir, max_bytes=self._config.max_log_bytes, clock=self._clock
        )
        self._tasks.create_task(bounded)
        await self._sidecar.start()
        if self._config.is_replacement and self._sidecar.where is not None:
            self._sidecar_is_back(self._sidecar.where)
        self._tasks.create_task(self._sidecar.run())

    async def until_orphaned(self) -> None:
        """Return when no service has claimed the node for `orphan_us`; without one, never."""
        await (
            self._lease.orphaned(self._config.orphan_us)
            if self._config.orphan_us
            else asyncio.Event().wait()
        )

    async def kill_ranks(self) -> None:
        """Kill every rank of the node; return when they are gone."""
        await self._table.kill(self._table.living())

    def _warm_image(self, image: ImageConfig, *, clock: Clock) -> WarmImage:
        return WarmImage(
            image,
            log_dir=self._log_dir,
            start_timeout_us=self._config.start_timeout_us,
            rate=restart_rate(self._config, clock=clock),
            hides_gpus=all(device.memory == "cpu" for device in self._config.devices),
            on_report=self._table.on_report,
            on_lost=self._table.on_lost,
        )

    def _sidecar_is_back(self, where: SidecarAddress) -> None:
        restarted = node_pb2.StateManagerRestarted(address=where.address)
        self._events.append(node_pb2.NodeEvent(state_manager_restarted=restarted))


async def serve(config: AgentConfig, *, clock: Clock) -> None:
    """Run the agent until cancelled or orphaned, then leave no process behind.

    Raises:
        PlexError: `unavailable` when the state manager does not start; `bad_request` for keys that
            cannot be read and an address that cannot be listened on.
    """
    keys = read_keys(config.keys_file)
    server = new_server(keys)
    async with asyncio.TaskGroup() as tasks:
        agent = Agent(config, clock=clock, keys=keys, tasks=tasks)
        add_servicer(server, SERVICE, agent.servicer)
        try:
            await agent.start()
            where = config.listen or config.address("agent")
            address = listen(server, where, keys, key="listen")
            await server.start()
            _announce(config, address=address)
            await agent.until_orphaned()
            log.warning("nobody claims this node: its agent leaves", node_id=config.node_id)
            await agent.kill_ranks()  # fenced: what it ran is gone before it lets go of the address
            raise asyncio.CancelledError
        finally:
            await server.stop(grace=None)
            await agent.kill_ranks()


def _announce(config: AgentConfig, *, address: str) -> None:
    line = json.dumps({"address": address, "node_id": config.node_id})
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


async def _serve_until_signalled(config: AgentConfig) -> None:
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    try:
        await serve(config, clock=SystemClock())
    except asyncio.CancelledError:
        log.info("node agent leaves", node_id=config.node_id)


def main() -> None:
    """Serve the node described by `--config`."""
    parser = argparse.ArgumentParser(prog="plexsvc.node.agent")
    parser.add_argument("--config", required=True, type=Path, help="TOML file of an AgentConfig")
    parser.add_argument("--parent-death", type=int, metavar="PID", help="die when PID dies")
    options = parser.parse_args()
    if options.parent_death is not None:
        die_with_parent(options.parent_death)
    adopt_orphans()  # ranks outlive the zygotes they were forked from
    set_process_name("plex-agent")
    logging.setup()
    allow_many_files()
    try:
        asyncio.run(_serve_until_signalled(configuration.load(options.config, AgentConfig)))
    except (PlexError, BaseExceptionGroup) as error:
        cause = first_failure(error)
        if not isinstance(cause, PlexError):
            raise
        sys.exit(str(cause))


if __name__ == "__main__":
    main()
