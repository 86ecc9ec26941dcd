"""Starts the node's state manager, notices its death, starts it again."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path

from plexsvc.errors import ErrorCode, PlexError
from plexsvc.log import Log
from plexsvc.node import toml
from plexsvc.node.config import AgentConfig, DeviceConfig
from plexsvc.node.logs import tail

log = Log(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SidecarAddress:
    """Where a state manager serves."""

    address: str
    data_socket: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _SidecarConfig:
    """The file `plexsvc.statemanager.main` reads."""

    node_id: str
    devices: tuple[DeviceConfig, ...]
    host_bytes: int
    staging_bytes: int
    runtime_dir: Path
    max_versions_per_deployment: int
    keep_pages: bool


class Sidecar:
    """The state manager's process. `on_died` runs before it is replaced, `on_restarted` after."""

    def __init__(
        self,
        config: AgentConfig,
        *,
        log_dir: Path,
        on_died: Callable[[], Awaitable[None]],
        on_restarted: Callable[[SidecarAddress], None],
    ) -> None:
        self._config = config
        self._log_path = log_dir / "statemanager.log"
        self._on_died = on_died
        self._on_restarted = on_restarted
        self._process: asyncio.subprocess.Process | None = None
        self.where: SidecarAddress | None = None

    async def start(self) -> None:
        """Return once it serves.

        Raises:
            PlexError: `unavailable` with its log's tail when it ends or says nothing in time.
        """
        argv = (*self._argv(), "--config", str(self._write_config()))
        with self._log_path.open("ab") as log_file:
            self._process = await asyncio.create_subprocess_exec(
                *argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=log_file,
                start_new_session=True,
            )
        self.where = await self._announcement(self._process)
        log.info("state manager serves", pid=self._process.pid, address=self.where.address)

    async def run(self) -> None:
        """Watch it and restart it until cancelled; then it is killed.

        Raises:
            PlexError: `internal` when it died more often than it may.
        """
        try:
            for _ in range(self._config.max_restarts):
                await self._replace()
            raise PlexError(
                ErrorCode.INTERNAL,
                f"the state manager died {self._config.max_restarts} times; its log "
                f"{self._log_path} ends: {tail(self._log_path)}",
            )
        finally:
            await self._kill()

    async def _replace(self) -> None:
        assert self._process is not None
        code = await self._process.wait()
        log.warning("state manager died", code=code, log_tail=tail(self._log_path))
        await self._on_died()
        await self.start()
        assert self.where is not None
        self._on_restarted(self.where)

    async def _announcement(self, process: asyncio.subprocess.Process) -> SidecarAddress:
        assert process.stdout is not None
        line = b""
        try:
            async with asyncio.timeout(self._config.start_timeout_us / 1e6):
                line = await process.stdout.readline()
            return SidecarAddress(**json.loads(line))
        except (TimeoutError, ValueError, TypeError) as error:
            await self._kill()
            raise PlexError(
                ErrorCode.UNAVAILABLE,
                f"the state manager did not start: it said {line!r}; its log {self._log_path} "
                f"ends: {tail(self._log_path)}",
            ) from error

    async def _kill(self) -> None:
        if self._process is not None:
            if self._process.returncode is None:
                self._process.kill()
            await self._process.wait()

    def _argv(self) -> tuple[str, ...]:
        default = (sys.executable, "-m", "plexsvc.statemanager.main")
        return self._config.state_manager_argv or default

    def _write_config(self) -> Path:
        config = _SidecarConfig(
            node_id=self._config.node_id,
            devices=tuple(
                replace(device, index=index) for index, device in enumerate(self._config.devices)
            ),
            host_bytes=self._config.host_bytes,
            staging_bytes=self._config.staging_bytes,
            runtime_dir=self._config.runtime_dir,
            max_versions_per_deployment=self._config.max_versions_per_deployment,
            keep_pages=self._config.keep_pages,
        )
        path = self._config.runtime_dir / "statemanager.toml"
        path.write_text(toml.dumps(config))
        return path
