"""Log files of a node's processes: their names, their tails, their number and their size."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Final

from plexsvc.clock import Clock

LOOK_US: Final = 10_000_000
"""Pause between two looks at the sizes of logs."""

TAIL_BYTES: Final = 4096


def log_path(log_dir: Path, *, proc_id: str, incarnation: int) -> Path:
    """Return where the process's output goes, e.g. `wpg_3_0.2.log` for `wpg_3/0`."""
    name = "".join(letter if letter.isalnum() or letter in "-." else "_" for letter in proc_id)
    return log_dir / f"{name}.{incarnation}.log"


COMPLAINT: Final = re.compile(
    r"^Traceback|^Fatal|^terminate called|\b(\w*Error|\w*Exception|FATAL|ERROR|Killed)\b",
    re.MULTILINE,
)
"""How a line begins, or what is in it, that says what went wrong."""


def why(path: Path, *, is_killed: bool) -> str:
    """Return what a process complained of when it ended: its log from the last complaint on.

    One that was killed need not have complained: "" then; any other left at least its last lines.
    """
    text = tail(path)
    complaints = list(COMPLAINT.finditer(text))
    if not complaints:
        return "" if is_killed else text
    traces = [one.start() for one in complaints if one.group().startswith("Traceback")]
    start = traces[-1] if traces else complaints[-1].start()
    return text[text.rfind("\n", 0, start) + 1 :]


def tail(path: Path, *, num_bytes: int = TAIL_BYTES, begins: int = 0) -> str:
    """Return the last `num_bytes` of a log from a line's start, or "" when it cannot be read.

    Nothing before `begins` is returned.
    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(begins, size - num_bytes))
            data = file.read(num_bytes)
    except OSError:
        return ""
    if size - begins > num_bytes and b"\n" in data:
        data = data.split(b"\n", 1)[1]
    return data.decode(errors="replace").strip()


def prune(log_dir: Path, *, max_logs: int, keep: Collection[Path]) -> None:
    """Delete the oldest logs beyond `max_logs`, sparing those in `keep`."""
    logs = sorted(
        (path for path in log_dir.glob("*.log") if path not in keep),
        key=lambda path: path.stat().st_mtime_ns,
    )
    for path in logs[: max(0, len(logs) - max_logs)]:
        path.unlink(missing_ok=True)
        older_half(path).unlink(missing_ok=True)


def older_half(path: Path) -> Path:
    """Return where a log goes when it has grown too large."""
    return path.with_name(f"{path.name}.1")


def cut(log_dir: Path, *, max_bytes: int) -> None:
    """Empty the logs above `max_bytes` after keeping one copy of each.

    Their writers append and notice nothing; what they write between copy and cut is lost. Where
    the disk is full, the log is emptied without a copy.
    """
    for path in log_dir.glob("*.log"):
        with suppress(OSError):  # pruned meanwhile, or the disk refuses: it is tried again
            if path.stat().st_size <= max_bytes:
                continue
            try:
                shutil.copyfile(path, older_half(path))
            except OSError:
                older_half(path).unlink(missing_ok=True)
            os.truncate(path, 0)


async def keep_bounded(log_dir: Path, *, max_bytes: int, clock: Clock) -> None:
    """Cut the logs of a directory for ever."""
    while True:
        await clock.sleep(LOOK_US)
        await asyncio.to_thread(cut, log_dir, max_bytes=max_bytes)
