"""Named workloads: the paper's cluster and cycles, and cases where sharing gains nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Final

import numpy as np

from plexsvc.errors import bad_request
from plexsvc.ids import ResidentId
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
from plexsvc.sim.cluster import Faults, SimCluster, SwitchModel
from plexsvc.sim.jobs import SimJob
from plexsvc.sim.odd_presets import Shape, both_pools, giant_gang, odd_jobs, steady, tenants
from plexsvc.sim.workloads import Workload, burst, cluster_job


@dataclass(frozen=True, slots=True)
class PaperCycle:
    """A row of the paper's table in section 6.3 and its training to rollout devices."""

    cycle_s: float
    log_prob_s: float
    update_s: float
    sync_s: float
    train_devices: int
    rollout_devices: int
    switch_s: float


PAPER_CYCLES: Final[Mapping[str, PaperCycle]] = MappingProxyType(
    {
        "7b": PaperCycle(
            289.03, 9.66, 38.08, 9.76, train_devices=8, rollout_devices=2, switch_s=19
        ),
        "30b": PaperCycle(
            284.80, 19.62, 56.35, 7.57, train_devices=64, rollout_devices=8, switch_s=19
        ),
        "235b": PaperCycle(
            589.71, 20.11, 82.39, 8.89, train_devices=96, rollout_devices=32, switch_s=0
        ),
    }
)

FEW_CYCLES: Final = 100
"""Training steps of the paper's comparison."""


def paper_profile(cycle: PaperCycle, *, mode: Mode, sync_at: SyncAt, jitter: float) -> Profile:
    """Return a cycle of the paper's table as a profile."""
    phases = (
        ("log_prob", cycle.log_prob_s),
        ("update", cycle.update_s),
        (SYNC_PHASE, cycle.sync_s),
    )
    return Profile(
        period_us=round(cycle.cycle_s * SECOND_US),
        segments=burst([(name, round(s * SECOND_US)) for name, s in phases]),
        mode=mode,
        sync_at=sync_at,
        switch_us=round(cycle.switch_s * SECOND_US),
        jitter_ppm=round(jitter * PPM),
    )


def few_jobs(
    model: str,
    *,
    count: int,
    seed: int,
    mode: Mode = Mode.ASYNC1,
    sync_at: SyncAt = SyncAt.UPDATE,
    jitter: float = 0.15,
    target_slowdown: float | None = None,
) -> Workload:
    """Return `count` equal jobs with the paper's cycles on one pool of theirs.

    Training to rollout devices are 8 to 2 (7B), 64 to 8 (30B) and 96 to 32 (235B), a node here is
    one device; 100 steps; switches of 19 s, none for 235B; one step of staleness unless `mode` says
    otherwise. The owner of the pool accepts `target_slowdown`.
    """
    del seed
    cycle = PAPER_CYCLES[model]
    profile = paper_profile(cycle, mode=mode, sync_at=sync_at, jitter=jitter)
    jobs = tuple(
        SimJob(
            demand=Demand(
                resident_id=ResidentId(f"{model}-{at}"),
                num_units=cycle.train_devices,
                rollout_units=cycle.rollout_devices,
                profile=profile,
                expected_us=profile.period_us * FEW_CYCLES,
            ),
            cycles=FEW_CYCLES,
            jitter_cv=jitter,
        )
        for at in range(count)
    )
    nodes = count * (cycle.train_devices + cycle.rollout_devices)
    cluster = SimCluster(nodes=nodes, devices_per_node=1, target_slowdown=target_slowdown)
    return Workload(jobs=jobs, cluster=cluster)


def cluster_256(
    *,
    seed: int,
    num_jobs: int = 1200,
    duty: tuple[float, float] = (0.15, 0.40),
) -> Workload:
    """Return 256 nodes of 8 devices under Poisson arrivals of 1,200 jobs at load 5.

    Gangs are powers of two from 1 to 32 nodes, equally likely; durations lognormal with mean 3 h
    and sigma 0.6; periods uniform in 60-900 s, duties in 0.15-0.40; rollouts vary by 0.15; switches
    3-19 s by gang size; one step of staleness; weights are synced after the update.
    """
    dice = np.random.default_rng([seed, 256])
    gangs = 2 ** dice.integers(0, 6, num_jobs)
    durations_s = dice.lognormal(np.log(3 * 3600) - 0.6**2 / 2, 0.6, num_jobs)
    periods_s = dice.uniform(60, 900, num_jobs)
    duties = dice.uniform(*duty, num_jobs)
    cycles = np.maximum(1, np.rint(durations_s / periods_s)).astype(int)
    cluster = SimCluster(nodes=256, switch=SwitchModel(link_gb_s=25))
    node_s = float((gangs * cycles * periods_s).sum())
    window_s = node_s / (5 * cluster.nodes)
    arrivals_s = np.sort(dice.uniform(0, window_s, num_jobs))
    jobs = tuple(
        cluster_job(
            f"job-{at:04d}",
            cluster=cluster,
            arrival_s=float(arrivals_s[at]),
            gang=int(gangs[at]),
            cycles=int(cycles[at]),
            period_s=float(periods_s[at]),
            duty=float(duties[at]),
        )
        for at in range(num_jobs)
    )
    return Workload(jobs=jobs, cluster=cluster)


