"""What the demo shows while it runs, on terminals and elsewhere."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from plexclient.wire.v1 import reward_pb2, service_pb2
from plexsvc.demo.show import Show

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


@pytest.mark.parametrize("is_terminal", [True, False])
def test_the_show_prints_acts_and_progress_on_terminals_and_elsewhere(is_terminal: bool) -> None:
    out = io.StringIO()
    with Show(Console(file=out, force_terminal=is_terminal, width=100)) as show:
        show.act("warm-up")
        show.look((a_status(), service_pb2.ListInstancesReply(), NO_REWARDS))
    assert "warm-up" in out.getvalue()
    assert "bits" in out.getvalue()
    assert "0.250" in out.getvalue()
