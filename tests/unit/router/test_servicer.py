"""Faults at every call of the router's handlers: nothing happened, or it did once and is known."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any, cast

import grpc.aio
import pytest

from plexclient.wire.v1 import common_pb2, worker_pb2
from plexclient.wire.v1 import operations_pb2 as ops
from plexclient.wire.v1 import service_pb2 as pb
from plexsvc.errors import ErrorCode
from plexsvc.ids import TenantId
from plexsvc.router import relay
from plexsvc.router.api import SchedulerApi
from plexsvc.router.config import RouterConfig
from plexsvc.router.http.metrics import render
from plexsvc.router.rates import Rates
from plexsvc.router.servicer import RETRY_US, RouterServicer
from plexsvc.rpc.errors import error_from
from tests.fakes.fake_clock import FakeClock
from tests.rigs.faults import ERRORS, Faults, FaultyProxy
from tests.rigs.keys import KEYS
from tests.rigs.live_cluster import ROOT
from tests.rigs.router_rig import (
    ACTOR,
    JOB,
    TENANT,
    TOKEN,
    RawClient,
    Rig,
    actor,
    batch,
    metadata,
    start_rig,
    until,
)

SHORT, LONG = [3, 4], [512] * 60
"""Lengths of a batch that travels in the operation, and of one that is staged."""

PPO = ops.ForwardBackward(loss="ppo")


def make_faulty(rig: Rig, faults: Faults, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every collaborator of the router's handlers fail as told."""
    router: Any = rig.router
    scheduler = FaultyProxy(rig.scheduler, faults)
    for part in (router, router.control, router.uploads, router.downloads, router._deployments):
        part._scheduler = scheduler
    router._rules = router.uploads._rules = FaultyProxy(router._rules, faults)
    router._roots = FaultyProxy(router._roots, faults)
    deployments = FaultyProxy(router._deployments, faults)
    for part in (router, router.uploads, router.downloads):
        part._deployments = deployments
    for home, names in ((relay.Target, ("send", "end", "answer")), (relay.LengthsTap, ("look",))):
        for name in names:
            monkeypatch.setattr(home, name, _method(faults, name, getattr(home, name)))


def _method(faults: Faults, name: str, function: Any) -> Any:
    def bound(self: object) -> Any:
        return faults.over(name, function.__get__(self))

    return property(bound)


async def run(rig: Rig, operation: ops.Operation, arrays: Any) -> ops.OperationResult | None:
    """Upload an operation's payload and submit it; None if a call ended without an answer."""
    try:
        if operation.payload.HasField("staged"):
            await rig.client.stage(operation, arrays)
        return await rig.client.submit(operation)
    except grpc.aio.AioRpcError:
        return None


@pytest.mark.parametrize("is_after", [False, True])
@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("lengths", [SHORT, LONG], ids=["inline", "staged"])
async def test_a_fault_at_any_call_of_an_operation_applies_it_once_or_never(
    monkeypatch: pytest.MonkeyPatch, lengths: list[int], error: str, is_after: bool
) -> None:
    faults, at, total = Faults(), -1, 0
    arrays = batch(lengths)
    async with start_rig() as rig:
        make_faulty(rig, faults, monkeypatch)
        while at < total:
            operation = rig.client.operation(arrays, forward_backward=PPO)
            faults.arm(at, is_after=is_after, error=error)
            first = await attempt(rig, operation, arrays)
            faults.is_armed = False
            if at < 0:
                total = len(faults.calls)
                assert first is not None
                assert first.state == ops.OPERATION_STATE_ANSWERED
            await until(lambda: not rig.staging.partial and not rig.router.uploads.slots.taken)
            last = await attempt(rig, operation, arrays)
            assert last is not None, faults.calls[: at + 1]
            times = rig.scheduler.effects.count(operation.operation_id)
            is_applied = last.state == ops.OPERATION_STATE_ANSWERED
            assert times == is_applied, (faults.calls[: at + 1], last)
            if first is not None and first.state == ops.OPERATION_STATE_ANSWERED:
                assert last == first
            at += 1
    assert total > 2


async def attempt(rig: Rig, operation: ops.Operation, arrays: Any) -> ops.OperationResult | None:
    """Send an operation as it is: what the router adds to it stays there."""
    copy = ops.Operation()
    copy.CopyFrom(operation)
    return await run(rig, copy, arrays)


