"""A controller that the supervisor starts as another user is that user, with its groups alone."""

from __future__ import annotations

import os
import pwd

import pytest

from plexclient.wire.v1 import service_pb2_grpc
from plexsvc.clock import SystemClock
from plexsvc.controllers import supervise
from plexsvc.controllers.submit import LOG, JobOrder
from plexsvc.controllers.supervise import Supervisor

pytestmark = [pytest.mark.process, pytest.mark.timeout(60)]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user: NOT RUN")
@pytest.mark.parametrize("user", ["nobody", ""])
async def test_a_controller_is_the_user_that_its_order_names(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, user: str
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
    monkeypatch.setattr(
        supervise, "tether", lambda: ("/usr/bin/env",)
    )  # this Python may be root's alone
    supervisor = Supervisor(
        order,
        place=place,
        stub=service_pb2_grpc.RouterStub,  # type: ignore[arg-type]  # nobody is called
        token="t",
        clock=SystemClock(),
    )
    process = await supervisor._start()
    assert await process.wait() == 0
