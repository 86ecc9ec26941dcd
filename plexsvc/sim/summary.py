"""Summary of a run against `isolated`: drain, GPU-hours, slowdowns, waits."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from plexsvc.scheduler.core.planning.profile import PPM, SECOND_US
from plexsvc.sim.cluster import SimCluster
from plexsvc.sim.jobs import ROLLOUT_PHASES
from plexsvc.sim.records import Outcome, Record

NO_WAIT: Final = 0.01
"""A wait below this share of a job's own duration is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One line of JSON; ratios are against an `isolated` run of the same trace and seed.

    They are None where that run never ends; `isolated_error` says why.
    """

    policy: str
    seed: int
    jobs: int
    drain_s: float
    drain_ratio: float | None
    lower_bound_s: float
    """What no schedule can beat."""
    lower_bound_ratio: float | None
    gpu_hours: float
    gpu_hours_reduction: float | None
    cost_efficiency: float | None
    """What the nodes that were held cost under `isolated`, over what they cost here."""
    cost_efficiency_bound: float | None
    """The same over what they cost if none is ever held idle: no schedule can beat it."""
    beyond_bound: float
    """Share of jobs whose slowdown passed their own bound."""
    inflation: float
    slowdown_mean: float
    slowdown_p95: float
    slowdown_max: float
    wait_ratio_p50: float
    wait_ratio_p90: float
    wait_ratio_p99: float
    wait_p99_of_isolated: float | None
    """None where `isolated` hardly waits: a ratio to nothing says nothing."""
    utilisation: float
    back_p95_s: float | None
    """From the loss of a node until its jobs have places again; None without losses."""
    switches: int
    prefetch_hits: int
    prefetch_wasted: int
    moves: int
    events: int
    wall_s: float
    isolated_error: str | None = None


def slowdown(record: Record) -> float:
    """Return running time shared over alone, waiting for a place not counted."""
    assert record.start_us is not None, record
    assert record.finish_us is not None, record
    return (record.finish_us - record.start_us) / record.alone_us


def wait_ratio(record: Record) -> float:
    """Return time spent waiting, in the queue and while running, over the job's own duration."""
    assert record.finish_us is not None, record
    total = record.finish_us - record.job.demand.arrived_us
    return max(0.0, (total - record.alone_us) / record.alone_us)


def back_us(record: Record) -> list[int]:
    """Return how long after each loss of a node a job had its places again."""
    found: list[int] = []
    for lost in record.restarts:
        came = (stay.since_us for stay in record.stays if stay.since_us >= lost.at_us)
        found.extend(since_us - lost.at_us for since_us in itertools.islice(came, 1))
    return found


def drain_us(outcome: Outcome) -> int:
    """Return the time from the first arrival to the last finish."""
    first = min(r.job.demand.arrived_us for r in outcome.records)
    return max(r.finish_us or 0 for r in outcome.records) - first


def gpu_hours(outcome: Outcome) -> float:
    """Return the device-hours for which nodes were held."""
    return outcome.device_us / SECOND_US / 3600


def lower_bound_us(records: Sequence[Record], cluster: SimCluster) -> int:
    """Return what no schedule can beat: all work over nodes of its size, or the last job alone."""
    first = min(r.job.demand.arrived_us for r in records)
    work: dict[int, int] = {}
    for r in records:
        for size, own in _work(r, cluster):
            work[size] = work.get(size, 0) + own
    last = max(r.job.demand.arrived_us + r.alone_us for r in records) - first
    return max(last, *(cluster.least_us(w, devices=n, from_us=first) for n, w in work.items()))


def _work(record: Record, cluster: SimCluster) -> list[tuple[int, int]]:
    """Return the node-microseconds that a job needs at least, with the devices of each node."""
    demand, job, size = record.job.demand, record.job, _size(record, cluster)
    takes_turns = job.rollout_node_devices is not None
    rolls_us = record.rolled_us if takes_turns else record.alone_us
    return [
        (size, demand.num_units * record.work_us),
        (job.rollout_node_devices or size, demand.rollout_units * rolls_us),
    ]


def least_cost(records: Sequence[Record], cluster: SimCluster) -> float:
    """Return what all jobs cost if no node is ever held idle, as `Outcome.cost`."""
    work = (each for record in records for each in _work(record, cluster))
    return sum(size * cluster.price_of(size) * node_us for size, node_us in work)


