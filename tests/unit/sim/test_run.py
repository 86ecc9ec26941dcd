"""Traces through the scheduler core: nothing overlaps, nothing is lost, same seed same history."""

from __future__ import annotations

import itertools
import json
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks.fairness import few_over_many
from plexsvc.cli.main import app
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.ids import NodeId, ResidentId
from plexsvc.scheduler.core.actions import Action
from plexsvc.scheduler.core.events import Event
from plexsvc.scheduler.core.limits import Limits
from plexsvc.scheduler.core.machine import Scheduler
from plexsvc.scheduler.core.planning import profile
from plexsvc.scheduler.core.planning.policies import NO_BOUND_PPM, PLEX, live_policy, policy_named
from plexsvc.scheduler.core.planning.profile import SECOND_US, Mode, SyncAt
from plexsvc.scheduler.core.planning.profiler import KeptProfile, ProfileBook
from plexsvc.sim import output
from plexsvc.sim.cluster import GB, Faults, NodeAction, NodeEvent, NodeGroup, SimCluster
from plexsvc.sim.jobs import SimJob
from plexsvc.sim.odd_presets import giant_gang, steady, tenants
from plexsvc.sim.presets import PRESETS, cluster_256, preset_named
from plexsvc.sim.records import Outcome
from plexsvc.sim.run import compare, limits_of, play
from plexsvc.sim.summary import drain_us, gpu_hours, slowdown
from plexsvc.sim.workloads import Workload
from tests.rigs import core_invariants
from tests.rigs.traces import job


def workload(*, jobs: int, nodes: int, mode: Mode = Mode.SYNC, jitter: float = 0.15) -> Workload:
    made = [job(f"j{at}", cycles=6, mode=mode, jitter=jitter, arrival=3 * at) for at in range(jobs)]
    return Workload(jobs=tuple(made), cluster=SimCluster(nodes=nodes, devices_per_node=1))


def spans(outcome: Outcome) -> dict[str, list[tuple[int, int]]]:
    """Return who used each node when: operations and switches."""
    by_node: dict[str, list[tuple[int, int]]] = {}
    for record in outcome.records:
        for node_id in record.stays[0].nodes:
            used = [*record.busy, *record.switch, *record.prefetch]
            by_node.setdefault(node_id, []).extend(used)
    return by_node


@pytest.mark.parametrize(("mode", "sync_at"), list(itertools.product(Mode, SyncAt)))
def test_a_job_alone_takes_its_own_time(mode: Mode, sync_at: SyncAt) -> None:
    alone = job("a", mode=mode, sync_at=sync_at, cycles=7, jitter=0.2, switch=0)
    isolated = policy_named("isolated")
    workload = Workload(jobs=(alone,), cluster=SimCluster(nodes=1))
    (record,) = play(workload, policy=isolated, seed=3).outcome.records
    assert slowdown(record) == pytest.approx(1.0, abs=1e-6)
    assert 6 * 80 * SECOND_US < record.alone_us < 9 * 120 * SECOND_US


def test_a_job_trains_once_its_processes_have_started_and_loaded_their_state() -> None:
    one = job("a", cycles=3, jitter=0, switch=0)
    one = replace(one, demand=replace(one.demand, state_bytes=30 * 10**9))
    ends = {}
    for spawn_s in (0.0, 20.0):
        cluster = SimCluster(nodes=1, spawn_s=spawn_s, migrate_gb_s=10)
        played = play(Workload(jobs=(one,), cluster=cluster), policy=PLEX, seed=1)
        (record,) = played.outcome.records
        assert slowdown(record) == pytest.approx(1, abs=1e-6)
        assert record.busy[0][0] >= (spawn_s + 3) * SECOND_US
        ends[spawn_s] = record.finish_us
    assert ends[20.0] - ends[0.0] == pytest.approx(20 * SECOND_US, abs=100)


@pytest.mark.parametrize("mode", Mode)
def test_jobs_that_share_take_turns_and_pay_their_switches(mode: Mode) -> None:
    outcome = play(workload(jobs=3, nodes=1, mode=mode), policy=PLEX, seed=1).outcome
    (used,) = spans(outcome).values()
    for (_, end), (start, _) in itertools.pairwise(sorted(used)):
        assert end <= start
    loads = [span for record in outcome.records for span in (*record.switch, *record.prefetch)]
    assert outcome.switches == len(loads) > 6
    for start, end in loads:
        assert end - start in {SECOND_US, 2 * SECOND_US}, "half of a switch onto empty devices"
    for record in outcome.records:
        assert len(record.busy) == 12


