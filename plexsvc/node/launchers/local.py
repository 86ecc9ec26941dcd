"""Launcher of this machine's node agents.

It knows nodes and processes, nothing of devices, leases or ranks: those are the agent's.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Self

from plexsvc import config as configuration
from plexsvc.errors import PlexError
from plexsvc.ids import NodeId
from plexsvc.log import Log
from plexsvc.node import found, toml
from plexsvc.node.agent_process import AgentProcess
from plexsvc.node.config import AgentConfig
from plexsvc.node.found import FoundAgent, FoundProcess
from plexsvc.node.logs import tail

log = Log(__name__)

_MAX_EVENTS: Final = 1024

_GRACE_S: Final = 10.0
"""From TERM to KILL of an agent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRef:
    """An agent that runs."""

    node_id: NodeId
    pid: int
    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentExited:
    """An agent ended, and with it every process of its node."""

    node_id: NodeId
    pid: int
    exit_code: int
    """Negative: the signal that killed it."""
    log_tail: str


@dataclass(slots=True, kw_only=True)
class _Running:
    ref: AgentRef
    process: AgentProcess | FoundProcess
    log_path: Path
    watch: asyncio.Task[None] = field(init=False)
    is_stopping: bool = False


class LocalLauncher:
    """Agents as subprocesses of this one, which outlive it if it is killed.

    Use as an async context manager, which ends them when it is left.

    Attributes:
        leaves: whether they go on instead, for the next service to adopt.
    """

    def __init__(self, *, adopts: bool = False) -> None:
        """Start agents; with `adopts`, go on with those of an earlier service that still run."""
        self._adopts = adopts
        self.leaves = False
        self._running: dict[NodeId, _Running] = {}
        self._events: asyncio.Queue[AgentExited] = asyncio.Queue(_MAX_EVENTS)
        self._tasks = asyncio.TaskGroup()

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self.aclose()
        await self._tasks.__aexit__(None, None, None)

    async def spawn(self, config: AgentConfig) -> AgentRef:
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
            return self._keep(former, FoundProcess(former.pid), log_path)
        if former is not None:
            log.warning("agent of an earlier service ends", node_id=former.node_id, pid=former.pid)
            await asyncio.to_thread(found.end, former)
        config_path.write_text(toml.dumps(config))
        argv = (sys.executable, "-m", "plexsvc.node.agent", "--config", str(config_path))
        process = AgentProcess(argv, log_path=log_path)
        said = await process.announcement(
            f"the agent of {config.node_id}", timeout_s=config.start_timeout_us / 1e6
        )
        made = found.record(log_path.parent, pid=process.pid, **said)
        return self._keep(made, process, log_path)

    def _keep(
        self, agent: FoundAgent, process: AgentProcess | FoundProcess, log_path: Path
    ) -> AgentRef:
        ref = AgentRef(node_id=NodeId(agent.node_id), pid=agent.pid, address=agent.address)
        running = _Running(ref=ref, process=process, log_path=log_path)
        self._running[ref.node_id] = running
        running.watch = self._tasks.create_task(self._watch(running))
        return ref

    async def events(self) -> AsyncIterator[AgentExited]:
        """Yield each end of an agent that nobody asked for."""
        while True:
            yield await self._events.get()

    async def aclose(self) -> None:
        """Stop every agent, unless this one leaves them; return when they are gone."""
        async with asyncio.TaskGroup() as tasks:
            for running in list(self._running.values()):
                running.is_stopping = True
                if self.leaves:
                    running.watch.cancel()
                else:
                    tasks.create_task(running.process.end(grace_s=_GRACE_S))

    async def _watch(self, running: _Running) -> None:
        code = await running.process.wait()
        if self._running.get(running.ref.node_id) is running:
            del self._running[running.ref.node_id]
        if not running.is_stopping:
            ended = AgentExited(
                node_id=running.ref.node_id,
                pid=running.ref.pid,
                exit_code=code,
                log_tail=tail(running.log_path),
            )
            log.warning("node agent died", node_id=ended.node_id, exit_code=code)
            with contextlib.suppress(asyncio.QueueFull):
                self._events.put_nowait(ended)


def _is_as(config: AgentConfig, path: Path) -> bool:
    """Whether an agent was started with `config`, or in the place of one that was."""
    try:
        before = configuration.load(path, AgentConfig)
    except PlexError:  # of another version
        return False
    return replace(before, listen=config.listen, is_replacement=config.is_replacement) == config
