"""Process of a node agent, as its launcher holds it.

`subprocess.Popen` starts it by vfork, which runs no fork handlers. uvloop's own subprocesses fork,
and in a process that serves gRPC the child then dies now and then before it can exec.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path


class AgentProcess:
    """A started agent. Lives on one event loop, which notices its end and reaps it."""

    def __init__(self, argv: Sequence[str], *, log_path: Path) -> None:
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

    async def read_line(self) -> bytes:
        """Return the only line of its output, what there is of it when the output ends."""
        reader = asyncio.StreamReader()
        transport, _ = await self._loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), self._process.stdout
        )
        try:
            return await reader.readline()
        finally:
            transport.close()

    async def wait(self) -> int:
        """Return its exit code once it has ended; negative: the signal that killed it."""
        await self._ended.wait()
        return self._process.wait()

    def terminate(self) -> None:
        """Ask it to end; nothing happens when it has."""
        self._process.terminate()

    def kill(self) -> None:
        """Kill it; nothing happens when it has ended."""
        self._process.kill()

    def _reap(self) -> None:
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._process.wait()
        self._ended.set()
