"""Processes below a cluster that only serve: started, and started again when they die."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Final

from plexsvc.clock import Clock
from plexsvc.errors import PlexError
from plexsvc.log import Log
from plexsvc.node import toml
from plexsvc.node.agent_process import AgentProcess

log = Log(__name__)

START_S: Final = 60.0
YOUNG_S: Final = 10.0
"""How long a process serves before others may find that it hangs: they have to reach it first."""
STOP_S: Final = 5.0
PAUSE_US: Final = 500_000
"""Between the death of a process and its successor."""


class ServiceProcess:
    """One such process of a cluster. Its successor listens at the same address."""

    def __init__(
        self, name: str, module: str, config: object, *, directory: Path, logs: Path
    ) -> None:
        """Have `python -m module` serve by `config`, a dataclass."""
        self._name = name
        self._module = module
        self.config = config
        self._config_path = directory / f"{name}.toml"
        self._log_path = logs / f"{name}.log"
        self._process: AgentProcess | None = None
        self._is_starting = False
        self._served_s = 0.0
        """When it began to serve."""

    async def start(self) -> str:
        """Start the process; return its address when it serves.

        Raises:
            PlexError: `unavailable` with its log's tail when it does not come up.
        """
        for directory in (self._config_path.parent, self._log_path.parent):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._config_path.write_text(toml.dumps(self.config))
        module = (sys.executable, "-m", self._module, "--config", str(self._config_path))
        argv = (*module, "--parent-death", str(os.getpid()))
        process = self._process = AgentProcess(argv, log_path=self._log_path)
        self._is_starting = True
        try:
            said = await process.announcement(f"the {self._name}", timeout_s=START_S)
        finally:
            self._is_starting = False
        self._served_s = asyncio.get_running_loop().time()
        return str(said["address"])

    async def start_or_be_replaced(self) -> str:
        """Start the process as `start` does; return nothing if `replace` has to start another."""
        try:
            return await self.start()
        except PlexError as error:
            log.error("no process", process=self._name, error=error)
            return ""

    async def replace(self, clock: Clock) -> None:
        """Start a successor whenever the process dies, until cancelled."""
        while True:
            assert self._process is not None
            code = await self._process.wait()
            log.error("starting a process again", process=self._name, exit_code=code)
            await clock.sleep(PAUSE_US)
            try:
                await self.start()
            except PlexError as error:
                log.error("no process", process=self._name, error=error)

    def kill(self) -> None:
        """Kill the process, which `replace` then starts again; one that starts has `START_S`."""
        is_young = asyncio.get_running_loop().time() - self._served_s < YOUNG_S
        if self._process is not None and not self._is_starting and not is_young:
            self._process.kill()

    async def stop(self) -> None:
        """End the process, and what it started."""
        if self._process is not None:
            await self._process.end(grace_s=STOP_S)