def test_a_job_that_grows_takes_its_longer_operations_in_the_second_half() -> None:
    grown = job("b", durations=(20, 30)).demand.profile.segments
    for mode, sync_at in itertools.product(Mode, SyncAt):
        alone = job("a", mode=mode, sync_at=sync_at, cycles=5, switch=0)
        alone = replace(alone, grown=grown)
        work = Workload(jobs=(alone,), cluster=SimCluster(nodes=1))
        (record,) = play(work, policy=policy_named("isolated"), seed=3).outcome.records
        took = [(end - start) // SECOND_US for start, end in record.busy]
        want = [10, 15] * 3 + [20, 30] * 2
        is_at_boundary = mode is Mode.ASYNC1 and sync_at is SyncAt.BOUNDARY
        assert sorted(took) == sorted(want)[: -2 if is_at_boundary else None]
        assert record.work_us == sum(took) * SECOND_US
        assert slowdown(record) == pytest.approx(1.0, abs=1e-6)


def test_what_is_on_record_of_a_job_may_differ_from_the_truth() -> None:
    right = [job(f"j{at}", durations=(10, 15), cycles=2) for at in range(3)]
    busy = tuple(replace(s, duration_us=40 * SECOND_US) for s in right[0].demand.profile.segments)
    wrong = [replace(one, believed=busy) for one in right]

    def taken(jobs: Sequence[SimJob]) -> int:
        work = Workload(jobs=tuple(jobs), cluster=SimCluster(nodes=3, devices_per_node=1))
        outcome = play(
            work,
            policy=replace(
                PLEX, target_slowdown_ppm=NO_BOUND_PPM, critical_target_ppm=NO_BOUND_PPM
            ),
            seed=1,
        ).outcome
        return len({node for record in outcome.records for node in record.stays[0].nodes})

    assert (taken(right), taken(wrong)) == (1, 3)


@pytest.mark.parametrize("name", ["stale-half", "stale-double", "stale-random", "drift"])
def test_misjudged_presets_are_cluster_256_with_other_beliefs(name: str) -> None:
    true = cluster_256(seed=1, num_jobs=40).jobs
    found = PRESETS[name](seed=1, num_jobs=40).jobs
    assert tuple(replace(one, believed=(), grown=()) for one in found) == true
    beliefs = {
        sum(s.duration_us for s in one.believed or one.demand.profile.segments)
        / one.demand.profile.busy_us
        for one in found
    }
    want = {"stale-half": {0.5}, "stale-double": {2.0}, "stale-random": {0.5, 1.0, 2.0}}
    assert {round(factor, 2) for factor in beliefs} == want.get(name, {1.0})
    num_grown = sum(bool(one.grown) for one in found)
    assert (10 < num_grown < 30) if name == "drift" else num_grown == 0


def crowded(*jobs: SimJob) -> Workload:
    """Return jobs that one node is to hold, each on record with a third of its device time."""

    def one(job: SimJob) -> SimJob:
        segments = tuple(
            replace(s, duration_us=s.duration_us // 3) for s in job.demand.profile.segments
        )
        demand = replace(job.demand, max_slowdown_ppm=1_500_000)
        return replace(job, demand=demand, believed=segments)

    return Workload(jobs=tuple(map(one, jobs)), cluster=SimCluster(nodes=1, devices_per_node=1))


@pytest.mark.parametrize("durations", [(20, 10), (12, 8, 10)])
@pytest.mark.parametrize(("mode", "sync_at"), list(itertools.product(Mode, SyncAt)))
def test_a_cycle_is_measured_as_it_is_alone_however_long_its_job_waits(
    mode: Mode, sync_at: SyncAt, durations: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: dict[str, int] = {}
    keep = ProfileBook.keep

    def kept(book: ProfileBook, found: KeptProfile) -> None:
        measured[found.key.name] = found.profile.period_us
        keep(book, found)

    monkeypatch.setattr(ProfileBook, "keep", kept)
    jobs = [
        job(f"j{at}", cycles=30, durations=durations, mode=mode, sync_at=sync_at, switch=10)
        for at in range(4)
    ]
    outcome = play(crowded(*jobs), policy=PLEX, seed=1).outcome
    for record in outcome.records:
        assert slowdown(record) > 1.3, "they wait"
        alone_us = record.alone_us / record.job.cycles
        found = measured[f"{record.job.demand.resident_id}/actor"]
        # what publishes at the boundary cannot be told from the rest of a burst that is late itself
        is_at_boundary = mode is Mode.ASYNC1 and sync_at is SyncAt.BOUNDARY
        least_us = alone_us - 10 * SECOND_US * is_at_boundary
        assert 0.95 * least_us < found < 1.05 * alone_us, (found, alone_us)


def test_a_gang_takes_a_block_and_occupied_devices_are_counted() -> None:
    wide = Workload(
        jobs=(job("wide", nodes=4, jitter=0.0),), cluster=SimCluster(nodes=8, devices_per_node=1)
    )
    outcome = play(wide, policy=PLEX, seed=1).outcome
    (record,) = outcome.records
    assert len(record.stays[0].nodes) == 4
    assert outcome.node_us == pytest.approx(4 * record.alone_us, rel=1e-5)


def test_a_job_that_moves_lives_on_its_new_devices_from_the_cut_over_on() -> None:
    made = []
    for at in range(8):
        dice = random.Random(at)
        one = job(
            f"j{at}",
            nodes=dice.choice([1, 1, 2]),
            period=dice.choice([60, 90, 100]),
            cycles=dice.randint(10, 60),
            durations=dice.choice([(10, 15), (30, 10), (5, 5)]),
            mode=dice.choice(list(Mode)),
            jitter=1.0,
            arrival=dice.randint(0, 1500),
        )
        made.append(replace(one, demand=replace(one.demand, max_slowdown_ppm=1_010_000)))
    tight = Workload(jobs=tuple(made), cluster=SimCluster(nodes=4, devices_per_node=1))
    outcome = play(tight, policy=PLEX, seed=1, is_cold=True).outcome
    moved = [record for record in outcome.records if record.moves]
    assert moved
    for record in moved:
        ends = [move.until_us for move in record.moves]
        assert [stay.since_us for stay in record.stays[1:]] == ends
        for move in record.moves:
            assert not any(s < move.until_us and move.since_us < e for s, e in record.busy)


@pytest.fixture
def checked_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the core's invariants checked after every event."""
    handle = Scheduler.handle

    def checked(scheduler: Scheduler, event: Event) -> list[Action]:
        actions = handle(scheduler, event)
        core_invariants.check(scheduler.cluster)
        return actions

    monkeypatch.setattr(Scheduler, "handle", checked)


def act(at_s: float, action: NodeAction, node: str) -> NodeEvent:
    return NodeEvent(at_s=at_s, action=action, node=node)


STORMY = SimCluster(
    nodes=5,
    faults=Faults(node_mtbf_h=0.5, repair_s=30, slow_switch_share=0.2),
    events=(
        act(200, NodeAction.DRAIN, "n00001"),
        act(300, NodeAction.JOIN, "n00100"),
        act(400, NodeAction.CORDON, "n00002"),
        act(900, NodeAction.UNCORDON, "n00001"),
        act(900, NodeAction.UNCORDON, "n00002"),
    ),
)


def mixed_jobs(seed: int, *, rollout_nodes: Sequence[int] = (0,)) -> tuple[SimJob, ...]:
    """Return ten jobs of one to three nodes, of which some have two training deployments."""
    dice, made = random.Random(seed), []
    for at in range(10):
        one = job(
            f"j{at}",
            nodes=dice.choice([1, 1, 2, 3]),
            cycles=dice.randint(3, 12),
            period=dice.choice([60, 90, 100]),
            durations=dice.choice([(10, 15), (30, 10), (5, 5, 5)]),
            mode=dice.choice(list(Mode)),
            jitter=0.3,
            arrival=dice.randint(0, 1000),
        )
        demand = replace(
            one.demand,
            rollout_units=dice.choice(rollout_nodes),
            state_bytes=dice.choice([0, 50]) * GB,
            max_slowdown_ppm=dice.choice([1_010_000, 1_500_000]),
        )
        made.append(replace(one, deployments=dice.choice([1, 2]), demand=demand))
    return tuple(made)


@pytest.mark.usefixtures("checked_core")
@pytest.mark.parametrize("policy", ["isolated", "spread_backfill", "plex"])
@pytest.mark.parametrize("is_cold", [False, True])
def test_losses_drains_and_joins_lose_no_job(policy: str, is_cold: bool) -> None:
    stormy = Workload(jobs=mixed_jobs(1), cluster=STORMY)
    outcome = play(stormy, policy=policy_named(policy), seed=1, is_cold=is_cold).outcome
    assert sum(len(record.restarts) for record in outcome.records) > 3
    assert [drain.node_id for drain in outcome.drains] == ["n00001"]
    for record in outcome.records:
        assert record.finish_us is not None
        ran = Counter(record.phases)
        assert min(ran.values()) >= record.job.cycles, record.job
        assert record.restarts or len(record.busy) == record.job.cycles * len(ran), record.job
        for (_, end), (start, _) in itertools.pairwise(sorted([*record.busy, *record.lost])):
            assert end <= start


@pytest.mark.usefixtures("checked_core")
def test_a_drained_node_is_empty_once_its_jobs_have_moved() -> None:
    cluster = SimCluster(nodes=3, events=(act(200, NodeAction.DRAIN, "n00000"),))
    jobs = tuple(job(f"j{at}", jitter=0.0) for at in range(2))
    outcome = play(Workload(jobs=jobs, cluster=cluster), policy=PLEX, seed=1).outcome
    (drain,) = outcome.drains
    assert drain.empty_us is not None
    assert drain.asked_us < drain.empty_us < drain.asked_us + 100 * SECOND_US
    for record in outcome.records:
        assert "n00000" not in record.stays[-1].nodes
        assert len(record.moves) == len(record.stays) - 1


@pytest.mark.usefixtures("checked_core")
def test_jobs_share_nodes_of_the_size_they_ask_for() -> None:
    groups = (NodeGroup(count=2, devices=8), NodeGroup(count=1, devices=4))
    cluster = SimCluster(nodes=3, unequal=groups)
    large = [job(f"large-{at}", nodes=2, jitter=0.0) for at in range(2)]
    small = [replace(job(f"small-{at}", jitter=0.0), node_devices=4) for at in range(2)]
    mixed = Workload(jobs=(*large, *small), cluster=cluster)
    summary, outcome = compare(mixed, policy=PLEX, seed=1)
    nodes = {str(r.job.demand.resident_id): r.stays[0].nodes for r in outcome.records}
    assert {nodes["large-0"], nodes["large-1"]} == {("n00000", "n00001")}
    assert {nodes["small-0"], nodes["small-1"]} == {("n00002",)}
    assert 0 < summary.lower_bound_s <= summary.drain_s
    held_h = summary.drain_s / 3600
    assert summary.gpu_hours == pytest.approx((16 + 4) * held_h, rel=0.1)


@pytest.mark.usefixtures("checked_core")
def test_a_drained_node_is_left_by_rollouts_too() -> None:
    drains = tuple(act(300, NodeAction.DRAIN, f"n0000{at}") for at in (1, 2))
    alone = Workload(
        jobs=(job("a", cycles=30, rollout_nodes=2),), cluster=SimCluster(nodes=5, events=drains)
    )
    outcome = play(alone, policy=PLEX, seed=1).outcome
    (record,) = outcome.records
    first, last = record.rollout_stays[0], record.rollout_stays[-1]
    assert set(first.nodes) == {"n00001", "n00002"}
    assert set(last.nodes) == {"n00003", "n00004"}
    assert [drain.empty_us for drain in outcome.drains] == pytest.approx(
        [last.since_us, last.since_us], abs=100
    )
    lines = output.node_lines(outcome)
    assert [line["node"] for line in lines] == ["n00001", "n00002"]
    assert all(isinstance(line["empty_s"], float) for line in lines)


def wide_jobs() -> Workload:
    """Return a job on both nodes, another that comes soon, and a node that closes then."""
    jobs = [job("first", nodes=2, cycles=60), job("second", nodes=2, cycles=20, arrival=20)]
    closed = (act(40, NodeAction.CORDON, "n00001"),)
    return Workload(jobs=tuple(jobs), cluster=SimCluster(nodes=2, events=closed))


def test_a_policy_is_judged_alone_where_isolated_never_ends() -> None:
    summary, outcome = compare(wide_jobs(), policy=PLEX, seed=1)
    assert all(record.finish_us for record in outcome.records)
    assert summary.drain_ratio is None
    assert summary.lower_bound_s <= summary.drain_s
    assert "second" in str(summary.isolated_error)
    with pytest.raises(PlexError, match="never ended"):
        compare(wide_jobs(), policy=policy_named("isolated"), seed=1)


@pytest.mark.usefixtures("checked_core")
def test_each_training_deployment_of_a_job_runs_its_own_phases() -> None:
    two = replace(job("j", nodes=2, durations=(10, 15, 5)), deployments=2)
    cluster = SimCluster(nodes=4)
    isolated = policy_named("isolated")
    outcome = play(Workload(jobs=(two,), cluster=cluster), policy=isolated, seed=1).outcome
    (record,) = outcome.records
    assert slowdown(record) == pytest.approx(1.0, abs=1e-5)
    assert set(record.stays[-1].nodes) == {f"n{at:05d}" for at in range(4)}
    assert outcome.node_us == pytest.approx(4 * record.alone_us, rel=1e-5)


@pytest.mark.usefixtures("checked_core")
def test_jobs_that_roll_out_on_the_cluster_do_not_wait_for_each_other_forever() -> None:
    greedy = mixed_jobs(2, rollout_nodes=(0, 1, 2))
    outcome = play(Workload(jobs=greedy, cluster=SimCluster(nodes=5)), policy=PLEX, seed=1).outcome
    assert all(record.finish_us is not None for record in outcome.records)


def test_losses_come_at_the_times_of_the_seed_whatever_the_policy() -> None:
    faults = Faults(node_mtbf_h=0.5, repair_s=100, slow_switch_share=0.5)
    jobs = tuple(job(f"j{at}", cycles=40, arrival=10 * at) for at in range(4))
    shared = Workload(jobs=jobs, cluster=SimCluster(nodes=3, faults=faults))
    one, other = (
        [(lost.node_id, lost.at_us) for lost in play(shared, policy=policy, seed=1).outcome.losses]
        for policy in (policy_named("isolated"), PLEX)
    )
    common = min(len(one), len(other))
    assert common > 5
    assert [node for node, _ in one[:common]] == [node for node, _ in other[:common]]
    times = [[at_us for _, at_us in losses[:common]] for losses in (one, other)]
    assert times[0] == pytest.approx(times[1], abs=50)


def test_a_job_says_which_node_it_lost() -> None:
    cluster = SimCluster(nodes=3, faults=Faults(node_mtbf_h=0.5, repair_s=100))
    outcome = play(Workload(jobs=mixed_jobs(2)[:3], cluster=cluster), policy=PLEX, seed=2).outcome
    lost = {(loss.node_id, loss.at_us) for loss in outcome.losses}
    restarts = [(record, restart) for record in outcome.records for restart in record.restarts]
    assert restarts
    for record, restart in restarts:
        stay = [stay for stay in record.stays if stay.since_us <= restart.at_us][-1]
        assert restart.node_id in set(map(NodeId, stay.nodes))
        assert (restart.node_id, restart.at_us) in lost


def test_a_run_whose_nodes_stay_closed_ends_with_the_reason() -> None:
    closed = (act(0, NodeAction.CORDON, "n00000"),)
    cluster = SimCluster(nodes=1, events=closed, faults=Faults(node_mtbf_h=1, repair_s=10))
    with pytest.raises(PlexError, match=r"1 of 1 jobs never ended.* 1 nodes are closed") as ended:
        play(Workload(jobs=(job("a"),), cluster=cluster), policy=PLEX, seed=1)
    assert ended.value.code is ErrorCode.NO_PLACEMENT


def test_a_job_that_losses_keep_from_its_first_cycle_ends_the_run_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("plexsvc.sim.jobs.MAX_LOSSES", 40)
    cluster = SimCluster(nodes=4, faults=Faults(node_mtbf_h=0.01, repair_s=0))
    wide = Workload(jobs=(job("a", period=3600, nodes=4),), cluster=cluster)
    with pytest.raises(PlexError, match=r"a lost its nodes 40 times in a row before"):
        play(wide, policy=PLEX, seed=1)


def test_a_gang_waits_for_the_repair_of_a_node_it_needs() -> None:
    cluster = SimCluster(nodes=2, faults=Faults(node_mtbf_h=0.3, repair_s=300))
    wide = Workload(jobs=(job("a", nodes=2, cycles=20),), cluster=cluster)
    (record,) = play(wide, policy=PLEX, seed=1).outcome.records
    assert record.restarts
    assert record.stays[1].since_us - record.restarts[0].at_us >= 300 * SECOND_US


def test_the_pool_owner_s_target_holds_in_the_live_core_too() -> None:
    whole = preset_named("k-job-30b", seed=1)
    short = replace(whole, jobs=tuple(replace(job, cycles=10) for job in whole.jobs))
    loose, strict = (
        play(one, policy=PLEX, seed=1).outcome
        for one in (short, replace(short, cluster=replace(short.cluster, target_slowdown=None)))
    )
    assert loose.node_us < strict.node_us


def test_the_same_seed_gives_the_same_history() -> None:
    shared = workload(jobs=3, nodes=1)
    first, again, other = (play(shared, policy=PLEX, seed=seed).outcome for seed in (5, 5, 6))
    assert first == again
    assert spans(first) != spans(other)


def test_a_trace_the_cluster_cannot_hold_is_no_silent_success() -> None:
    small = SimCluster(nodes=1, devices_per_node=1)
    wide = workload(jobs=1, nodes=1).jobs[0]
    demand = replace(wide.demand, num_units=2, resident_id=ResidentId("wide"))
    with pytest.raises(PlexError, match="no_placement"):
        play(Workload(jobs=(replace(wide, demand=demand),), cluster=small), policy=PLEX, seed=1)


def test_jobs_that_fill_a_pool_with_their_switches_tear_no_bursts() -> None:
    summary, _ = compare(preset_named("k-job-30b-boundary", seed=2), policy=PLEX, seed=2)
    assert summary.inflation <= 1.20, "1.256 where a burst was torn whatever switches cost others"
    assert summary.gpu_hours_reduction >= 0.50


def test_the_command_plays_a_preset_warm_and_cold() -> None:
    command = ["simulate", "--preset", "two-job-7b", "--json"]
    drains = []
    for more in ([], ["--cold"]):
        result = CliRunner().invoke(app, [*command, *more])
        assert result.exit_code == 0, result.output
        drains.append(json.loads(result.stdout)["drain_s"])
    assert max(drains) < 1.05 * min(drains)


def test_the_command_plays_a_trace_whose_jobs_do_not_say_how_long_they_run(tmp_path: Path) -> None:
    line = {"arrival_s": 0, "nodes": 1, "period_s": 100, "max_slowdown": 1}
    segments = [{"phase": "update", "offset_s": 0, "duration_s": 90}]
    trace, cluster = tmp_path / "trace.jsonl", tmp_path / "cluster.json"
    lines = [
        {**line, "job_id": f"j{at}", "cycles": cycles, "segments": segments}
        for at, cycles in enumerate((1, 1, 9))
    ]
    trace.write_text("\n".join(map(json.dumps, lines)))
    cluster.write_text('{"nodes": 1}')
    starts = []
    for more in ([], ["--unknown-lengths"]):
        out = tmp_path / f"out{len(more)}"
        command = ["simulate", str(trace), "--cluster", str(cluster), "--out", str(out), *more]
        result = CliRunner().invoke(app, command)
        assert result.exit_code == 0, result.output
        jobs = [json.loads(text) for text in (out / "jobs.jsonl").read_text().splitlines()]
        starts.append([job["job_id"] for job in sorted(jobs, key=lambda job: job["start_s"])])
    assert starts == [["j0", "j2", "j1"], ["j0", "j1", "j2"]]


def test_the_same_seed_gives_the_same_history_under_any_hash_seed() -> None:
    code = (
        "from plexsvc.sim.presets import cluster_256;from plexsvc.sim.run import play;"
        "from plexsvc.scheduler.core.planning.policies import POLICIES;"
        "w=cluster_256(seed=5,num_jobs=10);o=play(w,policy=POLICIES['plex'],seed=5).outcome;"
        "print([(r.stays,r.start_us,r.finish_us,r.busy,r.switch,r.prefetch) for r in o.records])"
    )
    histories = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for hash_seed in ("0", "12345")
    }
    assert len(histories) == 1
    assert len(next(iter(histories))) > 1000


def test_two_jobs_of_the_paper_share_a_pool_at_its_bound() -> None:
    for model, least in (("7b", 0.37), ("30b", 0.41), ("235b", 0.37)):
        summary, _ = compare(preset_named(f"two-job-{model}", seed=1), policy=PLEX, seed=1)
        assert (summary.gpu_hours_reduction or 0) >= least
        assert summary.inflation <= 1.05
        assert summary.wait_p99_of_isolated is None, "nobody waits for a place there"


def test_plex_switches_less_and_inflates_less_than_fcfs_and_hrrs_at_three_jobs() -> None:
    three = preset_named("order-3", seed=1)
    plex, _ = compare(three, policy=PLEX, seed=1)
    for name in ("plex_fcfs", "plex_hrrs"):
        other, _ = compare(three, policy=policy_named(name), seed=1)
        assert plex.switches < other.switches
        assert plex.inflation < other.inflation


def test_identical_jobs_started_together_settle_into_turns() -> None:
    jobs = tuple(job(f"j{at}", cycles=200, durations=(8, 10), switch=0) for at in range(4))
    loose = replace(PLEX, max_jobs=5, critical_target_ppm=10_000_000, duty_cap_ppm=950_000)
    outcome = play(Workload(jobs=jobs, cluster=SimCluster(nodes=1)), policy=loose, seed=1).outcome
    assert {record.stays[0].nodes for record in outcome.records} == {("n00000",)}
    assert max(slowdown(record) for record in outcome.records) < 1.01


@pytest.mark.every(2)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "low", "high"), [("plex", 0.85, 1.18), ("spread_backfill", 0.05, 0.2)]
)
def test_ten_times_the_jobs_get_no_more_device_time_where_tenants_take_turns(
    policy: str, low: float, high: float
) -> None:
    assert low < few_over_many(tenants(seed=3, nodes=3), policy=policy, seed=3) < high


