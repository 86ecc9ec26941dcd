"""Trace of calls: who called which function of the product, in every process of a service.

A process that imports the `sitecustomize` of `prepare` writes each new pair of (function, nearest
caller of the product) to one file while a phase is on. A function is named as in the documents:
its file below `plexsvc` or `client`, and its last name.
"""

from __future__ import annotations

import mmap
import os
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

FLAG: Final = "flag"
CALLS: Final = "calls"
HOOK: Final = """from pathlib import Path
from tests.rigs import call_trace
call_trace.start(Path({!r}))
"""

Name = tuple[str, str]
"""File and last name of a function."""
Callers = Mapping[Name, set[Name]]
"""Who called each function that ran. A function called by no other of the product has none."""


def prepare(directory: Path) -> None:
    """Make `directory` what a traced process has first in its PYTHONPATH."""
    (directory / FLAG).write_bytes(bytes(mmap.PAGESIZE))
    (directory / CALLS).touch()
    (directory / "sitecustomize.py").write_text(HOOK.format(str(directory)))


def start(directory: Path) -> None:
    """Trace this thread, and those that this process starts from now on."""
    flag = _flag(directory)
    out = os.open(directory / CALLS, os.O_WRONLY | os.O_APPEND)
    seen: set[tuple[int, CodeType, CodeType | None]] = set()

    def look(frame: FrameType, event: str, _: Any) -> None:
        phase = flag[0]
        if event != "call" or not phase or _place(frame.f_code) is None:
            return
        caller = frame.f_back
        while caller is not None and _place(caller.f_code) is None:
            caller = caller.f_back
        known = (phase, frame.f_code, caller.f_code if caller is not None else None)
        if known not in seen:
            seen.add(known)
            names = " ".join(_shown(code) for code in known[1:] if isinstance(code, CodeType))
            os.write(out, f"{phase} {names}\n".encode())

    threading.setprofile(look)
    sys.setprofile(look)


@contextmanager
def started(directory: Path) -> Iterator[None]:
    """Trace this thread and those that it starts meanwhile."""
    start(directory)
    try:
        yield
    finally:
        threading.setprofile(None)
        sys.setprofile(None)


@contextmanager
def phase(directory: Path, number: int) -> Iterator[None]:
    """Have what is called meanwhile noted under a number above 0."""
    flag = _flag(directory)
    flag[0] = number
    try:
        yield
    finally:
        flag[0] = 0


def calls(directory: Path) -> dict[int, Callers]:
    """Return the calls of each phase."""
    found: dict[int, dict[Name, set[Name]]] = defaultdict(lambda: defaultdict(set))
    for line in (directory / CALLS).read_text().splitlines():
        number, function, *caller = line.split(" ")
        found[int(number)][_name(function)].update(map(_name, caller))
    return {number: dict(edges) for number, edges in found.items()}


def _flag(directory: Path) -> mmap.mmap:
    with (directory / FLAG).open("r+b") as file:
        return mmap.mmap(file.fileno(), mmap.PAGESIZE)


def _place(code: CodeType) -> str | None:
    """Return the file of a function of the product as documents name it; None for any other."""
    for above in ("/plexsvc/", "/client/"):
        _, found, below = code.co_filename.rpartition(above)
        if found:
            return below
    return None


def _shown(code: CodeType) -> str:
    return f"{_place(code)}::{code.co_name}"


def _name(shown: str) -> Name:
    file, _, name = shown.partition("::")
    return file, name
