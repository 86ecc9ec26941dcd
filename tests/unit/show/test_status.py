"""The status view shows who is where, and how far."""

from __future__ import annotations

import pytest
from rich.console import Console

from plexclient.wire.v1 import service_pb2
from plexsvc.show.status import busy_share, jobs_view, status_view


def shown(status: service_pb2.ClusterStatus) -> str:
    console = Console(width=200, no_color=True)
    with console.capture() as capture:
        console.print(status_view(status))
    return capture.get()


def test_jobs_show_step_phase_and_reward_and_devices_their_resident() -> None:
    status = service_pb2.ClusterStatus(
        now_us=3_000_000,
        scheduler_epoch=4,
        jobs=[
            service_pb2.Job(
                job_id="job-1",
                name="math",
                state=service_pb2.JOB_STATE_RUNNING,
                phase="forward_backward",
                operations_done=12,
            )
        ],
        deployments=[service_pb2.Deployment(deployment_id="job-1/actor", wpg_id="wpg-9")],
        devices=[
            service_pb2.DeviceStatus(
                node_id="local",
                kind="train",
                bytes_used=1 << 20,
                bytes_total=2 << 20,
                resident_wpgs=["wpg-9"],
                running_wpg="wpg-9",
                busy_us=1_000_000,
                since_us=1_000_000,
                switches=7,
            )
        ],
    )
    status.progress["job-1"].metrics["step"] = 5
    status.progress["job-1"].metrics["reward"] = 0.25
    job, device = (
        next(line for line in shown(status).splitlines() if line.startswith(start))
        for start in ("job-1", "local:0")
    )
    assert job.split() == [
        *("job-1", "math", "running", "forward_backward", "5", "0.250", "12", "0.0")
    ]
    assert "job-1/actor" in device
    assert "7" in device.split()
    assert device.split()[-1] == "50%"


def test_a_notice_is_shown_once_for_all_jobs_of_a_tenant() -> None:
    jobs = [service_pb2.Job(job_id=f"job-{n}", notice="nearly all is spent") for n in range(2)]
    assert shown(service_pb2.ClusterStatus(jobs=jobs)).count("nearly all is spent") == 1


def test_a_job_that_reported_nothing_shows_dashes() -> None:
    job = service_pb2.Job(job_id="job-1", name="n", state=service_pb2.JOB_STATE_QUEUED)
    assert shown(service_pb2.ClusterStatus(jobs=[job])).count(" - ") == 2


def test_a_busy_share_is_never_above_one() -> None:
    device = service_pb2.DeviceStatus(busy_us=100, since_us=10)
    assert busy_share(device, now_us=10) == 1.0


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        ("ValueError: expected [/INST]", "ValueError: expected [/INST]"),
        ("[red]alert[/red] :smile:", "[red]alert[/red] :smile:"),
        ("\x1b]0;pwned\x07 \x1b[2J", "\\x1b]0;pwned\\x07 \\x1b[2J"),
    ],
)
def test_what_a_tenant_wrote_is_shown_and_not_obeyed(reason: str, told: str) -> None:
    console = Console(width=200, no_color=True)
    with console.capture() as capture:
        console.print(jobs_view([service_pb2.Job(job_id="job-1", name="math", reason=reason)]))
    assert capture.get().rstrip().endswith(told)
