"""Traces through the whole core: records as the simulator's, same seed same history."""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from plexsvc.cli.main import app
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.ids import ResidentId
from plexsvc.scheduler.core import invariants
from plexsvc.scheduler.core.actions import Action
from plexsvc.scheduler.core.events import Event
from plexsvc.scheduler.core.machine import Scheduler
from plexsvc.scheduler.core.planning.policies import PLEX, policy_named
from plexsvc.scheduler.core.planning.profile import SECOND_US, Mode
from plexsvc.sim.cluster import GB, Faults, NodeAction, NodeEvent, SimCluster
from plexsvc.sim.jobs import SimJob
from plexsvc.sim.presets import Workload, preset_named
from plexsvc.sim.records import Outcome
from plexsvc.sim.run import play
from plexsvc.sim.summary import drain_us, slowdown
from plexsvc.sim.trace_run import play_live
from tests.unit.sim.test_simulator import job


def workload(*, jobs: int, nodes: int, mode: Mode = Mode.SYNC, jitter: float = 0.15) -> Workload:
    made = [job(f"j{at}", cycles=6, mode=mode, jitter=jitter, arrival=3 * at) for at in range(jobs)]
    return Workload(jobs=tuple(made), cluster=SimCluster(nodes=nodes, devices_per_node=1))


def spans(outcome: Outcome) -> dict[str, list[tuple[int, int]]]:
    """Return who used each node when: operations and switches."""
    by_node: dict[str, list[tuple[int, int]]] = {}
    for record in outcome.records:
        for node_id in record.stays[0].nodes:
            by_node.setdefault(node_id, []).extend([*record.busy, *record.switch])
    return by_node


@pytest.mark.parametrize("mode", Mode)
def test_jobs_alone_run_as_in_the_simulator(mode: Mode) -> None:
    loose = workload(jobs=2, nodes=4, mode=mode)
    isolated = policy_named("isolated")
    live = play_live(loose, policy=isolated, seed=3).outcome
    simulated = play(loose, policy=isolated, seed=3).outcome
    for one, other in zip(live.records, simulated.records, strict=True):
        assert [end - start for start, end in one.busy] == [
            end - start for start, end in other.busy
        ]
        assert one.phases == other.phases
        assert slowdown(one) == pytest.approx(1.0, abs=1e-5)
    first_switch_us = 2 * SECOND_US  # the simulator charges it, the core builds in place
    assert -100 <= drain_us(simulated) - drain_us(live) <= first_switch_us


@pytest.mark.parametrize("mode", Mode)
def test_jobs_that_share_take_turns_and_pay_their_switches(mode: Mode) -> None:
    outcome = play_live(workload(jobs=3, nodes=1, mode=mode), policy=PLEX, seed=1).outcome
    (used,) = spans(outcome).values()
    for (_, end), (start, _) in itertools.pairwise(sorted(used)):
        assert end <= start
    assert outcome.counts.switches == sum(len(record.switch) for record in outcome.records) > 6
    for record in outcome.records:
        assert len(record.busy) == 12
        assert all(end - start == SECOND_US for start, end in record.switch)


def test_a_gang_takes_a_block_and_occupied_devices_are_counted() -> None:
    wide = Workload(
        jobs=(job("wide", nodes=4, jitter=0.0),), cluster=SimCluster(nodes=8, devices_per_node=1)
    )
    outcome = play_live(wide, policy=PLEX, seed=1).outcome
    (record,) = outcome.records
    assert len(record.stays[0].nodes) == 4
    assert outcome.group_node_us == pytest.approx(4 * record.alone_us, rel=1e-5)


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
    outcome = play_live(tight, policy=PLEX, seed=1, is_cold=True).outcome
    moved = [record for record in outcome.records if record.moves]
    assert moved
    for record in moved:
        assert [stay.since_us for stay in record.stays[1:]] == [end for _, end in record.moves]
        for held_us, arrived_us in record.moves:
            assert not any(s < arrived_us and held_us < e for s, e in record.busy)


@pytest.fixture
def checked_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the core's invariants checked after every event."""
    handle = Scheduler.handle

    def checked(scheduler: Scheduler, event: Event) -> list[Action]:
        actions = handle(scheduler, event)
        invariants.check(scheduler.cluster)
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
    outcome = play_live(stormy, policy=policy_named(policy), seed=1, is_cold=is_cold).outcome
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
    outcome = play_live(Workload(jobs=jobs, cluster=cluster), policy=PLEX, seed=1).outcome
    (drain,) = outcome.drains
    assert drain.empty_us is not None
    assert drain.asked_us < drain.empty_us < drain.asked_us + 100 * SECOND_US
    for record in outcome.records:
        assert "n00000" not in record.stays[-1].nodes
        assert len(record.moves) == len(record.stays) - 1


