"""Supervision of the node's state manager: start, notice of death or silence, restart.

Theory of operation. A state manager that dies is replaced by one that adopts what it left with the
vault; ranks and callers find it at the same addresses and go on. One that hangs shows no progress
(`Vault.beats`; while it starts, its processor time) and is killed. Silence is counted in looks, so
that an agent that was itself stopped does not take its own absence for it. Two start with
nothing, and `on_lost` ends the ranks first: a state manager that cannot adopt, and the last one
that may be started.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from plexsvc.clock import SystemClock
from plexsvc.errors import PlexError, internal, unavailable
from plexsvc.log import Log
from plexsvc.node import toml
from plexsvc.node.config import AgentConfig
from plexsvc.node.logs import tail
from plexsvc.node.restarts import restart_rate
from plexsvc.node.vault import Vault

log = Log(__name__)

LOOK_US: Final = 1_000_000
"""How often a state manager is looked at."""

END_S: Final = 5.0
"""How long a process that closed its output may take to end."""


LARGE_COPIES: Final = {
    "GLIBC_TUNABLES": "glibc.cpu.x86_non_temporal_threshold=0x200000"
    ":glibc.malloc.mmap_threshold=0x2000000:glibc.malloc.trim_threshold=0x8000000"
}
"""Environment of state managers. What is as large as a tensor is copied around the caches: by
itself the C library does so from most of the last cache on, and takes twice as long below. Messages
with blocks lie in memory that was used before, not in new pages each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SidecarAddress:
    """Where a state manager serves."""

    address: str
    data_socket: str


_SAME: Final = (
    *("node_id", "host_bytes", "disk_bytes", "disk_dir", "staging_bytes", "runtime_dir"),
    *("max_versions_per_deployment", "keep_pages", "keys_file", "site"),
)
"""Keys that a state manager's configuration has of its node's."""

_OF_DEVICE: Final = ("kind", "bytes_total", "memory", "gpu", "tp")
"""Keys that it has of a device's."""