async def beat(rig: Rig) -> bytes:
    reply = await rig.client.stub.KeepAlive(
        pb.KeepAliveRequest(job_id=JOB), metadata=metadata(), timeout=20
    )
    return reply.SerializeToString(deterministic=True)


async def deploy(rig: Rig) -> bytes:
    request = pb.CreateDeploymentRequest(
        job_id=JOB,
        deployment_id=f"{JOB}/critic",
        name="critic",
        spec=pb.DeploymentSpec(role="actor", backend="noop"),
    )
    reply = await rig.client.stub.CreateDeployment(request, metadata=metadata(), timeout=120)
    assert len(rig.scheduler.deployments) == 2
    return reply.SerializeToString(deterministic=True)


async def fetch(rig: Rig) -> bytes:
    request = pb.FetchResultRequest(operation_id=DONE, job_id=JOB, deployment_id=ACTOR)
    chunks = rig.client.stub.FetchResult(request, metadata=metadata(), timeout=120)
    return b"".join([chunk.data async for chunk in chunks])


async def stream(rig: Rig) -> bytes:
    rig.scheduler.deployments[ACTOR].spec.role = "rollout"
    request = pb.StreamGenerateRequest(
        operation_id=DONE, job_id=JOB, deployment_id=ACTOR, after_cursor=1
    )
    frames = rig.client.stub.StreamGenerate(request, metadata=metadata(), timeout=120)
    return b"".join([frame.SerializeToString() async for frame in frames])


async def sample(rig: Rig) -> bytes:
    rig.scheduler.deployments[ACTOR].spec.role = "rollout"
    generate = ops.Generate(prompts=[ops.Prompt(token_ids=[3])])
    operation = ops.Operation(operation_id=DONE, job_id=JOB, deployment_id=ACTOR, generate=generate)
    frames = rig.client.stub.Sample(operation, metadata=metadata(), timeout=120)
    return b"".join([frame.SerializeToString() async for frame in frames])


class FakeFrames:
    """A rollout manager with four frames for everybody, of which each is a call that may fail."""

    def __init__(self, faults: Faults) -> None:
        self.open = 0
        self._frame = faults.over("frame", lambda cursor: ops.GenerateFrame(cursor=cursor))

    async def StreamFrames(
        self, request: worker_pb2.StreamFramesRequest, _: object
    ) -> AsyncGenerator[ops.GenerateFrame]:
        assert request.tenant == TENANT
        self.open += 1
        try:
            for cursor in range(request.after_cursor + 1, 5):
                yield self._frame(cursor)
        finally:
            self.open -= 1

    async def Sample(self, request: ops.Operation, _: object) -> AsyncGenerator[ops.GenerateFrame]:
        assert request.tenant == TENANT
        self.open += 1
        try:
            for cursor in range(3):
                yield self._frame(cursor)
        finally:
            self.open -= 1


DONE = bytes(range(16))
RESULT = bytes(range(256)) * 4


@pytest.mark.parametrize("is_after", [False, True])
@pytest.mark.parametrize("call", [beat, deploy, fetch, stream, sample])
async def test_a_fault_of_another_handler_is_told_and_its_repeat_is_answered(
    monkeypatch: pytest.MonkeyPatch, call: Callable[[Rig], Awaitable[bytes]], is_after: bool
) -> None:
    faults, at, total, errors = Faults(), -1, 0, list(ERRORS)
    frames = FakeFrames(faults)
    async with start_rig(frames=frames) as rig:
        rig.staging.staged[b"result"] = RESULT
        staged = common_pb2.StagedBundle(staging_id=b"result", nbytes=len(RESULT), node_ids=["n0"])
        rig.scheduler.shards = [ops.ResultShard(payload=common_pb2.Payload(staged=staged))]
        done = rig.client.operation(noop=ops.Noop())
        done.operation_id = DONE
        await rig.client.submit(done)
        make_faulty(rig, faults, monkeypatch)
        wanted = b""
        while at < total:
            faults.arm(at, is_after=is_after, error=errors[at % len(errors)])
            if at < 0:
                wanted, total = await call(rig), len(faults.calls)
            else:
                with pytest.raises(grpc.aio.AioRpcError):
                    await call(rig)
            faults.is_armed = False
            assert await call(rig) == wanted
            await until(lambda: not frames.open and not rig.router.calls.taken)
            at += 1
    assert total


# -- what one tenant holds leaves room for others --------------------------------------------------

SMALL = RouterConfig(tokens={TOKEN: TENANT, "other": "rival"}, model_roots=(ROOT,))


