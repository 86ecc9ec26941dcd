"""Job traces (JSONL) and cluster files (JSON), read and written.

A trace is a `JobLine` for each job. A cluster file has the fields of `SimCluster`, but for `nodes`,
which may be a list of sizes, and `events`, whose action is a key. Nodes are called `n00000`,
`n00001`, ...; only a join may name another.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Final

from msgspec import Meta

from plexsvc.ids import ResidentId, TenantId
from plexsvc.scheduler.core.planning.profile import (
    PPM,
    SECOND_US,
    SYNC_PHASE,
    Demand,
    Mode,
    Profile,
    Segment,
    SyncAt,
)
from plexsvc.sim.cluster import GB, Devices, NodeAction, NodeGroup, SimCluster, node_name
from plexsvc.sim.files import Amount, Count, CountOrNone, Source, make_directory, text_of
from plexsvc.sim.jobs import ROLLOUT_PHASES, SimJob
from plexsvc.sim.workloads import Workload

MIN_MTBF_H: Final = 0.01
"""Losses closer than this would leave no time for anything else; 0 is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceSegment:
    """A segment of a cycle as files have it."""

    phase: Annotated[str, Meta(min_length=1)]
    """What runs, for example `update`; `sync` delivers weights."""

    offset_s: Amount
    """Since the cycle began."""

    duration_s: Amount
    """How long it takes alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLine:
    """A job as a trace has it."""

    job_id: Annotated[str, Meta(min_length=1)]
    """Its name, once in the file."""

    arrival_s: Amount
    """When it is submitted."""

    nodes: Count
    """Its training gang, whole or not at all."""

    cycles: Count
    """How many it trains; at most 1,000,000."""

    period_s: Annotated[float, Meta(gt=0, le=1e9)]
    """Length of a cycle alone."""

    segments: Annotated[list[TraceSegment], Meta(min_length=1, max_length=1000)]
    """Device use in a cycle: in order, disjoint, inside the period, at most 1,000."""

    mode: Mode = Mode.SYNC
    """`"sync"`: one chain of rollout and training; `"async1"`: one step of staleness."""

    sync_at: SyncAt = SyncAt.UPDATE
    """Of `"async1"`: weights are published after the update, or (`"boundary"`) by the segments of
    phase `sync` at the end of the iteration, on the critical path."""

    jitter_cv: Annotated[float, Meta(ge=0, le=100)] = 0.0
    """Coefficient of variation of the rollout time, lognormal; at most 100."""

    max_slowdown: Annotated[float, Meta(ge=1, le=1e9)] = 1.5
    """How much longer its cycle may be predicted to get by sharing; one that is measured past it is
    relieved."""

    state_gb: Amount = 0.0
    """State of all its nodes together; 0: its switches cost nothing."""

    rollout_nodes: CountOrNone = 0
    """Nodes it holds for itself alone besides."""

    deployments: Count = 1
    """Training deployments with a gang of `nodes` each, to which the phases are dealt in order; at
    most as many as phases."""

    expected_cycles: CountOrNone | None = None
    """How many it says it will train; `null`: as many as it will, 0: it does not say."""

    priority: Annotated[int, Meta(ge=-(1 << 31), lt=1 << 31)] = 0
    """Higher ones are offered nodes first."""

    tenant: str = ""
    """Whose it is."""

    switch_s: Amount | None = None
    """What a switch to it costs, instead of by `state_gb` and link."""

    node_devices: Devices | None = None
    """Devices of each node it asks for, if not the cluster's `devices_per_node`."""

    rollout_node_devices: Devices | None = None
    """Devices of each of its rollout nodes, if it takes turns with others on these too: phases
    `rollout` and `tail` run there, the others on its training nodes, which have another size. Needs
    `mode` `"sync"` and 2 `deployments`."""

    believed: Annotated[list[TraceSegment], Meta(max_length=1000)] = field(default_factory=list)
    """Segments as an earlier run left them on record, if the truth differs; the same phases."""

    grown: Annotated[list[TraceSegment], Meta(max_length=1000)] = field(default_factory=list)
    """Segments of the second half of its cycles, if they differ; the same phases."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Act:
    """An operator's act as a cluster file has it: one of the actions, with its node."""

    at_s: Amount
    cordon: str | None = None
    uncordon: str | None = None
    drain: str | None = None
    join: str | None = None


