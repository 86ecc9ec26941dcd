"""Processor time of a process and all its descendants, from /proc."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_TICKS: Final = os.sysconf("SC_CLK_TCK")
_PARENT, _USER, _CHILDREN_SYSTEM = 1, 11, 14
"""Places in /proc/PID/stat, counted after the command's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Process:
    parent: int
    ticks: int


def tree_seconds(root: int) -> float:
    """Return the processor seconds of `root` and its descendants, ended ones included.

    What an ended child used is in its parent's account once the parent has waited for it.
    """
    processes = _processes()
    family = {root}
    grown = True
    while grown:
        below = {pid for pid, process in processes.items() if process.parent in family}
        grown = not below <= family
        family |= below
    return sum(processes[pid].ticks for pid in family if pid in processes) / _TICKS


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0))


def _processes() -> dict[int, _Process]:
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            process = _read(entry / "stat")
            if process is not None:
                found[int(entry.name)] = process
    return found


def _read(path: Path) -> _Process | None:
    try:
        text = path.read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None  # it ended meanwhile
    fields = text.rpartition(")")[2].split()
    ticks = sum(int(field) for field in fields[_USER : _CHILDREN_SYSTEM + 1])
    return _Process(parent=int(fields[_PARENT]), ticks=ticks)