@pytest.mark.slow
def test_a_cluster_drains_sooner_shared() -> None:
    summary, _ = compare(cluster_256(seed=1, num_jobs=60), policy=PLEX, seed=1)
    assert summary.drain_ratio is not None
    assert summary.gpu_hours_reduction is not None
    assert summary.lower_bound_s <= summary.drain_s
    assert summary.drain_ratio < 1
    assert summary.gpu_hours_reduction >= 0.3
    assert summary.slowdown_mean <= 1.05


@pytest.mark.slow
def test_sharing_gains_nothing_at_a_duty_near_one() -> None:
    workload = cluster_256(seed=1, num_jobs=30, duty=(0.93, 0.99))
    plex, _ = compare(workload, policy=PLEX, seed=1)
    assert plex.gpu_hours_reduction == pytest.approx(0, abs=0.005)
    assert plex.slowdown_max < 1.01


def test_a_drained_node_is_left_as_soon_as_there_is_room_and_a_joined_one_is_used() -> None:
    """Two nodes, a job on each; one is drained while the other is full, then a third joins."""
    cluster = SimCluster(
        nodes=2,
        events=(
            act(1000, NodeAction.DRAIN, "n00000"),
            act(3000, NodeAction.JOIN, "n00009"),
        ),
    )
    jobs = [job(f"j{i}", cycles=100, durations=(30, 30), mode=Mode.ASYNC1) for i in range(2)]
    state = replace(jobs[0].demand, state_bytes=50 * GB)
    jobs[0] = replace(jobs[0], demand=state)
    outcome = play(Workload(jobs=tuple(jobs), cluster=cluster), policy=PLEX, seed=1).outcome
    (drain,) = outcome.drains
    assert drain.asked_us == pytest.approx(1000 * SECOND_US, abs=10)
    assert drain.empty_us is not None
    assert 3000 * SECOND_US <= drain.empty_us <= 3200 * SECOND_US
    moved = outcome.records[0]
    assert [stay.nodes for stay in moved.stays] == [("n00000",), ("n00009",)]
    (move,) = moved.moves
    assert move.until_us - move.since_us >= 5 * SECOND_US
    assert move.why == "node n00000 is drained"