def read_cluster(path: Path) -> SimCluster:
    """Return the cluster of a JSON file.

    Raises:
        PlexError: `bad_request` with file, line and field.
    """
    source = Source(path=path, text=text_of(path))
    data = source.data()
    if "unequal" in data:
        source.refuse("unequal", "an unknown field", "sizes in nodes")
    if isinstance(data.get("nodes"), list):
        kind = Annotated[list[NodeGroup], Meta(min_length=1)]
        unequal = source.read(data["nodes"], kind, where="nodes")
        if "devices_per_node" in data:
            source.refuse("devices_per_node", "it beside a list of nodes", "devices in each there")
        total = sum(group.count for group in unequal)
        sizes = {"nodes": total, "devices_per_node": unequal[0].devices, "unequal": data["nodes"]}
        data |= sizes
    acts = source.read(data.pop("events", []), list[_Act], where="events")
    events = [_event(act, index, source) for index, act in enumerate(acts)]
    cluster = source.read({**data, "events": events}, SimCluster)
    if 0 < cluster.faults.node_mtbf_h < MIN_MTBF_H:
        found = cluster.faults.node_mtbf_h
        source.refuse("faults.node_mtbf_h", found, f"0 or at least {MIN_MTBF_H}")
    _check_events(cluster, source)
    return cluster


def _event(act: _Act, index: int, source: Source) -> dict[str, object]:
    named = [(action, getattr(act, action)) for action in NodeAction]
    given = [{"action": action.value, "node": node} for action, node in named if node]
    if len(given) != 1:
        source.refuse(f"events[{index}]", f"{len(given)} actions", "one, with the name of a node")
    return {"at_s": act.at_s, **given[0]}


def _check_events(cluster: SimCluster, source: Source) -> None:
    known, last_s = {node_name(number) for number in range(cluster.nodes)}, 0.0
    for index, event in enumerate(cluster.events):
        where = f"events[{index}]"
        if event.action is NodeAction.JOIN:
            known.add(event.node)
        elif event.node not in known:
            source.refuse(f"{where}.{event.action}", event.node, "a node that is there by then")
        if event.at_s < last_s:
            source.refuse(f"{where}.at_s", event.at_s, f"at least {last_s:g}: in order")
        last_s = event.at_s


def read_trace(path: Path, *, cluster: SimCluster) -> tuple[SimJob, ...]:
    """Return the jobs of a JSONL trace in the file's order.

    Raises:
        PlexError: `bad_request` with file, line and field; nothing is returned of a bad trace.
    """
    jobs: list[SimJob] = []
    seen: dict[str, int] = {}
    for number, text in enumerate(text_of(path).split("\n"), start=1):
        if not text.strip():
            continue
        source = Source(path=path, line=number, text=text)
        job = _job(source.read(source.data(), JobLine), cluster, source)
        job_id = job.demand.resident_id
        if job_id in seen:
            source.refuse("job_id", f"{job_id!r} again", f"one line a job, as line {seen[job_id]}")
        seen[job_id] = number
        jobs.append(job)
    if not jobs:
        Source(path=path, text="").refuse("job_id", "an empty file", "at least one job")
    return tuple(jobs)


def read_job(path: Path, *, cluster: SimCluster) -> SimJob:
    """Return the job of a JSON file: the keys of a trace's line, over as many lines as it likes.

    When it comes and for how many cycles may be left out: now, and one.

    Raises:
        PlexError: `bad_request` with file and field.
    """
    source = Source(path=path, text=text_of(path))
    line = source.read({"arrival_s": 0, "cycles": 1, **source.data()}, JobLine)
    return _job(line, cluster, source)


