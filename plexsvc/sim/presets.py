"""Named workloads: the paper's cluster and cycles, and cases where sharing gains nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from types import MappingProxyType
from typing import Final

import numpy as np

from plexsvc.errors import ErrorCode, PlexError
from plexsvc.ids import ResidentId, TenantId
from plexsvc.scheduler.core.planning.policies import Policy
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
from plexsvc.sim.cluster import GB, Faults, NodeGroup, SimCluster, SwitchModel
from plexsvc.sim.jobs import SimJob


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What a preset, or a trace with a cluster file, amounts to."""

    jobs: tuple[SimJob, ...]
    cluster: SimCluster

    def without_lengths(self) -> Workload:
        """Return the same jobs, none of which says how long it will run."""
        return replace(self, jobs=tuple(replace(job, expected_cycles=0) for job in self.jobs))

    def within_target(self, policy: Policy) -> Policy:
        """Return a policy with the target that the pool's owner set, if one was set."""
        target = self.cluster.target_slowdown
        if target is None:
            return policy
        return replace(policy, target_slowdown_ppm=round(target * PPM))


PHASE_SHARES: Final = (("log_prob", 0.168), ("update", 0.662), (SYNC_PHASE, 0.170))
"""How the paper's 7B job divides its device time over phases."""


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
        segments=_burst([(name, round(s * SECOND_US)) for name, s in phases]),
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
    """Return `count` equal jobs of the paper on one pool; a node here is one device."""
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
    load: float = 5.0,
    sync_at: SyncAt = SyncAt.UPDATE,
    counts_rollout: bool = False,
    duty: tuple[float, float] = (0.15, 0.40),
    sigma: float = 0.6,
) -> Workload:
    """Return 256 nodes of 8 devices under Poisson arrivals.

    Gangs are powers of two from 1 to 32 nodes, equally likely; durations lognormal with mean 3 h
    periods uniform in 60-900 s; switches 3-19 s by gang size; one step of staleness.
    """
    dice = np.random.default_rng([seed, 256])
    gangs = 2 ** dice.integers(0, 6, num_jobs)
    durations_s = dice.lognormal(np.log(3 * 3600) - sigma * sigma / 2, sigma, num_jobs)
    periods_s = dice.uniform(60, 900, num_jobs)
    duties = dice.uniform(*duty, num_jobs)
    cycles = np.maximum(1, np.rint(durations_s / periods_s)).astype(int)
    cluster = SimCluster(nodes=256, switch=SwitchModel(link_gb_s=25))
    node_s = float((gangs * cycles * periods_s).sum())
    window_s = node_s / (load * cluster.nodes)
    arrivals_s = np.sort(dice.uniform(0, window_s, num_jobs))
    jobs = tuple(
        _cluster_job(
            f"job-{at:04d}",
            cluster=cluster,
            arrival_s=float(arrivals_s[at]),
            gang=int(gangs[at]),
            cycles=int(cycles[at]),
            period_s=float(periods_s[at]),
            duty=float(duties[at]),
            sync_at=sync_at,
        )
        for at in range(num_jobs)
    )
    if counts_rollout:
        jobs = tuple(
            replace(job, demand=replace(job.demand, rollout_units=-(-job.demand.num_units // 4)))
            for job in jobs
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
    return _burst([(s.phase, round(factor * s.duration_us)) for s in segments])


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
            _cluster_job(
                f"job-{at:04d}",
                cluster=cluster,
                arrival_s=float(dice.uniform(0, 60)) + (0 if is_small else 3600),
                gang=1 if is_small else int(dice.choice([8, 16])),
                cycles=max(1, round(hours * float(dice.uniform(0.8, 1.2)) * 3600 / period_s)),
                period_s=period_s,
                duty=float(dice.uniform(0.15, 0.40)),
                sync_at=SyncAt.UPDATE,
            )
        )
    jobs.sort(key=lambda job: job.demand.arrived_us)
    return Workload(jobs=tuple(jobs), cluster=cluster)


def losses(*, seed: int) -> Workload:
    """Return 300 jobs as of `cluster_256`, on nodes that are lost once in 500 hours each."""
    load = cluster_256(seed=seed, num_jobs=300)
    return replace(load, cluster=replace(load.cluster, faults=Faults(node_mtbf_h=500)))


def giant_gang(*, seed: int, priority: int, hours: float = 40) -> Workload:
    """Return 8 nodes that one-node jobs of an hour keep filling, and a gang that needs all of them.

    A small job comes every 300 s on average, for so many hours; the gang comes after one hour and
    has an hour of work. Duties are 0.4 and 0.2.
    """
    dice = np.random.default_rng([seed, 8])

    def job(name: str, *, at_s: float, gang: int, busy_s: int, priority: int = 0) -> SimJob:
        profile = Profile(
            period_us=200 * SECOND_US,
            segments=_burst([("update", busy_s * SECOND_US)]),
            mode=Mode.ASYNC1,
            switch_us=2 * SECOND_US,
            jitter_ppm=150_000,
        )
        demand = Demand(
            resident_id=ResidentId(name),
            num_units=gang,
            profile=profile,
            arrived_us=round(at_s * SECOND_US),
            expected_us=18 * profile.period_us,
            priority=priority,
        )
        return SimJob(demand=demand, cycles=18, jitter_cv=0.15)

    jobs, at_s = [job("gang", at_s=3600, gang=8, busy_s=40, priority=priority)], 0.0
    while at_s < hours * 3600:
        jobs.append(job(f"small-{len(jobs):03d}", at_s=at_s, gang=1, busy_s=80))
        at_s += float(dice.exponential(300))
    return Workload(jobs=tuple(jobs), cluster=SimCluster(nodes=8))


def tenants(*, seed: int, nodes: int = 8) -> Workload:
    """Return nodes that two tenants want at once, `many` with ten times the jobs of `few`.

    Jobs of half an hour on one node, 121 for each node, drawn alike.
    """
    dice = np.random.default_rng([seed, nodes])
    cluster = SimCluster(nodes=nodes)
    jobs = []
    for at in range(121 * nodes):
        period_s = float(dice.uniform(120, 360))
        job = _cluster_job(
            f"job-{at:04d}",
            cluster=cluster,
            arrival_s=float(dice.uniform(0, 60)),
            gang=1,
            cycles=max(1, round(float(dice.uniform(0.4, 0.6)) * 3600 / period_s)),
            period_s=period_s,
            duty=float(dice.uniform(0.15, 0.40)),
            sync_at=SyncAt.UPDATE,
        )
        tenant = TenantId("few" if at % 11 == 0 else "many")
        jobs.append(replace(job, demand=replace(job.demand, tenant=tenant)))
    jobs.sort(key=lambda job: job.demand.arrived_us)
    return Workload(jobs=tuple(jobs), cluster=cluster)


def steady(*, seed: int, jitter: float = 0.02) -> Workload:
    """Return 12 nodes and 64 synchronous one-node jobs of low jitter, all there within an hour.

    Periods are uniform in 120-600 s, duties in 0.25-0.45, switches take 4 s: up to three jobs find
    room on a node, and each wait lengthens a cycle.
    """
    dice = np.random.default_rng([seed, 12])
    cluster, jobs = SimCluster(nodes=12), []
    for at in range(64):
        period_s = float(dice.uniform(120, 600))
        job = _cluster_job(
            f"job-{at:02d}",
            cluster=cluster,
            arrival_s=float(dice.uniform(0, 3600)),
            gang=1,
            cycles=round(float(dice.uniform(3, 5)) * 3600 / period_s),
            period_s=period_s,
            duty=float(dice.uniform(0.25, 0.45)),
            sync_at=SyncAt.UPDATE,
        )
        profile = replace(
            job.demand.profile,
            mode=Mode.SYNC,
            switch_us=4 * SECOND_US,
            jitter_ppm=round(jitter * PPM),
        )
        jobs.append(replace(job, demand=replace(job.demand, profile=profile), jitter_cv=jitter))
    return Workload(jobs=tuple(jobs), cluster=cluster)


def both_pools(
    *, seed: int, num_jobs: int = 240, hours: float = 12, jitter: float = 0.05
) -> Workload:
    """Return synchronous jobs that may take turns on nodes to roll out and on nodes to train.

    Rollout : training device time is drawn from 1 : 3 to 6 : 1; gangs are 1, 2 or 4 rollout nodes
    of 16 devices at a price of 1, 1 or 2 training nodes of 8 devices at 2.85. Jobs come over 12 h,
    run 3 h on average and accept a slowdown of 1.2. Both pools would hold all jobs at once.
    """
    dice = np.random.default_rng([seed, 11])
    rollout = NodeGroup(count=4 * num_jobs, devices=16)
    training = NodeGroup(count=2 * num_jobs, devices=8, price=2.85)
    cluster = SimCluster(
        nodes=rollout.count + training.count,
        unequal=(training, rollout),
        devices_per_node=training.devices,
    )
    jobs = []
    arrivals_s = np.sort(dice.uniform(0, hours * 3600, num_jobs))
    for at in range(num_jobs):
        period_s = float(dice.uniform(180, 600))
        ratio = float(np.exp(dice.uniform(np.log(1 / 3), np.log(6))))
        roll_s = period_s * ratio / (1 + ratio)
        phases = [("rollout", 0.8 * roll_s), ("tail", 0.2 * roll_s)]
        phases += [(phase, share * (period_s - roll_s)) for phase, share in PHASE_SHARES]
        segments = _burst([(phase, round(s * SECOND_US)) for phase, s in phases])
        profile = Profile(
            period_us=segments[-1].end_us,
            segments=segments,
            switch_us=4 * SECOND_US,
            jitter_ppm=round(jitter * PPM),
        )
        cycles = max(4, round(float(dice.lognormal(np.log(3) - 0.18, 0.6)) * 3600 / period_s))
        demand = Demand(
            resident_id=ResidentId(f"job-{at:03d}"),
            num_units=int(dice.choice([1, 2])),
            rollout_units=int(dice.choice([1, 2, 4])),
            profile=profile,
            arrived_us=round(float(arrivals_s[at]) * SECOND_US),
            expected_us=profile.period_us * cycles,
            max_slowdown_ppm=1_200_000,
        )
        job = SimJob(
            demand=demand,
            cycles=cycles,
            jitter_cv=jitter,
            deployments=2,
            rollout_node_devices=rollout.devices,
        )
        jobs.append(job)
    return Workload(jobs=tuple(jobs), cluster=cluster)


class Shape(StrEnum):
    """What is odd about the jobs of `odd_jobs`."""

    ONE_CYCLE = "one-cycle"
    SEVERAL_BURSTS = "several-bursts"
    PRIME_PERIODS = "prime-periods"
    BURSTY = "bursty"


def odd_jobs(shape: Shape, *, seed: int) -> Workload:
    """Return 16 nodes and 80 jobs with gangs of 1, 2 and 4, as in `cluster_256` but for one thing.

    Jobs have one cycle of 10 to 60 minutes; or train in three bursts with pauses of a tenth of the
    period; or have periods that share no divisor; or come in four crowds.
    """
    dice = np.random.default_rng([seed, 1 + list(Shape).index(shape)])
    count, cluster = 80, SimCluster(nodes=16)
    gangs = 2 ** dice.integers(0, 3, count)
    periods_s = dice.uniform(60, 600, count)
    if shape is Shape.PRIME_PERIODS:
        periods_s = dice.choice(_PRIMES, count).astype(float)
    durations_s = dice.lognormal(np.log(2 * 3600) - 0.18, 0.6, count)
    if shape is Shape.ONE_CYCLE:
        durations_s = periods_s = dice.uniform(600, 3600, count)
    duties = dice.uniform(0.15, 0.40, count)
    cycles = np.maximum(1, np.rint(durations_s / periods_s)).astype(int)
    window_s = float((gangs * cycles * periods_s).sum()) / (4 * cluster.nodes)
    arrivals_s = np.sort(dice.uniform(0, window_s, count))
    if shape is Shape.BURSTY:
        crowd_s = window_s / 4
        arrivals_s = np.floor(arrivals_s / crowd_s) * crowd_s + dice.uniform(0, 60, count)
        arrivals_s.sort()
    jobs = []
    for at in range(count):
        job = _cluster_job(
            f"j{at:03d}",
            cluster=cluster,
            arrival_s=float(arrivals_s[at]),
            gang=int(gangs[at]),
            cycles=int(cycles[at]),
            period_s=float(periods_s[at]),
            duty=float(duties[at]),
            sync_at=SyncAt.UPDATE,
        )
        if shape is Shape.SEVERAL_BURSTS:
            job = replace(job, demand=replace(job.demand, profile=_apart(job.demand.profile)))
        jobs.append(job)
    return Workload(jobs=tuple(jobs), cluster=cluster)


def _apart(profile: Profile) -> Profile:
    """Return a cycle whose device time is cut in three, with pauses of a tenth of the period."""
    lasts_us, pause_us = profile.busy_us // 3, profile.period_us // 10
    segments = tuple(
        replace(segment, offset_us=at * (lasts_us + pause_us), duration_us=lasts_us)
        for at, segment in enumerate(profile.segments)
    )
    return replace(profile, segments=segments)


_PRIMES: Final = [n for n in range(61, 600) if all(n % k for k in range(2, 25))]


def _cluster_job(  # noqa: PLR0913 - a job's line in a trace has as many fields
    name: str,
    *,
    cluster: SimCluster,
    arrival_s: float,
    gang: int,
    cycles: int,
    period_s: float,
    duty: float,
    sync_at: SyncAt,
) -> SimJob:
    switch_s = 3 + 16 * np.log2(gang) / 5
    state_gb = float(switch_s * cluster.switch.link_gb_s * gang / 2)
    period_us = round(period_s * SECOND_US)
    phases = [(phase, round(share * duty * period_us)) for phase, share in PHASE_SHARES]
    profile = Profile(
        period_us=period_us,
        segments=_burst(phases),
        mode=Mode.ASYNC1,
        sync_at=sync_at,
        switch_us=cluster.switch.cost_us(state_gb=state_gb, nodes=gang),
        jitter_ppm=150_000,
    )
    demand = Demand(
        resident_id=ResidentId(name),
        num_units=gang,
        profile=profile,
        arrived_us=round(arrival_s * SECOND_US),
        expected_us=period_us * cycles,
        state_bytes=round(state_gb / gang * GB),
    )
    return SimJob(demand=demand, cycles=cycles, jitter_cv=0.15, state_gb=state_gb)


def _burst(phases: list[tuple[str, int]]) -> tuple[Segment, ...]:
    segments, at = [], 0
    for phase, duration_us in phases:
        segments.append(Segment(phase=phase, offset_us=at, duration_us=duration_us))
        at += duration_us
    return tuple(segments)


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
        "cluster-256-boundary": partial(cluster_256, sync_at=SyncAt.BOUNDARY),
        "cluster-256-rollout": partial(cluster_256, counts_rollout=True),
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
        raise PlexError(
            ErrorCode.BAD_REQUEST,
            f"preset {name!r} asked for, but there are only {known}; choose one of them",
            preset=name,
        )
    return PRESETS[name](seed=seed)
