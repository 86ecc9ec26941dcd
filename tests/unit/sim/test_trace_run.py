"""Traces through the whole core: records as the simulator's, same seed same history."""

from __future__ import annotations

import itertools
import json
import random
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from plexsvc.cli.main import app
from plexsvc.errors import PlexError
from plexsvc.ids import ResidentId
from plexsvc.scheduler.core.planning.policies import PLEX, policy_named
from plexsvc.scheduler.core.planning.profile import SECOND_US, Mode
from plexsvc.sim.cluster import SimCluster
from plexsvc.sim.presets import Workload
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
    outcome = play_live(tight, policy=PLEX, seed=1, is_warm=False).outcome
    moved = [record for record in outcome.records if record.moves]
    assert moved
    for record in moved:
        assert [stay.since_us for stay in record.stays[1:]] == [end for _, end in record.moves]
        for held_us, arrived_us in record.moves:
            assert not any(s < arrived_us and held_us < e for s, e in record.busy)


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