class Sidecar:
    """The state manager's process. `on_lost` runs when its state is gone, `on_restarted` always."""

    def __init__(
        self,
        config: AgentConfig,
        *,
        log_dir: Path,
        on_lost: Callable[[], Awaitable[None]],
        on_restarted: Callable[[SidecarAddress], None],
    ) -> None:
        self._config = config
        self._log_path = log_dir / "statemanager.log"
        self._rate = restart_rate(config, clock=SystemClock())
        self._on_lost = on_lost
        self._on_restarted = on_restarted
        self._process: asyncio.subprocess.Process | None = None
        self._vault = Vault()
        self._keeper: threading.Thread | None = None
        self._port = _reserve_port(config.host) if config.host else None
        self.where: SidecarAddress | None = None
        self.restarts = 0
        """Of the state manager, since this agent started."""

    async def start(self) -> None:
        """Return once it serves, with what the last one left.

        Raises:
            PlexError: `unavailable` with its log's tail when it ends or says nothing in time.
        """
        ours, theirs = socket.socketpair()
        default = (sys.executable, "-m", "plexsvc.statemanager.main")
        argv = (
            *(self._config.state_manager_argv or default),
            "--config",
            str(self._write_config()),
        )
        with theirs, self._log_path.open("ab") as log_file:
            self._process = await asyncio.create_subprocess_exec(  # noqa: TID251 - on asyncio's own loop
                *argv,
                *("--vault-fd", str(theirs.fileno())),
                pass_fds=[theirs.fileno()],
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=log_file,
                start_new_session=True,
                env={**os.environ, **LARGE_COPIES},  # noqa: TID251 - the agent's own, for a child
            )
        self._keeper = threading.Thread(
            target=self._vault.serve, args=(ours,), name="vault", daemon=True
        )
        self._keeper.start()
        self.where = await self._announcement(self._process)
        log.info("state manager serves", pid=self._process.pid, address=self.where.address)

    async def run(self) -> None:
        """Watch it and restart it until cancelled; then it is killed.

        Raises:
            PlexError: `internal` when it died more often than it may.
        """
        try:
            await self._until_dead()
            while (left := self._rate.note()) >= 0:
                self.restarts += 1
                await self._replace(is_last=left == 0)
                await self._until_dead()
            raise internal(
                f"the state manager died {self._config.max_restarts + 1} times within "
                f"{self._config.restart_window_us} us (max_restarts, restart_window_us); its log "
                f"{self._log_path} ends: {tail(self._log_path)}"
            )
        finally:
            await self._kill()
            self._vault.clear()
            if self._port is not None:
                self._port.close()

    async def _until_dead(self) -> None:
        assert self._process is not None
        await self._until_gone_or_silent(self._process)
        if self._process.returncode is None:
            log.warning("state manager hangs: it is killed", beats=self._vault.beats)
        else:
            code = self._process.returncode
            log.warning("state manager died", code=code, log_tail=tail(self._log_path))
        await self._kill()

    async def _until_gone_or_silent(self, process: asyncio.subprocess.Process) -> None:
        heard, silent = self._vault.beats, 0
        while process.returncode is None and silent < self._looks:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_US / 1e6):
                    await process.wait()
            silent = silent + 1 if self._vault.beats == heard else 0
            heard = self._vault.beats

    @property
    def _looks(self) -> int:
        """How often in a row one is found silent that hangs."""
        return max(1, self._config.state_manager_silence_us // LOOK_US)

    async def _replace(self, *, is_last: bool) -> None:
        if is_last or await self._is_refused():
            await self._on_lost()
            self._vault.clear()
            await self.start()
        if self._is_serving:
            assert self.where is not None
            self._on_restarted(self.where)

    async def _is_refused(self) -> bool:
        """Start a successor; whether it would not, or could not, take over what was left.

        One that was killed meanwhile has died like those before it.
        """
        try:
            await self.start()
        except PlexError as error:
            assert self._process is not None
            is_killed = (self._process.returncode or 0) < 0
            if is_killed and not isinstance(error.__cause__, TimeoutError):
                return False
            log.warning("the ranks end: what the state manager left is not adopted", error=error)
            return True
        return False

    @property
    def _is_serving(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def _first_line(self, process: asyncio.subprocess.Process) -> bytes:
        """Return what it says first; nothing if it hangs, and it is killed."""
        assert process.stdout is not None
        worked, silent = 0, 0
        while silent < self._looks:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_US / 1e6):
                    return await process.stdout.readline()
            before, worked = worked, _worked_ticks(process.pid)
            silent = silent + 1 if worked == before else 0
        log.warning("state manager hangs while it starts: it is killed", pid=process.pid)
        await self._kill()
        return b""

    async def _announcement(self, process: asyncio.subprocess.Process) -> SidecarAddress:
        line = b""
        try:
            async with asyncio.timeout(self._config.start_timeout_us / 1e6):
                line = await self._first_line(process)
            return SidecarAddress(**json.loads(line))
        except (TimeoutError, ValueError, TypeError) as error:
            if not isinstance(error, TimeoutError):
                # It said its last; to kill it now could hide how it ended.
                with suppress(TimeoutError):
                    async with asyncio.timeout(END_S):
                        await process.wait()
            await self._kill()
            raise unavailable(
                f"the state manager did not start: it said {line!r}; its log {self._log_path} "
                f"ends: {tail(self._log_path)}"
            ) from error

    async def _kill(self) -> None:
        if self._process is not None:
            if self._process.returncode is None:
                self._process.kill()
            await self._process.wait()
        if self._keeper is not None:
            await asyncio.to_thread(self._keeper.join)  # what it said last has arrived then

    def _write_config(self) -> Path:
        devices = [
            {"index": index} | {key: getattr(device, key) for key in _OF_DEVICE}
            for index, device in enumerate(self._config.devices)
            if device.kind != "reward"
        ]
        port = self._port.getsockname()[1] if self._port is not None else 0
        same = {key: getattr(self._config, key) for key in _SAME}
        own = {"devices": devices, "listen": self._config.address("state", port=port)}
        path = self._config.runtime_dir / "statemanager.toml"
        path.write_text(toml.dumps(same | own))
        return path


def _worked_ticks(pid: int) -> int:
    """Return for how long a process has had a processor; 0 when it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return 0
    return int(fields[11]) + int(fields[12])  # `utime` and `stime`; these begin with the third


def _reserve_port(host: str) -> socket.socket:
    """Return a socket that keeps a port for every state manager of this node to listen on.

    It never listens itself, so that the listener may bind beside it; nobody else is given the port.
    """
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind((host, 0))
    return sock
