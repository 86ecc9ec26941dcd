"""Whole runs: nothing overlaps, nothing is lost, same seed same history, jobs settle."""

from __future__ import annotations

import itertools
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plexsvc.ids import ResidentId
from plexsvc.scheduler.core.planning.policies import POLICIES
from plexsvc.scheduler.core.planning.profile import (
    SECOND_US,
    Demand,
    Mode,
    Profile,
    Segment,
    SyncAt,
)
from plexsvc.sim.cluster import Faults, NodeAction, NodeEvent, SimCluster
from plexsvc.sim.jobs import SimJob
from plexsvc.sim.presets import Workload, cluster_256, preset_named
from plexsvc.sim.records import Outcome
from plexsvc.sim.run import compare, play
from plexsvc.sim.simulator import Simulator
from plexsvc.sim.summary import slowdown


def job(
    name: str,
    *,
    nodes: int = 1,
    cycles: int = 5,
    period: int = 100,
    durations: tuple[int, ...] = (10, 15),
    mode: Mode = Mode.SYNC,
    sync_at: SyncAt = SyncAt.UPDATE,
    switch: int = 2,
    jitter: float = 0.0,
    arrival: int = 0,
) -> SimJob:
    segments, at = [], 0
    for index, duration in enumerate(durations):
        phase = "sync" if index == len(durations) - 1 else f"p{index}"
        segments.append(
            Segment(phase=phase, offset_us=at * SECOND_US, duration_us=duration * SECOND_US)
        )
        at += duration
    profile = Profile(
        period_us=period * SECOND_US,
        segments=tuple(segments),
        mode=mode,
        sync_at=sync_at,
        switch_us=switch * SECOND_US,
        jitter_ppm=round(jitter * 1e6),
    )
    demand = Demand(
        resident_id=ResidentId(name),
        num_units=nodes,
        profile=profile,
        arrived_us=arrival * SECOND_US,
        expected_us=profile.period_us * cycles,
        max_slowdown_ppm=10_000_000,
    )
    return SimJob(demand=demand, cycles=cycles, jitter_cv=jitter)


def check(outcome: Outcome, *, cluster: SimCluster) -> None:
    """What an outside checker would: no overlap on a node, no hidden switch, no lost work."""
    by_node: dict[str, list[tuple[int, int, str, SimJob]]] = {}
    for record in outcome.records:
        demand = record.job.demand
        assert record.start_us is not None
        assert record.start_us >= demand.arrived_us
        spans = [(s, e, "run") for s, e in record.busy]
        spans += [(s, e, "in") for s, e in record.switch + record.prefetch]
        spans += [(s, e, "run") for s, e in record.lost]
        for start, end, kind in spans:
            stay = next(s for s in reversed(record.stays) if s.since_us <= start)
            assert len(stay.nodes) == demand.num_units
            for node_id in stay.nodes:
                by_node.setdefault(node_id, []).append((start, end, kind, record.job))
        if not cluster.faults.node_mtbf_h:
            work = sum(end - start for start, end in record.busy)
            syncs = demand.profile.sync_at is SyncAt.BOUNDARY
            skipped = demand.profile.segments[-1].duration_us * 2 if syncs else 0
            whole = demand.profile.busy_us * record.job.cycles
            assert whole - skipped <= work <= whole, demand.resident_id
    for node_spans in by_node.values():
        node_spans.sort(key=lambda span: span[:2])
        for one, two in itertools.pairwise(node_spans):
            assert one[1] <= two[0], (one, two)
        resident = None
        for _, _, kind, owner in node_spans:
            if kind == "in":
                resident = owner
            elif owner.demand.profile.switch_us:
                assert resident is owner, (resident, owner)


JOBS = st.lists(
    st.builds(
        lambda nodes, cycles, period, mode, sync_at, arrival, jitter: (
            nodes,
            cycles,
            period,
            mode,
            sync_at,
            arrival,
            jitter,
        ),
        st.sampled_from([1, 2]),
        st.integers(1, 6),
        st.integers(60, 200),
        st.sampled_from(list(Mode)),
        st.sampled_from(list(SyncAt)),
        st.integers(0, 500),
        st.sampled_from([0.0, 0.3]),
    ),
    min_size=1,
    max_size=7,
)


@settings(max_examples=40, deadline=None)
@given(JOBS, st.sampled_from(sorted(POLICIES)), st.integers(0, 5))
def test_any_trace_under_any_policy_is_played_whole_and_without_overlap(
    lines: list[tuple[int, int, int, Mode, SyncAt, int, float]], policy: str, seed: int
) -> None:
    jobs = [
        job(
            f"j{at}",
            nodes=nodes,
            cycles=cycles,
            period=period,
            mode=mode,
            sync_at=sync_at,
            arrival=arrival,
            jitter=jitter,
        )
        for at, (nodes, cycles, period, mode, sync_at, arrival, jitter) in enumerate(lines)
    ]
    cluster = SimCluster(nodes=2)
    simulator = Simulator(jobs, cluster=cluster, policy=POLICIES[policy], seed=seed)
    check(simulator.run(), cluster=cluster)
    simulator.planner.board.check()


