"""Perfetto tracks of a run: each job in each of its groups, and the losses and drains of nodes.

A node group is a process of the trace. A job has a track in every group that it lived in, so one
that moved is followed. Waiting for a place is a process of its own, and so are the nodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from plexsvc import perfetto
from plexsvc.perfetto import TraceEvent
from plexsvc.sim.records import Outcome, Record, Stay

MAX_JOBS: Final = 200
"""Jobs in a trace, first to start first: viewers load tens of megabytes."""

_QUEUE: Final = 1
_NODES: Final = 2
_FIRST_GROUP: Final = 3

Span = tuple[int, int]


def tracks(outcome: Outcome) -> Iterator[TraceEvent]:
    """Return the trace of a run; its first group of tracks says how many jobs are left out."""
    started = sorted(outcome.records, key=lambda r: (r.start_us or 0, r.job.demand.resident_id))
    shown = started[:MAX_JOBS]
    left_out = len(started) - len(shown)
    note = f"; {left_out} jobs that start later are left out" if left_out else ""
    yield perfetto.label(f"waiting for a place ({len(shown)} jobs{note})", pid=_QUEUE)
    yield perfetto.label("nodes lost or drained", pid=_NODES)
    yield from _groups(shown)
    yield from _nodes(outcome)
    for tid, record in enumerate(shown):
        yield from _job(record, tid=tid)


def waits(record: Record) -> list[Span]:
    """Return when a job waited for a place: after its arrival, and after each loss of a node."""
    since = [record.job.demand.arrived_us, *(restart.at_us for restart in record.restarts)]
    found = []
    for at_us in since:
        ends = [stay.since_us for stay in record.stays if stay.since_us >= at_us]
        until_us = record.start_us if at_us == since[0] else min(ends, default=record.finish_us)
        if until_us is not None and until_us > at_us:
            found.append((at_us, until_us))
    return found


def lived(stays: Sequence[Stay], record: Record) -> Iterator[tuple[Stay, Span]]:
    """Return when each stay of a job began and ended: it moved, lost a node or was done."""
    ends = [restart.at_us for restart in record.restarts]
    if not stays:
        return
    last_us = record.finish_us if record.finish_us is not None else stays[-1].since_us
    for stay, next_us in zip(stays, [*(s.since_us for s in stays[1:]), last_us], strict=True):
        cut = [at_us for at_us in ends if stay.since_us <= at_us < next_us]
        yield stay, (stay.since_us, min([next_us, *cut]))


def _groups(records: Sequence[Record]) -> Iterator[TraceEvent]:
    names: dict[int, str] = {}
    for stay in (stay for record in records for stay in record.stays):
        more = f" and {len(stay.nodes) - 1} more" if len(stay.nodes) > 1 else ""
        names.setdefault(stay.group_id, f"group of {stay.nodes[0]}{more}")
    for group_id, name in sorted(names.items()):
        yield perfetto.label(name, pid=_FIRST_GROUP + group_id)


def _nodes(outcome: Outcome) -> Iterator[TraceEvent]:
    end_us = max((record.finish_us or 0 for record in outcome.records), default=0)
    lost = [("lost", one.node_id, one.at_us, one.back_us) for one in outcome.losses]
    drained = [("drained", one.node_id, one.asked_us, one.empty_us) for one in outcome.drains]
    rows = {
        node: tid for tid, node in enumerate(sorted({node for _, node, _, _ in lost + drained}))
    }
    for node, tid in rows.items():
        yield perfetto.label(node, pid=_NODES, tid=tid)
    for kind, node, start_us, until_us in lost + drained:
        stop_us = end_us if until_us is None else until_us
        yield perfetto.span(kind, pid=_NODES, tid=rows[node], start_us=start_us, end_us=stop_us)


def _job(record: Record, *, tid: int) -> Iterator[TraceEvent]:
    name = record.job.demand.resident_id
    yield perfetto.label(name, pid=_QUEUE, tid=tid)
    for start_us, end_us in waits(record):
        yield perfetto.span("waits", pid=_QUEUE, tid=tid, start_us=start_us, end_us=end_us)
    spans: list[tuple[str, Span]] = [
        *zip(record.phases, record.busy, strict=True),
        *(("switch", span) for span in record.switch),
        *(("prefetch", span) for span in record.prefetch),
        *(("lost", span) for span in record.lost),
        *(("moves", (move.since_us, move.until_us)) for move in record.moves),
    ]
    begins = [stay.since_us for stay in record.stays]
    for kind, (start_us, end_us) in spans:
        group_id = record.stays[max(0, sum(at_us <= start_us for at_us in begins) - 1)].group_id
        pid = _FIRST_GROUP + group_id
        yield perfetto.span(kind, pid=pid, tid=2 * tid, start_us=start_us, end_us=end_us)
    for group_id in dict.fromkeys(stay.group_id for stay in record.stays):
        yield perfetto.label(name, pid=_FIRST_GROUP + group_id, tid=2 * tid)
    for pause in record.pauses:
        yield from _pause(record, pause.since_us, pause.until_us, pause.why, tid=2 * tid + 1)


def _pause(
    record: Record, since_us: int, until_us: int | None, why: str, *, tid: int
) -> Iterator[TraceEvent]:
    """Show a pause below its job's track: it overlaps what the job runs."""
    end_us = until_us if until_us is not None else record.finish_us or since_us
    stay = [stay for stay in record.stays if stay.since_us <= since_us][-1]
    pid = _FIRST_GROUP + stay.group_id
    yield perfetto.label(f"{record.job.demand.resident_id} is paused", pid=pid, tid=tid)
    yield perfetto.span("paused", pid=pid, tid=tid, start_us=since_us, end_us=end_us, why=why)
