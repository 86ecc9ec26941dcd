"""Job traces (JSONL) and cluster files (JSON): read, checked, refused with file, line and field.

A job's line: `job_id, arrival_s, nodes, cycles, period_s, segments: [{phase, offset_s,
duration_s}]` are required; `mode` ("sync"), `sync_at` ("update"), `jitter_cv` (0), `max_slowdown`
(1.5), `state_gb` (0: switches cost nothing), `rollout_nodes` (0), `deployments` (1: the phases are
dealt to so many, each with a gang), `expected_cycles` (null: as many as `cycles`; 0: the job does
not say), `priority` (0), `tenant` (""), `switch_s` (null: by state and link), `node_devices` (null:
the cluster's `devices_per_node`), `rollout_node_devices` (null: rollout nodes are its own),
`believed` and `grown` (segments like the true ones: what is on
record of the cycle, and its second half) have those defaults. With
`mode` "async1" and `sync_at` "boundary" the segments of phase "sync" are those that publish. Every
number has a bound; a refusal names it. A cluster file holds the fields of `SimCluster`, `switch`
and `faults` as objects, `events` as a list of `{at_s, ACTION: node}` with an action of `cordon`,
`uncordon`, `drain` or `join`; only `nodes` is required, a number or a list of `{count, devices,
host_gb, price}`. The nodes are `n00000`, `n00001`, ...; only
a join may name another.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final, NoReturn, TypeVar

from plexsvc.errors import ErrorCode, PlexError
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
from plexsvc.sim.cluster import (
    GB,
    Faults,
    NodeAction,
    NodeEvent,
    NodeGroup,
    SimCluster,
    SwitchModel,
)
from plexsvc.sim.jobs import ROLLOUT_PHASES, SimJob

Json = Mapping[str, object]
_Choice = TypeVar("_Choice", Mode, SyncAt)

MAX_NUMBER: Final = 1e9
"""The largest number a field may have where nothing smaller is said: in seconds, 31 years."""
MAX_CYCLES: Final = 1_000_000
MAX_NODES: Final = 1_000_000
MAX_DEVICES: Final = 1_024
MAX_SEGMENTS: Final = 1_000
MAX_JITTER_CV: Final = 100.0
MIN_LINK_GB_S: Final = 1e-6
MIN_MTBF_H: Final = 0.01
"""Losses closer than this would leave no time for anything else; 0 is none."""
MAX_REPAIR_S: Final = 1e6

_REQUIRED: Final = ("job_id", "arrival_s", "nodes", "cycles", "period_s", "segments")
_OPTIONAL: Final[Mapping[str, object]] = {
    "mode": "sync",
    "sync_at": "update",
    "jitter_cv": 0.0,
    "max_slowdown": 1.5,
    "state_gb": 0.0,
    "rollout_nodes": 0,
    "deployments": 1,
    "expected_cycles": None,
    "priority": 0,
    "tenant": "",
    "switch_s": None,
    "node_devices": None,
    "rollout_node_devices": None,
    "believed": [],
    "grown": [],
}
_RANGES: Final[Mapping[str, tuple[float, float]]] = {
    "link_gb_s": (MIN_LINK_GB_S, MAX_NUMBER),
    "disk_gb_s": (MIN_LINK_GB_S, MAX_NUMBER),
    "slow_switch_share": (0, 1),
    "repair_s": (0, MAX_REPAIR_S),
}
_SHOWN: Final = 60
_SURROGATES: Final = ("\ud800", "\udfff")


@dataclass(frozen=True, slots=True, kw_only=True)
class _At:
    """Where in the input we are, for messages."""

    path: Path
    line: int
    text: str

    def refuse(self, field: str, found: str, wanted: str) -> NoReturn:
        """Refuse a field."""
        line = self.line + _lines_before(field, self.text)
        raise PlexError(
            ErrorCode.BAD_REQUEST,
            f"{self.path}, line {line}, field {field}: found {found}, wanted {wanted}",
            file=self.path,
            line=line,
            field=field,
        )


def read_cluster(path: Path) -> SimCluster:
    """Return the cluster of a JSON file.

    Raises:
        PlexError: `bad_request` with file, line and field.
    """
    at = _At(path=path, line=1, text=_text(path))
    data = _object(at)
    _only(data, [f.name for f in fields(SimCluster) if f.name != "unequal"], at, prefix="")
    if "nodes" not in data:
        at.refuse("nodes", "nothing", "the number of nodes, or a list of {count, devices}")
    unequal = _node_groups(data, at)
    if unequal:
        if "devices_per_node" in data:
            at.refuse("devices_per_node", "it beside a list of nodes", "the devices of each there")
        total = sum(group.count for group in unequal)
        data = {**data, "nodes": total, "devices_per_node": unequal[0].devices}
    counts = {"nodes": MAX_NODES, "devices_per_node": MAX_DEVICES, "nodes_per_host": MAX_NODES}
    parts: dict[str, int | float] = {
        name: _integer(data, name, at, low=1, high=high)
        for name, high in counts.items()
        if name in data
    }
    lows = {"host_gb": 0, "disk_gb": 0, "migrate_gb_s": MIN_LINK_GB_S, "target_slowdown": 1}
    for name, low in lows.items():
        if name in data:
            parts[name] = _number(data, name, at, low=low)
    switch = SwitchModel(**_floats(data, "switch", [f.name for f in fields(SwitchModel)], at))
    faults = Faults(**_floats(data, "faults", [f.name for f in fields(Faults)], at))
    events = _events(data, int(parts["nodes"]), at)
    return SimCluster(**parts, switch=switch, faults=faults, events=events, unequal=unequal)  # type: ignore[arg-type]  # counts are ints


def _node_groups(data: Json, at: _At) -> tuple[NodeGroup, ...]:
    """Return the nodes by size where `nodes` is a list; none where it is a number."""
    items = data["nodes"]
    if not isinstance(items, list):
        return ()
    groups: list[NodeGroup] = []
    for index, item in enumerate(items):
        name = f"nodes[{index}]"
        if not isinstance(item, dict) or not {"count", "devices"} <= item.keys():
            at.refuse(name, _short(item), "an object {count, devices}, and host_gb if it differs")
        _only(item, ["count", "devices", "host_gb", "price"], at, prefix=f"{name}.")
        host_gb = (
            _number(item, "host_gb", at, low=0, prefix=f"{name}.") if "host_gb" in item else None
        )
        groups.append(
            NodeGroup(
                count=_integer(item, "count", at, low=1, high=MAX_NODES, prefix=f"{name}."),
                devices=_integer(item, "devices", at, low=1, high=MAX_DEVICES, prefix=f"{name}."),
                host_gb=host_gb,
                price=_number({"price": 1, **item}, "price", at, low=0, prefix=f"{name}."),
            )
        )
    if not groups:
        at.refuse("nodes", "an empty list", "at least one {count, devices}")
    return tuple(groups)


def read_trace(path: Path, *, cluster: SimCluster) -> tuple[SimJob, ...]:
    """Return the jobs of a JSONL trace in the file's order.

    Raises:
        PlexError: `bad_request` with file, line and field; nothing is returned of a bad trace.
    """
    jobs: list[SimJob] = []
    seen: dict[str, int] = {}
    for number, line in enumerate(_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        at = _At(path=path, line=number, text=line)
        job = _job(_object(at), cluster, at)
        job_id = job.demand.resident_id
        if job_id in seen:
            at.refuse("job_id", f"{job_id!r} again", f"one line a job; line {seen[job_id]} has it")
        seen[job_id] = number
        jobs.append(job)
    if not jobs:
        _At(path=path, line=1, text="").refuse("job_id", "an empty file", "at least one job")
    return tuple(jobs)


def read_job(path: Path, *, cluster: SimCluster) -> SimJob:
    """Return the job of a JSON file: the keys of a trace's line, over as many lines as it likes.

    When it comes and for how many cycles may be left out: now, and one.

    Raises:
        PlexError: `bad_request` with file and field.
    """
    at = _At(path=path, line=1, text=_text(path))
    return _job({"arrival_s": 0, "cycles": 1, **_object(at)}, cluster, at)


def _events(data: Json, num_nodes: int, at: _At) -> tuple[NodeEvent, ...]:
    items = data.get("events", [])
    if not isinstance(items, list):
        at.refuse("events", _short(items), "a list of {at_s, drain|join|cordon|uncordon: node}")
    known = {f"n{number:05d}" for number in range(num_nodes)}
    events: list[NodeEvent] = []
    for index, item in enumerate(items):
        name = f"events[{index}]"
        if not isinstance(item, dict):
            at.refuse(name, _short(item), "an object {at_s, drain|join|cordon|uncordon: node}")
        _only(item, ["at_s", *(action.value for action in NodeAction)], at, prefix=f"{name}.")
        actions = [action for action in NodeAction if action.value in item]
        if "at_s" not in item or len(actions) != 1:
            at.refuse(name, _short(item), "at_s and one of drain, join, cordon, uncordon")
        node = _string(item, actions[0].value, at, prefix=f"{name}.")
        if actions[0] is NodeAction.JOIN:
            known.add(node)
        elif node not in known:
            at.refuse(f"{name}.{actions[0].value}", repr(node), "a node that is there by then")
        at_s = _number(item, "at_s", at, low=0, prefix=f"{name}.")
        if events and at_s < events[-1].at_s:
            at.refuse(f"{name}.at_s", f"{at_s:g}", f"at least {events[-1].at_s:g}: in order")
        events.append(NodeEvent(at_s=at_s, action=actions[0], node=node))
    return tuple(events)


def _job(data: Json, cluster: SimCluster, at: _At) -> SimJob:
    _only(data, [*_REQUIRED, *_OPTIONAL], at, prefix="")
    for name in _REQUIRED:
        if name not in data:
            at.refuse(name, "nothing", "a value; the field is required")
    full = {**_OPTIONAL, **data}
    nodes = _integer(full, "nodes", at, low=1, high=MAX_NODES)
    rollout_nodes = _integer(full, "rollout_nodes", at, low=0, high=MAX_NODES)
    size, rollout_size = (
        None if full[name] is None else _integer(full, name, at, low=1, high=MAX_DEVICES)
        for name in ("node_devices", "rollout_node_devices")
    )
    there = cluster.counts.get(size or cluster.devices_per_node, 0)
    if rollout_size is None and nodes + rollout_nodes > there:
        asked = f"{nodes} + {rollout_nodes} rollout nodes"
        at.refuse("nodes", asked, f"at most the cluster's {there} of that size")
    state_gb = _number(full, "state_gb", at, low=0)
    room_gb = cluster.least_host_gb(size or cluster.devices_per_node) + cluster.disk_gb
    if state_gb / nodes > room_gb:
        at.refuse("state_gb", f"{state_gb / nodes} a node", f"at most {room_gb} (host + disk)")
    switch_us = cluster.switch.cost_us(state_gb=state_gb, nodes=nodes)
    if full["switch_s"] is not None:
        switch_us = _micros(full, "switch_s", at)
    profile = _profile(full, switch_us, at)
    if rollout_size is not None:
        _check_turns(full, profile, cluster, at)
    cycles = _integer(full, "cycles", at, low=1, high=MAX_CYCLES)
    demand = Demand(
        resident_id=ResidentId(_string(full, "job_id", at)),
        num_units=nodes,
        profile=profile,
        arrived_us=_micros(full, "arrival_s", at),
        expected_us=profile.period_us * cycles,
        state_bytes=round(state_gb / nodes * GB),
        max_slowdown_ppm=round(_number(full, "max_slowdown", at, low=1) * PPM),
        rollout_units=rollout_nodes,
        priority=_integer(full, "priority", at, low=-(1 << 31), high=(1 << 31) - 1),
        tenant=TenantId(_string(full, "tenant", at)),
    )
    says = full["expected_cycles"]
    phases = list(dict.fromkeys(segment.phase for segment in profile.segments))
    return SimJob(
        demand=demand,
        cycles=cycles,
        jitter_cv=_number(full, "jitter_cv", at, low=0, high=MAX_JITTER_CV),
        state_gb=state_gb,
        node_devices=size,
        rollout_node_devices=rollout_size,
        deployments=_integer(full, "deployments", at, low=1, high=len(phases)),
        expected_cycles=None
        if says is None
        else _integer(full, "expected_cycles", at, low=0, high=MAX_CYCLES),
        believed=_other_segments(full, "believed", profile.period_us, phases, at),
        grown=_other_segments(full, "grown", profile.period_us, phases, at),
    )


def _check_turns(full: Json, profile: Profile, cluster: SimCluster, at: _At) -> None:
    """Refuse a job that cannot take turns on rollout nodes and on training nodes."""
    devices, rollout_devices = full["node_devices"], full["rollout_node_devices"]
    sizes = {"nodes": devices or cluster.devices_per_node, "rollout_nodes": rollout_devices}
    if len(set(sizes.values())) == 1:
        found = _short(rollout_devices)
        at.refuse("rollout_node_devices", found, "nodes of another size than it trains on")
    for name, size in sizes.items():
        there = sum(count for each, count in cluster.counts.items() if each == size)
        _integer(full, name, at, low=1, high=there)
    are_rollouts = {segment.phase in ROLLOUT_PHASES for segment in profile.segments}
    if profile.mode is not Mode.SYNC or len(are_rollouts) == 1:
        phases = ", ".join(dict.fromkeys(segment.phase for segment in profile.segments))
        wanted = f"mode sync, and some phases of {', '.join(ROLLOUT_PHASES)}"
        at.refuse("segments", f"mode {profile.mode} with phases {phases}", wanted)
    if full["deployments"] != len(sizes):
        at.refuse("deployments", _short(full["deployments"]), "2: one rolls out, one trains")


def _other_segments(
    data: Json, name: str, period_us: int, phases: list[str], at: _At
) -> tuple[Segment, ...]:
    """Return segments that differ from the true ones in time alone; none where none are given."""
    if data[name] == []:
        return ()
    segments = _segments(data, name, period_us, at)
    found = list(dict.fromkeys(segment.phase for segment in segments))
    if found != phases:
        at.refuse(name, f"phases {', '.join(found)}", f"those of segments: {', '.join(phases)}")
    return segments


def _profile(data: Json, switch_us: int, at: _At) -> Profile:
    period_us = _micros(data, "period_s", at)
    if period_us <= 0:
        at.refuse("period_s", repr(data["period_s"]), "more than 0")
    segments = _segments(data, "segments", period_us, at)
    mode, sync_at = _choice(data, "mode", Mode, at), _choice(data, "sync_at", SyncAt, at)
    publishes = {segment.phase == SYNC_PHASE for segment in segments}
    if mode is Mode.ASYNC1 and sync_at is SyncAt.BOUNDARY and len(publishes) == 1:
        phases = ", ".join(dict.fromkeys(segment.phase for segment in segments))
        wanted = f"with segments of phase {SYNC_PHASE!r}, which publish, and of others, which train"
        at.refuse("sync_at", f"'boundary' with phases {phases}", wanted)
    return Profile(
        period_us=period_us,
        segments=segments,
        mode=mode,
        sync_at=sync_at,
        switch_us=switch_us,
        jitter_ppm=round(_number(data, "jitter_cv", at, low=0, high=MAX_JITTER_CV) * PPM),
    )


def _segments(data: Json, field: str, period_us: int, at: _At) -> tuple[Segment, ...]:
    items = data[field]
    if not isinstance(items, list) or not items:
        at.refuse(field, _short(items), "a list of {phase, offset_s, duration_s}")
    if len(items) > MAX_SEGMENTS:
        at.refuse(field, f"{len(items)} of them", f"at most {MAX_SEGMENTS}")
    segments: list[Segment] = []
    for index, item in enumerate(items):
        name = f"{field}[{index}]"
        if not isinstance(item, dict):
            at.refuse(name, _short(item), "an object {phase, offset_s, duration_s}")
        _only(item, ["phase", "offset_s", "duration_s"], at, prefix=f"{name}.")
        for key in ("phase", "offset_s", "duration_s"):
            if key not in item:
                at.refuse(f"{name}.{key}", "nothing", "a value")
        segment = Segment(
            phase=_string(item, "phase", at, prefix=f"{name}."),
            offset_us=_micros(item, "offset_s", at, prefix=f"{name}."),
            duration_us=_micros(item, "duration_s", at, prefix=f"{name}."),
        )
        if segment.duration_us == 0:
            at.refuse(f"{name}.duration_s", "0", "more than 0")
        if segment.end_us > period_us:
            ends = f"an end at {segment.end_us / SECOND_US:g} s"
            at.refuse(name, ends, f"an end within the period of {period_us / SECOND_US:g} s")
        if segments and segment.offset_us < segments[-1].end_us:
            before = f"{field}[{index - 1}] until {segments[-1].end_us / SECOND_US:g} s"
            begins = f"a start at {segment.offset_us / SECOND_US:g} s"
            at.refuse(name, begins, f"one after {before}: in order, without overlap")
        segments.append(segment)
    return tuple(segments)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise PlexError(
            ErrorCode.BAD_REQUEST,
            f"{path} could not be read: {error}; give a UTF-8 file",
            file=path,
        ) from error


def _object(at: _At) -> Json:
    try:
        data = json.loads(at.text, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        line = at.line + (error.lineno - 1 if isinstance(error, json.JSONDecodeError) else 0)
        raise PlexError(
            ErrorCode.BAD_REQUEST,
            f"{at.path}, line {line}: not JSON ({error}); give one object",
            file=at.path,
            line=line,
        ) from error
    if not isinstance(data, dict):
        at.refuse("(line)", _short(data), "one JSON object")
    return data


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Return an object whose keys all differ: of two equal ones, which was meant?"""
    data = dict(pairs)
    if len(data) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"key {twice!r} comes twice")
    return data


