"""Zygote handle of the agent: starts a zygote, sends it orders, passes on its reports."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from plexsvc.errors import PlexError, payload_too_large, unavailable
from plexsvc.log import Log
from plexsvc.node import messages
from plexsvc.node.config import ImageConfig
from plexsvc.node.logs import tail
from plexsvc.node.messages import ForkOrder, Preloaded, Report
from plexsvc.node.ranks import bury_group
from plexsvc.node.restarts import RestartRate

log = Log(__name__)

BURY_AFTER_S: Final = 1.0
"""Pause before what a dead zygote had begun to fork is reaped; what it told of is known by then."""


class WarmImage:
    """One zygote, restarted at a bounded rate; what it says of orders goes to `on_report`.

    `on_lost` is awaited after the zygote's own death, before it is restarted: orders that it did
    not answer will not be. What it had forked lives on. It starts with the first `want`.
    """

    def __init__(
        self,
        image: ImageConfig,
        *,
        log_dir: Path,
        start_timeout_us: int,
        rate: RestartRate,
        hides_gpus: bool,
        on_report: Callable[[str, Report], None],
        on_lost: Callable[[str], Awaitable[None]],
    ) -> None:
        self._image = image
        self._log_path = log_dir / f"zygote-{image.name}.log"
        self._start_timeout_s = start_timeout_us / 1e6
        self._rate = rate
        self._environment = {"CUDA_VISIBLE_DEVICES": ""} if hides_gpus else {}
        self._on_report = on_report
        self._on_lost = on_lost
        self._is_warm, self._is_wanted = asyncio.Event(), asyncio.Event()
        self._is_cooling = False
        self._writer: asyncio.StreamWriter | None = None
        self._process: asyncio.subprocess.Process | None = None

    @property
    def name(self) -> str:
        """Return what `ProcSpec.image` calls it."""
        return self._image.name

    @property
    def entrypoint(self) -> str:
        """Return what its processes run."""
        return self._image.entrypoint

    def want(self) -> None:
        """Have the zygote start, if it has not."""
        self._is_wanted.set()

    async def run(self) -> None:
        """Keep the zygote running from when it is wanted until cancelled.

        One that dies too often stays cold for a while: processes that run need it no more.
        """
        await self._is_wanted.wait()
        while True:
            await self._run_once()
            left = self._rate.note()
            log.warning(
                "zygote died",
                image=self._image.name,
                restarts_left=max(0, left),
                log_tail=tail(self._log_path),
            )
            self._is_cooling = left < 0
            await self._rate.wait()
            self._is_cooling = False

    async def wait_warm(self) -> None:
        """Return once processes can be forked.

        Raises:
            PlexError: `unavailable` when the zygote died too often, or is not warm in time.
        """
        self.want()
        if self._is_cooling:
            raise self._not_warm()
        try:
            async with asyncio.timeout(self._start_timeout_s):
                await self._is_warm.wait()
        except TimeoutError as error:
            raise self._not_warm() from error

    def send(self, order: ForkOrder) -> None:
        """Order a process; `Forked` or `Refused` follows, or `on_lost`.

        Raises:
            PlexError: `payload_too_large` for a configuration over `messages.MAX_LINE_BYTES`;
                `unavailable` while the zygote is not warm.
        """
        line = messages.encode_order(order)
        if len(line) > messages.MAX_LINE_BYTES:
            raise payload_too_large(
                f"{order.name} not started: its configuration has {len(line)} bytes, "
                f"at most {messages.MAX_LINE_BYTES} are taken"
            )
        if self._writer is None:
            raise self._not_warm()
        self._writer.write(line)

    def kill(self) -> None:
        """Kill the zygote; it is then restarted."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()

    def _not_warm(self) -> PlexError:
        return unavailable(
            f"process not started: the {self._image.name} image is not warm; its log "
            f"{self._log_path} ends: {tail(self._log_path)}"
        )

    async def _run_once(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = process = await self._start(theirs)
        reader, writer = await asyncio.open_unix_connection(
            sock=ours, limit=2 * messages.MAX_LINE_BYTES
        )
        self._writer = writer
        try:
            await self._read_reports(reader)
            await process.wait()
        finally:
            self._is_warm.clear()
            self._writer = None
            self.kill()
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
            await process.wait()
            asyncio.get_running_loop().call_later(BURY_AFTER_S, bury_group, process.pid)
            await self._on_lost(self._image.name)

    async def _start(self, control: socket.socket) -> asyncio.subprocess.Process:
        with self._log_path.open("ab") as log_file:
            return await asyncio.create_subprocess_exec(  # noqa: TID251 - on asyncio's own loop
                *(sys.executable, "-u", "-m", "plexsvc.node.zygote"),
                *("--preload", self._image.preload),
                *("--control-fd", str(control.fileno()), "--parent", str(os.getpid())),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log_file,
                stderr=asyncio.subprocess.STDOUT,
                pass_fds=(control.fileno(),),
                start_new_session=True,
                env={**os.environ, **self._environment},  # noqa: TID251 - the zygote's
            )

    async def _read_reports(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(ConnectionError):
            while line := await reader.readline():
                report = messages.decode_report(line)
                if isinstance(report, Preloaded):
                    log.info("zygote warm", image=self._image.name, took_us=report.took_us)
                    if report.native_threads != 1:
                        log.warning(
                            "zygote may not fork safely: its preload started threads",
                            image=self._image.name,
                            threads=report.threads,
                            native_threads=report.native_threads,
                        )
                    self._is_warm.set()
                else:
                    self._on_report(self._image.name, report)
