"""Pictures of runs: how nodes were used, how long jobs waited, and who had which node when."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from plexsvc.ids import UnitId
from plexsvc.scheduler.core.planning.profile import SECOND_US
from plexsvc.sim.cluster import SimCluster
from plexsvc.sim.records import Outcome, Record
from plexsvc.sim.summary import wait_ratio
from plexsvc.sim.tracks import lived, waits

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Floats = npt.NDArray[np.float64]
Spans = list[tuple[int, int]]

MAX_BUCKETS: Final = 200
"""Points of a curve over time; fewer where a point would cover less than two cycles of a job."""
MAX_POINTS: Final = 900
"""Columns, and rows, of the picture of nodes; more nodes than that share rows."""
MAX_OWNERS: Final = 20
"""Colours for owners; more owners use them again."""
MARKS: Final = (("lost", "tab:red", "v"), ("drained", "tab:purple", "s"), ("moves", "black", "|"))
_HOLDING: Final = 1e-3
"""What holding a node counts, against working on it, for whose colour it gets."""
_PALE: Final = 0.75
"""How far the colour of a node that is held and idle goes towards white."""
_HOUR_US: Final = 3600 * SECOND_US


def utilisation(
    path: Path, outcomes: Sequence[Outcome], *, cluster: SimCluster, title: str, bound_us: int
) -> None:
    """Draw what of all nodes was held, switched and ran, and the queue, one row for each run."""
    figure, rows = _rows(len(outcomes), height=2.6)
    first_us, end_us = _extent(outcomes)
    for axes, outcome in zip(rows, outcomes, strict=True):
        _draw_use(axes, outcome, cluster, first_us=first_us, end_us=end_us)
        axes.axvline(
            bound_us / _HOUR_US, color="black", ls=":", lw=1, label="no schedule ends before"
        )
    rows[0].legend(loc="upper left", bbox_to_anchor=(1.08, 1), fontsize=7)
    rows[-1].set_xlabel("hours since the first arrival")
    _save(figure, path, title=title)


def wait_cdf(path: Path, outcomes: Sequence[Outcome], *, title: str) -> None:
    """Draw which share of jobs waited how long, one curve for each run."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    figure, (axes,) = _rows(1, height=3.6)
    for outcome in outcomes:
        found = np.sort([wait_ratio(record) for record in outcome.records])
        found = np.concatenate([found[:1], found])
        share = np.linspace(0, 1, found.size)
        (line,) = axes.step(found, share, where="post", label=outcome.policy)
        at = np.percentile(found[1:], (50, 95, 99))
        axes.plot(at, (0.5, 0.95, 0.99), "o", ms=4, color=line.get_color())
    for percent in (50, 95, 99):
        axes.axhline(percent / 100, color="grey", lw=0.5, ls=":")
        axes.annotate(f"p{percent}", (1.01, percent / 100), xycoords="axes fraction", fontsize=7)
    longest = max(wait_ratio(record) for outcome in outcomes for record in outcome.records)
    if longest > 10:
        axes.set_xscale("symlog", linthresh=1)
    else:
        axes.xaxis.set_major_locator(MaxNLocator(nbins=8))
    axes.set_xlim(left=0)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set(xlabel="time waited / time alone", ylabel="share of jobs", ylim=(0, 1.02))
    axes.legend(loc="lower right", fontsize=8)
    _save(figure, path, title=title)