@pytest.mark.usefixtures("checked_core")
def test_each_training_deployment_of_a_job_runs_its_own_phases() -> None:
    two = replace(job("j", nodes=2, durations=(10, 15, 5)), deployments=2)
    cluster = SimCluster(nodes=4)
    isolated = policy_named("isolated")
    outcome = play_live(Workload(jobs=(two,), cluster=cluster), policy=isolated, seed=1).outcome
    (record,) = outcome.records
    assert slowdown(record) == pytest.approx(1.0, abs=1e-5)
    assert set(record.stays[-1].nodes) == {f"n{at:05d}" for at in range(4)}
    assert outcome.group_node_us == pytest.approx(4 * record.alone_us, rel=1e-5)


@pytest.mark.usefixtures("checked_core")
def test_jobs_that_roll_out_on_the_cluster_do_not_wait_for_each_other_forever() -> None:
    greedy = mixed_jobs(2, rollout_nodes=(0, 1, 2))
    outcome = play_live(
        Workload(jobs=greedy, cluster=SimCluster(nodes=5)), policy=PLEX, seed=1
    ).outcome
    assert all(record.finish_us is not None for record in outcome.records)


def test_losses_come_at_the_times_that_the_simulator_draws() -> None:
    faults = Faults(node_mtbf_h=0.3, repair_s=100)
    alone = Workload(jobs=(job("a", cycles=60),), cluster=SimCluster(nodes=1, faults=faults))
    live, simulated = (
        by(alone, policy=policy_named("isolated"), seed=1).outcome.records[0]
        for by in (play_live, play)
    )
    assert len(live.restarts) > 3
    assert live.restarts[:3] == pytest.approx(simulated.restarts[:3], abs=100)


def test_a_run_whose_nodes_stay_closed_ends_with_the_reason() -> None:
    closed = (act(0, NodeAction.CORDON, "n00000"),)
    cluster = SimCluster(nodes=1, events=closed, faults=Faults(node_mtbf_h=1, repair_s=10))
    with pytest.raises(PlexError, match=r"1 of 1 jobs never ended.* 1 nodes are closed") as ended:
        play_live(Workload(jobs=(job("a"),), cluster=cluster), policy=PLEX, seed=1)
    assert ended.value.code is ErrorCode.NO_PLACEMENT


def test_a_job_that_losses_keep_from_its_first_cycle_ends_the_run_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("plexsvc.sim.jobs.MAX_LOSSES", 40)
    cluster = SimCluster(nodes=4, faults=Faults(node_mtbf_h=0.01, repair_s=0))
    wide = Workload(jobs=(job("a", period=3600, nodes=4),), cluster=cluster)
    with pytest.raises(PlexError, match=r"a lost its nodes 40 times in a row before"):
        play_live(wide, policy=PLEX, seed=1)


def test_a_gang_waits_for_the_repair_of_a_node_it_needs() -> None:
    cluster = SimCluster(nodes=2, faults=Faults(node_mtbf_h=0.3, repair_s=300))
    wide = Workload(jobs=(job("a", nodes=2, cycles=20),), cluster=cluster)
    (record,) = play_live(wide, policy=PLEX, seed=1).outcome.records
    assert record.restarts
    assert record.stays[1].since_us - record.restarts[0] >= 300 * SECOND_US


def test_the_pool_owner_s_target_holds_in_the_live_core_too() -> None:
    whole = preset_named("k-job-30b", seed=1)
    short = replace(whole, jobs=tuple(replace(job, cycles=10) for job in whole.jobs))
    loose, strict = (
        play_live(one, policy=PLEX, seed=1).outcome
        for one in (short, replace(short, target_slowdown_ppm=None))
    )
    assert loose.group_node_us < strict.group_node_us


def test_the_same_seed_gives_the_same_history() -> None:
    shared = workload(jobs=3, nodes=1)
    first, again, other = (play_live(shared, policy=PLEX, seed=seed).outcome for seed in (5, 5, 6))
    assert first == again
    assert spans(first) != spans(other)


def test_a_trace_the_cluster_cannot_hold_is_no_silent_success() -> None:
    small = SimCluster(nodes=1, devices_per_node=1)
    wide = workload(jobs=1, nodes=1).jobs[0]
    demand = replace(wide.demand, num_units=2, resident_id=ResidentId("wide"))
    with pytest.raises(PlexError, match="no_placement"):
        play_live(
            Workload(jobs=(replace(wide, demand=demand),), cluster=small), policy=PLEX, seed=1
        )


def test_the_command_plays_the_live_core_warm_and_cold() -> None:
    command = ["simulate", "--preset", "two-job-7b", "--json", "--core"]
    drains = []
    for core in ("planning", "live", "live-cold"):
        result = CliRunner().invoke(app, [*command, core])
        assert result.exit_code == 0, result.output
        drains.append(json.loads(result.stdout)["drain_s"])
    assert max(drains) < 1.05 * min(drains)
    refused = CliRunner().invoke(app, [*command, "dead"])
    assert refused.exit_code == 2
    assert "none of planning" in refused.stderr
