"""Node agents that outlive the service that started them: found by their records, ended or adopted.

Beside its logs each agent has a record, `agent.json`: its process number, when that process
started, and where it serves. A process with the number and a later start is another one.
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

RECORD: Final = "agent.json"
END_S: Final = 15.0
"""From TERM to KILL of an agent whose service is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundAgent:
    """An agent as its record names it."""

    node_id: str
    pid: int
    started: str
    """When the process started, as the kernel counts it."""
    address: str


def record(directory: Path, *, node_id: str, pid: int, address: str) -> FoundAgent:
    """Write down that an agent runs, for the next service; return its record."""
    found = FoundAgent(node_id=node_id, pid=pid, started=_started(pid), address=address)
    unfinished = directory / f".{RECORD}"
    unfinished.write_text(json.dumps(asdict(found)))
    unfinished.replace(directory / RECORD)
    return found


def find(directory: Path) -> FoundAgent | None:
    """Return the agent whose record lies in `directory`, if it still runs."""
    with suppress(OSError, ValueError, TypeError):
        found = FoundAgent(**json.loads((directory / RECORD).read_text()))
        if found.started and _started(found.pid) == found.started:
            return found
    return None


def find_all(state_dir: Path) -> list[FoundAgent]:
    """Return the agents of a cluster's state directory that still run."""
    found = (find(path.parent) for path in sorted(state_dir.glob(f"nodes/*/logs/{RECORD}")))
    return [agent for agent in found if agent is not None]


def end(agent: FoundAgent) -> None:
    """End an agent and with it all that its node runs; return when it is gone. Blocks."""
    with suppress(ProcessLookupError):  # it ended by itself meanwhile
        pidfd = os.pidfd_open(agent.pid)
        try:
            for number in (signal.SIGTERM, signal.SIGKILL):
                signal.pidfd_send_signal(pidfd, number)
                if select.select([pidfd], [], [], END_S)[0]:
                    return
        finally:
            os.close(pidfd)


class FoundProcess:
    """A process that another one started: watched and signalled, not reaped.

    Lives on one event loop, as `AgentProcess` does.
    """

    def __init__(self, pid: int) -> None:
        """Watch a process.

        Raises:
            ProcessLookupError: it has ended.
        """
        self.pid = pid
        self._pidfd = os.pidfd_open(pid)
        self._ended = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._pidfd, self._on_end)

    async def wait(self) -> int:
        """Return -KILL once it has ended: only its parent learns its exit code."""
        await self._ended.wait()
        return -signal.SIGKILL

    async def end(self, *, grace_s: float) -> None:
        """Ask it to end, kill it after `grace_s`, and return when it is gone."""
        self._send(signal.SIGTERM)
        try:
            async with asyncio.timeout(grace_s):
                await self.wait()
        except TimeoutError:
            self.kill()
            await self.wait()

    def kill(self) -> None:
        """Kill it; nothing happens when it has ended."""
        self._send(signal.SIGKILL)

    def _send(self, number: signal.Signals) -> None:
        if not self._ended.is_set():
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    def _on_end(self) -> None:
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._ended.set()


def _started(pid: int) -> str:
    """Return since when a process runs; empty when it does not, or is dead and not reaped."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    state, *fields = stat.rsplit(")", 1)[1].split()
    return "" if state == "Z" else fields[18]  # `starttime`, the 22nd: these begin with the fourth
