"""Handle of a process of ours, which prints a line when it serves.

`subprocess.Popen` starts it by vfork, which runs no fork handlers. uvloop's own subprocesses fork,
and in a process that serves gRPC the child then dies now and then before it can exec.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from plexsvc.errors import unavailable
from plexsvc.node.logs import tail

_KILL_WAIT_S: Final = 5.0
_MAX_LINE_BYTES: Final = 4 << 20


class AgentProcess:
    """A started process. Lives on one event loop, which notices its end and reaps it."""

    def __init__(self, argv: Sequence[str], *, log_path: Path) -> None:
        self._log_path = log_path
        with log_path.open("ab") as log_file:
            self._process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log_file,
                start_new_session=True,
            )
        self.pid = self._process.pid
        self._ended = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._pidfd = os.pidfd_open(self.pid)
        self._loop.add_reader(self._pidfd, self._reap)

    async def announcement(self, what: str, *, timeout_s: float) -> dict[str, Any]:
        """Return what it says, in a line of JSON, when it serves.

        Raises:
            PlexError: `unavailable` with its log's tail when it says nothing of that kind in time.
                It has ended then.
        """
        line = b""
        try:
            async with asyncio.timeout(timeout_s):
                line = await self.read_line()
            said: dict[str, Any] = json.loads(line)
        except BaseException as error:
            await self.end(grace_s=0)
            if not isinstance(error, TimeoutError | ValueError):
                raise
            raise unavailable(
                f"{what} did not start: it said {line!r}; its log {self._log_path} ends: "
                f"{tail(self._log_path)}"
            ) from error
        return said

    async def read_line(self) -> bytes:
        """Return the only line of its output, what there is of it when the output ends."""
        async with self._output() as output:
            return await output.readline()

    async def lines(self) -> AsyncIterator[bytes]:
        """Yield the lines of its output until that ends."""
        async with self._output() as output:
            while line := await output.readline():
                yield line

    @asynccontextmanager
    async def _output(self) -> AsyncIterator[asyncio.StreamReader]:
        reader = asyncio.StreamReader(_MAX_LINE_BYTES)
        transport, _ = await self._loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), self._process.stdout
        )
        try:
            yield reader
        finally:
            transport.close()

    async def wait(self) -> int:
        """Return its exit code once it has ended; negative: the signal that killed it."""
        await self._ended.wait()
        return self._process.wait()

    async def end(self, *, grace_s: float) -> None:
        """Ask it to end, kill it after `grace_s`, and return when it is gone."""
        self._process.terminate()
        try:
            async with asyncio.timeout(grace_s):
                await self.wait()
        except TimeoutError:
            self.kill()
            async with asyncio.timeout(_KILL_WAIT_S):
                await self.wait()

    def kill(self) -> None:
        """Kill it; nothing happens when it has ended."""
        self._process.kill()

    def _reap(self) -> None:
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._process.wait()
        self._ended.set()
