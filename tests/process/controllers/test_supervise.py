"""A supervisor's controllers: as whom they run, and how much they may say."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from plexclient.link import open_router
from plexclient.wire.v1 import service_pb2, service_pb2_grpc
from plexsvc.clock import SystemClock
from plexsvc.cluster.places import read_card
from plexsvc.controllers import supervise
from plexsvc.controllers.submit import LOG, JobOrder
from plexsvc.controllers.supervise import Supervisor
from plexsvc.node import logs
from tests.process.controllers.conftest import FakeJobsRouter

pytestmark = pytest.mark.process


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user: NOT RUN")
@pytest.mark.parametrize("user", ["nobody", ""])
async def test_a_controller_is_the_user_that_its_order_names(
    tmp_path_factory: pytest.TempPathFactory, user: str
) -> None:
    place = tmp_path_factory.mktemp("job")
    order = JobOrder(
        job_id="job-1",
        name="who",
        argv=("/bin/sh", "-c", "test $(id -u) = " + str(pwd.getpwnam(user or "root").pw_uid)),
        cwd="/",
        env={},
        user=user,
    )
    (place / LOG).touch()
    supervisor = Supervisor(
        order,
        place=place,
        stub=service_pb2_grpc.RouterStub,  # type: ignore[arg-type]  # nobody is called
        token="t",
        clock=SystemClock(),
    )
    process = await supervisor._start()
    assert await process.wait() == 0


async def outcome_of(order: JobOrder, place: Path) -> str:
    """Return how the controller of a job that runs ends, supervised."""
    card = read_card(place)
    assert card is not None
    async with open_router(card.address, ca="") as channel:
        supervisor = Supervisor(
            order,
            place=place,
            stub=service_pb2_grpc.RouterStub(channel),
            token=card.token,
            clock=SystemClock(),
        )
        return (await supervisor.run()).outcome


async def test_a_controller_that_never_stops_talking_fills_no_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fake_router: FakeJobsRouter
) -> None:
    monkeypatch.setattr(supervise, "MAX_LOG_BYTES", 1000)
    monkeypatch.setattr(logs, "LOOK_US", 50_000)
    fake_router.jobs["job-1"] = service_pb2.Job(job_id="job-1", state=service_pb2.JOB_STATE_RUNNING)
    log = tmp_path / LOG
    log.touch()
    talk = f"while [ ! -s {log}.1 ]; do echo talk; sleep 0.001; done >> {log}"
    order = JobOrder(job_id="job-1", name="n", argv=("/bin/sh", "-c", talk), cwd="/", env={})
    assert await outcome_of(order, tmp_path) == "completed"
    assert log.with_name(f"{LOG}.1").stat().st_size > 1000


@pytest.mark.parametrize(
    ("restarts", "outcome", "runs"), [(2, "completed", "012"), (1, "failed", "01")]
)
async def test_a_controller_that_died_is_started_again_so_often_at_most(
    tmp_path: Path, fake_router: FakeJobsRouter, restarts: int, outcome: str, runs: str
) -> None:
    fake_router.jobs["job-1"] = service_pb2.Job(job_id="job-1", state=service_pb2.JOB_STATE_RUNNING)
    (tmp_path / LOG).touch()
    script = f"printf $PLEX_RESTARTS >> {tmp_path}/runs; test $PLEX_RESTARTS = 2 || kill -9 $$"
    order = JobOrder(
        job_id="job-1", name="n", argv=("/bin/sh", "-c", script), cwd="/", env={}, restarts=restarts
    )
    assert await outcome_of(order, tmp_path) == outcome
    assert (tmp_path / "runs").read_text() == runs


async def test_a_controller_that_completed_its_job_goes_on_and_is_not_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fake_router: FakeJobsRouter
) -> None:
    """What it does after its job, an evaluation or another job, is its own."""
    monkeypatch.setattr(supervise, "GRACE_S", 0.05)
    monkeypatch.setattr(supervise, "WATCH_PERIOD_US", 50_000)
    state = service_pb2.JOB_STATE_COMPLETED
    fake_router.jobs["job-1"] = service_pb2.Job(job_id="job-1", state=state)
    (tmp_path / LOG).touch()
    script = f"sleep 1; printf x >> {tmp_path}/runs; exit 3"
    order = JobOrder(
        job_id="job-1", name="n", argv=("/bin/sh", "-c", script), cwd="/", env={}, restarts=2
    )
    assert await outcome_of(order, tmp_path) == "failed"
    assert (tmp_path / "runs").read_text() == "x"
    assert fake_router.jobs["job-1"].state == state
