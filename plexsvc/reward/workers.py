"""Workers as the proxy holds them: the launcher's protocol, and the one for processes here."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol, Self

from plexsvc.log import Log
from plexsvc.reward import messages
from plexsvc.reward.core.vocabulary import WorkerId
from plexsvc.reward.messages import Done, Ready, Task, Warm

log = Log(__name__)

_REAP_S: Final = 10.0

Heard = Callable[[WorkerId, Ready | Done | str], None]
"""Told of each message of a worker, and at last, as a text, of its end."""


class Workers(Protocol):
    """How workers are started, given tasks and stopped. All calls return at once."""

    @property
    def pids(self) -> Mapping[WorkerId, int]:
        """The processes of the workers that live."""
        ...

    def start(self, worker: WorkerId, *, modules: Sequence[str]) -> None:
        """Start a worker that imports `modules`; it is heard of when it is ready or has ended."""
        ...

    def send(self, worker: WorkerId, task: Task) -> None:
        """Give a task to an idle worker."""
        ...

    def warm(self, modules: Sequence[str]) -> None:
        """Have the workers import modules, before their next tasks."""
        ...

    def stop(self, worker: WorkerId) -> None:
        """Kill a worker; its end is heard of."""
        ...


class LocalWorkers:
    """Workers as children of this process, which die with it. Use as an async context manager."""

    def __init__(self, heard: Heard) -> None:
        self._heard = heard
        self._tasks = asyncio.TaskGroup()
        self._lines: dict[WorkerId, asyncio.StreamWriter] = {}
        self._processes: dict[WorkerId, subprocess.Popen[bytes]] = {}
        self._is_closing = False

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(self, *failure: object) -> None:
        self._is_closing = True
        for process in self._processes.values():
            process.kill()
        await self._tasks.__aexit__(None, None, None)

    @property
    def pids(self) -> Mapping[WorkerId, int]:
        """The processes of the workers that live."""
        return {worker: process.pid for worker, process in self._processes.items()}

    def start(self, worker: WorkerId, *, modules: Sequence[str]) -> None:
        """Start a worker that imports `modules`."""
        ours, theirs = socket.socketpair()
        fd = theirs.fileno()
        argv = [sys.executable, "-m", "plexsvc.reward.worker", str(fd), str(os.getpid()), *modules]
        with theirs:
            # vfork: a fork of a process that serves gRPC may die before it can exec.
            self._processes[worker] = subprocess.Popen(
                argv, pass_fds=(fd,), stdin=subprocess.DEVNULL, start_new_session=True
            )
        self._tasks.create_task(self._listen(worker, ours))

    def send(self, worker: WorkerId, task: Task) -> None:
        """Give a task to an idle worker."""
        line = self._lines.get(worker)
        if line is not None:  # else it has ended, and that is about to be heard
            line.write(messages.encode(task))

    def warm(self, modules: Sequence[str]) -> None:
        """Have the workers import modules, before their next tasks."""
        for line in self._lines.values():
            line.write(messages.encode(Warm(tuple(modules))))

    def stop(self, worker: WorkerId) -> None:
        """Kill a worker."""
        if worker in self._processes:
            self._processes[worker].kill()

    async def _listen(self, worker: WorkerId, ours: socket.socket) -> None:
        reader, writer = await asyncio.open_unix_connection(sock=ours)
        self._lines[worker] = writer
        reason = "its process ended"
        try:
            while True:
                self._heard(worker, await _next(reader))
        except (asyncio.IncompleteReadError, OSError):
            pass
        except ValueError as error:  # no message: whatever speaks there is not to be trusted
            reason = f"it sent what is no message: {error}"
        finally:
            del self._lines[worker]
            writer.close()
            process = self._processes[worker]
            process.kill()
            code = await asyncio.to_thread(process.wait, _REAP_S)
            del self._processes[worker]
        if not self._is_closing:
            self._heard(worker, f"{reason} (exit code {code})")


async def _next(reader: asyncio.StreamReader) -> Ready | Done:
    (nbytes,) = messages.LENGTH.unpack(await reader.readexactly(messages.LENGTH.size))
    if nbytes > messages.MAX_BYTES:
        raise ValueError(f"a message of {nbytes} bytes; at most {messages.MAX_BYTES} are taken")
    found = messages.decode(await reader.readexactly(nbytes))
    if not isinstance(found, Ready | Done):
        raise ValueError(f"a {type(found).__name__}")  # noqa: TRY004 - of the stream, not of a caller
    return found