def owners(path: Path, outcome: Outcome, *, title: str) -> None:
    """Draw who had each node when: pale while it is held, in full colour while it works."""
    from matplotlib import colormaps

    figure, (axes,) = _rows(1, height=4.5)
    first_us, end_us = _extent([outcome])
    nodes = _nodes_of(outcome)
    names = list(dict.fromkeys(map(_owner, outcome.records)))
    strong_first = [*range(0, MAX_OWNERS, 2), *range(1, MAX_OWNERS, 2)]
    palette = colormaps["tab20"](strong_first)[:, :3]
    height = min(len(nodes), MAX_POINTS)
    most, held, worked = np.zeros((3, height, MAX_POINTS))
    chosen = np.zeros((height, MAX_POINTS), dtype=np.int64)
    for owner, name in enumerate(names):
        weight = np.zeros((height, MAX_POINTS))
        for record in (r for r in outcome.records if _owner(r) == name):
            uses = _use_of(record, nodes, rows=height, first_us=first_us, end_us=end_us)
            for row, busy, had in uses:
                weight[row] += busy + _HOLDING * had
                worked[row] += busy
                held[row] += had
        chosen[weight > most] = owner
        most = np.maximum(most, weight)
    strength = np.clip(worked, 0, 1)[..., None]
    full = palette[chosen % MAX_OWNERS]
    picture = np.where((held > 0)[..., None], full + (1 - strength) * _PALE * (1 - full), 1.0)
    hours = (end_us - first_us) / _HOUR_US
    axes.imshow(picture, aspect="auto", interpolation="nearest", extent=(0, hours, len(nodes), 0))
    _mark_losses(axes, outcome, nodes, first_us=first_us)
    axes.set(xlabel="hours since the first arrival", ylabel="node", xlim=(0, hours))
    step = max(1, len(nodes) // 12)
    axes.set_yticks(
        [at + 0.5 for at in range(0, len(nodes), step)], list(nodes)[::step], fontsize=6
    )
    if len(names) <= MAX_OWNERS:
        from matplotlib.patches import Patch

        patches = [Patch(color=palette[at], label=name) for at, name in enumerate(names)]
        axes.legend(handles=patches, loc="upper left", bbox_to_anchor=(1.01, 1), fontsize=7)
    _save(figure, path, title=title)


def busy_share(
    spans: Iterable[tuple[int, int]], *, first_us: int, end_us: int, buckets: int
) -> Floats:
    """Return which share of each of `buckets` equal stretches the spans cover, added up."""
    width = max(1, end_us - first_us) / buckets
    covered = np.zeros(buckets + 1)
    for start, end in spans:
        low, high = (np.clip((at - first_us) / width, 0, buckets) for at in (start, end))
        at, until = int(low), int(high)
        if at == until:
            covered[at] += high - low
            continue
        covered[at] += at + 1 - low
        covered[until] += high - until
        covered[at + 1 : until] += 1
    share: Floats = covered[:buckets]
    return share


def _draw_use(
    axes: Axes, outcome: Outcome, cluster: SimCluster, *, first_us: int, end_us: int
) -> None:
    longest_us = max(record.job.demand.profile.period_us for record in outcome.records)
    buckets = min(MAX_BUCKETS, max(1, (end_us - first_us) // (2 * longest_us)))

    def share(weighted: Iterable[tuple[int, Spans]]) -> Floats:
        total = np.zeros(buckets)
        for num_nodes, spans in weighted:
            total += num_nodes * busy_share(
                spans, first_us=first_us, end_us=end_us, buckets=buckets
            )
        return total / cluster.nodes

    records = outcome.records
    hours = (np.arange(buckets) + 0.5) * (end_us - first_us) / buckets / _HOUR_US
    held = share((1, spans) for spans in _held(outcome).values())
    ran = share((r.job.demand.num_units, r.busy) for r in records)
    moved = share((r.job.demand.num_units, [*r.switch, *r.prefetch]) for r in records)
    axes.fill_between(hours, held, color="0.88", lw=0, label="held")
    axes.fill_between(hours, ran + moved, ran, color="tab:orange", lw=0, label="switches")
    axes.fill_between(hours, ran, color="tab:blue", lw=0, label="runs")
    queue = busy_share(
        (span for record in records for span in waits(record)),
        first_us=first_us,
        end_us=end_us,
        buckets=buckets,
    )
    beside = axes.twinx()
    beside.plot(hours, queue, color="tab:green", lw=1)
    beside.set_ylabel("jobs waiting", color="tab:green", fontsize=8)
    beside.set_ylim(0, max(1.0, 1.1 * float(queue.max())))
    axes.plot([], [], color="tab:green", lw=1, label="waiting for a place")
    at_us = {
        "lost": [one.at_us for one in outcome.losses],
        "drained": [one.asked_us for one in outcome.drains],
        "moves": [move.since_us for record in records for move in record.moves],
    }
    for name, colour, marker in MARKS:
        when = [(one - first_us) / _HOUR_US for one in at_us[name]]
        line = axes.plot(when, [1.03] * len(when), marker, color=colour, ms=4, clip_on=False)
        line[0].set_label(name)
    label = f"{outcome.policy}\nshare of nodes"
    axes.set(ylabel=label, ylim=(0, 1), xlim=(0, (end_us - first_us) / _HOUR_US))


def _held(outcome: Outcome) -> dict[UnitId, Spans]:
    """Return when each node was somebody's, without overlaps."""
    held: dict[UnitId, Spans] = {}
    for record in outcome.records:
        for stays in filter(None, (record.stays, record.rollout_stays)):
            for stay, span in lived(stays, record):
                for node in stay.nodes:
                    held.setdefault(node, []).append(span)
    return {node: _merged(spans) for node, spans in held.items()}


def _merged(spans: Spans) -> Spans:
    merged: Spans = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def _use_of(
    record: Record, nodes: dict[str, int], *, rows: int, first_us: int, end_us: int
) -> Iterable[tuple[int, Floats, Floats]]:
    """Return for each row of nodes that a job had: its shares of work and of holding."""

    def share(spans: Spans) -> Floats:
        return busy_share(spans, first_us=first_us, end_us=end_us, buckets=MAX_POINTS)

    worked = sorted([*record.busy, *record.switch, *record.prefetch])
    for stays, spans in ((record.stays, worked), (record.rollout_stays, None)):
        for stay, (since_us, until_us) in lived(stays, record) if stays else ():
            had = share([(since_us, until_us)])
            own = [s for s in spans if since_us <= s[0] < until_us] if spans is not None else []
            busy = share(own) if spans is not None else had
            for node in stay.nodes:
                weight = rows / len(nodes)
                yield nodes[node] * rows // len(nodes), busy * weight, had * weight


def _mark_losses(axes: Axes, outcome: Outcome, nodes: dict[str, int], *, first_us: int) -> None:
    for name, colour, marker in MARKS[:2]:
        events = [(one.node_id, one.at_us) for one in outcome.losses]
        if name == "drained":
            events = [(one.node_id, one.asked_us) for one in outcome.drains]
        seen = [(node, at_us) for node, at_us in events if node in nodes]
        hours = [(at_us - first_us) / _HOUR_US for _, at_us in seen]
        axes.plot(hours, [nodes[node] + 0.5 for node, _ in seen], marker, color=colour, ms=4)


def _nodes_of(outcome: Outcome) -> dict[str, int]:
    stays = [s for r in outcome.records for s in (*r.stays, *r.rollout_stays)]
    return {node: at for at, node in enumerate(sorted({n for stay in stays for n in stay.nodes}))}


def _owner(record: Record) -> str:
    """Return in whose colour a job is: its tenant's, or its own without one."""
    return record.job.demand.tenant or record.job.demand.resident_id


def _extent(outcomes: Sequence[Outcome]) -> tuple[int, int]:
    records = [record for outcome in outcomes for record in outcome.records]
    first = min(record.job.demand.arrived_us for record in records)
    return first, max(record.finish_us or first for record in records)


def _rows(count: int, *, height: float) -> tuple[Figure, list[Any]]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, height * count + 0.5))
    return figure, list(np.atleast_1d(figure.subplots(count, 1, sharex=True)))


def _save(figure: Figure, path: Path, *, title: str) -> None:
    figure.axes[0].set_title(title, fontsize=10, pad=16)
    figure.savefig(path, bbox_inches="tight", dpi=120)
