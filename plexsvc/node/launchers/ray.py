"""Launcher of agents on the nodes of a Ray cluster, one in a detached actor on each.

Ray tells which nodes there are and which are to leave, and ties an agent to its node. It neither
places nor counts anything of ours. A process of its own speaks with Ray (`plexsvc.node.rayhosts`),
since Ray ends a process that loses Ray's head for long.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, Self

from plexsvc.clock import Clock
from plexsvc.errors import unavailable
from plexsvc.ids import NodeId
from plexsvc.log import Log
from plexsvc.node import rayhosts, toml
from plexsvc.node.agent_process import AgentProcess
from plexsvc.node.join import PoolConfig
from plexsvc.node.launchers.launcher import Host
from plexsvc.node.logs import tail
from plexsvc.rpc.keys import ClusterKeys, write_private

log = Log(__name__)

START_S: Final = 60.0
"""How long Ray may take to say what nodes it has."""
END_S: Final = 20.0
"""How long all agents may take to end."""
PAUSE_US: Final = 1_000_000
"""Between the end of the process that speaks with Ray and its successor."""

_PROGRAM: Final = Path(rayhosts.__file__).with_name("main.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class RayConfig:
    """The Ray cluster on whose nodes agents run."""

    address: str = ""
    """`HOST:PORT` of Ray's head; a Ray node of it runs on the service's host, too."""
    pools: dict[str, PoolConfig] = field(default_factory=dict)
    """What the nodes have, by the value of the label `plex-pool` of their Ray node. Nodes without
    that label get no agent."""
    python: str = ""
    """A Python on this host with the cluster's release of Ray; empty: the service's own."""
    agent_python: str = ""
    """plexsvc's Python on the nodes; empty: where the service has its own."""
    directory: Path = Path("/tmp/plexsvc")
    """Where nodes have sockets and logs, on each host; short (70 bytes), and this user's alone."""


class RayLauncher:
    """Agents on all nodes of a Ray cluster that belong to a pool; a `Launcher`."""

    def __init__(
        self,
        config: RayConfig,
        *,
        keys: ClusterKeys,
        roots: Sequence[Path],
        place: Path,
        clock: Clock,
        adopts: bool = False,
    ) -> None:
        """Keep agents of the cluster with these keys, its own nodes alone; files go to `place`.

        With `adopts`, go on without Ray, if need be, until it is back.
        """
        self._config = config
        self._settings = {
            "address": config.address,
            "cluster": keys.fingerprint,
            "certificates": str(place / "certificates"),
            "directory": str(config.directory),
            "python": config.agent_python or sys.executable,
            "pools": {
                name: _settings(pool, authority=keys.certificate, roots=roots)
                for name, pool in config.pools.items()
            },
        }
        self._place = place
        self._clock = clock
        self._adopts = adopts
        self.leaves = False
        self.hosts: dict[NodeId, Host] = {}
        self.changed = asyncio.Event()
        self._process: AgentProcess | None = None
        self._following: asyncio.Task[None] | None = None
        self._tasks = asyncio.TaskGroup()

    async def __aenter__(self) -> Self:
        """Begin; return once Ray said what nodes it has, or at once if this one adopts.

        Raises:
            PlexError: `unavailable` with the log's tail when Ray does not answer.
        """
        (self._place / "certificates").mkdir(mode=0o700, parents=True, exist_ok=True)
        (self._place / "settings.json").write_text(json.dumps(self._settings))
        await self._tasks.__aenter__()
        first = asyncio.Event()
        self._following = self._tasks.create_task(self._follow(first))
        try:
            if not self._adopts:
                async with asyncio.timeout(START_S):
                    await first.wait()
        except BaseException as error:
            self.leaves = True
            await self.__aexit__(type(error), error, error.__traceback__)
            if not isinstance(error, TimeoutError):
                raise
            raise unavailable(
                f"Ray at {self._config.address!r} said nothing within {START_S:g} s; start a Ray "
                f"node on this host first. {self._log} ends: {tail(self._log)}"
            ) from error
        return self

    async def __aexit__(self, *failure: object) -> None:
        if self._following is not None:
            self._following.cancel()
        if self._process is not None:
            if self.leaves:
                self._process.kill()
            else:
                await self._process.end(grace_s=END_S)
        await self._tasks.__aexit__(None, None, None)

    def admit(self, node_id: NodeId, certificate: str) -> None:
        """Have a node that asked for a certificate have it."""
        write_private(self._place / "certificates" / node_id, certificate)

    @property
    def _log(self) -> Path:
        return self._place / "ray.log"

    async def _follow(self, first: asyncio.Event) -> None:
        """Have a process speak with Ray, and one more whenever it ends."""
        program = ("-P", str(_PROGRAM), str(self._place / "settings.json"))
        tied = (sys.executable, "-m", "plexsvc.tether", str(os.getpid()))
        while True:
            argv = (*tied, self._config.python or sys.executable, *program)
            self._process = AgentProcess(argv, log_path=self._log)
            answers = False
            async for line in self._process.lines():
                if line.endswith(b"\n"):  # else it was killed in the middle
                    self._hear(json.loads(line))
                    first.set()
                    if not answers:
                        log.info("Ray answers", nodes=len(self.hosts))
                    answers = True
            code = await self._process.wait()
            log.error("Ray does not answer; asking again", exit_code=code, log=tail(self._log))
            await self._clock.sleep(PAUSE_US)

    def _hear(self, told: Sequence[dict[str, Any]]) -> None:
        hosts = {NodeId(host["node_id"]): Host(**host) for host in told}
        for node_id, host in hosts.items():
            known = self.hosts.get(node_id)
            if host.problem and (known is None or known.problem != host.problem):
                log.warning("node of Ray", node_id=node_id, problem=host.problem)
        self.hosts = hosts
        self.changed.set()


def _settings(pool: PoolConfig, *, authority: str, roots: Sequence[Path]) -> str:
    """Return the part of a `JoinConfig` that all nodes of a pool share."""
    shared = {"authority": authority, "version": version("plexsvc"), "roots": tuple(roots)}
    return toml.dumps(shared | {"pool": pool})