async def test_calls_of_one_tenant_leave_room_for_others() -> None:
    async with start_rig(config=replace(SMALL, max_calls=3)) as rig:

        async def nothing() -> AsyncIterator[ops.Operation]:
            await asyncio.Event().wait()
            yield ops.Operation()

        streams = [rig.client.stub.Operate(nothing(), metadata=metadata()) for _ in range(2)]
        for one in streams:
            await one.initial_metadata()
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await beat(rig)
        assert error_from(refused.value).code is ErrorCode.QUEUE_FULL
        assert "2 of 3 calls" in str(error_from(refused.value))
        asked = pb.ListJobsRequest()
        await rig.client.stub.ListJobs(asked, metadata=metadata("other"), timeout=120)
        for one in streams:
            one.cancel()
        await until(lambda: not rig.router.calls.taken)
        await beat(rig)


async def test_uploads_of_one_tenant_leave_room_for_others() -> None:
    async with start_rig(config=replace(SMALL, max_uploads=3)) as rig, asyncio.TaskGroup() as group:
        rig.staging.gate = asyncio.Event()
        rig.scheduler.jobs["job-2"] = pb.Job(job_id="job-2", tenant="rival")
        node = rig.scheduler.deployments[ACTOR].staging_nodes
        theirs = actor(job_id="job-2", deployment_id="job-2/actor", tenant="rival")
        theirs.staging_nodes.extend(node)
        rig.scheduler.deploy(theirs)
        rivals = RawClient(rig.client.channel, job_id="job-2", token="other")

        async def upload(client: RawClient) -> pb.StageReply:
            arrays = batch(LONG)
            return await client.stage(client.operation(arrays, forward_backward=PPO), arrays)

        running = [group.create_task(upload(rig.client)) for _ in range(2)]
        await until(lambda: rig.staging.partial == 2)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await upload(rig.client)
        assert error_from(refused.value).code is ErrorCode.STAGING_FULL
        running.append(group.create_task(upload(rivals)))
        await until(lambda: rig.staging.partial == 3)
        rig.staging.gate.set()
        assert not [task for task in running if (await task).HasField("error")]


class OldScheduler:
    """Answers each who watches at once, with a table that another has replaced."""

    asks = 0

    async def call(self, method: str, request: Any, reply: type[Any]) -> Any:
        del method, request, reply
        self.asks += 1
        await asyncio.sleep(0)
        return pb.WatchTokensReply(revision=1)


async def test_a_scheduler_with_an_older_table_is_asked_again_after_a_while_and_not_heeded() -> (
    None
):
    clock, old = FakeClock(), OldScheduler()
    router = RouterServicer(
        cast("SchedulerApi", old), config=RouterConfig(), clock=clock, keys=KEYS
    )
    router.tenants.learn(pb.WatchTokensReply(revision=2, tokens=[pb.TokenView(token_id="tok-1")]))
    async with asyncio.TaskGroup() as tasks:
        following = tasks.create_task(router.follow_tokens())
        for asks in (1, 2, 3):
            for _ in range(20):
                await asyncio.sleep(0)
            assert old.asks == asks
            await clock.passes(RETRY_US)
        following.cancel()
    assert router.tenants.revision == 2
    await router.aclose()


async def test_operations_of_a_stream_count_as_requests_and_keeping_alive_does_not() -> None:
    async with start_rig() as rig:
        quota = pb.QuotaView(owner=TENANT, what="requests", most=1)
        rig.router.tenants.rates = Rates(FakeClock())
        rig.router.tenants.learn(pb.WatchTokensReply(revision=1, quotas=[quota]))
        submit = partial(rig.router.submit_operation, tenant=TenantId(TENANT))
        operations = [rig.client.operation(batch(SHORT), forward_backward=PPO) for _ in range(2)]
        answers = [await submit(operation) for operation in operations]
        assert [answer.error.code for answer in answers] == ["", "queue_full"]
        assert rig.scheduler.effects == [operations[0].operation_id]
        with pytest.raises(grpc.aio.AioRpcError):
            await rig.client.stub.ListJobs(pb.ListJobsRequest(), metadata=metadata(), timeout=120)
        text = render(rig.router.meter, {}).decode()
        assert 'plex_calls_total{code="queue_full",method="ListJobs"} 1.0' in text
        alive = pb.KeepAliveRequest(job_id=JOB)
        await rig.client.stub.KeepAlive(alive, metadata=metadata(), timeout=120)