@pytest.mark.rare
@pytest.mark.slow
def test_sharp_jobs_lose_less_by_the_rounds_played_and_drain_as_soon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ring = play(steady(seed=1), policy=PLEX, seed=1).outcome
    monkeypatch.setattr(profile, "is_sharp", lambda _: False)
    formula = play(steady(seed=1), policy=PLEX, seed=1).outcome
    lost, lost_by_formula = (
        sum(slowdown(record) - 1 for record in one.records) for one in (ring, formula)
    )
    assert lost <= 0.8 * lost_by_formula
    assert drain_us(ring) <= 1.05 * drain_us(formula)


def test_cold_jobs_start_on_nodes_of_their_own_and_are_measured_there() -> None:
    jobs = tuple(job(f"j{i}", cycles=60, mode=Mode.ASYNC1) for i in range(2))
    cold = Workload(jobs=jobs, cluster=SimCluster(nodes=2))
    outcome = play(cold, policy=PLEX, seed=1, is_cold=True).outcome
    assert [record.start_us or 0 for record in outcome.records] == pytest.approx([0, 0], abs=100)
    known = [record.stays[0].nodes for record in outcome.records]
    assert known[0] != known[1]


def test_small_jobs_share_a_large_ones_nodes_side_by_side() -> None:
    large = job("large", nodes=2, cycles=30, durations=(10, 10), mode=Mode.ASYNC1)
    small = [
        job(f"s{i}", cycles=40, durations=(9, 9), mode=Mode.ASYNC1, arrival=5) for i in range(2)
    ]
    pair = Workload(jobs=(large, *small), cluster=SimCluster(nodes=2))
    outcome = play(pair, policy=PLEX, seed=1).outcome
    nodes = [record.stays[0].nodes for record in outcome.records]
    assert nodes[0] == ("n00000", "n00001")
    assert nodes[1] == ("n00000",)


