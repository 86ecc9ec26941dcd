"""Control groups of sandboxed commands, where the service's own group is delegated to it.

Version 2 only, with the controllers of memory, processes and processor. A group is delegated if
this user may write to it and systemd marked it so (`Delegate=yes`; with `DelegateSubgroup=` the
group above), or it is the root, as in a container.
"""

from __future__ import annotations

import itertools
import os
import select
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from plexsvc.reward.sandbox.base import StageLimits

CONTROLLERS: Final = ("memory", "pids", "cpu")
PERIOD_US: Final = 10_000
SERVICE: Final = "plexsvc"
"""Where the service's own processes go: a group that has some gives no controllers to others."""

REMOVE_S: Final = 2.0
"""How long the processes of a command may take to end when they are killed."""

_ROOT: Final = Path("/sys/fs/cgroup")
_MARKS: Final = ("user.delegate", "trusted.delegate")


class Groups:
    """The group below which each command has its own.

    Raises:
        OSError: naming what is missing, where none is delegated.
    """

    def __init__(self, root: Path = _ROOT, *, listing: Path = Path("/proc/self/cgroup")) -> None:
        self._place = _delegated(root, listing.read_text())
        _enable(self._place)
        self._names = (f"{SERVICE}-run-{os.getpid()}-{number}" for number in itertools.count())

    def make(self, limits: StageLimits) -> CommandGroup:
        """Return a new group that bounds what is in it."""
        return CommandGroup(self._place / next(self._names), limits)


class CommandGroup:
    """One command's group."""

    def __init__(self, path: Path, limits: StageLimits) -> None:
        path.mkdir()
        self._path = path
        for name, value in _values(limits):
            (path / name).write_text(value)
        with suppress(FileNotFoundError):  # a kernel without swap
            (path / "memory.swap.max").write_text("0")

    def open(self) -> int:
        """Return a descriptor: who writes `0` to it is in the group."""
        return os.open(self._path / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC)

    def kill(self) -> None:
        """Kill all that is in it, at once."""
        (self._path / "cgroup.kill").write_text("1")

    def ran_out_of_memory(self) -> bool:
        """Return whether the kernel killed it for want of memory."""
        events = (self._path / "memory.events").read_text().split()
        return int(events[events.index("oom_kill") + 1]) > 0

    def remove(self) -> None:
        """Kill what is left in it, and remove it.

        Raises:
            OSError: when something of it does not die.
        """
        self.kill()
        ends_s = time.monotonic() + REMOVE_S
        with (self._path / "cgroup.events").open() as events:
            told = select.poll()
            told.register(events, select.POLLPRI)
            while "populated 1" in events.read() and time.monotonic() < ends_s:
                told.poll(1000 * REMOVE_S)
                events.seek(0)
        self._path.rmdir()


def _values(limits: StageLimits) -> Iterator[tuple[str, str]]:
    # Files of a command are memory of its group.
    yield "memory.max", str(limits.memory_bytes + limits.disk_bytes)
    yield "memory.oom.group", "1"
    yield "pids.max", str(limits.max_processes)
    yield "cpu.max", f"{limits.cpus * PERIOD_US} {PERIOD_US}"


def _delegated(root: Path, listing: str) -> Path:
    """Return the service's group, or the one above, if it is delegated."""
    own = next((line[3:] for line in listing.splitlines() if line.startswith("0::")), None)
    if own is None or not (root / "cgroup.controllers").exists():
        raise OSError("there is no cgroup v2 at /sys/fs/cgroup")
    place = root / own.lstrip("/")
    for one in (place, place.parent):
        if one.is_relative_to(root) and _is_delegated(one, root):
            return one
    raise OSError(f"{own} is not delegated to this user (systemd: Delegate=yes)")


def _is_delegated(group: Path, root: Path) -> bool:
    if not os.access(group / "cgroup.procs", os.W_OK):
        return False
    if group == root:
        return True
    for mark in _MARKS:
        with suppress(OSError):
            if os.getxattr(group, mark) == b"1":
                return True
    return False


def _enable(place: Path) -> None:
    """Give the groups below the controllers."""
    there = (place / "cgroup.controllers").read_text().split()
    missing = [name for name in CONTROLLERS if name not in there]
    if missing:
        raise OSError(f"{place} has no controller of {', '.join(missing)}")
    wanted = " ".join(f"+{name}" for name in CONTROLLERS)
    with suppress(OSError):
        (place / "cgroup.subtree_control").write_text(wanted)
        return
    (place / SERVICE).mkdir(exist_ok=True)
    for process in (place / "cgroup.procs").read_text().split():
        with suppress(OSError):  # it ended, or is the kernel's
            (place / SERVICE / "cgroup.procs").write_text(process)
    (place / "cgroup.subtree_control").write_text(wanted)
