"""Workers as the proxy holds them: the launcher's protocol, and the one for processes here."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol, Self

import msgspec

from plexsvc.log import Log
from plexsvc.reward import messages
from plexsvc.reward.core.vocabulary import WorkerId
from plexsvc.reward.messages import Ready, StageDone, Task, Warm
from plexsvc.reward.zygote import (
    MAX_MESSAGE_BYTES,
    KillWorker,
    Start,
    Started,
    WorkerEnded,
    decode_report,
)

log = Log(__name__)

_REAP_S: Final = 10.0
_BURY_S: Final = 0.005
_ZYGOTE_PAUSE_S: Final = 1.0
_FULL_PAUSE_S: Final = 0.01

Heard = Callable[[WorkerId, Ready | StageDone | str], None]
"""Told of each message of a worker, and at last, as a text, of its end."""


class Workers(Protocol):
    """How workers are started, given tasks and stopped. All calls return at once."""

    @property
    def pids(self) -> Mapping[WorkerId, int]:
        """The processes of the workers that live."""

    def start(
        self, worker: WorkerId, *, place: str = "", modules: Sequence[str], gpus: int = 0
    ) -> None:
        """Start a worker on a node; it is heard of when it is ready or has ended.

        It imports `modules`, and sees `gpus` GPUs, which no other worker sees while it lives.
        """

    def send(self, worker: WorkerId, task: Task) -> None:
        """Give a task to an idle worker."""

    def warm(self, modules: Sequence[str]) -> None:
        """Have the workers import modules, before their next tasks."""

    def stop(self, worker: WorkerId) -> None:
        """Kill a worker; its end is heard of."""


class LocalWorkers:
    """Workers on this machine, which die with this process. Use as an async context manager."""

    def __init__(self, heard: Heard, *, gpus: Sequence[str] = ()) -> None:
        """Give workers that ask for GPUs some of these, by the names that CUDA knows them by."""
        self._heard = heard
        self._tasks = asyncio.TaskGroup()
        self._lines: dict[WorkerId, asyncio.StreamWriter] = {}
        self._pids: dict[WorkerId, int] = {}
        self._exit_codes: dict[WorkerId, asyncio.Future[int | None]] = {}
        self._orders: asyncio.Queue[tuple[Start | KillWorker, socket.socket | None]] = (
            asyncio.Queue()
        )
        self._gpus = list(gpus)
        """Those that no worker holds."""
        self._zygote_pid = 0
        self._others: set[int] = set()
        """Children that this process had before."""
        self._changed = asyncio.Condition()
        """Of `_gpus`, `_unstarted` and `_is_closing`."""
        self._unstarted: dict[WorkerId, None] = {}
        """Workers that wait for GPUs, and are not stopped."""
        self._is_closing = False

    async def __aenter__(self) -> Self:
        self._others = _children()
        await self._tasks.__aenter__()
        self._keeping = self._tasks.create_task(self._keep_zygote())
        return self

    async def __aexit__(self, *failure: object) -> None:
        self._is_closing = True
        self._unstarted.clear()
        await self._tell_change()
        self._keeping.cancel()
        await asyncio.wait([self._keeping])
        while not self._orders.empty():
            _, theirs = self._orders.get_nowait()
            if theirs is not None:
                theirs.close()
        await self._tasks.__aexit__(None, None, None)

    @property
    def pids(self) -> Mapping[WorkerId, int]:
        """The processes of the workers that live."""
        return dict(self._pids)

    def start(
        self, worker: WorkerId, *, place: str = "", modules: Sequence[str], gpus: int = 0
    ) -> None:
        """Start a worker that has imported `modules`, once so many GPUs are nobody's."""
        assert not place, place
        if gpus:
            self._unstarted[worker] = None
            self._tasks.create_task(self._start_with_gpus(worker, modules, number=gpus))
        else:
            self._tasks.create_task(self._listen(worker, self._fork(worker, modules, gpus=())))

    async def _start_with_gpus(
        self, worker: WorkerId, modules: Sequence[str], *, number: int
    ) -> None:
        """Give a worker GPUs until nothing of it is left."""
        async with self._changed:
            await self._changed.wait_for(
                lambda: len(self._gpus) >= number or worker not in self._unstarted
            )
            held: list[str] = []
            if worker in self._unstarted:
                del self._unstarted[worker]
                held, self._gpus = self._gpus[:number], self._gpus[number:]
        if not held:
            self._tell_end(worker, "it was stopped before it had its GPUs")
            return
        try:
            await self._listen(worker, self._fork(worker, modules, gpus=held))
        finally:
            self._gpus += held
            await self._tell_change()

    async def _tell_change(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    def _fork(
        self, worker: WorkerId, modules: Sequence[str], *, gpus: Sequence[str]
    ) -> socket.socket:
        """Have the zygote fork a worker; return its line."""
        ours, theirs = socket.socketpair()
        self._exit_codes[worker] = asyncio.get_running_loop().create_future()
        self._orders.put_nowait((Start(worker, tuple(modules), tuple(gpus)), theirs))
        return ours

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
        if worker in self._unstarted:
            del self._unstarted[worker]
            self._tasks.create_task(self._tell_change())
        else:
            self._orders.put_nowait((KillWorker(worker), None))

    async def _keep_zygote(self) -> None:
        """Have a zygote until cancelled: one that dies takes its workers along, and is replaced."""
        while True:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with ours:
                ours.setblocking(False)
                with theirs:
                    process = _start_zygote(theirs)
                    # Known, so that `_bury` does not take it for an orphan of a worker.
                    self._zygote_pid = process.pid
                feeding = self._tasks.create_task(self._feed(ours))
                try:
                    loop = asyncio.get_running_loop()
                    with contextlib.suppress(ConnectionError):
                        while body := await loop.sock_recv(ours, MAX_MESSAGE_BYTES):
                            report: Started | WorkerEnded = decode_report(body)
                            worker = WorkerId(report.worker)
                            match report:
                                case Started(pid=pid):
                                    self._pids[worker] = pid
                                case WorkerEnded(exit_code=code):
                                    self._pids.pop(worker, None)
                                    _resolve(self._exit_codes.get(worker), code)
                finally:
                    feeding.cancel()
                    process.kill()
                    process.wait(_REAP_S)
                    for exit_code in self._exit_codes.values():
                        _resolve(exit_code, None)
            log.warning("the zygote of workers ended", exit_code=process.returncode)
            await asyncio.sleep(_ZYGOTE_PAUSE_S)

    async def _feed(self, line: socket.socket) -> None:
        """Send the zygote its orders until it ends; what it was to do then ends with it."""
        while True:
            order, theirs = await self._orders.get()
            with theirs or contextlib.nullcontext(), contextlib.suppress(ConnectionError):
                await _send(line, msgspec.msgpack.encode(order), theirs)

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
            self.stop(worker)
            await asyncio.wait([self._exit_codes[worker]], timeout=_REAP_S)
            ended = self._exit_codes.pop(worker)
            code = ended.result() if ended.done() else None
            self._pids.pop(worker, None)
            await self._bury()
        self._tell_end(worker, f"{reason} (exit code {'unknown' if code is None else code})")

    def _tell_end(self, worker: WorkerId, reason: str) -> None:
        if not self._is_closing:
            self._heard(worker, reason)

    async def _bury(self) -> None:
        """Wait for what workers that ended have left, where this process inherits it.

        It is dying, and may hold a GPU until it has.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_REAP_S):
                while orphans := _children() - {self._zygote_pid} - self._others:
                    for orphan in orphans:
                        with contextlib.suppress(ChildProcessError):
                            os.waitpid(orphan, os.WNOHANG)  # noqa: ASYNC222 - it does not wait
                    await asyncio.sleep(_BURY_S)


async def _next(reader: asyncio.StreamReader) -> Ready | StageDone:
    (nbytes,) = messages.LENGTH.unpack(await reader.readexactly(messages.LENGTH.size))
    if nbytes > messages.MAX_BYTES:
        raise ValueError(f"a message of {nbytes} bytes; at most {messages.MAX_BYTES} are taken")
    found = messages.decode(await reader.readexactly(nbytes))
    if not isinstance(found, Ready | StageDone):
        raise ValueError(f"a {type(found).__name__}")  # noqa: TRY004 - of the stream, not of a caller
    return found


def _children() -> set[int]:
    """Return the children of this process."""
    lists = Path("/proc/self/task").glob("*/children")
    return {int(child) for one in lists for child in one.read_text().split()}


def _start_zygote(line: socket.socket) -> subprocess.Popen[bytes]:
    fd = line.fileno()
    # Its own session: signals of a terminal are for the service.
    argv = [sys.executable, "-m", "plexsvc.reward.zygote", str(fd), str(os.getpid())]
    # vfork: a fork of a process that serves gRPC may die before it can exec.
    return subprocess.Popen(argv, pass_fds=(fd,), stdin=subprocess.DEVNULL, start_new_session=True)


async def _send(line: socket.socket, body: bytes, descriptor: socket.socket | None) -> None:
    while True:
        try:
            socket.send_fds(line, [body], [descriptor.fileno()] if descriptor else [])
        except BlockingIOError:
            await asyncio.sleep(_FULL_PAUSE_S)  # it reads when it has forked what was asked before
        else:
            return


def _resolve(exit_code: asyncio.Future[int | None] | None, code: int | None) -> None:
    if exit_code is not None and not exit_code.done():
        exit_code.set_result(code)
