"""Faults at every call of the router's handlers: nothing happened, or it did once and is known."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import grpc.aio
import pytest

from plexclient.wire.v1 import common_pb2
from plexclient.wire.v1 import operations_pb2 as ops
from plexclient.wire.v1 import service_pb2 as pb
from plexsvc.router import relay
from tests.rigs.faults import ERRORS, Faults, FaultyProxy
from tests.rigs.router_rig import ACTOR, JOB, Rig, batch, metadata, start_rig, until

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


def _method(faults: Faults, name: str, function: Any) -> Any:  # noqa: ANN401 - any method
    def bound(self: object) -> Any:  # noqa: ANN401 - as above
        return faults.over(name, function.__get__(self))

    return property(bound)


async def run(rig: Rig, operation: ops.Operation, arrays: Any) -> ops.OperationResult | None:  # noqa: ANN401 - arrays
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
            await until(lambda: not rig.staging.partial and not rig.router.uploads._running)
            last = await attempt(rig, operation, arrays)
            assert last is not None, faults.calls[: at + 1]
            times = rig.scheduler.effects.count(operation.operation_id)
            is_applied = last.state == ops.OPERATION_STATE_ANSWERED
            assert times == is_applied, (faults.calls[: at + 1], last)
            if first is not None and first.state == ops.OPERATION_STATE_ANSWERED:
                assert last == first
            at += 1
    assert total > 2


async def attempt(rig: Rig, operation: ops.Operation, arrays: Any) -> ops.OperationResult | None:  # noqa: ANN401 - arrays
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
    reply = await rig.client.stub.CreateDeployment(request, metadata=metadata(), timeout=20)
    assert len(rig.scheduler.deployments) == 2
    return reply.SerializeToString(deterministic=True)


async def fetch(rig: Rig) -> bytes:
    request = pb.FetchResultRequest(operation_id=DONE, job_id=JOB, deployment_id=ACTOR)
    chunks = rig.client.stub.FetchResult(request, metadata=metadata(), timeout=20)
    return b"".join([chunk.data async for chunk in chunks])


DONE = bytes(range(16))
RESULT = bytes(range(256)) * 4


@pytest.mark.parametrize("is_after", [False, True])
@pytest.mark.parametrize("call", [beat, deploy, fetch])
async def test_a_fault_of_another_handler_is_told_and_its_repeat_is_answered(
    monkeypatch: pytest.MonkeyPatch, call: Callable[[Rig], Awaitable[bytes]], is_after: bool
) -> None:
    faults, at, total, errors = Faults(), -1, 0, list(ERRORS)
    async with start_rig() as rig:
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
            at += 1
    assert total
