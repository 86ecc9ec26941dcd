"""Submissions, payloads and results of operations, on a driver over a fake node."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from plexclient.ids import new_operation_id
from plexclient.wire.v1 import operations_pb2 as ops
from plexclient.wire.v1 import service_pb2 as pb
from plexclient.wire.v1 import worker_pb2
from plexsvc.clock import Clock
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.ids import JobId, OperationId
from plexsvc.scheduler.api.operations import EarlyPayloads
from plexsvc.scheduler.config import SchedulerConfig
from tests.fakes.fake_cluster import staged_payload
from tests.rigs.router_rig import until
from tests.rigs.scheduler_rig import TENANT, Rig, held_open, start_rig

ANSWERED = ops.OPERATION_STATE_ANSWERED
REFUSED = ops.OPERATION_STATE_REFUSED


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    """One node with a job's actor on it."""
    async with start_rig(tmp_path, nodes=[{"train": 1}]) as started:
        await started.job("job-1")
        await started.deploy("job-1")
        yield started


def staged(operation: ops.Operation, *, error: str = "", plan: int = 0) -> pb.PayloadStagedRequest:
    request = pb.PayloadStagedRequest(
        operation_id=operation.operation_id,
        job_id="job-1",
        tenant=TENANT,
        deployment_id="job-1/actor",
    )
    if error:
        request.error.code, request.error.message = error, "advantages[3] is NaN"
    else:
        request.plan.version = plan
    return request


async def announce(rig: Rig, request: pb.PayloadStagedRequest) -> None:
    await rig.scheduler.call("PayloadStaged", request, pb.PayloadStagedReply)


async def result_of(rig: Rig, operation_id: bytes, *, tenant: str = TENANT) -> ops.OperationResult:
    request = pb.GetResultRequest(operation_id=operation_id, job_id="job-1", tenant=tenant)
    return await rig.scheduler.call("GetResult", request, ops.OperationResult)


async def is_known(rig: Rig, operation_id: bytes, *, job_id: str = "job-1") -> bool:
    """Return whether an operation is known to one who does not wait for its answer."""
    return await known_state(rig, operation_id, job_id=job_id) is not None


async def known_state(rig: Rig, operation_id: bytes, *, job_id: str = "job-1") -> int | None:
    asked = pb.GetResultRequest(
        operation_id=operation_id, job_id=job_id, tenant=TENANT, no_wait=True
    )
    try:
        found = await rig.scheduler.call("GetResult", asked, ops.OperationResult)
    except PlexError as error:
        if error.code is not ErrorCode.NOT_FOUND:
            raise
        return None
    return found.state


async def test_whoever_asks_a_little_early_is_told_of_the_operation_that_comes(rig: Rig) -> None:
    operation = rig.operation("job-1")
    async with asyncio.TaskGroup() as tasks:
        asked = tasks.create_task(is_known(rig, operation.operation_id))
        await asyncio.sleep(0)
        assert not asked.done()
        await rig.scheduler.submit(operation)
    assert asked.result()
    assert await is_known(rig, operation.operation_id), "answered"


async def test_who_does_not_wait_is_told_whether_an_operation_was_answered(rig: Rig) -> None:
    begun, go = held_open(rig, "noop")
    operation = rig.operation("job-1")
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(rig.scheduler.submit(operation))
        await begun.wait()
        assert await known_state(rig, operation.operation_id) != ANSWERED
        go.set()
    assert await known_state(rig, operation.operation_id) == ANSWERED


async def test_an_operation_that_nobody_knows_or_another_job_s_is_told_apart(rig: Rig) -> None:
    await rig.job("job-2")
    operation = rig.operation("job-1")
    await rig.scheduler.submit(operation)
    assert not await is_known(rig, operation.operation_id, job_id="job-2")
    assert not await is_known(rig, bytes(16))


async def until_known(rig: Rig, operation: ops.Operation) -> None:
    while operation.operation_id not in rig.driver.cluster.operations:  # noqa: ASYNC110 - the driver's task
        await asyncio.sleep(0)


