"""Jobs whose controllers are replaced: who may, and what is left of the one before."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from plexclient.wire.v1 import operations_pb2
from plexclient.wire.v1 import service_pb2 as pb
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.ids import OperationId
from plexsvc.scheduler.ledger.held import Awaited
from tests.rigs.scheduler_rig import TENANT, Rig, held_open, start_rig

ANSWERED = operations_pb2.OPERATION_STATE_ANSWERED


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    """A node with a job's actor on it."""
    async with start_rig(tmp_path, nodes=[{"train": 1}]) as started:
        await started.job("job-1")
        await started.deploy("job-1")
        yield started


async def resume(
    rig: Rig, name: str = "job-1", *, is_seen_dead: bool = True, resume_id: str = "r1"
) -> pb.Job:
    request = pb.CreateJobRequest(
        job_id="job-9", name=name, tenant=TENANT, resume_id=resume_id, is_seen_dead=is_seen_dead
    )
    return await rig.scheduler.call("CreateJob", request, pb.Job)


async def beat(rig: Rig, *, controller: int, period_us: int = 0) -> None:
    request = pb.KeepAliveRequest(
        job_id="job-1", tenant=TENANT, controller=controller, period_us=period_us
    )
    await rig.scheduler.call("KeepAlive", request, pb.KeepAliveReply)


async def test_a_controller_goes_on_where_the_one_before_had_its_last_answer(rig: Rig) -> None:
    begun, go = held_open(rig, "step")
    async with asyncio.TaskGroup() as group:
        step = rig.operation("job-1", "step")
        step.position = '{"batch": 3}'
        ran = group.create_task(rig.scheduler.submit(step))
        await begun.wait()
        waits = group.create_task(rig.run("job-1", "forward_backward"))
        await asyncio.sleep(0)
        assert (await resume(rig)).job_id == "job-1"
        found = group.create_task(rig.deploy("job-1"))
        assert (await waits).error.code == ErrorCode.CANCELLED
        assert not found.done()
        go.set()
    assert ran.result().state == ANSWERED
    deployment = found.result()
    assert (deployment.position, deployment.next_seq, deployment.applied_seq) == (
        '{"batch": 3}',
        3,
        1,
    )


async def test_a_controller_that_was_replaced_can_do_nothing(rig: Rig) -> None:
    assert (await resume(rig)).controller == 1
    refused = await rig.run("job-1", "step")
    assert refused.error.code == ErrorCode.JOB_ENDED
    with pytest.raises(PlexError, match="resumed by another controller"):
        await beat(rig, controller=0)
    ended = pb.EndJobRequest(
        job_id="job-1", tenant=TENANT, outcome=pb.JOB_STATE_FAILED, controller=0
    )
    with pytest.raises(PlexError, match="resumed by another controller"):
        await rig.scheduler.call("EndJob", ended, pb.Job)
    await beat(rig, controller=1)
    step = rig.operation("job-1", "step", seq=1)
    step.controller = 1
    assert (await rig.scheduler.submit(step)).state == ANSWERED


async def test_a_call_that_comes_twice_resumes_once(rig: Rig) -> None:
    assert [(await resume(rig)).controller for _ in range(2)] == [1, 1]
    assert (await resume(rig, resume_id="r2")).controller == 2


async def test_a_name_that_still_runs_is_refused(rig: Rig) -> None:
    await beat(rig, controller=0, period_us=100_000)

    async def beat_again() -> None:
        await asyncio.sleep(0.1)
        await beat(rig, controller=0, period_us=100_000)

    with pytest.raises(PlexError, match=r"'job-1' \(job-1\) still runs") as refused:
        await asyncio.gather(resume(rig, is_seen_dead=False), beat_again())
    assert refused.value.code == ErrorCode.BAD_REQUEST
    assert (await resume(rig, is_seen_dead=False)).controller == 1  # it is silent by now


async def test_a_name_that_no_live_job_has_is_a_new_job(rig: Rig) -> None:
    assert (await resume(rig, "other")).job_id == "job-9"


async def test_a_name_that_several_have_is_refused(rig: Rig) -> None:
    twin = pb.CreateJobRequest(job_id="job-2", name="job-1", tenant=TENANT)
    await rig.scheduler.call("CreateJob", twin, pb.Job)
    with pytest.raises(PlexError, match="2 jobs are called 'job-1': job-1, job-2"):
        await resume(rig)


async def test_what_does_not_come_any_more_is_told_when_a_job_is_resumed(rig: Rig) -> None:
    waits = Awaited(rig.operation("job-1", "step"))
    others = Awaited(operations_pb2.Operation(job_id="job-2"))
    rig.driver.registry.missing |= {OperationId(b"1"): waits, OperationId(b"2"): others}
    await resume(rig)
    assert waits.arrival.is_set()
    assert not others.arrival.is_set()


async def test_a_load_says_where_in_its_data_a_deployment_is(rig: Rig) -> None:
    for kind, position in (("load", "4"), ("step", "5"), ("forward_backward", ""), ("load", "")):
        operation = rig.operation("job-1", kind)
        operation.position = position
        await rig.scheduler.submit(operation)
        if kind != "forward_backward":
            assert (await rig.deploy("job-1")).position == position
