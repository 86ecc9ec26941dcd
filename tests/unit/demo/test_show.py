"""What the demo shows while it runs, on terminals and elsewhere."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from plexclient.wire.v1 import reward_pb2, service_pb2
from plexsvc.demo.show import Show, plain_line, sparkline

NO_REWARDS = reward_pb2.RewardsReply()


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
    rewards = reward_pb2.RewardsReply(pools=[pool], batches=[reward_pb2.RewardBatch()])
    line = plain_line(a_status(), running=[], rewards=rewards)
    assert line.endswith(" | cpu 2 of 3 workers busy, 40 waiting")


def test_a_plain_line_names_step_phase_reward_and_who_has_the_device() -> None:
    status = a_status()
    assert plain_line(status, running=list(status.jobs), rewards=NO_REWARDS).strip() == (
        "bits step 3 reward 0.250 step | device 0 holds bits/actor, 7 switches, busy 50%"
    )


@pytest.mark.parametrize("is_terminal", [True, False])
def test_the_show_prints_acts_and_progress_on_terminals_and_elsewhere(is_terminal: bool) -> None:
    out = io.StringIO()
    with Show(Console(file=out, force_terminal=is_terminal, width=100)) as show:
        show.act("warm-up")
        show.look((a_status(), service_pb2.ListInstancesReply(), NO_REWARDS))
    assert "warm-up" in out.getvalue()
    assert "bits" in out.getvalue()


def test_a_sparkline_shows_the_newest_points_between_bounds() -> None:
    assert sparkline([-1.0, 0.0, 1.0, 2.0]) == "▁▁██"
    assert len(sparkline([0.5] * 500)) < 100