@pytest.mark.parametrize("is_early", [True, False])
async def test_a_payload_staged_before_or_after_its_operation_starts_it_and_is_dropped_after(
    rig: Rig, is_early: bool
) -> None:
    operation = rig.operation("job-1", "forward", payload=staged_payload(1 << 20))
    plans: list[int] = []

    async def note(request: worker_pb2.ExecuteRequest) -> None:
        plans.append(request.operation.plan.version)

    rig.behaviour.on_execute = note
    async with asyncio.TaskGroup() as group:
        if is_early:
            await announce(rig, staged(operation, plan=7))
        call = group.create_task(rig.scheduler.submit(operation))
        if not is_early:
            await until_known(rig, operation)
            await announce(rig, staged(operation, plan=7))
    assert (call.result().state, plans) == (ANSWERED, [7])
    await announce(rig, staged(operation))  # a repeat that comes late is dropped, too
    await rig.end("job-1")
    await until(lambda: len(rig.behaviour.dropped) >= 2)
    assert rig.behaviour.dropped == [operation.operation_id] * 2


@pytest.mark.parametrize("is_early", [True, False])
async def test_a_payload_that_fails_validation_refuses_its_operation(
    rig: Rig, is_early: bool
) -> None:
    operation = rig.operation("job-1", "forward", payload=staged_payload(1))
    bad = staged(operation, error="bad_batch")
    async with asyncio.TaskGroup() as group:
        if is_early:
            await announce(rig, bad)
        call = group.create_task(rig.scheduler.submit(operation))
        if not is_early:
            await until_known(rig, operation)
            await announce(rig, bad)
    result = call.result()
    assert (result.state, result.error.code) == (REFUSED, ErrorCode.BAD_BATCH)
    assert (await rig.run("job-1")).state == ANSWERED


async def test_an_early_payload_waits_while_its_operation_finds_a_full_queue(
    tmp_path: Path,
) -> None:
    config = SchedulerConfig(max_pending_per_wpg=1)
    async with start_rig(tmp_path, nodes=[{"train": 1}], config=config) as rig:
        await rig.job("job-1")
        await rig.deploy("job-1")
        first = rig.operation("job-1", "forward", payload=staged_payload(1))
        second = rig.operation("job-1", "forward", payload=staged_payload(1))
        await announce(rig, staged(second))
        async with asyncio.TaskGroup() as group:
            call = group.create_task(rig.scheduler.submit(first))
            await until_known(rig, first)
            assert (await rig.scheduler.submit(second)).error.code == ErrorCode.QUEUE_FULL
            await announce(rig, staged(first))
        assert call.result().state == ANSWERED
        assert rig.behaviour.dropped == []
        assert (await rig.scheduler.submit(second)).state == ANSWERED


@pytest.mark.parametrize("is_answered", [True, False])
async def test_an_id_that_comes_again_with_other_contents_is_refused(
    rig: Rig, is_answered: bool
) -> None:
    operation = rig.operation("job-1", "forward", payload=staged_payload(1))
    operation.digest = b"first"
    other = ops.Operation(digest=b"second", step=ops.Step(lr=1.0))
    for field in ("operation_id", "job_id", "deployment_id", "tenant", "seq"):
        setattr(other, field, getattr(operation, field))
    async with asyncio.TaskGroup() as group:
        call = group.create_task(rig.scheduler.submit(operation))
        await until_known(rig, operation)
        if is_answered:
            await announce(rig, staged(operation))
            await call
        refused = await rig.scheduler.submit(other)
        assert (refused.state, refused.error.code) == (REFUSED, ErrorCode.BAD_REQUEST)
        if not is_answered:
            await announce(rig, staged(operation))
    assert (await rig.scheduler.submit(operation)).state == ANSWERED
    assert (await rig.run("job-1")).state == ANSWERED


SUBMITTING = ["recorder.check_same", "results.get", "check_open", "registry.job", "recorder.hold"]


