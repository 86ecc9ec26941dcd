"""Other processes as /proc tells of them; one that is gone meanwhile is no error."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def is_alive(pid: int) -> bool:
    """Whether the process exists and is not a zombie."""
    stat = _stat(pid)
    return bool(stat) and stat[0] != "Z"


def descendants(pid: int) -> list[int]:
    """Return all living processes below `pid`."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (stat := _stat(int(entry.name))):
            parents.setdefault(int(stat[1]), []).append(int(entry.name))
    found, queue = [], [pid]
    while queue:
        children = parents.get(queue.pop(), [])
        found += children
        queue += children
    return [child for child in found if is_alive(child)]


def running(module: str, *, below: int) -> list[int]:
    """Return the processes below one that run a module, the oldest first."""
    return sorted(pid for pid in descendants(below) if module in command_of(pid))


def managers(*, below: int) -> list[int]:
    """Return the rollout managers below a process, the oldest first."""
    return sorted(pid for pid in descendants(below) if name_of(pid) == "plex-manager")


def name_of(pid: int) -> str:
    """Return the name of a process; of one that is gone, none."""
    return _read(pid, "comm").strip()


def command_of(pid: int) -> list[str]:
    """Return the arguments that a process was started with; of one that is gone, none."""
    return _read(pid, "cmdline").split("\0")


def began_s(pid: int) -> float:
    """Return when the process began, in seconds since this machine started; 0: it is gone."""
    stat = _stat(pid)
    return int(stat[19]) / os.sysconf("SC_CLK_TCK") if stat else 0.0


def _stat(pid: int) -> list[str]:
    """Return the fields after the command's name: state, parent and so on."""
    return _read(pid, "stat").rpartition(")")[2].split()


def _read(pid: int, name: str) -> str:
    # Opening fails with FileNotFoundError, and reading with ProcessLookupError.
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/{name}").read_text()
    return ""
