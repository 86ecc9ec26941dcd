"""The devices' timeline as a trace that opens in Perfetto (Chrome's trace event format)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from plexsvc.demo.spans import Span


def chrome_trace(spans: Sequence[Span], *, names: Mapping[str, str]) -> dict[str, Any]:
    """Return the trace: a process for each node, a thread for each device.

    `names` says what to call each job. Times start at the first span.
    """
    start_us = min((span.start_us for span in spans), default=0)
    devices = sorted({(span.device, span.device_kind) for span in spans})
    nodes = sorted({device.rpartition(":")[0] for device, _ in devices})
    pids = {node: index + 1 for index, node in enumerate(nodes)}
    events = [_name("process_name", pids[node], 0, f"node {node}") for node in nodes]
    for device, kind in devices:
        node, _, index = device.rpartition(":")
        events.append(_name("thread_name", pids[node], int(index), f"{kind} device {index}"))
    events += [_event(span, pids=pids, names=names, start_us=start_us) for span in spans]
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _name(kind: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": name}}


def _event(
    span: Span, *, pids: Mapping[str, int], names: Mapping[str, str], start_us: int
) -> dict[str, Any]:
    node, _, index = span.device.rpartition(":")
    job = names.get(span.job_id, span.job_id)
    return {
        "ph": "X",
        "name": f"{job}: {span.kind}",
        "cat": "move" if span.is_move else "operation",
        "pid": pids[node],
        "tid": int(index),
        "ts": span.start_us - start_us,
        "dur": max(1, span.end_us - span.start_us),
        "args": {"job": job, "kind": span.kind, "bytes": span.nbytes},
    }