@pytest.mark.parametrize("error", [PlexError(ErrorCode.UNAVAILABLE, "not now"), MemoryError()])
@pytest.mark.parametrize("call", [*SUBMITTING, "registry.hold", "post"])
async def test_a_fault_at_any_call_of_a_submission_leaves_nothing_and_a_repeat_runs_once(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, call: str, error: Exception
) -> None:
    home: Any = rig.driver
    *path, name = call.split(".")
    for part in path:
        home = getattr(home, part)
    real = getattr(home, name)

    def faulty(*_args: object, **_named: object) -> None:
        monkeypatch.setattr(home, name, real)
        raise error

    ran: list[bytes] = []

    async def note(request: worker_pb2.ExecuteRequest) -> None:
        ran.append(request.operation.operation_id)

    rig.behaviour.on_execute = note
    operation = rig.operation("job-1", "step")
    monkeypatch.setattr(home, name, faulty)
    with contextlib.suppress(MemoryError):
        refused = await rig.scheduler.submit(operation)
        assert refused.error.code == ErrorCode.UNAVAILABLE
    assert getattr(home, name) == real, "the fault was met"
    async with asyncio.timeout(10):
        assert (await rig.scheduler.submit(operation)).state == ANSWERED
    assert ran == [operation.operation_id]


async def test_a_repeat_whose_answer_was_dropped_is_told_so_and_does_not_wait(
    tmp_path: Path,
) -> None:
    config = SchedulerConfig(max_result_bytes=1)
    async with start_rig(tmp_path, nodes=[{"train": 1}], config=config) as rig:
        await rig.job("job-1")
        await rig.deploy("job-1")
        first = rig.operation("job-1", "step")
        for operation in (first, rig.operation("job-1", "step")):
            assert (await rig.scheduler.submit(operation)).state == ANSWERED
        async with asyncio.timeout(60):
            again = await rig.scheduler.submit(first)
        assert again.error.code == ErrorCode.RESULT_GONE


async def test_an_operation_the_router_refused_takes_its_number_and_runs_nowhere(rig: Rig) -> None:
    ran: list[bytes] = []

    async def note(request: worker_pb2.ExecuteRequest) -> None:
        ran.append(request.operation.operation_id)

    rig.behaviour.on_execute = note
    bad, good = rig.operation("job-1", "step"), rig.operation("job-1", "step")
    bad.refusal.code, bad.refusal.message = ErrorCode.BAD_REQUEST, "optimizer lr is -1"
    async with asyncio.TaskGroup() as group:
        later = group.create_task(rig.scheduler.submit(good))
        results = [await rig.scheduler.submit(bad) for _ in range(2)]
    assert {(r.state, r.error.code, r.error.message) for r in results} == {
        (REFUSED, "bad_request", "optimizer lr is -1")
    }
    assert later.result().state == ANSWERED
    assert ran == [good.operation_id]


async def test_a_refused_operation_with_a_number_that_is_used_is_stale(rig: Rig) -> None:
    await rig.run("job-1", "step")
    bad = rig.operation("job-1", "step", seq=1)
    bad.refusal.code = ErrorCode.BAD_REQUEST
    assert (await rig.scheduler.submit(bad)).error.code == ErrorCode.STALE_SEQUENCE


async def foreign_job(rig: Rig) -> None:
    """Bring up another job of another tenant, on another device."""
    thief = pb.CreateJobRequest(job_id="thief", name="thief", tenant="rival")
    await rig.scheduler.call("CreateJob", thief, pb.Job)
    spec = pb.DeploymentSpec(role="actor", backend="noop")
    request = pb.CreateDeploymentRequest(
        deployment_id="thief/actor", job_id="thief", tenant="rival", name="actor", spec=spec
    )
    await rig.scheduler.call("CreateDeployment", request, pb.Deployment)