def test_a_job_alone_takes_exactly_its_own_time() -> None:
    for mode, sync_at in itertools.product(Mode, SyncAt):
        alone = job("a", mode=mode, sync_at=sync_at, cycles=7, jitter=0.2, switch=0)
        workload = Workload(jobs=(alone,), cluster=SimCluster(nodes=1))
        outcome = play(workload, policy=POLICIES["isolated"], seed=3).outcome
        assert slowdown(outcome.records[0]) == 1.0
        assert 6 * 80 * SECOND_US < outcome.records[0].alone_us < 9 * 120 * SECOND_US


def test_identical_jobs_started_together_settle_and_the_plan_follows_them() -> None:
    """Emergent relaxation: they queue once, keep that order, and the next fit sees it."""
    policy = replace(
        POLICIES["plex_no_shift"], max_jobs=5, critical_target_ppm=10_000_000, duty_cap_ppm=950_000
    )
    jobs = [job(f"j{i}", cycles=200, durations=(8, 10), switch=0) for i in range(4)]
    simulator = Simulator(jobs, cluster=SimCluster(nodes=1), policy=policy, seed=1)
    simulator.run(until_us=10_000 * SECOND_US)
    (group,) = simulator.planner.board.groups.values()
    assert group.free.num_slots == 28_800 * 82 // 100, "the plan has all four at one phase"
    late = job("late", durations=(8, 10)).demand
    simulator.planner.policy = replace(policy, shifts=True)
    simulator.planner.submit(late)
    (placed,) = simulator.planner.admit(simulator.now)
    assert placed.overlap_ppm == 0
    assert group.free.num_slots == 28_800 * 10 // 100, "five at five phases"
    simulator.planner.remove(late.resident_id)
    outcome = simulator.run()
    assert max(slowdown(record) for record in outcome.records) < 1.005


def test_the_same_seed_gives_the_same_history_under_any_hash_seed() -> None:
    code = (
        "from plexsvc.sim.presets import cluster_256;from plexsvc.sim.run import play;"
        "from plexsvc.scheduler.core.planning.policies import POLICIES;"
        "w=cluster_256(seed=5,num_jobs=25);o=play(w,policy=POLICIES['plex'],seed=5).outcome;"
        "print([(r.stays,r.start_us,r.finish_us,r.busy,r.switch,r.prefetch) for r in o.records])"
    )
    histories = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": hash_seed},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for hash_seed in ("0", "12345")
    }
    assert len(histories) == 1
    assert len(next(iter(histories))) > 1000


def test_lost_nodes_cost_time_but_no_cycle() -> None:
    faults = Faults(node_mtbf_h=1.0, repair_s=300, slow_switch_share=0.2)
    cluster = SimCluster(nodes=4, faults=faults)
    jobs = [job(f"j{i}", cycles=60, nodes=1 + i % 2, mode=Mode.ASYNC1) for i in range(6)]
    simulator = Simulator(jobs, cluster=cluster, policy=POLICIES["plex"], seed=2)
    outcome = simulator.run()
    check(outcome, cluster=cluster)
    simulator.planner.board.check()
    assert any(record.lost for record in outcome.records)
    for record in outcome.records:
        assert sum(end - start for start, end in record.busy) >= 60 * 25 * SECOND_US


def test_two_jobs_of_the_paper_share_a_pool_at_its_bound() -> None:
    for model, least in (("7b", 0.37), ("30b", 0.41), ("235b", 0.37)):
        workload = preset_named(f"two-job-{model}", seed=1)
        summary, outcome = compare(workload, policy=POLICIES["plex"], seed=1)
        check(outcome, cluster=workload.cluster)
        assert summary.gpu_hours_reduction >= least
        assert summary.inflation <= 1.05


def test_plex_switches_less_and_inflates_less_than_fcfs_and_hrrs_at_three_jobs() -> None:
    workload = preset_named("order-3", seed=1)
    plex, _ = compare(workload, policy=POLICIES["plex"], seed=1)
    for name in ("plex_fcfs", "plex_hrrs"):
        other, _ = compare(workload, policy=POLICIES[name], seed=1)
        assert plex.switches < other.switches
        assert plex.inflation < other.inflation
    assert plex.prefetch_hits >= 0.9 * (plex.prefetch_hits + plex.prefetch_wasted)


@pytest.mark.slow
def test_a_small_cluster_drains_sooner_shared_and_nothing_overlaps() -> None:
    workload = cluster_256(seed=1, num_jobs=150)
    summary, outcome = compare(workload, policy=POLICIES["plex"], seed=1)
    check(outcome, cluster=workload.cluster)
    assert summary.lower_bound_ratio <= summary.drain_ratio < 0.75
    assert summary.slowdown_mean <= 1.05


@pytest.mark.slow
def test_sharing_gains_nothing_at_a_duty_near_one() -> None:
    workload = cluster_256(seed=1, num_jobs=60, duty=(0.93, 0.99))
    plex, outcome = compare(workload, policy=POLICIES["plex"], seed=1)
    assert len({record.stays[-1].group_id for record in outcome.records}) == 60
    assert plex.slowdown_max < 1.01


