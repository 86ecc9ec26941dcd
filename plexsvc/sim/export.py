"""Workloads as a trace and a cluster file, which play to the same result."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from plexsvc.scheduler.core.planning.profile import PPM, SECOND_US, Segment
from plexsvc.sim.cluster import SimCluster
from plexsvc.sim.jobs import SimJob
from plexsvc.sim.output import make_directory
from plexsvc.sim.workloads import Workload


def export(out: Path, workload: Workload) -> tuple[Path, Path]:
    """Write `trace.jsonl` and `cluster.json` into a directory; return their paths.

    Raises:
        PlexError: `bad_request`, there can be no such directory.
    """
    make_directory(out)
    trace, cluster = out / "trace.jsonl", out / "cluster.json"
    lines = [json.dumps(_line(job, workload.cluster)) for job in workload.jobs]
    trace.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    cluster.write_text(json.dumps(_file(workload.cluster), indent=1) + "\n", encoding="utf-8")
    return trace, cluster


def _line(job: SimJob, cluster: SimCluster) -> dict[str, object]:
    demand, profile = job.demand, job.demand.profile
    line: dict[str, object] = {
        "job_id": demand.resident_id,
        "arrival_s": demand.arrived_us / SECOND_US,
        "nodes": demand.num_units,
        "cycles": job.cycles,
        "period_s": profile.period_us / SECOND_US,
        "segments": _segments(profile.segments),
        "mode": profile.mode.value,
        "sync_at": profile.sync_at.value,
        "jitter_cv": job.jitter_cv,
        "max_slowdown": demand.max_slowdown_ppm / PPM,
        "state_gb": job.state_gb,
        "rollout_nodes": demand.rollout_units,
        "deployments": job.deployments,
        "expected_cycles": job.expected_cycles,
        "priority": demand.priority,
        "tenant": demand.tenant,
        "believed": _segments(job.believed),
        "grown": _segments(job.grown),
    }
    if job.node_devices is not None:
        line["node_devices"] = job.node_devices
    if job.rollout_node_devices is not None:
        line["rollout_node_devices"] = job.rollout_node_devices
    if profile.switch_us != cluster.switch.cost_us(state_gb=job.state_gb, nodes=demand.num_units):
        line["switch_s"] = profile.switch_us / SECOND_US
    return line


def _segments(segments: Sequence[Segment]) -> list[dict[str, object]]:
    return [
        {
            "phase": segment.phase,
            "offset_s": segment.offset_us / SECOND_US,
            "duration_s": segment.duration_us / SECOND_US,
        }
        for segment in segments
    ]


def _file(cluster: SimCluster) -> dict[str, object]:
    events = [{"at_s": event.at_s, event.action.value: event.node} for event in cluster.events]
    parts: dict[str, object] = {**asdict(cluster), "events": events}
    del parts["unequal"]
    if cluster.unequal:
        del parts["devices_per_node"]
        parts["nodes"] = [_given(asdict(group)) for group in cluster.unequal]
    return _given(parts)


def _given(parts: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in parts.items() if value is not None}