def _short(value: object) -> str:
    """Return a value as messages show it."""
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _lines_before(field: str, text: str) -> int:
    """Return in which line of `text` the value of a field like `events[1].drain` stands, from 0."""
    at = 0
    for part in field.split("."):
        name, _, index = part.partition("[")
        found = text.find(f'"{name}"', at)
        if found < 0:
            break
        at = found
        for _ in range(int(index.rstrip("]")) + 1 if index else 0):
            at = max(at, text.find("{", at + 1))
    return text.count("\n", 0, at)


def _only(data: Json, known: list[str], at: _At, *, prefix: str) -> None:
    for name in data:
        if name not in known:
            at.refuse(f"{prefix}{name}", "an unknown field", f"only {', '.join(known)}")


def _number(
    data: Json, name: str, at: _At, *, low: float, high: float = MAX_NUMBER, prefix: str = ""
) -> float:
    value = data[name]
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not low <= value <= high:  # type: ignore[operator]  # it is a number
        at.refuse(f"{prefix}{name}", _short(value), f"a number from {low:g} to {high:g}")
    return float(value)  # type: ignore[arg-type]


def _integer(data: Json, name: str, at: _At, *, low: int, high: int, prefix: str = "") -> int:
    value = data[name]
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        at.refuse(f"{prefix}{name}", _short(value), f"an integer from {low} to {high}")
    return value