async def test_whoever_knows_an_operations_id_gets_neither_its_answer_nor_its_payload(
    tmp_path: Path,
) -> None:
    async with start_rig(tmp_path, nodes=[{"train": 2}]) as rig:
        await rig.job("job-1")
        await rig.deploy("job-1")
        await foreign_job(rig)
        answered = rig.operation("job-1", "forward")
        assert (await rig.scheduler.submit(answered)).state == ANSWERED
        waits = rig.operation("job-1", "forward", payload=staged_payload(1 << 20))
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(rig.scheduler.submit(waits))
            await until_known(rig, waits)
            for victim in (answered, waits):
                attack = ops.Operation(
                    operation_id=victim.operation_id,
                    tenant="rival",
                    job_id="thief",
                    deployment_id="thief/actor",
                    seq=1,
                    noop=ops.Noop(),
                )
                found = await rig.scheduler.submit(attack)
                assert found.error.code == ErrorCode.BAD_REQUEST
                assert not found.shards
                asked = pb.GetResultRequest(
                    operation_id=victim.operation_id, job_id="thief", tenant="rival"
                )
                with pytest.raises(PlexError) as gone:
                    await rig.scheduler.call("GetResult", asked, ops.OperationResult)
                assert gone.value.code is ErrorCode.RESULT_GONE
                told = pb.PayloadStagedRequest(
                    operation_id=victim.operation_id,
                    job_id="thief",
                    tenant="rival",
                    deployment_id="thief/actor",
                )
                told.error.code = ErrorCode.BAD_BATCH
                with pytest.raises(PlexError, match="no operation of job"):
                    await announce(rig, told)
            assert not waiting.done()
            await announce(rig, staged(waits))
        assert waiting.result().state == ANSWERED


async def test_an_announcement_of_another_job_does_not_take_the_place_of_ones_own(
    tmp_path: Path,
) -> None:
    async with start_rig(tmp_path, nodes=[{"train": 2}]) as rig:
        await rig.job("job-1")
        await rig.deploy("job-1")
        await foreign_job(rig)
        operation = rig.operation("job-1", "forward", payload=staged_payload(1 << 20))
        told = pb.PayloadStagedRequest(
            operation_id=operation.operation_id,
            job_id="thief",
            tenant="rival",
            deployment_id="thief/actor",
        )
        told.error.code = ErrorCode.BAD_BATCH
        await announce(rig, staged(operation))
        await announce(rig, told)
        assert (await rig.scheduler.submit(operation)).state == ANSWERED


async def test_nobody_pulls_the_weights_of_another_job(tmp_path: Path) -> None:
    async with start_rig(tmp_path, nodes=[{"train": 2}]) as rig:
        await rig.job("job-1")
        await rig.deploy("job-1")
        await foreign_job(rig)
        pull = rig.operation("job-1", "pull")
        pull.pull.source_deployment_id, pull.pull.version = "thief/actor", 1
        found = await rig.scheduler.submit(pull)
        assert found.error.code == ErrorCode.NOT_FOUND
        assert (await rig.run("job-1")).state == ANSWERED, "the refusal took its number"


@pytest.mark.parametrize(("role", "model"), [("reference", "a"), ("rollout", "b")])
async def test_nobody_pulls_adapters_whose_model_is_another(
    tmp_path: Path, role: str, model: str
) -> None:
    async with start_rig(tmp_path, nodes=[{"train": 2, "rollout": 1}]) as rig:
        await rig.job("job-1")
        for name in "ab":
            (tmp_path / name).mkdir()
            (tmp_path / name / "config.json").write_text("{}")
        root = str(tmp_path)
        specs = {
            name: pb.DeploymentSpec(
                role=kind, backend="noop", model=str(tmp_path / path), model_root=root
            )
            for name, kind, path in (("adapters", "actor", "a"), ("other", role, model))
        }
        specs["adapters"].lora.rank = 2
        for name, spec in specs.items():
            request = pb.CreateDeploymentRequest(
                deployment_id=f"job-1/{name}", job_id="job-1", tenant=TENANT, name=name, spec=spec
            )
            await rig.scheduler.call("CreateDeployment", request, pb.Deployment)
        pull = rig.operation("job-1", "pull", name="other")
        pull.pull.source_deployment_id, pull.pull.version = "job-1/adapters", 1
        found = await rig.scheduler.submit(pull)
        assert found.error.code == ErrorCode.BAD_REQUEST
        assert specs["adapters"].model in found.error.message
        assert specs["other"].model in found.error.message


