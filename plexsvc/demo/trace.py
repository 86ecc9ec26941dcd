"""Trace of what the devices did during a demo, for Perfetto."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from plexsvc import perfetto
from plexsvc.demo.spans import Span
from plexsvc.perfetto import TraceEvent


def trace_events(spans: Sequence[Span], *, names: Mapping[str, str]) -> list[TraceEvent]:
    """Return a process for each node, a thread for each device, and what each device did.

    `names` says what to call each job. Times start at the first span.
    """
    first_us = min((span.start_us for span in spans), default=0)
    devices = sorted({(span.device, span.device_kind) for span in spans})
    nodes = sorted({device.rpartition(":")[0] for device, _ in devices})
    pids = {node: index + 1 for index, node in enumerate(nodes)}
    events = [perfetto.label(f"node {node}", pid=pids[node]) for node in nodes]
    for device, kind in devices:
        node, _, index = device.rpartition(":")
        events.append(perfetto.label(f"{kind} device {index}", pid=pids[node], tid=int(index)))
    for span in spans:
        node, _, index = span.device.rpartition(":")
        job = names.get(span.job_id, span.job_id)
        events.append(
            perfetto.span(
                f"{job}: {span.kind}",
                pid=pids[node],
                tid=int(index),
                start_us=span.start_us - first_us,
                end_us=span.end_us - first_us,
                category="move" if span.is_move else "operation",
                job=job,
                kind=span.kind,
                bytes=span.nbytes,
            )
        )
    return events
