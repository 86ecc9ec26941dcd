"""Runs of a workload under policies: every decision is the scheduler core's own.

Each job of a trace is a client that submits operations in virtual time, and all of `Scheduler`
decides, with the faults and events of the cluster file. Jobs come with the trace's profiles, as
after earlier runs, or cold, without any. A policy is compared with `isolated` on the same trace and
seed.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from plexsvc.errors import ErrorCode, PlexError
from plexsvc.scheduler.core.events import ProfilesLoaded
from plexsvc.scheduler.core.limits import Limits
from plexsvc.scheduler.core.machine import Scheduler
from plexsvc.scheduler.core.planning import answers
from plexsvc.scheduler.core.planning.policies import Policy, policy_named
from plexsvc.scheduler.core.planning.profiler import KeptProfile, ProfileKey
from plexsvc.sim.books import Books
from plexsvc.sim.clients import Client, Outside
from plexsvc.sim.cluster import SimCluster
from plexsvc.sim.hosts import ParkingRoom
from plexsvc.sim.jobs import SimJob
from plexsvc.sim.nodes import Nodes
from plexsvc.sim.records import Outcome, Record
from plexsvc.sim.summary import Summary, summarise
from plexsvc.sim.trace_client import TraceClient, deal
from plexsvc.sim.trace_costs import TraceCosts
from plexsvc.sim.virtual_driver import VirtualDriver
from plexsvc.sim.workloads import Workload

FOREVER_US: Final = 10**15
COLLECT_EVERY: Final = 200_000
"""Objects between two looks for circles of them, of which a run makes few."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """An outcome and the seconds it took to compute."""

    outcome: Outcome
    wall_s: float


def play(workload: Workload, *, policy: Policy, seed: int, is_cold: bool = False) -> Timed:
    """Return what a workload comes to under a policy; `is_cold`: no cycle is known before.

    Raises:
        PlexError: `no_placement` when the cluster cannot hold a job, or when a job lost its nodes
            `MAX_LOSSES` times without training a cycle.
    """
    began = time.perf_counter()
    policy = workload.within_target(policy)
    jobs: list[TraceClient] = []
    num_beside = sum(not job.demand.rollout_units for job in workload.jobs)
    nodes = Nodes(
        cluster=workload.cluster,
        seed=seed,
        num_rollouts=num_beside,
        has_hope=lambda: any(job.has_hope for job in jobs),
    )
    core = Scheduler(limits=limits_of(policy), epoch=1)
    memory = ParkingRoom(host_bytes=workload.cluster.host_bytes)
    books = Books(view=core.view, cluster=workload.cluster, memory=memory)
    costs = TraceCosts(cluster=workload.cluster, seed=seed, books=books)
    for job in workload.jobs:
        client = TraceClient(
            record=_record(job, workload.cluster, seed=seed),
            seed=seed,
            nodes=nodes,
            costs=costs,
            books=books,
        )
        jobs.append(client)
    clients: list[Client] = [nodes, *jobs]
    if not is_cold:
        clients.insert(0, Outside(events=[_profiles(workload.jobs)]))
    driver = VirtualDriver(
        core=core, costs=costs, clients=clients, watch=books.watch, end_us=FOREVER_US
    )
    thresholds = gc.get_threshold()
    gc.set_threshold(COLLECT_EVERY)
    try:
        if not driver.run():
            raise _never_ended(jobs, core)
    finally:
        gc.set_threshold(*thresholds)
    books.accrue()
    outcome = Outcome(
        policy=policy.name,
        records=tuple(job.record for job in jobs),
        switches=books.switches,
        prefetch_hits=core.view.prefetches.hits,
        prefetch_wasted=core.view.prefetches.wasted,
        events=driver.events,
        node_us=books.node_us,
        device_us=books.device_us,
        cost=books.cost,
        drains=tuple(books.drains.values()),
        losses=tuple(books.losses),
    )
    return Timed(outcome=outcome, wall_s=time.perf_counter() - began)


def _record(job: SimJob, cluster: SimCluster, *, seed: int) -> Record:
    """Return an empty record of a job, with what it takes alone."""
    alone = job.alone(job.rollout_us(seed))
    return Record(
        job=job,
        alone_us=alone.took_us + cluster.start_us(job.demand.state_bytes // job.deployments),
        work_us=alone.busy_us,
        rolled_us=alone.rolled_us,
    )


Baseline = Timed | PlexError
"""A run under `isolated`, or why it never ends."""


def baseline(workload: Workload, *, seed: int) -> Baseline:
    """Return the run that a workload's other runs are compared with; it knows all cycles."""
    try:
        return play(workload, policy=policy_named("isolated"), seed=seed)
    except PlexError as error:
        return error


def compare(
    workload: Workload,
    *,
    policy: Policy,
    seed: int,
    isolated: Baseline | None = None,
    is_cold: bool = False,
) -> tuple[Summary, Outcome]:
    """Return the summary of one policy against `isolated`, and its outcome.

    Where `isolated` never ends, the summary has no ratios to it, and the reason.

    Raises:
        PlexError: as `play`.
    """
    base = isolated or baseline(workload, seed=seed)
    is_base = policy.name == "isolated" and not is_cold
    if is_base and isinstance(base, PlexError):
        raise base
    timed = play(workload, policy=policy, seed=seed, is_cold=is_cold) if not is_base else base
    assert isinstance(timed, Timed), timed
    summary = summarise(
        timed.outcome,
        isolated=None if isinstance(base, PlexError) else base.outcome,
        isolated_error=base.message if isinstance(base, PlexError) else None,
        cluster=workload.cluster,
        seed=seed,
        wall_s=timed.wall_s,
    )
    return summary, timed.outcome


def limits_of(policy: Policy) -> Limits:
    """Return the limits that a cluster has under a policy, all others as they are by default."""
    return Limits(
        policy=policy.name,
        max_deployments_per_group=policy.max_jobs,
        duty_cap_ppm=policy.duty_cap_ppm,
        target_slowdown_ppm=policy.target_slowdown_ppm,
        critical_target_ppm=policy.critical_target_ppm,
    )


def _never_ended(jobs: Sequence[TraceClient], core: Scheduler) -> PlexError:
    left = [job for job in jobs if not job.is_done]
    waiting = [(one, name) for one in core.view.planners.values() for name in one.waiting]
    why = "none of them waits for a place"
    if waiting:
        why = answers.why(*waiting[0], now_us=core.view.now_us)
    return PlexError(
        ErrorCode.NO_PLACEMENT,
        f"{len(left)} of {len(jobs)} jobs never ended, {left[0].job_id} first: {why}; "
        f"{len(core.view.cordoned)} nodes are closed and no event opens one again",
    )


def _profiles(jobs: Sequence[SimJob]) -> ProfilesLoaded:
    """Return the profiles that earlier runs of all jobs would have left."""
    return ProfilesLoaded(profiles=tuple(kept for job in jobs for kept in _kept(job)))


def _kept(job: SimJob) -> list[KeptProfile]:
    """Return a job's profile as the core would have measured it on each training deployment."""
    demand, kept = job.demand, []
    for name, kinds in deal(job).items():
        believed = job.believed or demand.profile.segments
        segments = tuple(replace(s, phase=kinds[s.phase]) for s in believed if s.phase in kinds)
        switch_us = demand.profile.switch_us // job.deployments
        profile = replace(demand.profile, segments=segments, switch_us=switch_us)
        key = ProfileKey(
            tenant=demand.tenant, model="", layout="", name=f"{demand.resident_id}/{name}"
        )
        kept.append(KeptProfile(key=key, profile=profile, at_us=0))
    return kept
