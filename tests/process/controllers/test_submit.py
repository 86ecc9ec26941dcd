"""A submitted controller runs detached; its output is the log, its exit the job's end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from plexclient.wire.v1 import service_pb2
from plexsvc.cluster.places import job_dir
from plexsvc.controllers import submit
from tests.process.controllers.conftest import TOKEN, FakeJobsRouter
from tests.rigs.processes import is_alive
from tests.rigs.waiting import wait_until

pytestmark = [pytest.mark.process, pytest.mark.slow]

CONTROLLER = """
import os, signal, sys
print("argument", *sys.argv[1:])
print("job", os.environ["PLEX_JOB"], os.environ["PLEX_TOKEN"], os.environ.get("EXTRA", ""))
print("pid", os.getpid(), flush=True)
match sys.argv[1]:
    case "exit":
        sys.exit(int(sys.argv[2]))
    case "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    case "hang":
        signal.pause()
"""


def plexctl(state_dir: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "plexsvc.cli.main", *arguments]
    return subprocess.run(
        command,
        env=os.environ | {"PLEX_STATE_DIR": str(state_dir)},  # noqa: TID251 - to be inherited
        capture_output=True,
        text=True,
        check=False,
        timeout=40,
    )


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "loop.py"
    path.write_text(CONTROLLER)
    return str(path)


def submitted(state_dir: Path, *arguments: str) -> tuple[str, Path]:
    done = plexctl(state_dir, "submit", "--json", *arguments)
    assert done.returncode == 0, done.stderr
    job_id = json.loads(done.stdout)["job_id"]
    return job_id, job_dir(state_dir, job_id)


def ended(place: Path) -> submit.JobEnd:
    wait_until(lambda: submit.read_end(place) is not None, what="the controller's end")
    end = submit.read_end(place)
    assert end is not None
    return end


def controller_pid(place: Path) -> int:
    log = place / submit.LOG
    wait_until(lambda: "pid" in log.read_text(), what="the controller's first words")
    return int(log.read_text().split("pid ", 1)[1].split()[0])


def test_attached_to_a_controller_that_completes(
    tmp_path: Path, fake_router: FakeJobsRouter, script: str
) -> None:
    done = plexctl(
        tmp_path, "submit", "--attach", "--name", "a", "--env", "EXTRA=x=1", script, "exit", "0"
    )
    assert done.returncode == 0, done.stderr
    (job,) = fake_router.jobs.values()
    assert (job.name, job.state, job.exit_code) == ("a", service_pb2.JOB_STATE_COMPLETED, 0)
    assert done.stdout.splitlines()[0] == job.job_id
    assert "argument exit 0" in done.stdout
    assert f"job {job.job_id} {TOKEN} x=1" in done.stdout


def test_attached_to_a_controller_that_fails(
    tmp_path: Path, fake_router: FakeJobsRouter, script: str
) -> None:
    fake_router.unavailable_ends = 1
    done = plexctl(tmp_path, "submit", "--attach", script, "exit", "3", "--name", "its-own")
    assert done.returncode == 1
    (job,) = fake_router.jobs.values()
    assert (job.name, job.state, job.exit_code) == ("loop", service_pb2.JOB_STATE_FAILED, 3)
    shown, *written = job.reason.splitlines()
    assert shown.startswith(f"the controller exited with 3: {written[-1]}")
    assert "argument exit 3 --name its-own" in job.reason
    assert "exited with 3" in done.stderr


@pytest.mark.usefixtures("fake_router")
def test_attached_and_interrupted_the_job_goes_on_and_that_is_said(
    tmp_path: Path, script: str
) -> None:
    heard = ["env", "--default-signal=INT"]  # what runs the tests may ignore it
    argv = [*heard, sys.executable, "-m", "plexsvc.cli.main", "submit", "--attach", script, "hang"]
    variables = os.environ | {"PLEX_STATE_DIR": str(tmp_path)}  # noqa: TID251 - to be inherited
    attached = subprocess.Popen(
        argv, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert attached.stdout is not None
    job_id = attached.stdout.readline().strip()
    place = job_dir(tmp_path, job_id)
    pid = controller_pid(place)
    attached.send_signal(signal.SIGINT)
    _, said = attached.communicate(timeout=120)
    assert attached.returncode == 130
    assert f"{job_id} goes on" in said
    assert f"`plexctl logs --follow {job_id}" in said
    assert f"`plexctl job cancel {job_id}" in said
    assert is_alive(pid)
    assert plexctl(tmp_path, "job", "cancel", job_id).returncode == 0
    assert ended(place).outcome == "cancelled"


def test_a_killed_controller_fails_its_job_by_the_signals_name(
    tmp_path: Path, fake_router: FakeJobsRouter, script: str
) -> None:
    job_id, place = submitted(tmp_path, script, "kill")
    end = ended(place)
    assert (end.outcome, end.signal) == ("failed", signal.SIGKILL)
    job = fake_router.jobs[job_id]
    assert job.state == service_pb2.JOB_STATE_FAILED
    assert "SIGKILL" in job.reason
    assert job.exit_code == 128 + signal.SIGKILL


def test_a_cancelled_job_gets_its_controller_stopped(
    tmp_path: Path, fake_router: FakeJobsRouter, script: str
) -> None:
    job_id, place = submitted(tmp_path, script, "hang")
    pid = controller_pid(place)
    done = plexctl(tmp_path, "job", "cancel", job_id, "--reason", "enough")
    assert done.stdout == f"{job_id} cancelled\n"
    end = ended(place)
    assert (end.outcome, end.reason, end.signal) == ("cancelled", "enough", signal.SIGTERM)
    assert not is_alive(pid)
    assert fake_router.jobs[job_id].reason == "enough"


def test_a_controller_whose_service_forgot_its_job_is_stopped(
    tmp_path: Path, fake_router: FakeJobsRouter, script: str
) -> None:
    job_id, place = submitted(tmp_path, script, "hang")
    pid = controller_pid(place)
    del fake_router.jobs[job_id]
    end = ended(place)
    assert (end.outcome, end.signal) == ("failed", signal.SIGTERM)
    assert "restarted" in end.reason
    assert not is_alive(pid)


def test_a_controller_that_ends_well_after_its_job_was_cancelled_is_recorded_as_cancelled(
    tmp_path: Path, fake_router: FakeJobsRouter, script: str
) -> None:
    fake_router.cancels_first = True
    done = plexctl(tmp_path, "submit", "--attach", script, "exit", "0")
    assert (done.returncode, done.stderr) == (1, "cancelled: enough\n")


def test_a_submission_that_the_service_refuses_leaves_nothing(
    tmp_path: Path, fake_router: FakeJobsRouter, script: str
) -> None:
    fake_router.is_full = True
    done = plexctl(tmp_path, "submit", script, "exit", "0")
    assert done.returncode == 1
    assert "no more jobs" in done.stderr
    assert list((tmp_path / "jobs").iterdir()) == []


def test_a_killed_supervisor_takes_its_controller_along(
    tmp_path: Path, fake_router: FakeJobsRouter, script: str
) -> None:
    _, place = submitted(tmp_path, script, "hang")
    pid = controller_pid(place)
    os.kill(int((place / submit.SUPERVISOR).read_text()), signal.SIGKILL)
    wait_until(lambda: not is_alive(pid), what="the controller is gone")
    assert b"".join(submit.read_log(place, follow=True)).count(b"pid") == 1
    assert len(fake_router.jobs) == 1


def test_the_controller_is_in_a_session_of_its_own(
    tmp_path: Path, fake_router: FakeJobsRouter, script: str
) -> None:
    job_id, place = submitted(tmp_path, script, "hang")
    pid = controller_pid(place)
    supervisor = int((place / submit.SUPERVISOR).read_text())
    assert os.getsid(supervisor) == supervisor != os.getsid(0)
    assert os.getsid(pid) == pid
    fake_router.jobs[job_id].state = service_pb2.JOB_STATE_CANCELLED
    ended(place)


def test_logs_prints_what_the_controller_said(
    tmp_path: Path, fake_router: FakeJobsRouter, script: str
) -> None:
    job_id, _ = submitted(tmp_path, script, "exit", "0")
    done = plexctl(tmp_path, "logs", job_id, "--follow")
    assert done.stdout.startswith("argument exit 0\n")
    as_json = json.loads(plexctl(tmp_path, "logs", job_id, "--json").stdout)
    assert as_json["lines"] == done.stdout.splitlines()
    assert len(fake_router.jobs) == 1


def test_a_script_that_is_not_there_registers_no_job(
    tmp_path: Path, fake_router: FakeJobsRouter
) -> None:
    done = plexctl(tmp_path, "submit", str(tmp_path / "nowhere.py"))
    assert done.returncode == 2
    assert "nowhere.py" in done.stderr
    assert not fake_router.jobs
