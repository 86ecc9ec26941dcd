"""Simulated rollouts: the cores decide, every sample is trained, policies differ as they must."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.rlboost.run import POLICIES, RolloutOutcome, RolloutRun
from benchmarks.rlboost.settings import fixed, rlboost
from benchmarks.rlboost.workload import LengthModel, RolloutWorkload


def small(workload: RolloutWorkload, *, hours: float = 0.15) -> RolloutWorkload:
    lengths = LengthModel(median=1500, prompt_sigma=0.5, sample_sigma=0.4, most=6000)
    return replace(workload, prompts=32, lengths=lengths, duration_us=round(hours * 3_600_000_000))


def play(workload: RolloutWorkload, policy: str, *, seed: int = 1) -> RolloutOutcome:
    return RolloutRun(workload, policy=POLICIES[policy], seed=seed).run()


def rate(outcome: RolloutOutcome) -> float:
    return sum(step.tokens for step in outcome.steps) / outcome.steps[-1].ended_us


def waste(outcome: RolloutOutcome) -> float:
    """Return the tokens generated for each that was trained."""
    return outcome.spent.tokens / sum(step.tokens for step in outcome.steps)


TRACE = ((0, 1), (0, 2), (60, 3), (150, -1), (200, 4), (260, -2), (265, -3), (330, 5), (400, -4))


def test_the_same_seed_gives_the_same_history() -> None:
    workload = small(rlboost("8b", changes=TRACE, name="trace"))
    first, second = (play(workload, "plex") for _ in range(2))
    assert first.steps == second.steps
    assert play(workload, "plex", seed=2).steps != first.steps


def test_instances_that_are_killed_cost_time_and_no_sample() -> None:
    workload = small(rlboost("8b", changes=TRACE, name="trace"))
    outcome = play(workload, "plex")
    assert outcome.kills >= 3
    assert outcome.moved > 0
    needed = sum(step.tokens for step in outcome.steps) - (
        len(outcome.steps) * workload.prompts * workload.samples * workload.prompt_tokens
    )
    assert needed <= outcome.spent.tokens < 1.1 * needed


def test_notice_loses_less_than_a_kill() -> None:
    killed = small(rlboost("8b", changes=TRACE, name="trace"))
    noticed = replace(killed, spot=replace(killed.spot, notice_us=30_000_000))
    assert waste(play(noticed, "plex")) <= waste(play(killed, "plex"))


def test_without_spot_instances_a_step_is_rollout_and_then_training() -> None:
    outcome = play(small(fixed("8b", count=2, name="two")), "reserved")
    assert outcome.slot_us == 0
    for step in outcome.steps:
        assert step.rolled_us - step.began_us == step.seeded_us
        assert step.ended_us - step.began_us == step.seeded_us + step.train_us


@pytest.mark.parametrize("count", [1, 2, 4])
def test_more_instances_train_more_and_never_more_than_the_devices_allow(count: int) -> None:
    workload = small(fixed("8b", count=count, name="some"), hours=0.2)
    alone, plex = play(workload, "reserved"), play(workload, "plex")
    assert rate(plex) / rate(alone) > 1
    assert rate(plex) / rate(alone) < 1.1 * (4 + count) / 4


def test_moving_samples_beats_starting_them_again() -> None:
    workload = small(rlboost("8b", changes=TRACE, name="trace"))
    plain, plex = play(workload, "plain"), play(workload, "plex")
    assert rate(plain) < rate(plex)
    assert waste(plain) > waste(plex)


def test_the_provider_keeps_to_the_bound_of_the_window() -> None:
    workload = small(fixed("8b", count=6, name="six"))
    most = max(step.most_instances for step in play(workload, "plex").steps)
    assert most > 2
    capped = replace(workload, spot=replace(workload.spot, most=2))
    assert max(count for _, count in play(capped, "plex").counts) == 2