def _job(line: JobLine, cluster: SimCluster, source: Source) -> SimJob:
    size = line.node_devices or cluster.devices_per_node
    if line.rollout_node_devices is None:
        there = cluster.counts.get(size, 0)
        if line.nodes + line.rollout_nodes > there:
            asked = f"{line.nodes} + {line.rollout_nodes} rollout nodes"
            source.refuse("nodes", asked, f"at most the cluster's {there} of that size")
    node_gb, room_gb = line.state_gb / line.nodes, cluster.least_host_gb(size) + cluster.disk_gb
    if node_gb > room_gb:
        source.refuse("state_gb", f"{node_gb} a node", f"at most {room_gb} (host + disk)")
    switch_us = cluster.switch.cost_us(state_gb=line.state_gb, nodes=line.nodes)
    profile = Profile(
        period_us=_us(line.period_s),
        segments=_segments(line.segments, "segments", line, source),
        mode=line.mode,
        sync_at=line.sync_at,
        switch_us=switch_us if line.switch_s is None else _us(line.switch_s),
        jitter_ppm=round(line.jitter_cv * PPM),
    )
    _check_phases(line, cluster, source)
    demand = Demand(
        resident_id=ResidentId(line.job_id),
        num_units=line.nodes,
        profile=profile,
        arrived_us=_us(line.arrival_s),
        expected_us=profile.period_us * line.cycles,
        state_bytes=round(node_gb * GB),
        max_slowdown_ppm=round(line.max_slowdown * PPM),
        rollout_units=line.rollout_nodes,
        priority=line.priority,
        tenant=TenantId(line.tenant),
    )
    return SimJob(
        demand=demand,
        cycles=line.cycles,
        jitter_cv=line.jitter_cv,
        state_gb=line.state_gb,
        node_devices=line.node_devices,
        rollout_node_devices=line.rollout_node_devices,
        deployments=line.deployments,
        expected_cycles=line.expected_cycles,
        believed=_segments(line.believed, "believed", line, source),
        grown=_segments(line.grown, "grown", line, source),
    )


def _check_phases(line: JobLine, cluster: SimCluster, source: Source) -> None:
    """Refuse phases that do not fit how a job runs."""
    phases = _phases(line.segments)
    told = f"{line.mode} with phases {', '.join(phases)}"
    for name in ("believed", "grown"):
        other = _phases(getattr(line, name))
        if other and other != phases:
            source.refuse(name, f"phases {', '.join(other)}", f"those of segments, {phases}")
    if line.deployments > len(phases):
        source.refuse("deployments", line.deployments, f"at most {len(phases)}, one a phase")
    syncs = {phase == SYNC_PHASE for phase in phases}
    if line.mode is Mode.ASYNC1 and line.sync_at is SyncAt.BOUNDARY and len(syncs) == 1:
        wanted = f"some of phase {SYNC_PHASE!r}, which publish, and others, which train"
        source.refuse("sync_at", f"'boundary', {told}", wanted)
    if line.rollout_node_devices is None:
        return
    if line.rollout_node_devices == (line.node_devices or cluster.devices_per_node):
        found = line.rollout_node_devices
        source.refuse("rollout_node_devices", found, "nodes of another size than it trains on")
    sizes = {"nodes": line.node_devices, "rollout_nodes": line.rollout_node_devices}
    for name, size in sizes.items():
        there = cluster.counts.get(size or cluster.devices_per_node, 0)
        if not 1 <= getattr(line, name) <= there:
            source.refuse(name, getattr(line, name), f"1 to {there}, the nodes of that size")
    if line.mode is not Mode.SYNC or len({phase in ROLLOUT_PHASES for phase in phases}) == 1:
        wanted = f"mode sync, and some phases of {', '.join(ROLLOUT_PHASES)}"
        source.refuse("segments", f"mode {told}", wanted)
    if line.deployments != len(sizes):
        source.refuse("deployments", line.deployments, "2: one rolls out, one trains")


