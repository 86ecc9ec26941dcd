"""Simulated generates that are planned by expected lengths."""

from __future__ import annotations

from dataclasses import replace

from plexsvc.sim.rollout.planned import ALL, PLAN_POLICIES, PlannedRun, compare_plans
from plexsvc.sim.rollout.presets import gsm8k

SMALL = replace(gsm8k(), prompts=96, steps=1, epochs=2)


def test_every_policy_generates_every_token() -> None:
    for policy in PLAN_POLICIES:
        run = PlannedRun(SMALL, policy=policy, seed=1)
        run.run()
        assert not run.core.generates
        assert not run.units, "every instance was let go"
        assert 0 < run.took_us <= run.paid_us


def test_a_plan_costs_less_than_none_and_is_no_slower() -> None:
    plans = compare_plans(replace(SMALL, prompts=256), seed=1)
    assert plans["all"].speedup > 1.05
    assert plans["all"].cost < 0.9
    assert plans["assigned"].cost < plans["prefill"].cost < plans["none"].cost
    assert plans["uncut"].cost > plans["all"].cost


def test_samples_of_a_prompt_are_prefilled_once() -> None:
    plans = compare_plans(SMALL, seed=1)
    ideal = 1 - 1 / SMALL.samples
    saved = 1 - plans["prefill"].prefilled_tokens / plans["none"].prefilled_tokens
    assert saved >= 0.95 * ideal


def test_expected_lengths_get_better_with_epochs() -> None:
    first = PlannedRun(replace(SMALL, epochs=1), policy=ALL, seed=3)
    knowing = PlannedRun(replace(SMALL, epochs=1), policy=replace(ALL, knows=True), seed=3)
    first.run()
    knowing.run()
    assert knowing.paid_us <= 1.1 * first.paid_us
