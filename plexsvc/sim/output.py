"""Outputs of runs (`--out`): a summary, lines to check each job by, and a report."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

import numpy as np

from plexsvc.errors import PlexError
from plexsvc.scheduler.core.planning.profile import SECOND_US
from plexsvc.sim.cluster import GB
from plexsvc.sim.records import Outcome, Record, Stay
from plexsvc.sim.summary import Summary, slowdown, wait_ratio

FILES: Final = (
    "summary.json",
    "jobs.jsonl",
    "nodes.jsonl",
    "report.md",
)
"""What a run leaves."""


def write_failure(out: Path, error: PlexError, *, policy: str, seed: int) -> None:
    """Write a `summary.json` that says why a run never ended."""
    told = {"policy": policy, "seed": seed, "error": error.message}
    (out / "summary.json").write_text(json.dumps(told) + "\n", encoding="utf-8")


def write_outputs(out: Path, *, summary: Summary, outcome: Outcome, title: str) -> None:
    """Write what one run came to: its summary, lines and report."""
    (out / "summary.json").write_text(json.dumps(asdict(summary)) + "\n", encoding="utf-8")
    _write_lines(out / "jobs.jsonl", [job_line(r, seed=summary.seed) for r in outcome.records])
    _write_lines(out / "nodes.jsonl", node_lines(outcome))
    (out / "report.md").write_text(report(outcome, title=title), encoding="utf-8")


def _write_lines(path: Path, lines: Sequence[dict[str, object]]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


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
        "stays": _stays(record.stays),
        "rollout_stays": _stays(record.rollout_stays),
        "slowdown": round(slowdown(record), 6),
        "wait_ratio": round(wait_ratio(record), 6),
        "phases": record.phases,
        "busy": _spans(record.busy),
        "switch": _spans(record.switch),
        "prefetch": _spans(record.prefetch),
        "lost": _spans(record.lost),
        "restarts": [{"at_s": _s(one.at_us), "node": one.node_id} for one in record.restarts],
        "moves": [
            {"at_s": _s(move.since_us), "until_s": _s(move.until_us), "why": move.why}
            for move in record.moves
        ],
        "rollout_s": [us / SECOND_US for us in record.job.rollout_us(seed)],
        "segment_s": [
            {"phase": s.phase, "duration_s": s.duration_us / SECOND_US}
            for s in demand.profile.segments
        ],
        "mode": demand.profile.mode.value,
        "sync_at": demand.profile.sync_at.value,
        "cycles": record.job.cycles,
        "switch_cost_s": demand.profile.switch_us / SECOND_US,
        "bytes": {
            "device_per_node": demand.state_bytes,
            "host_per_node": record.host_bytes,
            "disk_per_node": record.disk_bytes,
            "moved": demand.state_bytes * demand.num_units * len(record.moves),
            "total": round(record.job.state_gb * GB),
        },
    }


def node_lines(outcome: Outcome) -> list[dict[str, object]]:
    """Return the losses and drains of nodes, in seconds; None for one that never ended."""
    lost: list[dict[str, object]] = [
        {"node": one.node_id, "lost_s": _s(one.at_us), "back_s": _s(one.back_us)}
        for one in outcome.losses
    ]
    drained: list[dict[str, object]] = [
        {"node": one.node_id, "drain_s": _s(one.asked_us), "empty_s": _s(one.empty_us)}
        for one in outcome.drains
    ]
    return [*lost, *drained]


def _stays(stays: Sequence[Stay]) -> list[dict[str, object]]:
    return [
        {"since_s": _s(stay.since_us), "group": stay.group_id, "nodes": list(stay.nodes)}
        for stay in stays
    ]


def _s(at_us: int | None) -> float | None:
    return None if at_us is None else at_us / SECOND_US


def _spans(spans: list[tuple[int, int]]) -> list[list[float]]:
    return [[start / SECOND_US, end / SECOND_US] for start, end in spans]


NUM_WORST: Final = 10
_HOUR_US: Final = 3600 * SECOND_US


def report(outcome: Outcome, *, title: str) -> str:
    """Return the tables as Markdown."""
    worst = sorted(outcome.records, key=wait_ratio, reverse=True)[:NUM_WORST]
    return "\n".join(
        [
            f"# {title}",
            "",
            f"{len(outcome.losses)} nodes lost, {len(outcome.drains)} drained.",
            "",
            "## Tenants",
            "",
            *_table(
                ("tenant", "jobs", "node-hours", "slowdown p50", "p95", "wait ratio p50", "p99"),
                _tenants(outcome.records),
            ),
            "",
            "## The jobs that waited longest",
            "",
            *_table(
                ("job", "nodes", "alone h", "wait ratio", "slowdown", "most of it"),
                [
                    (
                        record.job.demand.resident_id,
                        str(record.job.demand.num_units),
                        f"{record.alone_us / _HOUR_US:.2f}",
                        f"{wait_ratio(record):.2f}",
                        f"{slowdown(record):.3f}",
                        reason(record),
                    )
                    for record in worst
                ],
            ),
            "",
        ]
    )


def reason(record: Record) -> str:
    """Say what took most of the time that a job had to wait, and how much it was."""
    parts = _parts(record)
    largest = max(parts, key=lambda name: parts[name])
    if parts[largest] <= 0:
        return "nothing: it did not wait"
    return f"{parts[largest] / _HOUR_US:.2f} h {largest}"


def _parts(record: Record) -> dict[str, int]:
    """Return where a job's time beyond its own went; what is left waited for others' operations."""
    assert record.start_us is not None, record
    assert record.finish_us is not None, record
    lost = f"after {len(record.restarts)} lost nodes, and the work lost with them"
    parts = {
        "in the queue": record.start_us - record.job.demand.arrived_us,
        "for its own switches": sum(end - start for start, end in record.switch),
        f"in {len(record.moves)} moves": sum(m.until_us - m.since_us for m in record.moves),
        lost: sum(end - start for start, end in record.lost) + _homeless_us(record),
    }
    excess = record.finish_us - record.job.demand.arrived_us - record.alone_us
    parts["behind operations of others"] = excess - sum(parts.values())
    return parts


def _homeless_us(record: Record) -> int:
    """Return how long a job that lost its nodes was without others."""
    total = 0
    for restart in record.restarts:
        later = [stay.since_us for stay in record.stays if stay.since_us >= restart.at_us]
        total += min(later, default=restart.at_us) - restart.at_us
    return total


def _tenants(records: Sequence[Record]) -> list[tuple[str, ...]]:
    by_tenant: dict[str, list[Record]] = {}
    for record in records:
        by_tenant.setdefault(record.job.demand.tenant or "(none)", []).append(record)
    rows = []
    for tenant, own in sorted(by_tenant.items()):
        slow, waits = [slowdown(r) for r in own], [wait_ratio(r) for r in own]
        used = sum(r.job.demand.num_units * (end - start) for r in own for start, end in r.busy)
        shares = [np.percentile(slow, 50), np.percentile(slow, 95)]
        shares += [np.percentile(waits, 50), np.percentile(waits, 99)]
        rows.append(
            (tenant, str(len(own)), f"{used / _HOUR_US:.1f}", *(f"{x:.3f}" for x in shares))
        )
    return rows


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [header, ["---"] * len(header), *rows]
    return ["| " + " | ".join(line) + " |" for line in lines]
