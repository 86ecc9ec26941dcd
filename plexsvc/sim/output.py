"""Outputs of a run (`--out`): a summary, lines to check each job by, plots, a Perfetto trace."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Final

import numpy as np

from plexsvc import perfetto
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.perfetto import TraceEvent
from plexsvc.scheduler.core.planning.profile import SECOND_US
from plexsvc.sim.cluster import GB, SimCluster
from plexsvc.sim.presets import Workload
from plexsvc.sim.records import Outcome, Record
from plexsvc.sim.summary import Summary, drain_us, slowdown, wait_ratio

_MAX_PERFETTO_JOBS: Final = 200
"""Jobs in the Perfetto trace, first to start first: viewers load tens of megabytes."""


def make_directory(out: Path) -> None:
    """Make the directory for outputs; called before a run, so that no run is for nothing.

    Raises:
        PlexError: `bad_request`, there can be no such directory.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PlexError(
            ErrorCode.BAD_REQUEST,
            f"{out} cannot be a directory for outputs: {error}; name another with --out",
            file=out,
        ) from error


def write_outputs(
    out: Path, *, workload: Workload, summary: Summary, outcome: Outcome, isolated: Outcome
) -> None:
    """Write `summary.json`, `jobs.jsonl`, `perfetto.json`, `utilisation.png` and `wait_cdf.png`."""
    make_directory(out)
    (out / "summary.json").write_text(json.dumps(asdict(summary)) + "\n", encoding="utf-8")
    with (out / "jobs.jsonl").open("w", encoding="utf-8") as lines:
        for record in outcome.records:
            lines.write(json.dumps(job_line(record, seed=summary.seed)) + "\n")
    perfetto.write(out / "perfetto.json", _trace_events(outcome))
    _plots(out, workload.cluster, outcome=outcome, isolated=isolated)


def job_line(record: Record, *, seed: int) -> dict[str, object]:
    """Return what became of one job, in seconds, complete enough to be checked from outside."""
    demand = record.job.demand
    return {
        "job_id": demand.resident_id,
        "tenant": demand.tenant,
        "arrival_s": demand.arrived_us / SECOND_US,
        "start_s": _s(record.start_us),
        "finish_s": _s(record.finish_us),
        "alone_s": record.alone_us / SECOND_US,
        "nodes": list(record.stays[-1].nodes),
        "stays": [
            {"since_s": _s(stay.since_us), "group": stay.group_id, "nodes": list(stay.nodes)}
            for stay in record.stays
        ],
        "slowdown": round(slowdown(record), 6),
        "wait_ratio": round(wait_ratio(record), 6),
        "phases": record.phases,
        "busy": _spans(record.busy),
        "switch": _spans(record.switch),
        "prefetch": _spans(record.prefetch),
        "lost": _spans(record.lost),
        "restarts": [_s(at_us) for at_us in record.restarts],
        "moves": _spans(record.moves),
        "rollout_s": [us / SECOND_US for us in record.job.rollout_us(seed)],
        "segment_s": [
            {"phase": s.phase, "duration_s": s.duration_us / SECOND_US}
            for s in demand.profile.segments
        ],
        "mode": demand.profile.mode.value,
        "sync_at": demand.profile.sync_at.value,
        "cycles": record.job.cycles,
        "switch_cost_s": demand.profile.switch_us / SECOND_US,
        "pauses": [
            {"at_s": _s(pause.since_us), "until_s": _s(pause.until_us), "why": pause.why}
            for pause in record.pauses
        ],
        "bytes": {
            "device_per_node": demand.state_bytes,
            "host_per_node": record.host_bytes,
            "disk_per_node": record.disk_bytes,
            "moved": demand.state_bytes * demand.num_units * len(record.moves),
            "total": round(record.job.state_gb * GB),
        },
    }


def _s(at_us: int | None) -> float:
    return (at_us or 0) / SECOND_US


def _spans(spans: list[tuple[int, int]]) -> list[list[float]]:
    return [[start / SECOND_US, end / SECOND_US] for start, end in spans]


def _trace_events(outcome: Outcome) -> Iterator[TraceEvent]:
    started = sorted(outcome.records, key=lambda r: (r.start_us or 0, r.job.demand.resident_id))
    for at, record in enumerate(started[:_MAX_PERFETTO_JOBS]):
        pid = record.stays[-1].group_id
        yield perfetto.label(record.job.demand.resident_id, pid=pid, tid=at)
        spans = [
            *zip(record.phases, record.busy, strict=True),
            *(("switch", span) for span in record.switch),
            *(("prefetch", span) for span in record.prefetch),
        ]
        for kind, (start, end) in spans:
            yield perfetto.span(kind, pid=pid, tid=at, start_us=start, end_us=end)


def _plots(out: Path, cluster: SimCluster, *, outcome: Outcome, isolated: Outcome) -> None:
    from matplotlib.figure import Figure  # noqa: PLC0415 - a second of imports, only for plots

    figure = Figure(figsize=(8, 3))
    axes = figure.subplots()
    for one in (isolated, outcome):
        hours, share = busy_share(one, cluster, buckets=200)
        axes.plot(hours, share, label=one.policy)
    axes.set(xlabel="hours", ylabel="busy share of nodes", ylim=(0, 1))
    axes.legend()
    figure.savefig(out / "utilisation.png", bbox_inches="tight", dpi=120)
    figure = Figure(figsize=(5, 3))
    axes = figure.subplots()
    for one in (isolated, outcome):
        waits = np.sort([wait_ratio(record) for record in one.records])
        axes.plot(waits, np.arange(1, waits.size + 1) / waits.size, label=one.policy)
    axes.set(xlabel="wait / duration", ylabel="share of jobs", xscale="symlog")
    axes.legend()
    figure.savefig(out / "wait_cdf.png", bbox_inches="tight", dpi=120)


def busy_share(
    outcome: Outcome, cluster: SimCluster, *, buckets: int
) -> tuple[list[float], list[float]]:
    """Return hours and the share of all nodes that ran operations then."""
    first = min(r.job.demand.arrived_us for r in outcome.records)
    width = max(1, -(-drain_us(outcome) // buckets))
    busy = np.zeros(buckets + 1)
    for record in outcome.records:
        for start, end in record.busy:
            at = start - first
            while at < end - first:
                bucket = at // width
                until = min(end - first, (bucket + 1) * width)
                busy[bucket] += (until - at) * record.job.demand.num_units
                at = until
    hours = (np.arange(buckets) * width / SECOND_US / 3600).tolist()
    return hours, (busy[:buckets] / (width * cluster.nodes)).tolist()
