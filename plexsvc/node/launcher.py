"""Launchers of node agents: the protocol, and the one for this machine.

A launcher knows nodes and processes, nothing of devices, leases or ranks: those are the agent's.
Another engine (Ray, past one machine) implements the same five methods with the same argv.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, Self

from plexsvc.ids import NodeId
from plexsvc.log import Log
from plexsvc.node import toml
from plexsvc.node.agent_process import AgentProcess
from plexsvc.node.config import AgentConfig
from plexsvc.node.logs import tail

log = Log(__name__)

_MAX_EVENTS: Final = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class LauncherNode:
    """A node on which an agent can be started."""

    node_id: NodeId
    host: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRef:
    """A started agent."""

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


class Launcher(Protocol):
    """How node agents are started, watched and stopped."""

    async def nodes(self) -> Sequence[LauncherNode]:
        """Return the nodes there are."""
        ...

    async def spawn(self, config: AgentConfig) -> AgentRef:
        """Start the agent of a node; return when it serves.

        Raises:
            PlexError: `unavailable` with its log's tail when it does not come up.
        """
        ...

    async def stop(self, ref: AgentRef, *, grace_us: int) -> None:
        """End an agent and all its processes: TERM, then KILL after `grace_us`."""
        ...

    def events(self) -> AsyncIterator[AgentExited]:
        """Yield each end of an agent that nobody asked for."""
        ...

    async def aclose(self) -> None:
        """Stop every agent; return when they are gone."""
        ...


def agent_argv(config_path: Path) -> tuple[str, ...]:
    """Return the command of a node agent, the same on every engine."""
    return (sys.executable, "-m", "plexsvc.node.agent", "--config", str(config_path))


@dataclass(slots=True, kw_only=True)
class _Running:
    ref: AgentRef
    process: AgentProcess
    log_path: Path
    is_stopping: bool = False


class LocalLauncher:
    """Agents as subprocesses of this one; they die with it. Use as an async context manager."""

    def __init__(self, configs: Sequence[AgentConfig]) -> None:
        self._nodes = tuple(
            LauncherNode(node_id=NodeId(config.node_id), host="127.0.0.1") for config in configs
        )
        self._running: dict[NodeId, _Running] = {}
        self._events: asyncio.Queue[AgentExited] = asyncio.Queue(_MAX_EVENTS)
        self._tasks = asyncio.TaskGroup()

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self.aclose()
        await self._tasks.__aexit__(None, None, None)

    async def nodes(self) -> Sequence[LauncherNode]:
        """Return the configured nodes."""
        return self._nodes

    async def spawn(self, config: AgentConfig) -> AgentRef:
        """Start the agent of a node; return when it serves.

        Raises:
            PlexError: `unavailable` with its log's tail when it does not come up.
        """
        config.runtime_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        config_path = config.runtime_dir / "agent.toml"
        config_path.write_text(toml.dumps(config))
        log_path = (config.log_dir or config.runtime_dir) / "agent.log"
        log_path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        argv = (*agent_argv(config_path), "--parent-death", str(os.getpid()))
        process = AgentProcess(argv, log_path=log_path)
        said = await process.announcement(
            f"the agent of {config.node_id}", timeout_s=config.start_timeout_us / 1e6
        )
        ref = AgentRef(node_id=NodeId(said["node_id"]), pid=process.pid, address=said["address"])
        running = _Running(ref=ref, process=process, log_path=log_path)
        self._running[ref.node_id] = running
        self._tasks.create_task(self._watch(running))
        return ref

    async def stop(self, ref: AgentRef, *, grace_us: int) -> None:
        """End an agent and all its processes: TERM, then KILL after `grace_us`."""
        running = self._running.get(ref.node_id)
        if running is None or running.ref.pid != ref.pid:
            return
        running.is_stopping = True
        await running.process.end(grace_s=grace_us / 1e6)

    async def events(self) -> AsyncIterator[AgentExited]:
        """Yield each end of an agent that nobody asked for."""
        while True:
            yield await self._events.get()

    async def aclose(self) -> None:
        """Stop every agent; return when they are gone."""
        async with asyncio.TaskGroup() as tasks:
            for running in list(self._running.values()):
                tasks.create_task(self.stop(running.ref, grace_us=10_000_000))

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
