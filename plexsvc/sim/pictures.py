"""Picture of a run: who had which node when, how nodes were used, and how long jobs waited."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from plexsvc.ids import UnitId
from plexsvc.scheduler.core.planning.profile import SECOND_US
from plexsvc.sim.records import Outcome, Record, Stay
from plexsvc.sim.summary import wait_ratio

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Floats = npt.NDArray[np.float64]

MAX_BUCKETS: Final = 200
"""Points of a curve over time; fewer where a point would cover less than two cycles of a job."""
MAX_POINTS: Final = 900
"""Columns, and rows, of the picture of nodes; more nodes than that share rows."""
MAX_OWNERS: Final = 20
"""Colours for owners; more owners use them again."""
_HOLDING: Final = 1e-3
"""What holding a node counts, against working on it, for whose colour it gets."""
_PALE: Final = 0.75
"""How far the colour of a node that is held and idle goes towards white."""
_HOUR_US: Final = 3600 * SECOND_US

Span = tuple[int, int]


def draw(path: Path, outcomes: Sequence[Outcome], *, bound_s: float, title: str) -> None:
    """Draw the last of some runs of a workload, and the waits in all of them."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 12), layout="constrained")
    nodes, use, cdf = figure.subplots(3, height_ratios=(5, 3, 3))
    _draw_nodes(nodes, outcomes[-1])
    _draw_use(use, outcomes[-1])
    use.axvline(bound_s / 3600, color="black", ls=":", lw=1, label="no schedule ends before")
    use.legend(loc="upper right", fontsize=7)
    for outcome in outcomes:
        found = np.sort([wait_ratio(record) for record in outcome.records])
        share = np.linspace(0, 1, found.size + 1)
        cdf.step([found[0], *found], share, where="post", label=outcome.policy)
    for percent in (50, 95, 99):
        cdf.axhline(percent / 100, color="grey", lw=0.5, ls=":")
    cdf.set(xlabel="time waited / time alone", ylabel="share of jobs", ylim=(0, 1.02))
    cdf.set_xscale("symlog", linthresh=1)
    cdf.set_xlim(left=0)
    cdf.legend(loc="lower right", fontsize=8)
    figure.suptitle(title, fontsize=10)
    figure.savefig(path, dpi=120)


def busy_share(spans: Iterable[Span], *, first_us: int, end_us: int, buckets: int) -> Floats:
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


