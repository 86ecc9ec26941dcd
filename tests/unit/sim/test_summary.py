"""Summaries: bounds that no schedule beats, and shares of what the nodes offered."""

from __future__ import annotations

from dataclasses import replace

from plexsvc.ids import ResidentId
from plexsvc.scheduler.core.planning.policies import PLEX
from plexsvc.scheduler.core.planning.profile import Mode, SyncAt
from plexsvc.sim.cluster import NodeAction, NodeEvent, SimCluster
from plexsvc.sim.presets import Workload
from plexsvc.sim.run import compare
from tests.rigs.traces import job


def test_the_lower_bound_counts_what_a_boundary_job_runs() -> None:
    one = job("a", cycles=1, mode=Mode.ASYNC1, sync_at=SyncAt.BOUNDARY, durations=(10, 80))
    jobs = [
        replace(one, demand=replace(one.demand, resident_id=ResidentId(f"j{at}")))
        for at in range(4)
    ]
    summary, _ = compare(
        Workload(jobs=tuple(jobs), cluster=SimCluster(nodes=1)), policy=PLEX, seed=1
    )
    assert 0 < summary.lower_bound_s <= summary.drain_s


def test_the_lower_bound_and_the_utilisation_count_nodes_that_join() -> None:
    joins = [NodeEvent(at_s=1, action=NodeAction.JOIN, node=f"x{at}") for at in range(20)]
    cluster = SimCluster(nodes=1, events=tuple(joins))
    jobs = tuple(job(f"j{at}", cycles=20) for at in range(30))
    summary, _ = compare(Workload(jobs=jobs, cluster=cluster), policy=PLEX, seed=1)
    assert 0 < summary.lower_bound_s <= summary.drain_s
    assert summary.utilisation <= 1