@pytest.mark.slow
def test_repacking_drains_a_churned_cluster_sooner_and_charges_every_move() -> None:
    workload = preset_named("churn", seed=1)
    with_moves, outcome = compare(workload, policy=POLICIES["plex"], seed=1)
    check(outcome, cluster=workload.cluster)
    without, _ = compare(workload, policy=POLICIES["plex_no_repack"], seed=1)
    assert with_moves.drain_s <= 0.95 * without.drain_s
    moved = [record for record in outcome.records if record.moves]
    assert moved
    link = workload.cluster.migrate_gb_s * 1e9
    for record in moved:
        for start, end in record.moves:
            charge_us = record.job.demand.state_bytes / link * SECOND_US
            assert abs(end - start - charge_us) <= 1
            assert not any(start < e and s < end for s, e in record.busy)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_moves_and_lost_nodes_together_lose_no_cycle(seed: int) -> None:
    churn = preset_named("churn", seed=seed)
    faults = Faults(node_mtbf_h=100, repair_s=900, slow_switch_share=0.1)
    cluster = replace(churn.cluster, faults=faults)
    simulator = Simulator(churn.jobs, cluster=cluster, policy=POLICIES["plex"], seed=seed)
    outcome = simulator.run()
    check(outcome, cluster=cluster)
    simulator.planner.board.check()
    assert any(record.lost for record in outcome.records)
    assert any(record.moves for record in outcome.records)
    for record in outcome.records:
        work = sum(end - start for start, end in record.busy)
        assert work >= record.job.demand.profile.busy_us * record.job.cycles


def test_a_drained_node_is_left_as_soon_as_there_is_room_and_a_joined_one_is_used() -> None:
    """Two nodes, a job on each; one is drained while the other is full, then a third joins."""
    cluster = SimCluster(
        nodes=2,
        events=(
            NodeEvent(at_s=1000, action=NodeAction.DRAIN, node="n00000"),
            NodeEvent(at_s=3000, action=NodeAction.JOIN, node="n00009"),
        ),
    )
    jobs = [job(f"j{i}", cycles=100, durations=(30, 30), mode=Mode.ASYNC1) for i in range(2)]
    state = replace(jobs[0].demand, state_bytes=50 * 10**9)
    jobs[0] = replace(jobs[0], demand=state)
    simulator = Simulator(jobs, cluster=cluster, policy=POLICIES["plex"], seed=1)
    outcome = simulator.run()
    check(outcome, cluster=cluster)
    (drain,) = outcome.drains
    assert drain.asked_us == 1000 * SECOND_US
    assert drain.empty_us is not None
    assert 3000 * SECOND_US <= drain.empty_us <= 3060 * SECOND_US
    moved = outcome.records[0]
    assert [stay.nodes for stay in moved.stays] == [("n00000",), ("n00009",)]
    assert [end - start for start, end in moved.moves] == [5 * SECOND_US]
    assert all(end <= drain.empty_us for start, end in moved.busy if start < drain.empty_us)


def test_cold_jobs_start_on_nodes_of_their_own_and_are_packed_once_measured() -> None:
    jobs = [job(f"j{i}", cycles=60, mode=Mode.ASYNC1) for i in range(2)]
    jobs.append(job("late", cycles=60, mode=Mode.ASYNC1, arrival=50))
    workload = Workload(jobs=tuple(jobs), cluster=SimCluster(nodes=2))
    outcome = play(workload, policy=POLICIES["plex"], seed=1, is_cold=True).outcome
    check(outcome, cluster=workload.cluster)
    starts = [record.start_us for record in outcome.records]
    assert starts[:2] == [0, 0]
    waited_s = ((starts[2] or 0) - 50 * SECOND_US) / SECOND_US
    assert 100 <= waited_s <= 1000, "until two others were measured and one moved in"
    assert sum(len(record.moves) for record in outcome.records) == 1
    known = [r.stays[0].nodes for r in outcome.records]
    assert known[0] != known[1]


def test_small_jobs_share_a_large_ones_nodes_side_by_side() -> None:
    policy = replace(POLICIES["plex"], takes_parts=True)
    large = job("large", nodes=2, cycles=30, durations=(10, 10), mode=Mode.ASYNC1)
    durations = (9, 9)
    small = [
        job(f"s{i}", cycles=40, durations=durations, mode=Mode.ASYNC1, arrival=5) for i in range(2)
    ]
    cluster = SimCluster(nodes=2)
    simulator = Simulator([large, *small], cluster=cluster, policy=policy, seed=1)
    outcome = simulator.run()
    check(outcome, cluster=cluster)
    assert outcome.records[0].start_us == 0
    nodes = [record.stays[0].nodes for record in outcome.records[1:]]
    assert nodes == [("n00000",), ("n00001",)]
    groups = {record.stays[-1].group_id for record in outcome.records[1:]}
    assert len(groups) == 2, "they part when the large one is done"