def _draw_nodes(axes: Axes, outcome: Outcome) -> None:
    """Draw who had each node when: pale while it is held, in full colour while it works."""
    from matplotlib import colormaps
    from matplotlib.patches import Patch

    first_us, end_us = _extent(outcome)
    nodes = sorted(
        {node for r in outcome.records for s in (*r.stays, *r.rollout_stays) for node in s.nodes}
    )
    height = min(len(nodes), MAX_POINTS)
    row_of = {node: at * height // len(nodes) for at, node in enumerate(nodes)}
    names = list(dict.fromkeys(map(_owner, outcome.records)))
    most, held, worked = np.zeros((3, height, MAX_POINTS))
    chosen = np.zeros((height, MAX_POINTS), dtype=np.int64)
    for owner, name in enumerate(names):
        weight = np.zeros((height, MAX_POINTS))
        for record in (r for r in outcome.records if _owner(r) == name):
            for node, busy, had in _use_of(record, first_us=first_us, end_us=end_us):
                row = row_of[node]
                weight[row] += busy + _HOLDING * had
                worked[row] += busy * height / len(nodes)
                held[row] += had
        chosen[weight > most] = owner
        most = np.maximum(most, weight)
    palette = colormaps["tab20"](np.arange(MAX_OWNERS) * 2 % (MAX_OWNERS - 1))[:, :3]
    full = palette[chosen % MAX_OWNERS]
    pale = full + (1 - np.clip(worked, 0, 1)[..., None]) * _PALE * (1 - full)
    hours = (end_us - first_us) / _HOUR_US
    axes.imshow(
        np.where((held > 0)[..., None], pale, 1.0),
        aspect="auto",
        interpolation="nearest",
        extent=(0, hours, len(nodes), 0),
    )
    at = {node: number + 0.5 for number, node in enumerate(nodes)}
    for colour, events in (
        ("tab:red", [(UnitId(one.node_id), one.at_us) for one in outcome.losses]),
        ("tab:purple", [(UnitId(one.node_id), one.asked_us) for one in outcome.drains]),
    ):
        seen = [(node, (at_us - first_us) / _HOUR_US) for node, at_us in events if node in at]
        axes.plot([hour for _, hour in seen], [at[node] for node, _ in seen], "v", color=colour)
    axes.set(xlabel="hours (red: lost, purple: drained)", ylabel="node", xlim=(0, hours))
    shown = nodes[:: max(1, len(nodes) // 12)]
    axes.set_yticks([at[node] for node in shown], shown, fontsize=6)
    if len(names) <= MAX_OWNERS:
        patches = [Patch(color=palette[at], label=name) for at, name in enumerate(names)]
        axes.legend(handles=patches, loc="upper left", bbox_to_anchor=(1.01, 1), fontsize=7)


def _use_of(
    record: Record, *, first_us: int, end_us: int
) -> Iterable[tuple[UnitId, Floats, Floats]]:
    """Return for each node that a job had: its shares of work and of holding."""

    def share(spans: Iterable[Span]) -> Floats:
        return busy_share(spans, first_us=first_us, end_us=end_us, buckets=MAX_POINTS)

    worked = [*record.busy, *record.switch, *record.prefetch]
    for stay, (since_us, until_us) in lived(record.stays, record):
        busy = share(span for span in worked if since_us <= span[0] < until_us)
        had = share([(since_us, until_us)])
        yield from ((node, busy, had) for node in stay.nodes)
    for stay, span in lived(record.rollout_stays, record):
        had = share([span])
        yield from ((node, had, had) for node in stay.nodes)


def _draw_use(axes: Axes, outcome: Outcome) -> None:
    """Draw the nodes that were held, switched and ran, and how many jobs waited."""
    first_us, end_us = _extent(outcome)
    records = outcome.records
    longest_us = max(record.job.demand.profile.period_us for record in records)
    buckets = min(MAX_BUCKETS, max(1, (end_us - first_us) // (2 * longest_us)))

    def share(spans: Iterable[Span]) -> Floats:
        return busy_share(spans, first_us=first_us, end_us=end_us, buckets=buckets)

    hours = (np.arange(buckets) + 0.5) * (end_us - first_us) / buckets / _HOUR_US
    held = share(chain.from_iterable(_held(outcome)))
    ran = sum((r.job.demand.num_units * share(r.busy) for r in records), np.zeros(buckets))
    moved = sum(
        (r.job.demand.num_units * share([*r.switch, *r.prefetch]) for r in records),
        np.zeros(buckets),
    )
    axes.fill_between(hours, held, color="0.88", lw=0, label="held")
    axes.fill_between(hours, ran + moved, ran, color="tab:orange", lw=0, label="switches")
    axes.fill_between(hours, ran, color="tab:blue", lw=0, label="runs")
    axes.set(xlabel="hours", ylabel="nodes", xlim=(0, (end_us - first_us) / _HOUR_US))
    axes.set_ylim(bottom=0)
    beside = axes.twinx()
    beside.plot(hours, share(span for r in records for span in waits(r)), color="tab:green", lw=1)
    beside.set_ylabel("jobs waiting for a place", color="tab:green", fontsize=8)
    beside.set_ylim(bottom=0)


def _held(outcome: Outcome) -> Iterable[list[Span]]:
    """Return when each node was somebody's, without overlaps."""
    held: dict[str, list[Span]] = {}
    for record in outcome.records:
        for stay, span in chain(lived(record.stays, record), lived(record.rollout_stays, record)):
            for node in stay.nodes:
                held.setdefault(node, []).append(span)
    for spans in held.values():
        merged: list[Span] = []
        for start, end in sorted(spans):
            if merged and start <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
            else:
                merged.append((start, end))
        yield merged


def _owner(record: Record) -> str:
    """Return in whose colour a job is: its tenant's, or its own without one."""
    return record.job.demand.tenant or record.job.demand.resident_id


def _extent(outcome: Outcome) -> Span:
    first_us = min(record.job.demand.arrived_us for record in outcome.records)
    return first_us, max(record.finish_us or first_us for record in outcome.records)


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
