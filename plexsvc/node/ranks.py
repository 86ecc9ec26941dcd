"""One process in the node agent's books: from the order that starts it to its recorded end."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import dataclass, field
from pathlib import Path

from plexclient.wire.v1 import node_pb2
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.node.logs import tail
from plexsvc.node.messages import Exited


@dataclass(slots=True, kw_only=True)
class Rank:
    """A process of the node. It has settled once it is ready, has failed to start, or has ended."""

    spec: node_pb2.ProcSpec
    incarnation: int
    token: int
    log_path: Path
    pid: int = 0
    pidfd: int = -1
    address: str = ""
    error: PlexError | None = None
    """Why it never got ready, or how it ended."""
    is_ordered: bool = False
    """Its zygote was told to fork it."""
    is_doomed: bool = False
    """It must not run: killed as soon as it exists."""
    settled: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def forked(self, pid: int) -> None:
        """Note the process; kill it if it was doomed meanwhile."""
        self.pid = pid
        try:
            self.pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            return  # already reaped: its exit is being reported
        if self.is_doomed:
            self.send_signal(signal.SIGKILL)

    def send_signal(self, number: signal.Signals) -> None:
        """Signal the process group, or the process alone in the moment before it has a group."""
        if self.pid == 0 or self.ended.is_set():
            return
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            self._signal_leader(number)

    def fail(self, error: PlexError) -> None:
        """Record that it does not run and never did."""
        self.error = self.error or error
        self.settled.set()
        self._end()

    def exited(self, report: Exited) -> node_pb2.ProcExited:
        """Record the end of the process and return the event that tells of it."""
        event = node_pb2.ProcExited(
            proc_id=self.spec.proc_id,
            exit_code=report.exit_code,
            signal=report.signal,
            log_tail=tail(self.log_path),
            incarnation=self.incarnation,
            pid=self.pid,
        )
        self.error = self.error or died(event, was_ready=bool(self.address))
        self.settled.set()
        self._end()
        return event

    def _end(self) -> None:
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1
        self.ended.set()

    def _signal_leader(self, number: signal.Signals) -> None:
        if self.pidfd < 0:
            return
        try:
            signal.pidfd_send_signal(self.pidfd, number)
        except ProcessLookupError:
            return  # it has ended; the report is on its way


def died(event: node_pb2.ProcExited, *, was_ready: bool) -> PlexError:
    """Return the error of a process that ended."""
    how = f"signal {event.signal}" if event.signal else f"exit code {event.exit_code}"
    when = "after" if was_ready else "before"
    return PlexError(
        ErrorCode.WORKER_DIED,
        f"{event.proc_id} ended with {how} {when} it was ready; its log ends:\n{event.log_tail}",
        worker=event.proc_id,
        exit_code=event.exit_code,
        signal=event.signal,
        log_tail=event.log_tail,
    )


async def until_dead(pidfd: int) -> None:
    """Return when the process of `pidfd` is no more."""
    loop = asyncio.get_running_loop()
    dead: asyncio.Future[None] = loop.create_future()
    loop.add_reader(pidfd, _resolve, dead)
    try:
        await dead
    finally:
        loop.remove_reader(pidfd)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
