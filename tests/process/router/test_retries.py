"""Retrying changes nothing: cut, late and doubled lines between client and router."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import grpc.aio
import numpy as np
import pytest

from plexclient.operations import Operations
from plexclient.wire import tensors
from plexclient.wire.channels import CHANNEL_OPTIONS
from plexclient.wire.v1 import common_pb2
from plexclient.wire.v1 import operations_pb2 as ops
from plexclient.wire.v1 import service_pb2 as pb
from plexsvc.errors import PlexError
from plexsvc.rpc.errors import error_from
from tests.rigs.chaos_proxy import ChaosProxy, Faults
from tests.rigs.router_rig import ACTOR, JOB, RawClient, Rig, batch, metadata, start_rig

pytestmark = [pytest.mark.process, pytest.mark.slow]

Reply = TypeVar("Reply")
ATTEMPTS = 200
FAULTS = Faults(
    cut_mean_bytes=300_000, duplicate_mean_bytes=60_000, delay_share=0.05, delay_max_s=0.005
)
SMALL_FAULTS = Faults(cut_mean_bytes=3_000, duplicate_mean_bytes=700)


@asynccontextmanager
async def bad_line(rig: Rig, *, seed: int, faults: Faults) -> AsyncIterator[RawClient]:
    """Yield a client whose connections go through a chaos proxy, and reconnect at once."""
    options = [
        *CHANNEL_OPTIONS,
        ("grpc.initial_reconnect_backoff_ms", 20),
        ("grpc.min_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 50),
        ("grpc.use_local_subchannel_pool", 1),
    ]
    async with ChaosProxy(rig.address, seed=seed, faults=faults) as proxy:
        async with grpc.aio.insecure_channel(proxy.address, options=options) as channel:
            yield RawClient(channel)
        assert proxy.counts.cuts > 0, "nothing was cut: the test shows nothing"
        assert proxy.counts.duplicates > 0, "nothing was doubled: the test shows nothing"


async def persist(attempt: Callable[[], Awaitable[Reply]]) -> Reply:
    """Repeat what the line broke; raise what the service refused for good."""
    for _ in range(ATTEMPTS):
        try:
            return await attempt()
        except (grpc.aio.AioRpcError, PlexError) as failure:
            error = failure if isinstance(failure, PlexError) else error_from(failure)
            if not error.retryable:
                raise error from failure
            await asyncio.sleep(0.002)
    raise AssertionError(f"{ATTEMPTS} attempts did not get through")


async def run_persistently(
    client: RawClient, operation: ops.Operation, arrays: dict[str, np.ndarray] | None = None
) -> ops.OperationResult:
    async with asyncio.TaskGroup() as group:
        answered = group.create_task(persist(lambda: client.submit(operation)))
        if arrays is not None:
            group.create_task(persist(lambda: client.stage(operation, arrays)))
    return answered.result()


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_small_operations_over_a_bad_line_take_effect_once_and_in_order(seed: int) -> None:
    async with start_rig() as rig, bad_line(rig, seed=seed, faults=SMALL_FAULTS) as client:
        sent = [
            client.operation(batch([5, 9]), forward_backward=ops.ForwardBackward(loss="ppo"))
            for _ in range(30)
        ]
        for operation in sent:
            result = await run_persistently(client, operation)
            assert result.state == ops.OPERATION_STATE_ANSWERED
        assert rig.scheduler.effects == [operation.operation_id for operation in sent]


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_operations_on_a_stream_over_a_bad_line_take_effect_once(seed: int) -> None:
    async with start_rig() as rig, bad_line(rig, seed=seed, faults=SMALL_FAULTS) as client:
        streams = Operations(lambda: client.stub.Operate(metadata=metadata()))
        body = ops.ForwardBackward(loss="ppo")
        sent = [client.operation(batch([5, 9]), forward_backward=body) for _ in range(40)]

        async def run(operation: ops.Operation) -> None:
            result = await persist(lambda: streams.ask(operation, timeout_s=5))
            assert result.state == ops.OPERATION_STATE_ANSWERED
            assert result.operation_id == operation.operation_id

        for first in range(0, len(sent), 4):
            async with asyncio.TaskGroup() as group:
                for operation in sent[first : first + 4]:
                    group.create_task(run(operation))
        await streams.aclose()
        assert sorted(rig.scheduler.effects) == sorted(op.operation_id for op in sent)


@pytest.mark.parametrize("seed", [1, 2])
async def test_staged_batches_over_a_bad_line_land_whole_and_once(seed: int) -> None:
    async with start_rig() as rig, bad_line(rig, seed=seed, faults=FAULTS) as client:
        body = ops.ForwardBackward(loss="ppo")
        sent = [(batch([400] * 40, seed=n), n) for n in range(6)]
        for arrays, _ in sent:
            operation = client.operation(arrays, forward_backward=body)
            result = await run_persistently(client, operation, arrays)
            assert result.state == ops.OPERATION_STATE_ANSWERED
            assert rig.staging.staged[operation.operation_id] == tensors.encode(arrays).data
        assert len(rig.scheduler.effects) == len(set(rig.scheduler.effects)) == len(sent)
        plans = {bytes(r.plan.SerializeToString()) for r in rig.scheduler.records.values()}
        assert len(plans) == 1, "equal lengths must give equal plans, whatever was retried"


async def test_a_refusal_over_a_bad_line_is_the_same_refusal_every_time() -> None:
    async with start_rig() as rig, bad_line(rig, seed=5, faults=SMALL_FAULTS) as client:
        arrays = batch([5, 9])
        arrays["advantages"][0] = np.nan
        for _ in range(10):
            operation = client.operation(arrays, forward_backward=ops.ForwardBackward(loss="ppo"))
            messages = {(await run_persistently(client, operation)).error.message for _ in range(2)}
            assert len(messages) == 1
        assert rig.scheduler.effects == []


async def test_a_result_fetched_over_a_bad_line_is_whole() -> None:
    async with start_rig() as rig, bad_line(rig, seed=7, faults=FAULTS) as client:
        data = np.random.default_rng(0).bytes(3 << 20)
        rig.staging.staged[b"result"] = data
        staged = common_pb2.StagedBundle(staging_id=b"result", node_ids=["n0"], nbytes=len(data))
        rig.scheduler.shards = [ops.ResultShard(payload=common_pb2.Payload(staged=staged))]
        operation = client.operation(noop=ops.Noop())
        await run_persistently(client, operation)
        got = bytearray()

        async def resume() -> None:
            request = pb.FetchResultRequest(
                operation_id=operation.operation_id,
                job_id=JOB,
                deployment_id=ACTOR,
                offset=len(got),
            )
            async for chunk in client.stub.FetchResult(request, metadata=metadata(), timeout=120):
                assert chunk.offset == len(got)
                got.extend(chunk.data)

        await persist(resume)
        arrays = batch([400] * 40)
        body = ops.ForwardBackward(loss="ppo")
        await run_persistently(client, client.operation(arrays, forward_backward=body), arrays)
    assert bytes(got) == data