def _utilisation(outcome: Outcome, cluster: SimCluster) -> float:
    """Return the share of all devices' time in which they trained, until the last job ended."""
    first = min(r.job.demand.arrived_us for r in outcome.records)
    until_us = first + drain_us(outcome)
    offered = sum(
        size * cluster.node_us(devices=size, from_us=first, until_us=until_us)
        for size in cluster.counts
    )
    busy = sum(
        _held(r, phase, cluster) * (end - start)
        for r in outcome.records
        for (start, end), phase in zip(r.busy, r.phases, strict=True)
    )
    return busy / offered


def _held(record: Record, phase: str, cluster: SimCluster) -> int:
    """Return the devices on which a job runs a phase."""
    job, demand = record.job, record.job.demand
    if job.rollout_node_devices is not None and phase in ROLLOUT_PHASES:
        return job.rollout_node_devices * demand.rollout_units
    return _size(record, cluster) * demand.num_units


def _size(record: Record, cluster: SimCluster) -> int:
    """Return the devices of each node that a job asks for."""
    return record.job.node_devices or cluster.devices_per_node


def summarise(
    outcome: Outcome,
    *,
    isolated: Outcome | None,
    isolated_error: str | None = None,
    cluster: SimCluster,
    seed: int,
    wall_s: float,
) -> Summary:
    """Return the summary of one run."""
    records = outcome.records
    slowdowns = np.array([slowdown(r) for r in records])
    waits = np.array([wait_ratio(r) for r in records])
    bounds = np.array([r.job.demand.max_slowdown_ppm for r in records])
    drain, hours = drain_us(outcome), gpu_hours(outcome)
    base = None if isolated is None else drain_us(isolated)
    base_hours = None if isolated is None else gpu_hours(isolated)
    shared = sum((r.finish_us or 0) - (r.start_us or 0) for r in records)
    bound = lower_bound_us(records, cluster)
    back = [waited_us for record in records for waited_us in back_us(record)]
    wait_p99 = float(np.percentile(waits, 99))
    return Summary(
        policy=outcome.policy,
        seed=seed,
        jobs=len(records),
        drain_s=drain / SECOND_US,
        drain_ratio=_ratio(drain, base),
        lower_bound_s=bound / SECOND_US,
        lower_bound_ratio=_ratio(bound, base),
        gpu_hours=round(hours, 3),
        gpu_hours_reduction=None if base_hours is None else round(1 - hours / base_hours, 4),
        cost_efficiency=None if isolated is None else round(isolated.cost / outcome.cost, 4),
        cost_efficiency_bound=None
        if isolated is None
        else round(isolated.cost / least_cost(records, cluster), 4),
        beyond_bound=round(float(np.mean(slowdowns * PPM > bounds)), 4),
        inflation=round(shared / sum(r.alone_us for r in records), 4),
        slowdown_mean=round(float(slowdowns.mean()), 4),
        slowdown_p95=round(float(np.percentile(slowdowns, 95)), 4),
        slowdown_max=round(float(slowdowns.max()), 4),
        wait_ratio_p50=round(float(np.percentile(waits, 50)), 4),
        wait_ratio_p90=round(float(np.percentile(waits, 90)), 4),
        wait_ratio_p99=round(wait_p99, 4),
        wait_p99_of_isolated=_ratio(wait_p99, _longest_waits(isolated)),
        utilisation=round(_utilisation(outcome, cluster), 4),
        back_p95_s=None if not back else round(float(np.percentile(back, 95)) / SECOND_US, 1),
        switches=outcome.switches,
        prefetch_hits=outcome.prefetch_hits,
        prefetch_wasted=outcome.prefetch_wasted,
        moves=sum(len(r.moves) for r in records),
        events=outcome.events,
        wall_s=round(wall_s, 3),
        isolated_error=isolated_error,
    )


def _longest_waits(isolated: Outcome | None) -> float | None:
    """Return the wait ratio that one job in a hundred passes; None where nobody waits."""
    if isolated is None:
        return None
    p99 = float(np.percentile([wait_ratio(r) for r in isolated.records], 99))
    return p99 if p99 > NO_WAIT else None


def _ratio(value: float, base: float | None) -> float | None:
    return None if base is None else round(value / base, 4)
