"""Runs with losses and closed nodes: each ends, with every job done or with the reason."""

from __future__ import annotations

from dataclasses import replace

import pytest

from plexsvc.errors import ErrorCode, PlexError
from plexsvc.ids import ResidentId
from plexsvc.scheduler.core.planning.policies import POLICIES
from plexsvc.scheduler.core.planning.profile import SECOND_US, Demand, Profile, Segment
from plexsvc.sim.cluster import Faults, NodeAction, NodeEvent, SimCluster
from plexsvc.sim.jobs import SimJob
from plexsvc.sim.simulator import Simulator
from plexsvc.sim.summary import gpu_hours


def job(name: str, *, period_s: int = 100, nodes: int = 1, rollout_nodes: int = 0) -> SimJob:
    profile = Profile(
        period_us=period_s * SECOND_US,
        segments=(Segment(phase="update", offset_us=0, duration_us=20 * SECOND_US),),
    )
    demand = Demand(
        resident_id=ResidentId(name), num_units=nodes, profile=profile, rollout_units=rollout_nodes
    )
    return SimJob(demand=demand, cycles=20)


def at(at_s: float, action: NodeAction, node: str) -> NodeEvent:
    return NodeEvent(at_s=at_s, action=action, node=node)


def play(*jobs: SimJob, cluster: SimCluster, policy: str = "plex", seed: int = 1) -> Simulator:
    simulator = Simulator(jobs, cluster=cluster, policy=POLICIES[policy], seed=seed)
    simulator.run()
    return simulator


def test_a_lost_node_that_an_operator_joins_is_not_joined_again_when_repaired() -> None:
    joins = tuple(at(60 * minute, NodeAction.JOIN, "n00000") for minute in range(30))
    cluster = SimCluster(nodes=2, faults=Faults(node_mtbf_h=0.2, repair_s=300), events=joins)
    simulator = play(job("a"), cluster=cluster)
    simulator.board.check()
    assert simulator.records[ResidentId("a")].restarts


@pytest.mark.parametrize("policy", ["isolated", "plex"])
@pytest.mark.parametrize("mtbf_h", [0.0, 1.0])
def test_a_run_whose_nodes_stay_closed_ends_with_the_reason(policy: str, mtbf_h: float) -> None:
    closed = (at(0, NodeAction.CORDON, "n00000"),)
    cluster = SimCluster(nodes=1, events=closed, faults=Faults(node_mtbf_h=mtbf_h, repair_s=10))
    late = job("a")
    late = replace(late, demand=replace(late.demand, arrived_us=SECOND_US))
    with pytest.raises(
        PlexError, match=r"1 of 1 jobs can never run .* 1 nodes are closed"
    ) as ended:
        play(late, cluster=cluster, policy=policy)
    assert ended.value.code is ErrorCode.NO_PLACEMENT


def test_a_job_that_losses_keep_from_its_first_cycle_ends_the_run_with_the_reason() -> None:
    cluster = SimCluster(nodes=4, faults=Faults(node_mtbf_h=0.01, repair_s=0))
    with pytest.raises(
        PlexError, match=r"a lost its nodes 1000 times in a row before .* cycle \d of 20"
    ):
        play(job("a", period_s=3600, nodes=4), cluster=cluster)


def test_rollout_nodes_are_not_charged_while_their_job_has_no_place() -> None:
    cluster = SimCluster(nodes=2, faults=Faults(node_mtbf_h=0.3, repair_s=1000))
    alone = job("a", rollout_nodes=1)
    simulator = Simulator([alone], cluster=cluster, policy=POLICIES["isolated"], seed=1)
    outcome = simulator.run()
    (record,) = outcome.records
    assert record.restarts
    queued_us = sum(
        stay.since_us - lost_us
        for lost_us, stay in zip(record.restarts, record.stays[1:], strict=True)
    )
    assert record.finish_us is not None
    assert queued_us > 0
    placed_h = (record.finish_us - queued_us) / SECOND_US / 3600
    assert gpu_hours(outcome, cluster) == pytest.approx(2 * 8 * placed_h)
