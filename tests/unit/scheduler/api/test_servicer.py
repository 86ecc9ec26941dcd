"""The Scheduler service: complete, and the same for a router apart as for the one beside it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from plexclient.wire.v1 import operations_pb2 as ops
from plexclient.wire.v1 import service_pb2 as pb
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.router.api import RemoteScheduler
from plexsvc.router.config import RouterConfig
from plexsvc.rpc.channels import listen, new_server, open_channel
from plexsvc.rpc.services import unary_methods
from plexsvc.scheduler.api.servicer import SERVICE, add_to_server
from plexsvc.scheduler.api.views import newcomer
from plexsvc.scheduler.config import SchedulerConfig
from tests.fakes.fake_cluster import staged_payload
from tests.rigs.keys import KEYS
from tests.rigs.scheduler_rig import TENANT, Rig, start_rig

ANSWERED = ops.OPERATION_STATE_ANSWERED


@asynccontextmanager
async def apart(rig: Rig) -> AsyncIterator[RemoteScheduler]:
    """Serve a rig's scheduler and yield what a router apart has of it."""
    server = new_server(KEYS)
    add_to_server(rig.scheduler, server)
    address = listen(server, "127.0.0.1:0", KEYS, key="fake")
    await server.start()
    async with open_channel(address, KEYS) as channel:
        remote = RemoteScheduler(channel, config=RouterConfig())
        try:
            yield remote
        finally:
            await remote.aclose()
            await server.stop(0)


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    """One node with a job's actor on it, and room for two operations on a stream."""
    config = SchedulerConfig(max_operations_per_stream=2)
    async with start_rig(tmp_path, nodes=[{"train": 1}], config=config) as started:
        await started.job("job-1")
        await started.deploy("job-1")
        yield started


async def test_every_method_has_one_handler(rig: Rig) -> None:
    assert set(rig.scheduler.methods) == set(unary_methods(SERVICE))


async def test_a_router_apart_gets_replies_refusals_and_answers(rig: Rig) -> None:
    async with apart(rig) as remote:
        jobs = await remote.call("ListJobs", pb.ListJobsRequest(tenant=TENANT), pb.ListJobsReply)
        assert [job.job_id for job in jobs.jobs] == ["job-1"]
        gone = pb.GetDeploymentRequest(deployment_id="no", job_id="job-1", tenant=TENANT)
        with pytest.raises(PlexError, match="has no deployment 'no'") as refused:
            await remote.call("GetDeployment", gone, pb.Deployment)
        assert refused.value.code is ErrorCode.NOT_FOUND
        step = rig.operation("job-1", "step")
        result = await remote.submit(step)
        assert result.state == ANSWERED
        assert await remote.submit(step) == result == await rig.scheduler.submit(step)


async def test_a_stream_of_a_router_refuses_what_is_beyond_its_limit_and_reads_on(rig: Rig) -> None:
    first, second, third = (
        rig.operation("job-1", "forward", payload=staged_payload(1)) for _ in range(3)
    )
    async with apart(rig) as remote, asyncio.TaskGroup() as group:
        calls = [group.create_task(remote.submit(operation)) for operation in (first, second)]
        while len(rig.driver.registry.held) < 2:  # noqa: ASYNC110 - the server's task
            await asyncio.sleep(0.001)
        refused = await remote.submit(third)
        assert refused.error.code == ErrorCode.QUEUE_FULL
        assert "scheduler.max_operations_per_stream" in refused.error.message
        for operation in (first, second):
            staged = pb.PayloadStagedRequest(
                operation_id=operation.operation_id,
                job_id="job-1",
                deployment_id="job-1/actor",
                tenant=TENANT,
            )
            await remote.call("PayloadStaged", staged, pb.PayloadStagedReply)
        assert [(await call).state for call in calls] == [ANSWERED, ANSWERED]


async def test_a_scheduler_that_stops_is_unavailable_to_a_router_apart(rig: Rig) -> None:
    async with apart(rig) as remote:
        assert (await remote.submit(rig.operation("job-1", "step"))).state == ANSWERED
        rig.scheduler.streams.stop()
        with pytest.raises(PlexError, match="the scheduler stops") as stopped:
            await remote.submit(rig.operation("job-1", "step"))
        assert stopped.value.code is ErrorCode.UNAVAILABLE


async def test_jobs_of_one_tenant_leave_room_for_others(tmp_path: Path) -> None:
    async with start_rig(tmp_path, nodes=[{"train": 1}], config=SchedulerConfig(max_jobs=3)) as rig:

        async def open_job(job_id: str, tenant: str) -> pb.Job:
            request = pb.CreateJobRequest(job_id=job_id, name=job_id, tenant=tenant)
            return await rig.scheduler.call("CreateJob", request, pb.Job)

        for job_id in ("a", "b"):
            await open_job(job_id, "greedy")
        with pytest.raises(PlexError, match=r"2 of 3 jobs .*scheduler\.max_jobs") as refused:
            await open_job("c", "greedy")
        assert refused.value.code is ErrorCode.QUEUE_FULL
        assert (await open_job("d", "other")).job_id == "d"


async def test_a_question_about_more_devices_than_there_are_is_answered_without_planning(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def plan(*_: object, **__: object) -> None:
        raise AssertionError

    monkeypatch.setattr(newcomer, "what_if", plan)
    segment = pb.CycleSegment(phase="a", duration_us=500_000)
    job = pb.JobShape(num_devices=10**9, period_us=10**6, segments=[segment])
    reply = await rig.scheduler.call(
        "WhatIf", pb.WhatIfRequest(tenant=TENANT, job=job), pb.WhatIfReply
    )
    assert not reply.fits
    assert "1000000000 train devices" in reply.reasons[0]
