"""One process in the node agent's books: from the order that starts it to its recorded end."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from plexclient.wire.v1 import node_pb2
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.node.logs import why
from plexsvc.node.messages import STACKS

BURY_TRIES: Final = 500
BURY_PAUSE_S: Final = 0.01


@dataclass(slots=True, kw_only=True)
class RankProcess:
    """A process of the node. It has settled once it is ready, has failed to start, or has ended."""

    spec: node_pb2.ProcSpec
    incarnation: int
    token: int
    log_path: Path
    pid: int = 0
    pidfd: int = -1
    ready_fd: int = -1
    """Read end of the pipe in which it says where it serves; -1 once that was read."""
    said: bytearray = field(default_factory=bytearray)
    address: str = ""
    error: PlexError | None = None
    """Why it never got ready, or how it ended."""
    is_ordered: bool = False
    """Its zygote was told to fork it."""
    is_doomed: bool = False
    """It must not run: killed as soon as it exists."""
    lost: asyncio.Event = field(default_factory=asyncio.Event)
    """Its zygote died before it forked it."""
    shares: str = ""
    """Of an engine that others have seats in: who may have one."""
    is_full: bool = False
    seats: list[RankProcess] = field(default_factory=list)
    engine: RankProcess | None = None
    """In which it has a seat; None: it is a process of its own."""
    settled: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def forked(self, pid: int) -> None:
        """Note the process; kill it if it was doomed meanwhile."""
        self.pid = pid
        self.pidfd = os.pidfd_open(pid)  # a child of ours: it is there until it is reaped
        if self.is_doomed:
            self.send_signal(signal.SIGKILL)

    async def until_settled_or_lost(self) -> None:
        """Return when it is ready, failed or ended, or when it must be ordered again."""
        async with asyncio.TaskGroup() as group:
            waits = [group.create_task(event.wait()) for event in (self.settled, self.lost)]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for wait in waits:
                wait.cancel()

    def send_signal(self, number: signal.Signals) -> None:
        """Signal the process group, or the process alone in the moment before it has a group."""
        if self.pid == 0 or self.ended.is_set():
            return
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            self._signal_leader(number)

    def write_stacks(self) -> None:
        """Have it write the Python stacks of all its threads to its log."""
        if self.pid and not self.ended.is_set():
            self._signal_leader(STACKS)

    def fail(self, error: PlexError) -> None:
        """Record that it does not run and never did."""
        self.error = self.error or error
        self.settled.set()
        self._end()

    def reap(self) -> node_pb2.ProcExited:
        """Take leave of a process that is dead, and kill what is left of its group.

        Its number cannot have been reused before: it was a zombie until now. Returns the event that
        tells of its end.
        """
        with suppress(ProcessLookupError, PermissionError):  # dead before it had a group, or alone
            os.killpg(self.pid, signal.SIGKILL)
        _, status = os.waitpid(self.pid, 0)
        code = os.waitstatus_to_exitcode(status)
        event = node_pb2.ProcExited(
            proc_id=self.spec.proc_id,
            exit_code=max(code, 0),
            signal=max(-code, 0),
            log_tail=why(self.log_path, is_killed=code < 0),
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
        f"{event.proc_id} ended with {how} {when} it was ready"
        + (f"; its log ends:\n{event.log_tail}" if event.log_tail else ""),
        worker=event.proc_id,
        exit_code=event.exit_code,
        signal=event.signal,
        log_tail=event.log_tail,
    )


def bury_group(pgid: int, *, tries: int = BURY_TRIES) -> None:
    """Reap what else was in a killed group: the agent is the parent of its orphans."""
    with suppress(ChildProcessError):  # nobody is left
        while os.waitpid(-pgid, os.WNOHANG)[0]:
            continue
        if tries > 0:
            loop = asyncio.get_running_loop()
            loop.call_later(BURY_PAUSE_S, partial(bury_group, pgid, tries=tries - 1))