def stale(*, seed: int, factors: tuple[float, ...], num_jobs: int = 1200) -> Workload:
    """Return `cluster_256`, the device time on record one of `factors` times the truth."""
    workload = cluster_256(seed=seed, num_jobs=num_jobs)
    drawn = np.random.default_rng([seed, 257]).choice(factors, num_jobs)
    jobs = zip(workload.jobs, drawn, strict=True)
    return replace(
        workload,
        jobs=tuple(
            replace(job, believed=_scaled(job.demand.profile.segments, float(factor)))
            for job, factor in jobs
        ),
    )


def drift(*, seed: int, num_jobs: int = 1200) -> Workload:
    """Return `cluster_256`, half of whose jobs double their device time in mid-run."""
    workload = cluster_256(seed=seed, num_jobs=num_jobs)
    grows = np.random.default_rng([seed, 258]).random(num_jobs) < 0.5
    jobs = zip(workload.jobs, grows, strict=True)
    return replace(
        workload,
        jobs=tuple(
            replace(job, grown=_scaled(job.demand.profile.segments, 2.0) if grown else ())
            for job, grown in jobs
        ),
    )


def _scaled(segments: Sequence[Segment], factor: float) -> tuple[Segment, ...]:
    return burst([(s.phase, round(factor * s.duration_us)) for s in segments])


def churn(*, seed: int) -> Workload:
    """Return 64 nodes that small jobs leave thinly held when large gangs come.

    At first 220 one-node jobs, a quarter of them long (8 h against 1 h); after one hour 24 gangs of
    8 or 16 nodes of 3 h. What the long ones hold alone, a repacking gives back.
    """
    dice = np.random.default_rng([seed, 64])
    cluster = SimCluster(nodes=64)
    jobs = []
    for at in range(244):
        is_small = at < 220
        hours = (8.0 if at % 4 == 0 else 1.0) if is_small else 3.0
        period_s = float(dice.uniform(60, 300))
        jobs.append(
            cluster_job(
                f"job-{at:04d}",
                cluster=cluster,
                arrival_s=float(dice.uniform(0, 60)) + (0 if is_small else 3600),
                gang=1 if is_small else int(dice.choice([8, 16])),
                cycles=max(1, round(hours * float(dice.uniform(0.8, 1.2)) * 3600 / period_s)),
                period_s=period_s,
                duty=float(dice.uniform(0.15, 0.40)),
            )
        )
    jobs.sort(key=lambda job: job.demand.arrived_us)
    return Workload(jobs=tuple(jobs), cluster=cluster)


def losses(*, seed: int) -> Workload:
    """Return 300 jobs as of `cluster_256`, on nodes lost once in 500 hours each, for 600 s."""
    load = cluster_256(seed=seed, num_jobs=300)
    return replace(load, cluster=replace(load.cluster, faults=Faults(node_mtbf_h=500)))


_POOLS: Final[Mapping[str, Callable[..., Workload]]] = {
    **{f"two-job-{m}": partial(few_jobs, m, count=2) for m in PAPER_CYCLES},
    "k-job-7b": partial(few_jobs, "7b", count=3),
    "k-job-30b": partial(few_jobs, "30b", count=3, target_slowdown=1.15),
    "k-job-235b": partial(few_jobs, "235b", count=4),
}
"""Jobs of the paper that share one pool."""

PRESETS: Final[Mapping[str, Callable[..., Workload]]] = MappingProxyType(
    {
        "cluster-256": cluster_256,
        "stale-half": partial(stale, factors=(0.5,)),
        "stale-double": partial(stale, factors=(2.0,)),
        "stale-random": partial(stale, factors=(0.5, 1.0, 2.0)),
        "drift": drift,
        "churn": churn,
        "steady": steady,
        "losses": losses,
        "giant-gang": partial(giant_gang, priority=0),
        "giant-gang-first": partial(giant_gang, priority=100),
        "tenants": tenants,
        "both-pools": both_pools,
        **{shape.value: partial(odd_jobs, shape) for shape in Shape},
        "no-gain": partial(cluster_256, num_jobs=300, duty=(0.93, 0.99)),
        **_POOLS,
        **{f"{name}-boundary": partial(p, sync_at=SyncAt.BOUNDARY) for name, p in _POOLS.items()},
        "order-3": partial(few_jobs, "7b", count=3, mode=Mode.SYNC),
    }
)


def preset_named(name: str, *, seed: int) -> Workload:
    """Return a preset's workload.

    Raises:
        PlexError: `bad_request`, no such preset; the message lists them.
    """
    if name not in PRESETS:
        known = ", ".join(PRESETS)
        raise bad_request(
            f"preset {name!r} asked for, but there are only {known}; choose one of them",
            preset=name,
        )
    return PRESETS[name](seed=seed)
