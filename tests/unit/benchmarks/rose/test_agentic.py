"""Simulated rollouts of agents beside serving engines that lend."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.rlboost.engine import EngineProfile
from benchmarks.rose.agentic import AgenticRun, AgenticWorkload, Agents, Way
from benchmarks.rose.coserved import Sharing, latency
from benchmarks.rose.traffic import Traffic
from plexsvc.rollout.core.lending import Objectives

PROFILE = EngineProfile(
    fixed_us=20_000, each_us=500, context_us=0.1, prefill_us=40, kv_tokens=60_000, batch=16
)
WORK = AgenticWorkload(
    name="small",
    way="grpo",
    profile=PROFILE,
    engines=1,
    serving=replace(PROFILE, fixed_us=8_000, each_us=20, kv_tokens=100_000),
    kv_bytes=(2, 2),
    lenders=2,
    objectives=Objectives(ttft_us=500_000, tpot_us=150_000),
    fleet=16,
    agents=Agents(
        turns_median=4,
        turns_sigma=0.4,
        most_turns=8,
        action_median=30,
        agent_sigma=0.3,
        turn_sigma=0.3,
        observed_tokens=40,
        first_tokens=200,
        environment_us=200_000,
        most_tokens=2000,
    ),
    group=4,
    batch=48,
    valid=0.5,
    token_us=100,
    update_us=100_000,
    pull_us=(500_000, 1_000_000),
    steps=2,
)
TRAFFIC = Traffic(prompt_median=200, answer_median=40).draw(seconds=120, seed=1)


def play(way: Way, sharing: Sharing) -> AgenticRun:
    run = AgenticRun(replace(WORK, way=way), TRAFFIC, sharing=sharing, seed=1)
    run.run()
    return run


@pytest.mark.parametrize("way", ["grpo", "dapo", "flow"])
def test_lent_engines_let_rollouts_end_sooner_and_requests_keep_their_objectives(way: Way) -> None:
    alone, lending = play(way, Sharing.ALONE), play(way, Sharing.LENDING)
    speeds = [run.outcome.tokens / run.outcome.elapsed_us for run in (alone, lending)]
    assert speeds[1] > 1.3 * speeds[0]
    assert latency(lending.lenders).late == 0
    assert sum(one.guest_us for one in lending.lenders) > 0
    assert all(one.guest_us == 0 for one in alone.lenders)


def test_the_same_trajectories_are_trained_under_every_policy() -> None:
    runs = [play("grpo", sharing) for sharing in Sharing]
    assert len({run.outcome.tokens for run in runs}) == 1
    assert {run.outcome.trajectories for run in runs} == {WORK.batch * WORK.steps}
    for run in runs:
        assert not run.core.generates
        assert all(not one.guest.held for one in run.devices)


def test_groups_whose_rewards_are_equal_are_made_up_for() -> None:
    outcome = play("dapo", Sharing.LENDING).outcome
    assert outcome.trajectories > WORK.batch * WORK.steps
    assert len(outcome.rollouts_us) == WORK.steps


def test_a_run_repeats() -> None:
    runs = [play("grpo", Sharing.LENDING) for _ in range(2)]
    assert runs[0].outcome == runs[1].outcome


def test_a_trajectory_has_at_most_its_tokens() -> None:
    agents = replace(WORK.agents, most_tokens=300)
    actions = agents.draw((1, 2))
    assert agents.first_tokens + sum(actions) + 40 * (len(actions) - 1) <= 300 + 40