def test_a_lost_node_that_an_operator_joins_is_not_joined_again_when_repaired() -> None:
    joins = tuple(act(60 * minute, NodeAction.JOIN, "n00000") for minute in range(30))
    cluster = SimCluster(nodes=2, faults=Faults(node_mtbf_h=0.2, repair_s=300), events=joins)
    outcome = play(Workload(jobs=(job("a", cycles=20),), cluster=cluster), policy=PLEX, seed=1)
    assert outcome.outcome.records[0].restarts


def test_rollout_nodes_are_not_charged_while_their_job_has_no_place() -> None:
    cluster = SimCluster(nodes=2, faults=Faults(node_mtbf_h=0.3, repair_s=1000))
    alone = Workload(jobs=(job("a", cycles=20, rollout_nodes=1),), cluster=cluster)
    outcome = play(alone, policy=policy_named("isolated"), seed=1).outcome
    (record,) = outcome.records
    assert record.restarts
    assert record.finish_us is not None
    missing_s = 1000 * len(record.restarts)
    held_h = (2 * record.finish_us / SECOND_US - missing_s) / 3600
    assert gpu_hours(outcome) <= 8 * held_h


def test_a_simulated_cluster_has_the_limits_of_a_live_one() -> None:
    assert live_policy(limits_of(PLEX)) == live_policy(Limits())
    assert (Limits().max_jobs, Limits().placement_timeout_us) == (4096, 0)


