"""What the demo shows: lines without a terminal, and the closing table."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from plexclient.wire.v1 import reward_pb2, service_pb2
from plexsvc.demo.plots import plot_rewards, plot_timeline
from plexsvc.demo.presets import PRESETS, find_preset, wait_ms_for
from plexsvc.demo.report import Cap, Check, summarise
from plexsvc.demo.show import Show, plain_line, sparkline, verdict
from plexsvc.demo.spans import Window
from plexsvc.errors import PlexError
from tests.rigs.demo_runs import SHARED, make_run, make_span


def a_status() -> service_pb2.ClusterStatus:
    status = service_pb2.ClusterStatus(
        now_us=20,
        jobs=[
            service_pb2.Job(
                job_id="j", name="bits", state=service_pb2.JOB_STATE_RUNNING, phase="step"
            )
        ],
        deployments=[service_pb2.Deployment(job_id="j", name="actor", wpg_id="w")],
        devices=[
            service_pb2.DeviceStatus(
                kind="train", resident_wpgs=["w"], switches=7, busy_us=5, since_us=10
            )
        ],
    )
    status.progress["j"].metrics.update({"step": 3, "reward": 0.25})
    return status


def test_a_plain_line_names_the_workers_of_rewards_where_jobs_use_them() -> None:
    pool = reward_pb2.RewardPool(name="cpu", busy=2, idle=1, queued=40)
    rewards = reward_pb2.RewardsReply(pools=[pool])
    line = plain_line(a_status(), running=[], rewards=rewards)
    assert line.endswith(" | cpu 2 of 3 workers busy, 40 waiting")


def test_a_plain_line_names_step_phase_reward_and_who_has_the_device() -> None:
    status = a_status()
    assert plain_line(status, running=list(status.jobs)).strip() == (
        "bits step 3 reward 0.250 step | device 0 holds bits/actor, 7 switches, busy 50%"
    )


@pytest.mark.parametrize("is_terminal", [True, False])
def test_the_show_prints_acts_and_progress_on_terminals_and_elsewhere(is_terminal: bool) -> None:
    out = io.StringIO()
    with Show(Console(file=out, force_terminal=is_terminal, width=100)) as show:
        show.act("warm-up")
        show.status(a_status())
    assert "warm-up" in out.getvalue()
    assert "bits" in out.getvalue()


def test_a_sparkline_shows_the_newest_points_between_bounds() -> None:
    assert sparkline([-1.0, 0.0, 1.0, 2.0]) == "▁▁██"
    assert len(sparkline([0.5] * 500)) < 100


def test_the_verdict_names_speed_cap_and_failed_checks() -> None:
    run = make_run("bits", rewards=[0.1] * 20)
    summary = summarise([run], [run], spans=[make_span("step", 0, 5_000_000)], plan=SHARED)
    out = io.StringIO()
    found = [Check(name="learning of bits", passed=False, found="no gain")]
    limits = Cap(longest_job=1.9, cores=1.8, training_device=3.0, num_cores=2)
    Console(file=out, width=200).print(verdict(summary, checks=found, cap=limits))
    assert "1.00 times sooner (at most 1.80 here: 1.80 by the 2 cores" in out.getvalue()
    assert "slowdown by sharing: bits 1.20 predicted, 1.30 measured" in out.getvalue()
    assert "FAILED  learning of bits: no gain" in out.getvalue()


def test_pictures_are_written(tmp_path: Path) -> None:
    run = make_run("bits", rewards=[0.1, 0.2, 0.4])
    spans = [make_span("step", 0, 4_000_000), make_span("load", 4_000_000, 5_000_000)]
    plot_rewards(tmp_path / "r.png", alone=[run], shared=[run])
    window = Window(start_us=0, end_us=8_000_000)
    plot_timeline(tmp_path / "t.png", spans=spans, window=window, names={"job-bits": "bits"})
    for name in ("r.png", "t.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


def test_an_unknown_preset_is_refused_with_the_known_ones() -> None:
    with pytest.raises(PlexError, match="arithmetic, code, frozen, serving, spot, waits"):
        find_preset("nope")


def test_the_frozen_preset_learns_at_rate_zero_and_the_others_do_not() -> None:
    assert [name for name, preset in PRESETS.items() if preset.lr == 0] == ["frozen"]


def test_a_wait_is_its_share_of_the_whole_cycle() -> None:
    wait_s = wait_ms_for(2.0, wait_share=0.6) / 1000
    assert wait_s / (wait_s + 2.0) == pytest.approx(0.6)