def _micros(data: Json, name: str, at: _At, *, prefix: str = "") -> int:
    return round(_number(data, name, at, low=0, prefix=prefix) * SECOND_US)


def _string(data: Json, name: str, at: _At, *, prefix: str = "") -> str:
    value = data[name]
    if not isinstance(value, str) or (not value and name != "tenant"):
        at.refuse(f"{prefix}{name}", _short(value), "a string")
    if any(_SURROGATES[0] <= letter <= _SURROGATES[1] for letter in value):
        at.refuse(f"{prefix}{name}", _short(value), "text without half of a surrogate pair")
    return value


def _choice(data: Json, name: str, kind: type[_Choice], at: _At) -> _Choice:
    try:
        return kind(str(data[name]))
    except ValueError:
        at.refuse(name, _short(data[name]), " or ".join(repr(c.value) for c in kind))


def _floats(data: Json, name: str, known: list[str], at: _At) -> dict[str, float]:
    part = data.get(name, {})
    if not isinstance(part, dict):
        at.refuse(name, _short(part), f"an object with {', '.join(known)}")
    prefix = f"{name}."
    _only(part, known, at, prefix=prefix)
    values: dict[str, float] = {}
    for key in part:
        low, high = _RANGES.get(key, (0, MAX_NUMBER))
        values[key] = _number(part, key, at, low=low, high=high, prefix=prefix)
    if 0 < values.get("node_mtbf_h", 0) < MIN_MTBF_H:
        at.refuse("faults.node_mtbf_h", f"{values['node_mtbf_h']:g}", f"0 or at least {MIN_MTBF_H}")
    return values