@pytest.mark.rare
def test_a_job_behind_a_stream_of_higher_priorities_starts_within_two_days() -> None:
    """Four nodes that jobs of priority 10 fill for 60 hours; a run of ten hours has none."""
    load = giant_gang(seed=1, priority=0, hours=60)
    stream = [replace(j, demand=replace(j.demand, priority=10)) for j in load.jobs[1:]]
    hour_us = 3600 * SECOND_US
    asked = replace(stream[0].demand, priority=0, arrived_us=8 * hour_us, expected_us=10 * hour_us)
    low = replace(stream[0], demand=replace(asked, resident_id=ResidentId("low")))
    load = Workload(jobs=(low, *stream), cluster=SimCluster(nodes=4))
    outcome = play(load, policy=policy_named("plex"), seed=1).outcome
    start_us = outcome.records[0].start_us
    assert start_us is not None
    waited_h = (start_us - low.demand.arrived_us) / hour_us
    assert 24 < waited_h < 2 * 24 + 2


def test_a_gang_with_a_priority_starts_within_two_hours_however_many_small_jobs_come() -> None:
    load = giant_gang(seed=1, priority=100, hours=6)
    outcome = play(load, policy=policy_named("plex"), seed=1).outcome
    gang = next(r for r in outcome.records if r.job.demand.resident_id == "gang")
    assert gang.start_us is not None
    assert gang.start_us - gang.job.demand.arrived_us < 2 * 3600 * SECOND_US
    assert all(r.finish_us is not None for r in outcome.records)
