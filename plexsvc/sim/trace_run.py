"""A trace through the whole scheduler core, with the faults and events of its cluster file.

The simulator of `simulator.py` holds a job's cycle and asks planning and the groups' runtime
directly. Here each job is a client that submits operations, and all of `Scheduler` decides. Jobs
come with the trace's profiles, as after earlier runs, or cold, without any.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from plexsvc.errors import ErrorCode, PlexError
from plexsvc.scheduler.core.events import ProfilesLoaded
from plexsvc.scheduler.core.limits import Limits
from plexsvc.scheduler.core.machine import Scheduler
from plexsvc.scheduler.core.planning.policies import Policy
from plexsvc.scheduler.core.planning.profiler import KeptProfile, ProfileKey
from plexsvc.sim.books import Books
from plexsvc.sim.clients import Client, Outside
from plexsvc.sim.jobs import SimJob
from plexsvc.sim.nodes import Nodes
from plexsvc.sim.presets import Workload
from plexsvc.sim.records import Outcome, Record
from plexsvc.sim.run import Timed
from plexsvc.sim.trace_client import TraceClient, Turnstile, deal
from plexsvc.sim.trace_costs import TraceCosts
from plexsvc.sim.virtual_driver import VirtualDriver

FOREVER_US: Final = 10**15


def play_live(workload: Workload, *, policy: Policy, seed: int, is_cold: bool = False) -> Timed:
    """Return what the whole core makes of a workload under the live form of a policy.

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
    books = Books()
    costs = TraceCosts(cluster=workload.cluster, seed=seed, record_of=books.record_of)
    turnstile = Turnstile()
    for job in workload.jobs:
        client = TraceClient(
            record=Record(job=job, alone_us=job.alone_us(job.rollout_us(seed))),
            seed=seed,
            nodes=nodes,
            turnstile=turnstile,
            costs=costs,
            books=books,
        )
        jobs.append(client)
    clients: list[Client] = [nodes, *jobs]
    if not is_cold:
        clients.insert(0, Outside(events=[_profiles(workload.jobs)]))
    core = Scheduler(limits=patient_limits(len(jobs), policy=policy), epoch=1)
    driver = VirtualDriver(
        core=core, costs=costs, clients=clients, watch=books.note, end_us=FOREVER_US
    )
    if not driver.run():
        raise _never_ended(jobs, core)
    prefetches = core.view.prefetches
    books.counts.prefetches = prefetches.ordered
    books.counts.prefetch_hits, books.counts.prefetch_wasted = prefetches.hits, prefetches.wasted
    outcome = Outcome(
        policy=f"{policy.name} (live core)",
        records=tuple(job.record for job in jobs),
        counts=books.counts,
        events=driver.events,
        group_node_us=books.node_us,
        pruned_share=0.0,
        drains=tuple(books.drains.values()),
    )
    return Timed(outcome=outcome, wall_s=time.perf_counter() - began)


def patient_limits(num_jobs: int, *, policy: Policy) -> Limits:
    """Return limits of a policy under which no job of a trace is refused for waiting."""
    return Limits(
        max_jobs=num_jobs,
        policy=policy.name,
        max_deployments_per_group=policy.max_jobs,
        duty_cap_ppm=policy.duty_cap_ppm,
        target_slowdown_ppm=policy.target_slowdown_ppm,
        critical_target_ppm=policy.critical_target_ppm,
        placement_timeout_us=FOREVER_US,
        spawn_timeout_us=FOREVER_US,
        gap_timeout_us=FOREVER_US,
    )


def _never_ended(jobs: Sequence[TraceClient], core: Scheduler) -> PlexError:
    left = [job for job in jobs if not job.is_done]
    waiting = [core.view.deployments[name] for name in core.view.unplaced]
    why = core.view.why_waits(waiting[0]) if waiting else "none of them waits for a place"
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
        segments = tuple(
            replace(s, phase=kinds[s.phase]) for s in demand.profile.segments if s.phase in kinds
        )
        switch_us = demand.profile.switch_us // job.deployments
        profile = replace(demand.profile, segments=segments, switch_us=switch_us)
        key = ProfileKey(
            tenant=demand.tenant, model="", layout="", name=f"{demand.resident_id}/{name}"
        )
        kept.append(KeptProfile(key=key, profile=profile, at_us=0))
    return kept
