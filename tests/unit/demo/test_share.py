"""The demo of sharing: what sharing gave, the most it could give, and what must hold."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from plexclient.wire.v1 import reward_pb2 as pb
from plexsvc.demo.presets import Preset
from plexsvc.demo.share import (
    PoolPoint,
    checks,
    pool_figures,
    pool_point,
    sharing_figures,
    tree_seconds,
)
from plexsvc.demo.spans import Window
from tests.rigs.demo_runs import RISING, make_run, make_span

SECOND = 1_000_000
BURN = "import time\nwhile time.process_time() < 0.3: pass"
PLAN = {"was_warm": True, "prefetches": 10}
PRESET = Preset(name="p")
WAITS = Preset(name="waits", wait_share=0.65, min_speedup=1.2)
CODE = Preset(name="code", uses_rewards=True)


def found(**facts: object) -> dict[str, Any]:
    return {"switches": 3, "speedup": 1.25} | facts


def test_figures_come_from_the_time_in_which_the_jobs_share() -> None:
    alone = [
        make_run("bits", rewards=RISING, end_us=4 * SECOND),
        make_run("words", rewards=RISING, start_us=4 * SECOND, end_us=10 * SECOND),
    ]
    shared = [
        make_run("bits", rewards=RISING, start_us=10 * SECOND, end_us=18 * SECOND),
        make_run("words", rewards=RISING, start_us=10 * SECOND, end_us=15 * SECOND),
    ]
    spans = [
        make_span("step", 0, 2 * SECOND),
        make_span("load", 10 * SECOND, 11 * SECOND),
        make_span("forward_backward", 11 * SECOND, 14 * SECOND),
        make_span("offload", 14 * SECOND, 15 * SECOND),
        make_span("step", 15 * SECOND, 16 * SECOND, job_id="job-words"),
        make_span("generate", 10 * SECOND, 18 * SECOND, device_kind="rollout", index=1),
    ]
    figures = sharing_figures(alone, shared, spans=spans, cpu_s=5.0)
    assert figures == {
        "wall_seconds_alone": 10,
        "wall_seconds_shared": 8,
        "speedup": 1.25,
        "most_by_longest_job": pytest.approx(10 / 6),
        "most_by_cores": 2 * len(os.sched_getaffinity(0)),
        "most_by_training_device": 5,
        "device_busy": 0.5,
        "switches": 1,
        "switch_seconds": 2,
    }


@pytest.mark.parametrize(
    ("figures", "plan", "preset", "names"),
    [
        (found(), PLAN, PRESET, []),
        (found(switches=2), PLAN, PRESET, ["turns on the device"]),
        (found(), PLAN | {"was_warm": False}, PRESET, ["warm placement"]),
        (found(), PLAN | {"prefetches": 0}, PRESET, []),
        (found(), PLAN | {"prefetches": 0}, WAITS, ["warm placement"]),
        (found(speedup=1.19), PLAN, WAITS, ["speedup"]),
    ],
)
def test_what_must_hold_is_checked(
    figures: dict[str, Any], plan: dict[str, Any], preset: Preset, names: list[str]
) -> None:
    made = checks(figures, plan, preset=preset, alone=[], shared=[])
    assert [check.name for check in made if not check.passed] == names


def test_waiting_outside_its_bounds_fails() -> None:
    runs = [make_run("a", rewards=RISING, wait_s=w) for w in (0.59, 0.65, 0.71)]
    made = checks(found(), PLAN, preset=WAITS, alone=runs, shared=[])
    assert [c.passed for c in made if c.name.startswith("waiting")] == [False, True, False]


@pytest.mark.parametrize(("sent", "failed", "passes"), [(7, 7, True), (7, 6, False), (0, 0, False)])
def test_every_hostile_program_must_fail_and_some_must_be_sent(
    sent: int, failed: int, passes: bool
) -> None:
    run = make_run("code", rewards=RISING)
    run = replace(run, record=replace(run.record, hostile_sent=sent, hostile_failed=failed))
    made = checks(found(), PLAN, preset=CODE, alone=[], shared=[run])
    assert [c.passed for c in made if c.name.startswith("hostile")] == [passes]


def test_time_of_an_ended_child_stays_in_its_parents_account() -> None:
    before_s = tree_seconds(os.getpid())
    subprocess.run([sys.executable, "-c", BURN], check=True)
    assert tree_seconds(os.getpid()) - before_s >= 0.25


def test_a_process_that_is_gone_has_used_nothing() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert tree_seconds(process.pid) == 0


WHILE = Window(start_us=10, end_us=30)
POINTS = [
    PoolPoint(at_us=0, held=9, busy=9, needed={"a": 900}),
    PoolPoint(at_us=10, held=1, busy=0, needed={}),
    PoolPoint(at_us=20, held=2, busy=2, needed={"a": 30, "b": 5}),
    PoolPoint(at_us=30, held=3, busy=1, needed={"b": 8}),
]


def test_a_point_counts_the_workers_and_what_each_job_needs() -> None:
    reply = pb.RewardsReply(
        pools=[pb.RewardPool(busy=2, idle=1, starting=1, queued=5), pb.RewardPool()],
        batches=[
            pb.RewardBatch(job_id="a", queued=3, running=2),
            pb.RewardBatch(job_id="a", queued=1),
            pb.RewardBatch(job_id="b", queued=1),
        ],
    )
    assert pool_point(reply, at_us=7) == PoolPoint(at_us=7, held=4, busy=2, needed={"a": 6, "b": 1})


def test_zero_queue_pools_hold_each_jobs_peak_of_the_window() -> None:
    assert pool_figures(POINTS, window=WHILE) == {
        "mean_held": 2.0,
        "mean_busy": 1.0,
        "zero_queue": 30 + 8,
    }
    assert pool_figures([], window=WHILE) == {"mean_held": 0, "mean_busy": 0, "zero_queue": 0}
