"""Uploads and downloads through a real router, with real gRPC and stand-in nodes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator
from pathlib import Path
from typing import Any

import grpc.aio
import numpy as np
import pytest

from plexclient.wire import tensors
from plexclient.wire.v1 import common_pb2, worker_pb2
from plexclient.wire.v1 import operations_pb2 as ops
from plexclient.wire.v1 import service_pb2 as pb
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.router.config import RouterConfig
from plexsvc.rpc.errors import error_from
from tests.fakes import fake_staging
from tests.fakes.fake_staging import FakeStaging
from tests.rigs.router_rig import (
    ACTOR,
    JOB,
    TENANT,
    TOKEN,
    Rig,
    batch,
    metadata,
    stage_requests,
    start_rig,
    until,
)

pytestmark = pytest.mark.process

LENGTHS = [100, 300, 200, 512] * 40
PPO = ops.ForwardBackward(loss="ppo")


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with start_rig() as started:
        yield started


async def test_a_staged_batch_lands_whole_and_its_plan_follows(rig: Rig) -> None:
    arrays = batch(LENGTHS)
    operation = rig.client.operation(arrays, forward_backward=PPO)
    result = await rig.client.run(operation, arrays)
    assert result.state == ops.OPERATION_STATE_ANSWERED
    landed = rig.staging.staged[operation.operation_id]
    assert landed == tensors.encode(arrays).data
    record = rig.scheduler.records[operation.operation_id]
    assert record.plan is not None
    assert list(record.plan.lengths) == LENGTHS
    header = rig.staging.headers[0]
    assert (header.tenant, header.rules.vocab_size) == (TENANT, 50)


@pytest.mark.parametrize("first", ["tokens", "cu_seqlens", "mask"])
async def test_the_plan_is_made_wherever_the_boundaries_lie(rig: Rig, first: str) -> None:
    arrays = batch(LENGTHS)
    order = [first, *(name for name in arrays if name != first)]
    moved = {name: arrays[name] for name in order}
    operation = rig.client.operation(moved, forward_backward=PPO)
    await rig.client.run(operation, moved)
    assert list(rig.scheduler.records[operation.operation_id].plan.lengths) == LENGTHS


async def test_a_bad_batch_is_refused_where_it_lands_and_the_operation_says_why(rig: Rig) -> None:
    arrays = batch(LENGTHS)
    arrays["advantages"][7777] = np.inf
    operation = rig.client.operation(arrays, forward_backward=PPO)
    result = await rig.client.run(operation, arrays)
    assert result.error.code == ErrorCode.BAD_BATCH
    assert "7777" in result.error.message
    assert rig.scheduler.effects == []


async def test_repeating_a_finished_upload_is_answered_and_makes_the_same_plan(rig: Rig) -> None:
    arrays = batch(LENGTHS)
    operation = rig.client.operation(arrays, forward_backward=PPO)
    await rig.client.run(operation, arrays)
    first = rig.scheduler.records[operation.operation_id].plan
    reply = await rig.client.stage(operation, arrays)
    assert reply.nbytes == len(tensors.encode(arrays).data)
    assert rig.scheduler.records[operation.operation_id].plan == first
    assert rig.scheduler.effects == [operation.operation_id]


async def test_a_full_node_is_told_to_the_client_and_the_operation_stays(rig: Rig) -> None:
    rig.staging.refusal = PlexError(ErrorCode.STAGING_FULL, "staging memory is full")
    arrays = batch(LENGTHS)
    operation = rig.client.operation(arrays, forward_backward=PPO)
    async with asyncio.TaskGroup() as group:
        submitted = group.create_task(rig.client.submit(operation))
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await rig.client.stage(operation, arrays)
        assert error_from(failure.value).retryable
        await rig.client.stage(operation, arrays)
    assert submitted.result().state == ops.OPERATION_STATE_ANSWERED


async def test_an_upload_that_comes_before_its_operation_is_announced_once(rig: Rig) -> None:
    arrays = batch(LENGTHS)
    operation = rig.client.operation(arrays, forward_backward=PPO)
    staged = await rig.client.stage(operation, arrays)
    assert not staged.HasField("error")
    assert (await rig.client.submit(operation)).state == ops.OPERATION_STATE_ANSWERED
    assert rig.scheduler.staged_calls == 1


async def test_an_oversize_batch_is_refused_by_the_key_that_bounds_it() -> None:
    config = RouterConfig(tokens={TOKEN: TENANT}, max_payload_bytes=100_000)
    async with start_rig(config=config) as rig:
        arrays = batch(LENGTHS)
        operation = rig.client.operation(arrays, forward_backward=PPO)
        result = await rig.client.run(operation, arrays)
        assert result.error.code == ErrorCode.PAYLOAD_TOO_LARGE
        assert "router.max_payload_bytes" in result.error.message
        assert rig.staging.headers == []


async def test_a_client_that_goes_away_leaves_nothing_and_may_come_again(rig: Rig) -> None:
    arrays = batch(LENGTHS)
    operation = rig.client.operation(arrays, forward_backward=PPO)
    requests = stage_requests(operation, arrays)
    call = rig.client.stub.StagePayload(metadata=metadata(), timeout=120)
    for request in requests[:3]:
        await call.write(request)
    await until(lambda: rig.staging.partial)
    call.cancel()
    await until(lambda: not rig.staging.partial)
    assert rig.staging.staged == {}
    assert rig.scheduler.staged_calls == 0
    assert (await rig.client.run(operation, arrays)).state == ops.OPERATION_STATE_ANSWERED


@pytest.mark.parametrize("first", ["tokens", "cu_seqlens"])
async def test_a_chunk_out_of_order_is_refused_while_the_client_waits_to_send(
    rig: Rig, first: str
) -> None:
    arrays = batch([512] * 1000)
    arrays = {first: arrays[first], **arrays}
    operation = rig.client.operation(arrays, forward_backward=PPO)
    header, *chunks = stage_requests(operation, arrays)
    async with asyncio.timeout(120), asyncio.TaskGroup() as tasks:
        submitted = tasks.create_task(rig.client.submit(operation))
        call = rig.client.stub.StagePayload(metadata=metadata(), timeout=120)
        for request in (header, chunks[0], chunks[2]):
            await call.write(request)
        reply = await call  # the stream stays open
    assert reply.error.code == ErrorCode.BAD_REQUEST
    assert submitted.result().error.code == ErrorCode.BAD_REQUEST


async def test_a_group_on_two_nodes_gets_a_copy_on_each(rig: Rig) -> None:
    second = FakeStaging()
    async with fake_staging.serve(second) as target:
        deployed = rig.scheduler.deployments[ACTOR]
        deployed.staging_nodes.add(node_id="n1", state_manager=target)
        deployed.blocks.add(node_id="n0", count=1)
        deployed.blocks.add(node_id="n1", count=1)
        arrays = batch(LENGTHS)
        operation = rig.client.operation(arrays, forward_backward=PPO)
        result = await rig.client.run(operation, arrays)
    assert result.state == ops.OPERATION_STATE_ANSWERED
    assert rig.staging.staged == second.staged
    assert list(second.staged) == [operation.operation_id]


async def test_chunks_out_of_order_are_refused(rig: Rig) -> None:
    arrays = batch(LENGTHS)
    operation = rig.client.operation(arrays, forward_backward=PPO)
    header, first, second, *rest = stage_requests(operation, arrays)
    async with asyncio.TaskGroup() as group:
        submitted = group.create_task(rig.client.submit(operation))
        messages = iter([header, second, first, *rest])
        reply = await rig.client.stub.StagePayload(messages, metadata=metadata(), timeout=120)
    assert reply.error.code == ErrorCode.BAD_REQUEST
    assert submitted.result().error.code == ErrorCode.BAD_REQUEST


async def test_too_many_uploads_at_once_are_refused_with_the_key() -> None:
    config = RouterConfig(tokens={TOKEN: TENANT}, max_uploads=1)
    async with start_rig(config=config) as rig:
        rig.staging.gate = asyncio.Event()
        arrays = batch(LENGTHS)
        one = rig.client.operation(arrays, forward_backward=PPO)
        two = rig.client.operation(arrays, forward_backward=PPO)
        async with asyncio.TaskGroup() as group:
            group.create_task(rig.client.run(one, arrays))
            await until(lambda: rig.staging.partial)
            header = iter(stage_requests(two, arrays)[:1])
            with pytest.raises(grpc.aio.AioRpcError) as failure:
                await rig.client.stub.StagePayload(header, metadata=metadata(), timeout=120)
            rig.staging.gate.set()
        error = error_from(failure.value)
        assert error.code == ErrorCode.STAGING_FULL
        assert "router.max_uploads" in error.message


async def test_an_upload_that_sends_nothing_gives_its_slot_up() -> None:
    config = RouterConfig(tokens={TOKEN: TENANT}, max_uploads=1, upload_stall_us=100_000)
    async with start_rig(config=config) as rig:
        arrays = batch(LENGTHS)
        operation = rig.client.operation(arrays, forward_backward=PPO)
        header, *_ = stage_requests(operation, arrays)

        async def stalled() -> AsyncIterator[pb.StageRequest]:
            yield header
            await asyncio.Event().wait()

        async with asyncio.TaskGroup() as group:
            submitted = group.create_task(rig.client.submit(operation))
            reply = await rig.client.stub.StagePayload(stalled(), metadata=metadata(), timeout=120)
        assert reply.error.code == ErrorCode.STAGING_TIMEOUT
        assert "sent nothing for 0.1 s" in submitted.result().error.message
        again = rig.client.operation(arrays, forward_backward=PPO)
        result = await rig.client.run(again, arrays)
        assert result.state == ops.OPERATION_STATE_ANSWERED


async def test_the_scheduler_hears_of_an_upload_that_takes_long() -> None:
    config = RouterConfig(tokens={TOKEN: TENANT}, upload_stall_us=200_000)
    async with start_rig(config=config) as rig:
        arrays = batch(LENGTHS)
        operation = rig.client.operation(arrays, forward_backward=PPO)
        header, chunk, *_ = stage_requests(operation, arrays)
        size = len(chunk.chunk.data) // 64

        async def slow() -> AsyncIterator[pb.StageRequest]:
            yield header
            sent = 0
            while not rig.scheduler.under_way:
                part = chunk.chunk.data[sent : sent + size]
                yield pb.StageRequest(chunk=common_pb2.Chunk(offset=sent, data=part))
                sent += len(part)
                await asyncio.sleep(0.05)

        async with asyncio.TaskGroup() as group:
            submitted = group.create_task(rig.client.submit(operation))
            with pytest.raises(grpc.aio.AioRpcError, match="bytes came"):  # it stops when heard of
                await rig.client.stub.StagePayload(slow(), metadata=metadata(), timeout=120)
            submitted.cancel()
        assert rig.scheduler.under_way == 1


@pytest.mark.parametrize("offset", [0, 1000])
async def test_a_result_is_fetched_from_where_it_lies(rig: Rig, offset: int) -> None:
    data = bytes(range(256)) * 4000
    rig.staging.staged[b"result"] = data
    staged = common_pb2.StagedBundle(staging_id=b"result", nbytes=len(data), node_ids=["n0"])
    inline = common_pb2.TensorBundle(data=data[:5000])
    rig.scheduler.shards = [
        ops.ResultShard(payload=common_pb2.Payload(staged=staged)),
        ops.ResultShard(payload=common_pb2.Payload(inline=inline)),
    ]
    operation = rig.client.operation(noop=ops.Noop())
    await rig.client.submit(operation)
    for shard, expected in enumerate([data, data[:5000]]):
        request = pb.FetchResultRequest(
            operation_id=operation.operation_id,
            job_id=JOB,
            deployment_id=ACTOR,
            shard=shard,
            offset=offset,
        )
        chunks = rig.client.stub.FetchResult(request, metadata=metadata(), timeout=120)
        assert b"".join([chunk.data async for chunk in chunks]) == expected[offset:]
    assert rig.scheduler.effects == [operation.operation_id]


class TwoFrames:
    """A rollout manager with two frames for everybody."""

    async def StreamFrames(
        self, request: worker_pb2.StreamFramesRequest, _: object
    ) -> AsyncGenerator[ops.GenerateFrame]:
        for cursor in (1, 2):
            if cursor > request.after_cursor:
                yield ops.GenerateFrame(cursor=cursor)

    async def Sample(self, request: ops.Operation, _: object) -> AsyncGenerator[ops.GenerateFrame]:
        yield ops.GenerateFrame(result=ops.OperationResult(texts={"tenant": request.tenant}))


def sampled(rig: Rig, **changes: Any) -> AsyncIterable[ops.GenerateFrame]:
    rig.scheduler.deployments[ACTOR].spec.role = "rollout"
    prompts = [ops.Prompt(token_ids=[3])]
    operation = rig.client.operation(generate=ops.Generate(prompts=prompts))
    operation.seq = 0
    operation.MergeFrom(ops.Operation(**changes))
    return rig.client.stub.Sample(operation, metadata=metadata(), timeout=120)


async def test_a_sample_is_relayed_from_the_manager_of_the_deployment_for_its_tenant() -> None:
    async with start_rig(frames=TwoFrames()) as rig:
        told = [frame async for frame in sampled(rig)]
        assert [frame.result.texts["tenant"] for frame in told] == [TENANT]
        assert not rig.scheduler.effects, "the scheduler hears nothing of it"


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"seq": 1}, ErrorCode.BAD_REQUEST),
        ({"after": [bytes(16)]}, ErrorCode.BAD_REQUEST),
        ({"noop": ops.Noop()}, ErrorCode.BAD_REQUEST),
        ({"operation_id": b"short"}, ErrorCode.BAD_REQUEST),
        ({"generate": ops.Generate(session="x" * 200)}, ErrorCode.BAD_REQUEST),
        ({"deployment_id": "job-2/rollout"}, ErrorCode.NOT_FOUND),
    ],
)
async def test_a_sample_that_takes_a_number_or_is_of_others_is_refused(
    changes: dict[str, Any], code: ErrorCode
) -> None:
    async with start_rig(frames=TwoFrames()) as rig:
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await anext(aiter(sampled(rig, **changes)))
        assert error_from(failure.value).code is code


async def test_frames_are_relayed_from_the_manager_of_the_deployment() -> None:
    async with start_rig(frames=TwoFrames()) as rig:
        operation = rig.client.operation(noop=ops.Noop())
        await rig.client.submit(operation)
        assert [frame.cursor async for frame in frames_of(rig, operation.operation_id)] == [2]


async def test_a_stream_of_an_operation_that_nobody_knows_is_refused() -> None:
    async with start_rig(frames=TwoFrames()) as rig:
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await anext(aiter(frames_of(rig, bytes(16))))
        assert error_from(failure.value).code is ErrorCode.NOT_FOUND


def frames_of(rig: Rig, operation_id: bytes) -> AsyncIterable[ops.GenerateFrame]:
    rig.scheduler.deployments[ACTOR].spec.role = "rollout"
    request = pb.StreamGenerateRequest(
        operation_id=operation_id, job_id=JOB, deployment_id=ACTOR, after_cursor=1
    )
    return rig.client.stub.StreamGenerate(request, metadata=metadata(), timeout=120)


async def test_only_the_tokenizers_files_are_served(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(b"x" * 600_000)
    (tmp_path / "model.safetensors").write_bytes(b"secret")
    async with start_rig(model=tmp_path) as rig:
        codes = {}
        for name in ("model.safetensors", "../tokenizer.json", "vocab.json"):
            with pytest.raises(grpc.aio.AioRpcError) as failure:
                await fetch(rig, name)
            codes[name] = error_from(failure.value).code
        assert codes == {
            "model.safetensors": ErrorCode.BAD_REQUEST,
            "../tokenizer.json": ErrorCode.BAD_REQUEST,
            "vocab.json": ErrorCode.NOT_FOUND,
        }
        assert await fetch(rig, "tokenizer.json", offset=599_990) == b"x" * 10


async def fetch(rig: Rig, name: str, *, offset: int = 0) -> bytes:
    request = pb.FetchModelFileRequest(deployment_id=ACTOR, job_id=JOB, name=name, offset=offset)
    chunks = rig.client.stub.FetchModelFile(request, metadata=metadata(), timeout=120)
    return b"".join([chunk.data async for chunk in chunks])
