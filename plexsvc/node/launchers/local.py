"""Launcher of this machine's node agents.

It knows nodes and processes, nothing of devices, leases or ranks: those are the agent's.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, Self

from plexsvc import config as configuration
from plexsvc.clock import Clock
from plexsvc.errors import PlexError
from plexsvc.ids import NodeId
from plexsvc.log import Log
from plexsvc.node import found, toml
from plexsvc.node.agent_process import AgentProcess
from plexsvc.node.config import AgentConfig
from plexsvc.node.found import FoundAgent, FoundProcess
from plexsvc.node.launchers.launcher import Host
from plexsvc.node.restarts import restart_rate

log = Log(__name__)

_GRACE_S: Final = 10.0
"""From TERM to KILL of an agent."""

Process = AgentProcess | FoundProcess


class LocalLauncher:
    """Agents as subprocesses of this one, which outlive it if it is killed; a `Launcher`."""

    def __init__(
        self, configs: Sequence[AgentConfig], *, clock: Clock, adopts: bool = False
    ) -> None:
        """Start these agents; with `adopts`, go on with those of an earlier service that run."""
        self._configs = configs
        self._clock = clock
        self._adopts = adopts
        self.leaves = False
        self.hosts: dict[NodeId, Host] = {}
        self.changed = asyncio.Event()
        self._running: dict[NodeId, Process] = {}
        self._keeping: list[asyncio.Task[None]] = []
        self._tasks = asyncio.TaskGroup()

    async def __aenter__(self) -> Self:
        """Start all agents at once; return when they serve.

        Raises:
            PlexError: `unavailable` with its log's tail when one does not come up.
        """
        await self._tasks.__aenter__()
        try:
            async with asyncio.TaskGroup() as starting:
                for config in self._configs:
                    starting.create_task(self._spawn(config))
        except BaseException as error:
            await self.__aexit__(type(error), error, error.__traceback__)
            raise
        for config in self._configs:
            self._keeping.append(self._tasks.create_task(self._keep(config)))
        return self

    async def __aexit__(self, *failure: object) -> None:
        for task in self._keeping:
            task.cancel()
        if not self.leaves:
            async with asyncio.TaskGroup() as ending:
                for process in self._running.values():
                    ending.create_task(process.end(grace_s=_GRACE_S))
        await self._tasks.__aexit__(None, None, None)

    def admit(self, node_id: NodeId, certificate: str) -> None:
        """Do nothing: no host of this one asks, it has the service's keys."""

    async def _spawn(self, config: AgentConfig) -> None:
        """Start the agent of a node; return when it serves.

        One of an earlier service goes on if this one adopts, and if it was started as this would
        be; else it ends first.

        Raises:
            PlexError: `unavailable` with its log's tail when it does not come up.
        """
        config.runtime_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        config_path = config.runtime_dir / "agent.toml"
        log_path = (config.log_dir or config.runtime_dir) / "agent.log"
        log_path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        former = found.find(log_path.parent)
        if former is not None and self._adopts and _is_as(config, config_path):
            log.info("agent adopted", node_id=former.node_id, pid=former.pid)
            self._note(former, FoundProcess(former.pid))
            return
        if former is not None:
            log.warning("agent of an earlier service ends", node_id=former.node_id, pid=former.pid)
            await asyncio.to_thread(found.end, former)
        config_path.write_text(toml.dumps(config))
        argv = (sys.executable, "-m", "plexsvc.node.agent", "--config", str(config_path))
        process = AgentProcess(argv, log_path=log_path)
        said = await process.announcement(
            f"the agent of {config.node_id}", timeout_s=config.start_timeout_us / 1e6
        )
        self._note(found.record(log_path.parent, pid=process.pid, **said), process)

    def _note(self, agent: FoundAgent, process: Process) -> None:
        node_id = NodeId(agent.node_id)
        self._running[node_id] = process
        self.hosts[node_id] = Host(node_id=node_id, address=agent.address, pid=agent.pid)
        self.changed.set()

    async def _keep(self, config: AgentConfig) -> None:
        """Start a new agent, at the same address, when one dies: so often within a window."""
        node_id = NodeId(config.node_id)
        fixed = replace(config, listen=self.hosts[node_id].address, is_replacement=True)
        rate = restart_rate(config, clock=self._clock)
        while True:
            code = await self._running[node_id].wait()
            log.warning("node agent died", node_id=node_id, exit_code=code)
            if rate.note() < 0:
                log.error("node given up: its agent died too often", node_id=node_id)
                return
            try:
                await self._spawn(fixed)
            except PlexError as error:
                log.error("node given up: no new agent", error=error)
                return


def _is_as(config: AgentConfig, path: Path) -> bool:
    """Whether an agent was started with `config`, or in the place of one that was."""
    try:
        before = configuration.load(path, AgentConfig)
    except PlexError:  # of another version
        return False
    return replace(before, listen=config.listen, is_replacement=config.is_replacement) == config