async def test_a_result_is_found_by_its_operations_id_while_it_runs_and_until_it_is_acknowledged(
    rig: Rig,
) -> None:
    operation = rig.operation("job-1", "forward", payload=staged_payload(1))
    async with asyncio.TaskGroup() as group:
        call = group.create_task(rig.scheduler.submit(operation))
        await until_known(rig, operation)
        asked = group.create_task(result_of(rig, operation.operation_id))
        await announce(rig, staged(operation))
    assert asked.result() == call.result() == await result_of(rig, operation.operation_id)
    with pytest.raises(PlexError) as foreign:
        await result_of(rig, operation.operation_id, tenant="others")
    assert foreign.value.code is ErrorCode.NOT_FOUND
    with pytest.raises(PlexError, match="acknowledged or dropped") as gone:
        await result_of(rig, new_operation_id())
    assert gone.value.code is ErrorCode.RESULT_GONE


class SetClock(Clock):
    """A clock that stands where the test put it."""

    now_us = 0

    def monotonic_us(self) -> int:
        return self.now_us

    def wall_us(self) -> int:
        return self.now_us

    async def sleep(self, duration_us: int) -> None:
        raise AssertionError(duration_us)


def key(request: pb.PayloadStagedRequest) -> tuple[JobId, OperationId]:
    return JobId(request.job_id), OperationId(request.operation_id)


def test_announcements_are_bounded_in_bytes_and_in_time() -> None:
    one, two, three = (
        pb.PayloadStagedRequest(operation_id=new_operation_id(), node_ids=["n0"]) for _ in range(3)
    )
    clock = SetClock()
    early = EarlyPayloads(clock, max_bytes=2 * one.ByteSize(), keep_us=100)
    assert early.keep(one) == early.keep(two) == early.keep(two) == []
    with pytest.raises(PlexError, match="not accepted") as full:
        early.keep(three)
    assert (full.value.code, full.value.retryable) == (ErrorCode.STAGING_FULL, True)
    clock.now_us = 99
    assert early.take(key(two)) is two
    assert early.keep(two) == []
    clock.now_us = 100
    assert early.keep(three) == [one]
    assert early.take(key(one)) is None
    assert (early.take(key(two)), early.take(key(three))) == (two, three)


async def cancel(rig: Rig, operation_id: bytes, *, job_id: str = "job-1") -> None:
    request = pb.CancelOperationRequest(operation_id=operation_id, job_id=job_id, tenant=TENANT)
    await rig.scheduler.call("CancelOperation", request, pb.CancelOperationReply)


async def test_an_operation_that_waits_is_cancelled_by_its_own_job_alone(rig: Rig) -> None:
    await rig.job("job-2")
    waiting = rig.operation("job-1", seq=2)
    async with asyncio.TaskGroup() as group:
        answer = group.create_task(rig.scheduler.submit(waiting))
        await until_known(rig, waiting)
        for operation_id, job_id in (
            (new_operation_id(), "job-1"),
            (waiting.operation_id, "job-2"),
        ):
            with pytest.raises(PlexError) as caught:
                await cancel(rig, operation_id, job_id=job_id)
            assert caught.value.code is ErrorCode.NOT_FOUND
        assert not answer.done()
        await cancel(rig, waiting.operation_id)
    assert (answer.result().state, answer.result().error.code) == (REFUSED, ErrorCode.CANCELLED)
    await cancel(rig, waiting.operation_id)  # it is over: nothing to do


async def test_a_generate_that_runs_is_cancelled_by_its_manager(tmp_path: Path) -> None:
    async with start_rig(tmp_path, nodes=[{"rollout": 1}]) as rig:
        await rig.job("job-1")
        await rig.deploy("job-1", "rollout", role="rollout")
        begun, go = asyncio.Event(), asyncio.Event()

        async def hold(_: worker_pb2.ExecuteRequest) -> None:
            begun.set()
            await go.wait()

        rig.behaviour.on_execute = hold
        running = rig.operation("job-1", "generate", name="rollout")
        async with asyncio.TaskGroup() as group:
            answer = group.create_task(rig.scheduler.submit(running))
            await begun.wait()
            await cancel(rig, running.operation_id)
            while not rig.rollout.cancelled:  # noqa: ASYNC110 - the order is performed beside
                await asyncio.sleep(0)
            go.set()
        assert rig.rollout.cancelled == [running.operation_id]
        assert answer.done()
