"""The demo's figures and the checks that decide whether it failed."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest

from plexsvc.demo.presets import Preset
from plexsvc.demo.report import (
    Cap,
    Check,
    Summary,
    bubble_ratio,
    cap,
    checks,
    standard_error,
    summarise,
)
from plexsvc.demo.spans import Window
from tests.rigs.demo_runs import SHARED, make_run, make_span

RISING = [0.2 + 0.02 * step + 0.01 * (step % 2) for step in range(30)]
SECOND = 1_000_000


def summary_of(rewards: list[float], **facts: object) -> Summary:
    alone = make_run("bits", rewards=rewards)
    shared = make_run("bits", rewards=rewards, **facts)  # type: ignore[arg-type] # by name
    spans = [make_span("load", i, i + 1) for i in range(3)] + [make_span("step", 0, SECOND)]
    return summarise([alone], [shared], spans=spans, plan=SHARED)


def failed(summary: Summary, preset: Preset | None = None) -> list[str]:
    found = checks(summary, preset=preset or Preset(name="p"), alone=[], shared=[])
    return [check.name for check in found if not check.passed]


def test_a_job_that_learns_passes_every_check() -> None:
    assert failed(summary_of(RISING)) == []


@pytest.mark.parametrize("seed", range(20))
def test_rewards_of_learning_rate_zero_fail_the_learning_check(seed: int) -> None:
    dice = random.Random(seed)
    flat = [min(1.0, max(0.0, dice.gauss(0.35, 0.08))) for _ in range(80)]
    assert failed(summary_of(flat)) == ["learning of bits"]


def test_a_gain_within_three_standard_errors_fails_however_large() -> None:
    wild = [0.0, 1.0] * 10
    noisy = [*wild[:10], *([0.3, 1.0] * 5)]
    summary = summary_of(noisy)
    job = summary.jobs[0]
    assert job.reward_last10 - job.reward_first10 == pytest.approx(0.15)
    assert "learning of bits" in failed(summary)


def test_a_certain_gain_below_fifteen_points_fails() -> None:
    small = [0.5] * 10 + [0.64] * 9 + [0.63]
    assert failed(summary_of(small)) == ["learning of bits"]


def test_held_out_prompts_that_do_not_improve_fail() -> None:
    assert failed(summary_of(RISING, held_out=(0.4, 0.4))) == ["held-out prompts of bits"]


def test_a_logprob_gap_above_the_bound_fails() -> None:
    assert failed(summary_of(RISING, gap_max=2e-3)) == ["logprob gap of bits"]


def test_a_slow_shared_run_fails_where_a_speedup_is_due() -> None:
    preset = Preset(name="waits", min_speedup=1.5)
    assert failed(summary_of(RISING), preset) == ["speedup"]
    assert failed(summary_of(RISING, end_us=5 * SECOND), preset) == []


def test_waiting_outside_its_bounds_fails() -> None:
    preset = Preset(name="waits", wait_share=0.65)
    runs = [make_run("a", rewards=RISING, wait_s=w) for w in (0.59, 0.65, 0.71)]
    found = checks(summary_of(RISING), preset=preset, alone=runs, shared=[])
    waits = [check.passed for check in found if check.name.startswith("waiting")]
    assert waits == [False, True, False]


@pytest.mark.parametrize(("sent", "failed", "passes"), [(7, 7, True), (7, 6, False), (0, 0, False)])
def test_every_hostile_program_must_fail_and_some_must_be_sent(
    sent: int, failed: int, passes: bool
) -> None:
    run = make_run("code", rewards=RISING)
    record = replace(run.record, hostile_sent=sent, hostile_failed=failed)
    preset = Preset(name="code", uses_rewards=True)
    shared = [replace(run, record=record)]
    found = checks(summary_of(RISING), preset=preset, alone=[], shared=shared)
    assert [c.passed for c in found if c.name.startswith("hostile")] == [passes]


def test_a_failed_check_says_what_was_found_and_what_was_due() -> None:
    found = checks(summary_of([0.3] * 20), preset=Preset(name="p"), alone=[], shared=[])
    learning = next(check for check in found if check.name == "learning of bits")
    assert learning == Check(
        name="learning of bits",
        passed=False,
        found="reward 0.300 → 0.300, a gain of +0.000; at least 0.15 and 3 times 0.000 are due",
    )


def test_the_standard_error_of_a_difference_of_means_is_that_of_both_samples() -> None:
    first, last = [0.0, 2.0], [1.0, 1.0, 4.0]
    assert standard_error(first, last) == pytest.approx((2.0 / 2 + 3.0 / 3) ** 0.5)


def test_figures_come_from_the_shared_window_and_from_the_job_itself() -> None:
    alone = [
        make_run("bits", rewards=RISING, end_us=4 * SECOND),
        make_run("words", rewards=RISING, start_us=4 * SECOND, end_us=10 * SECOND),
    ]
    shared = [
        make_run("bits", rewards=RISING, start_us=10 * SECOND, end_us=18 * SECOND),
        make_run("words", rewards=RISING, start_us=10 * SECOND, end_us=15 * SECOND),
    ]
    shared_spans = [
        make_span("load", 10 * SECOND, 11 * SECOND, job_id="job-bits"),
        make_span("forward_backward", 11 * SECOND, 14 * SECOND, job_id="job-bits"),
        make_span("offload", 14 * SECOND, 15 * SECOND, job_id="job-bits"),
        make_span("step", 15 * SECOND, 16 * SECOND, job_id="job-words"),
        make_span("generate", 10 * SECOND, 18 * SECOND, device_kind="rollout", index=1),
    ]
    before = [make_span("step", 0, SECOND, job_id="job-other")]
    summary = summarise(alone, shared, spans=[*before, *shared_spans], plan=SHARED)
    assert summary.wall_seconds_alone == 10
    assert summary.wall_seconds_shared == 8
    assert summary.speedup == 1.25
    assert summary.device.busy_share == 0.5
    assert summary.device.switches == 1
    assert summary.device.switch_seconds == 2
    assert [job.bubble_ratio_alone for job in summary.jobs] == [0.75, 1.0]
    assert summary.jobs[0].bubble_ratio_shared == 0.5
    assert summary.jobs[0].device_seconds_per_step == pytest.approx(3 / len(RISING))


def test_summary_json_has_exactly_the_promised_fields() -> None:
    table = json.loads(json.dumps(summary_of(RISING).to_json()))
    assert list(table) == ["jobs", "device", "wall_seconds_alone", "wall_seconds_shared", "speedup"]
    assert list(table["device"]) == ["busy_share", "switches", "switch_seconds"]
    assert list(table["jobs"][0]) == [
        "name",
        "task",
        "steps",
        "reward_first10",
        "reward_last10",
        "reward_se",
        "heldout_before",
        "heldout_after",
        "device_seconds_per_step",
        "bubble_ratio_alone",
        "bubble_ratio_shared",
        "logprob_gap_mean",
        "logprob_gap_max",
    ]


def test_operations_that_overlap_the_window_count_only_inside_it() -> None:
    spans = [make_span("step", 0, 6), make_span("step", 4, 8)]
    assert bubble_ratio(spans, window=Window(start_us=2, end_us=12)) == pytest.approx(0.4)


def test_the_cap_is_set_by_whatever_must_be_done_one_by_one() -> None:
    limits = cap([10.0, 30.0], cpu_s=50.0, device_s=16.0, num_cores=2)
    assert limits == Cap(longest_job=40 / 30, cores=1.6, training_device=2.5, num_cores=2)
    assert limits.speedup == pytest.approx(4 / 3)


def test_jobs_that_never_shared_or_started_cold_fail_the_demo() -> None:
    idle = replace(summary_of(RISING), plan=replace(SHARED, prefetches=0))
    cold = replace(summary_of(RISING), plan=replace(SHARED, was_warm=False))
    assert failed(idle) == []
    assert failed(idle, Preset(name="p", wait_share=0.65)) == ["warm placement"]
    assert failed(cold) == ["warm placement"]
