"""Comparison of a workload's runs: throughput, cost, and the bounds of both."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from benchmarks.rlboost.run import (
    HOUR_US,
    POLICIES,
    RolloutOutcome,
    RolloutRun,
    StepRecord,
)
from benchmarks.rlboost.workload import RolloutWorkload


def compare_rollouts(
    workload: RolloutWorkload, *, seed: int, told: Callable[[str, StepRecord], None]
) -> tuple[dict[str, Any], Mapping[str, RolloutOutcome]]:
    """Return the product against the training devices alone and a plain use of the same instances.

    With the figures of all policies as `runs`, and their outcomes; `told` hears of each step. The
    bound on throughput is that of the devices: rollout engines that served, spot ones included,
    over those of the training devices. The bound on tokens per dollar is that over what they cost.
    Neither counts that batches shrink when instances are more, nor that the training devices alone
    stand idle while the last samples end.

    Raises:
        PlexError: `internal` if a run never ends.
    """
    outcomes = {
        name: RolloutRun(workload, policy=policy, seed=seed, told=partial(told, name)).run()
        for name, policy in POLICIES.items()
    }
    runs = {name: _figures(workload, outcome) for name, outcome in outcomes.items()}
    base, plain, plex = runs["reserved"], runs["plain"], runs["plex"]
    trainer = workload.trainer
    bound = (trainer.engines + plex["instances"]) / trainer.engines
    dearer = 1 + plex["paid_instances"] * workload.spot.price / max(trainer.price, 1e-9)
    summary = {
        "preset": workload.name,
        "seed": seed,
        "speedup": plex["tokens_per_s"] / base["tokens_per_s"],
        "speedup_bound": bound,
        "cost_efficiency": _ratio(plex, base),
        "cost_efficiency_bound": bound / dearer,
        "plain_speedup": plain["tokens_per_s"] / base["tokens_per_s"],
        "plain_cost_efficiency": _ratio(plain, base),
    }
    return _rounded(summary) | {"runs": {k: _rounded(run) for k, run in runs.items()}}, outcomes


def _ratio(run: Mapping[str, Any], base: Mapping[str, Any]) -> float:
    dearer = base["tokens_per_dollar"]
    return float(run["tokens_per_dollar"] / dearer) if dearer else 0.0


def _figures(workload: RolloutWorkload, outcome: RolloutOutcome) -> dict[str, Any]:
    """Return what a run came to; tokens are of prompts and answers that were trained.

    Spot instances are those that served on average, and those that were paid for. An instance that
    was killed had samples or none; each time that a sample went on elsewhere counts as moved.
    """
    steps, spent = outcome.steps, outcome.spent
    end_us = steps[-1].ended_us
    tokens = sum(step.tokens for step in steps)
    spot = workload.spot.price * outcome.slot_us / HOUR_US
    dollars = workload.trainer.price * end_us / HOUR_US + spot
    return {
        "policy": outcome.policy.name,
        "steps": len(steps),
        "elapsed_s": end_us / 1e6,
        "step_s": end_us / 1e6 / len(steps),
        "tokens_per_s": tokens / end_us * 1e6,
        "dollars": dollars,
        "tokens_per_dollar": tokens / dollars if dollars else 0.0,
        "instances": sum(step.instance_us for step in steps) / end_us,
        "paid_instances": outcome.slot_us / end_us,
        "starts": outcome.starts,
        "kills": outcome.kills,
        "moved": outcome.moved,
        "generated_tokens": spent.tokens,
        "prefilled_tokens": spent.prefilled,
        "cached_tokens": spent.cached,
        "events": outcome.events,
    }


def _rounded(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: float(f"{value:.6g}") if isinstance(value, float) else value
        for name, value in values.items()
    }
