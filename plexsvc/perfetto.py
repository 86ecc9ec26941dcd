"""Traces that open in Perfetto, in Chrome's trace event format."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

TraceEvent = dict[str, object]


def label(name: str, *, pid: int, tid: int | None = None) -> TraceEvent:
    """Return the event that names a row, or without `tid` a group of rows."""
    kind = "process_name" if tid is None else "thread_name"
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid or 0, "args": {"name": name}}


def span(
    name: str,
    *,
    pid: int,
    tid: int,
    start_us: int,
    end_us: int,
    category: str = "",
    **facts: object,
) -> TraceEvent:
    """Return a stretch of one row; viewers show `facts` when it is selected."""
    return {
        "ph": "X",
        "name": name,
        "cat": category,
        "pid": pid,
        "tid": tid,
        "ts": start_us,
        "dur": max(1, end_us - start_us),
        "args": facts,
    }


def write(path: Path, events: Iterable[TraceEvent]) -> None:
    """Write a trace."""
    trace = {"traceEvents": list(events), "displayTimeUnit": "ms"}
    path.write_text(json.dumps(trace), encoding="utf-8")
