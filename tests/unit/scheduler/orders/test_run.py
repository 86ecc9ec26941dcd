"""Operations on ranks: repeated, left by their clients, and failed by whoever runs them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from plexclient.wire.v1 import (
    operations_pb2,
    service_pb2,
    worker_pb2,
)
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.ids import DeploymentId, OperationId
from plexsvc.scheduler.config import SchedulerConfig
from plexsvc.scheduler.core.actions import StartOperation
from plexsvc.scheduler.core.events import Event, OperationFinished
from plexsvc.scheduler.ledger.held import Awaited
from plexsvc.scheduler.orders import run
from tests.fakes.fake_cluster import applied, failed, no_room
from tests.rigs.scheduler_rig import TENANT, Rig, held_open, start_rig

ANSWERED = operations_pb2.OPERATION_STATE_ANSWERED
FAILED = operations_pb2.OPERATION_STATE_FAILED
REFUSED = operations_pb2.OPERATION_STATE_REFUSED


async def test_a_repeat_attaches_and_is_then_answered_from_the_record(rig: Rig) -> None:
    await rig.job("job-1")
    await rig.deploy("job-1")
    begun, go = held_open(rig, "step")
    operation = rig.operation("job-1", "step")
    async with asyncio.TaskGroup() as group:
        calls = [group.create_task(rig.scheduler.submit(operation)) for _ in range(3)]
        await begun.wait()
        go.set()
    again = await rig.scheduler.submit(operation)
    assert all(call.result() == again for call in calls)
    assert [kind for _, kind, _ in rig.behaviour.executed].count("step") == 1


async def test_a_client_that_leaves_does_not_stop_its_operation(rig: Rig) -> None:
    await rig.job("job-1")
    await rig.deploy("job-1")
    begun, go = held_open(rig, "step")
    operation = rig.operation("job-1", "step")
    async with asyncio.TaskGroup() as group:
        call = group.create_task(rig.scheduler.submit(operation))
        await begun.wait()
        call.cancel()
    go.set()
    assert (await rig.scheduler.submit(operation)).state == ANSWERED


async def test_acknowledged_answers_are_dropped(rig: Rig) -> None:
    await rig.job("job-1")
    await rig.deploy("job-1")
    operation = rig.operation("job-1")
    await rig.scheduler.submit(operation)
    await rig.scheduler.call(
        "KeepAlive",
        service_pb2.KeepAliveRequest(job_id="job-1", tenant=TENANT, acks={"job-1/actor": 1}),
        service_pb2.KeepAliveReply,
    )
    await rig.run("job-1")
    assert rig.driver.results.get(OperationId(operation.operation_id)) is None
    again = await rig.scheduler.submit(operation)
    assert (again.state, again.error.code) == (REFUSED, ErrorCode.RESULT_GONE)
    assert operation.operation_id in rig.rollout.released


async def test_a_dead_rank_fails_its_job_with_cause_and_the_other_goes_on(rig: Rig) -> None:
    for job in ("a", "b"):
        await rig.job(job)
        await rig.deploy(job)
    begun, _ = held_open(rig, "step")
    async with asyncio.TaskGroup() as group:
        running = group.create_task(rig.run("a", "step"))
        queued = group.create_task(rig.run("a", "zero_grad"))
        await begun.wait()
        await rig.agents[0].die("wpg-1-1/0", signal=11, log_tail="segfault")
    for result in (running.result(), queued.result()):
        assert result.error.code == ErrorCode.WORKER_DIED
        assert result.error.facts["worker"] == "wpg-1-1/0"
        assert result.error.facts["signal"] == "11"
        assert result.error.facts["log_tail"] == "segfault"
    assert (await rig.run("b")).state == ANSWERED
    later = await rig.run("a")
    assert later.error.code == ErrorCode.DEPLOYMENT_FAILED


async def test_any_rank_that_fails_fails_the_operation(rig: Rig) -> None:
    await rig.job("job-1")
    await rig.deploy("job-1", tp=2)
    answers = iter([ErrorCode.INTERNAL, ErrorCode.BAD_BATCH])

    async def fail(request: worker_pb2.ExecuteRequest) -> worker_pb2.ExecuteReply:
        return failed(request.operation, PlexError(next(answers), "no"))

    rig.behaviour.on_execute = fail
    result = await rig.run("job-1", "forward")
    assert (result.state, result.error.code) == (FAILED, ErrorCode.BAD_BATCH)


async def test_a_spawn_that_fails_fails_the_deployment(rig: Rig) -> None:
    await rig.job("job-1")
    rig.behaviour.spawn_error = PlexError(ErrorCode.WORKER_DIED, "import error")
    with pytest.raises(PlexError) as refused:
        await rig.deploy("job-1")
    assert refused.value.code == ErrorCode.DEPLOYMENT_FAILED
    rig.behaviour.spawn_error = None
    assert (await rig.deploy("job-1", "second")).state == "ready"


async def test_a_model_too_large_for_its_device_fails_with_the_sizes(rig: Rig) -> None:
    await rig.job("job-1")
    rig.behaviour.device_bytes = 101
    with pytest.raises(PlexError) as refused:
        await rig.deploy("job-1")
    assert (refused.value.code, refused.value.retryable) == (ErrorCode.NO_PLACEMENT, False)
    assert refused.value.facts["need"] == "101"


async def test_a_switch_that_finds_no_room_is_tried_again(tmp_path: Path) -> None:
    config = SchedulerConfig(move_retry_us=1000)
    async with start_rig(tmp_path, nodes=[{"train": 1}], config=config) as rig:
        for job in ("a", "b"):
            await rig.job(job)
            await rig.deploy(job)
        rig.behaviour.move_errors = [no_room(), no_room()]
        assert (await rig.run("a")).state == ANSWERED
        assert not rig.behaviour.move_errors


async def test_an_executor_that_breaks_fails_one_operation_and_not_the_scheduler(rig: Rig) -> None:
    await rig.job("job-1")
    await rig.deploy("job-1", "rollout", role="rollout")

    async def break_down(_: worker_pb2.ExecuteRequest) -> worker_pb2.ExecuteReply:
        raise ZeroDivisionError

    rig.behaviour.on_execute = break_down
    result = await rig.run("job-1", "generate", name="rollout")
    assert (result.state, result.error.code) == (FAILED, ErrorCode.INTERNAL)
    rig.behaviour.on_execute = None
    assert (await rig.run("job-1", "generate", name="rollout")).state == ANSWERED


async def gone(rig: Rig, kind: str) -> Event | None:
    """Return what becomes of an operation, known from before, whose controller is gone."""
    operation = rig.operation("job-1", kind)
    operation_id = OperationId(operation.operation_id)
    wpg = rig.driver.registry.deployments[DeploymentId("job-1/actor")].wpg
    assert wpg is not None
    awaited = rig.driver.registry.missing[operation_id] = Awaited(operation)
    awaited.arrival.set()
    action = StartOperation(operation_id=operation_id, wpg_id=wpg.wpg_id, lease_no=1)
    return await run.start(rig.driver.reach, action)


async def test_an_operation_whose_controller_is_gone_ends_as_its_ranks_say(rig: Rig) -> None:
    async def on_record(request: worker_pb2.ExecuteRequest) -> worker_pb2.ExecuteReply:
        assert request.is_asked
        reply = applied(request.operation)
        reply.position, reply.digest = "7", b"d"
        return reply

    await rig.job("job-1")
    await rig.deploy("job-1", tp=2, durable=True)
    deployment = rig.driver.registry.deployments[DeploymentId("job-1/actor")]
    rig.behaviour.on_execute = on_record
    found = await gone(rig, "step")
    assert isinstance(found, OperationFinished)
    assert (found.fault, found.digest) == (None, "64-64")
    assert (deployment.position, deployment.applied_seq) == ("7", 1)
    assert deployment.durable is not None
    with pytest.raises(PlexError, match="what ran up to seq 1 is not kept"):
        deployment.durable.check()


@pytest.mark.parametrize("code", ["not_found", "window_broken"])
async def test_what_no_rank_has_applied_changes_nothing(rig: Rig, code: str) -> None:
    async def refused_by_one(request: worker_pb2.ExecuteRequest) -> worker_pb2.ExecuteReply:
        return failed(request.operation, PlexError(ErrorCode(code), "so the rank says"))

    await rig.job("job-1")
    await rig.deploy("job-1", tp=2)
    deployment = rig.driver.registry.deployments[DeploymentId("job-1/actor")]
    rig.behaviour.on_execute = refused_by_one
    found = await gone(rig, "step")
    assert isinstance(found, OperationFinished)
    assert found.fault is not None
    says = "which was not run" if code == "not_found" else "so the rank says"
    assert says in found.fault.message
    assert (deployment.position, deployment.applied_seq) == ("", 0)


async def test_a_publication_whose_controller_is_gone_is_not_made(rig: Rig) -> None:
    await rig.job("job-1")
    await rig.deploy("job-1")
    before = len(rig.behaviour.executed)
    found = await gone(rig, "publish")
    assert isinstance(found, OperationFinished)
    assert found.fault is not None
    assert "nobody waits for what the operation may have published" in found.fault.message
    assert len(rig.behaviour.executed) == before