def _phases(segments: list[TraceSegment]) -> list[str]:
    return list(dict.fromkeys(segment.phase for segment in segments))


def _segments(
    stretches: list[TraceSegment], name: str, line: JobLine, source: Source
) -> tuple[Segment, ...]:
    """Return segments that are in order, disjoint and within the period."""
    segments: list[Segment] = []
    last_us = 0
    for index, one in enumerate(stretches):
        segment = Segment(
            phase=one.phase, offset_us=_us(one.offset_s), duration_us=_us(one.duration_s)
        )
        if not segment.duration_us:
            source.refuse(f"{name}[{index}].duration_s", one.duration_s, "more than 0")
        if segment.offset_us < last_us or segment.end_us > _us(line.period_s):
            found = f"{one.offset_s:g} to {segment.end_us / SECOND_US:g} s"
            wanted = f"a stretch from {last_us / SECOND_US:g} to {line.period_s:g} s: in order"
            source.refuse(f"{name}[{index}]", found, f"{wanted}, within the period")
        last_us = segment.end_us
        segments.append(segment)
    return tuple(segments)


def _us(seconds: float) -> int:
    return round(seconds * SECOND_US)


def export(out: Path, workload: Workload) -> tuple[Path, Path]:
    """Write `trace.jsonl` and `cluster.json`, which play to the same result; return their paths.

    Raises:
        PlexError: `bad_request`, there can be no such directory.
    """
    make_directory(out)
    trace, cluster = out / "trace.jsonl", out / "cluster.json"
    lines = [json.dumps(_given(_line(job, workload.cluster))) for job in workload.jobs]
    trace.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    parts = _given(workload.cluster)
    parts["events"] = [
        {"at_s": event.at_s, event.action: event.node} for event in workload.cluster.events
    ]
    del parts["unequal"]
    if workload.cluster.unequal:
        del parts["devices_per_node"]
        parts["nodes"] = [_given(group) for group in workload.cluster.unequal]
    cluster.write_text(json.dumps(parts, indent=1) + "\n", encoding="utf-8")
    return trace, cluster


def _line(job: SimJob, cluster: SimCluster) -> JobLine:
    demand, profile = job.demand, job.demand.profile
    switch_us = cluster.switch.cost_us(state_gb=job.state_gb, nodes=demand.num_units)
    return JobLine(
        job_id=demand.resident_id,
        arrival_s=demand.arrived_us / SECOND_US,
        nodes=demand.num_units,
        cycles=job.cycles,
        period_s=profile.period_us / SECOND_US,
        segments=_stretches(profile.segments),
        mode=profile.mode,
        sync_at=profile.sync_at,
        jitter_cv=job.jitter_cv,
        max_slowdown=demand.max_slowdown_ppm / PPM,
        state_gb=job.state_gb,
        rollout_nodes=demand.rollout_units,
        deployments=job.deployments,
        expected_cycles=job.expected_cycles,
        priority=demand.priority,
        tenant=demand.tenant,
        switch_s=None if profile.switch_us == switch_us else profile.switch_us / SECOND_US,
        node_devices=job.node_devices,
        rollout_node_devices=job.rollout_node_devices,
        believed=_stretches(job.believed),
        grown=_stretches(job.grown),
    )


def _stretches(segments: tuple[Segment, ...]) -> list[TraceSegment]:
    return [
        TraceSegment(
            phase=segment.phase,
            offset_s=segment.offset_us / SECOND_US,
            duration_s=segment.duration_us / SECOND_US,
        )
        for segment in segments
    ]


def _given(one: JobLine | SimCluster | NodeGroup) -> dict[str, object]:
    return {name: value for name, value in asdict(one).items() if value is not None}
