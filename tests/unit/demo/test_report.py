"""The figures of a demo's jobs and the checks that decide whether it failed."""

from __future__ import annotations

import io
import random

import pytest
from rich.console import Console

from plexsvc.demo.report import (
    Check,
    Figures,
    idle_share,
    job_checks,
    job_figures,
    standard_error,
    verdict,
)
from plexsvc.demo.spans import Window
from tests.rigs.demo_runs import RISING, SAMPLES, make_run, make_span

SECOND = 1_000_000


def figures_of(rewards: list[float], **facts: object) -> Figures:
    run = make_run("bits", rewards=rewards, **facts)  # type: ignore[arg-type] # by name
    return job_figures(make_run("bits", rewards=rewards), run, spans=[])


def failed(job: Figures) -> list[str]:
    samples = 128 * job["steps"]
    return [check.name for check in job_checks(job, samples=samples) if not check.passed]


def test_a_job_that_learns_passes_every_check() -> None:
    assert failed(figures_of(RISING)) == []


@pytest.mark.parametrize("seed", range(20))
def test_rewards_of_learning_rate_zero_fail_the_learning_check(seed: int) -> None:
    dice = random.Random(seed)
    flat = [min(1.0, max(0.0, dice.gauss(0.35, 0.08))) for _ in range(80)]
    assert failed(figures_of(flat)) == ["learning of bits"]


def test_a_gain_within_three_standard_errors_fails_however_large() -> None:
    job = figures_of([*[0.0, 1.0] * 5, *[0.3, 1.0] * 5])
    assert job["reward_last10"] - job["reward_first10"] == pytest.approx(0.15)
    assert failed(job) == ["learning of bits"]


def test_a_certain_gain_below_fifteen_points_fails() -> None:
    assert failed(figures_of([0.5] * 10 + [0.64] * 9 + [0.63])) == ["learning of bits"]


@pytest.mark.parametrize(
    ("facts", "name"),
    [
        ({"held_out": (0.4, 0.4)}, "held-out prompts of bits"),
        ({"gap_max": 2e-3}, "logprob gap of bits"),
        ({"complete": 127}, "samples of bits"),
    ],
)
def test_what_must_not_be_fails_its_check(facts: dict[str, object], name: str) -> None:
    assert failed(figures_of(RISING, **facts)) == [name]


def test_a_failed_check_says_what_was_found_and_what_was_due() -> None:
    learning = job_checks(figures_of([0.3] * 20), samples=SAMPLES)[0]
    assert learning == Check(
        "learning of bits",
        False,
        "reward 0.300 → 0.300, a gain of +0.000; at least 0.15 and 3 times 0.000 are due",
    )


def test_the_standard_error_of_a_difference_of_means_is_that_of_both_samples() -> None:
    first, last = [0.0, 2.0], [1.0, 1.0, 4.0]
    assert standard_error(first, last) == pytest.approx((2.0 / 2 + 3.0 / 3) ** 0.5)


def test_figures_of_a_job_are_of_its_own_operations_and_its_own_time() -> None:
    without = make_run("bits", rewards=RISING, end_us=4 * SECOND)
    run = make_run("bits", rewards=RISING, start_us=10 * SECOND, end_us=18 * SECOND)
    spans = [
        make_span("step", 0, SECOND, job_id="job-other"),
        make_span("load", 10 * SECOND, 11 * SECOND),
        make_span("forward_backward", 11 * SECOND, 14 * SECOND),
        make_span("step", 15 * SECOND, 16 * SECOND, job_id="job-words"),
        make_span("generate", 10 * SECOND, 18 * SECOND, device_kind="rollout", index=1),
    ]
    job = job_figures(without, run, spans=spans)
    assert (job["idle_without"], job["idle_with"]) == (0.75, 0.5)
    assert job["device_seconds_per_step"] == pytest.approx(3 / len(RISING))
    assert job["tokens_per_s_with"] == 640


def test_operations_that_overlap_the_window_count_only_inside_it() -> None:
    spans = [make_span("step", 0, 6), make_span("step", 4, 8)]
    assert idle_share(spans, window=Window(start_us=2, end_us=12)) == pytest.approx(0.4)


def test_the_verdict_names_each_job_and_each_failed_check() -> None:
    out = io.StringIO()
    checks = [Check("learning of bits", False, "no gain")]
    table = verdict("GRPO", [figures_of(RISING)], lines=["in words"], checks=checks)
    Console(file=out, width=200).print(table)
    for text in ("GRPO", "bits", "mean reward, last 10 steps", "in words"):
        assert text in out.getvalue()
    assert "FAILED  learning of bits: no gain" in out.getvalue()
