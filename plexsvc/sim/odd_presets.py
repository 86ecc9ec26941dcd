"""Workloads beside the paper's: unequal gangs and tenants, steady jobs, both pools, odd shapes."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from typing import Final

import numpy as np

from plexsvc.ids import ResidentId, TenantId
from plexsvc.scheduler.core.planning.profile import PPM, SECOND_US, Demand, Mode, Profile
from plexsvc.sim.cluster import NodeGroup, SimCluster
from plexsvc.sim.jobs import SimJob
from plexsvc.sim.workloads import PHASE_SHARES, Workload, burst, cluster_job


def giant_gang(*, seed: int, priority: int, hours: float = 40) -> Workload:
    """Return 8 nodes that one-node jobs of an hour keep filling, and a gang that needs all of them.

    A small job comes every 300 s on average, for so many hours; the gang comes after one hour and
    has an hour of work. Duties are 0.4 and 0.2.
    """
    dice = np.random.default_rng([seed, 8])

    def job(name: str, *, at_s: float, gang: int, busy_s: int, priority: int = 0) -> SimJob:
        profile = Profile(
            period_us=200 * SECOND_US,
            segments=burst([("update", busy_s * SECOND_US)]),
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
    """Return 8 nodes that two tenants want at once, `many` with ten times the jobs of `few`.

    There are 968 one-node jobs of half an hour, drawn alike, that come within a minute.
    """
    dice = np.random.default_rng([seed, nodes])
    cluster = SimCluster(nodes=nodes)
    jobs = []
    for at in range(121 * nodes):
        period_s = float(dice.uniform(120, 360))
        job = cluster_job(
            f"job-{at:04d}",
            cluster=cluster,
            arrival_s=float(dice.uniform(0, 60)),
            gang=1,
            cycles=max(1, round(float(dice.uniform(0.4, 0.6)) * 3600 / period_s)),
            period_s=period_s,
            duty=float(dice.uniform(0.15, 0.40)),
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
        job = cluster_job(
            f"job-{at:02d}",
            cluster=cluster,
            arrival_s=float(dice.uniform(0, 3600)),
            gang=1,
            cycles=round(float(dice.uniform(3, 5)) * 3600 / period_s),
            period_s=period_s,
            duty=float(dice.uniform(0.25, 0.45)),
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
    of 16 devices at a price of 1, 1 or 2 training nodes of 8 devices at 2.85. 240 jobs come over 12
    h, run 3 h on average and accept a slowdown of 1.2; periods are uniform in 180-600 s, rollouts
    vary by 0.05. Both pools would hold all jobs at once.
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
        phases = [("rollout", roll_s)]
        phases += [(phase, share * (period_s - roll_s)) for phase, share in PHASE_SHARES]
        segments = burst([(phase, round(s * SECOND_US)) for phase, s in phases])
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
    """Return 16 nodes and 80 jobs with gangs of 1, 2 and 4 at load 4, else as in `cluster_256`.

    One thing is odd. Jobs have one cycle of 10 to 60 minutes; or train in three bursts with pauses
    of a tenth of the period; or have periods that share no divisor; or come in four crowds.
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
        job = cluster_job(
            f"j{at:03d}",
            cluster=cluster,
            arrival_s=float(arrivals_s[at]),
            gang=int(gangs[at]),
            cycles=int(cycles[at]),
            period_s=float(periods_s[at]),
            duty=float(duties[at]),
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
