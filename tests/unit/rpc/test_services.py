"""Services by their descriptors: what reaches a handler, and what a failure of one looks like."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, cast

import grpc.aio
import pytest

from plexclient.wire.v1 import common_pb2
from plexclient.wire.v1 import service_pb2 as pb
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.rpc import services
from plexsvc.rpc.channels import listen, new_server, open_channel
from plexsvc.rpc.services import Context
from tests.rigs.keys import KEYS

ROUTER = pb.DESCRIPTOR.services_by_name["Router"]
CALL_S = 20.0


async def list_jobs(request: pb.ListJobsRequest, _: Context) -> pb.ListJobsReply:
    if request.tenant == "bug":
        raise ZeroDivisionError("one by none")
    if request.tenant == "rival":
        raise PlexError(ErrorCode.FORBIDDEN, "not you", tenant="rival")
    return pb.ListJobsReply(jobs=[pb.Job(tenant=request.tenant)])


async def stage(messages: AsyncIterator[bytes], _: Context) -> pb.StageReply:
    return pb.StageReply(nbytes=sum([len(message) async for message in messages]))


async def fetch(request: pb.FetchResultRequest, _: Context) -> AsyncGenerator[bytes]:
    yield common_pb2.Chunk(offset=request.offset).SerializeToString()
    raise PlexError(ErrorCode.RESULT_GONE, "the rest is gone")


@pytest.fixture
async def channel() -> AsyncIterator[grpc.aio.Channel]:
    server = new_server(KEYS)
    calls: dict[str, services.Handler] = {"ListJobs": list_jobs, "StagePayload": stage}
    services.add_service(server, ROUTER, calls=calls, streams={"FetchResult": fetch})
    address = listen(server, "127.0.0.1:0", KEYS, key="fake")
    await server.start()
    async with open_channel(address, KEYS) as opened:
        yield opened
    await server.stop(0)


async def ask(channel: grpc.aio.Channel, tenant: str) -> pb.ListJobsReply:
    method, request = ROUTER.methods_by_name["ListJobs"], pb.ListJobsRequest(tenant=tenant)
    return await services.call(channel, method, request, pb.ListJobsReply, timeout_s=CALL_S)


async def test_a_call_is_answered_or_raises_what_the_handler_raised(
    channel: grpc.aio.Channel,
) -> None:
    assert (await ask(channel, "lab")).jobs[0].tenant == "lab"
    with pytest.raises(PlexError, match="not you") as refused:
        await ask(channel, "rival")
    assert (refused.value.code, refused.value.facts["tenant"]) == (ErrorCode.FORBIDDEN, "rival")


async def test_a_bug_is_internal_and_says_where(channel: grpc.aio.Channel) -> None:
    with pytest.raises(PlexError, match="the router failed in ListJobs: ZeroDiv") as failed:
        await ask(channel, "bug")
    assert failed.value.code is ErrorCode.INTERNAL


async def test_streams_pass_as_bytes(channel: grpc.aio.Channel) -> None:
    upload: Any = channel.stream_unary("/plexsvc.v1.Router/StagePayload")
    reply = await upload(iter([b"abc", b"\xff\xff"]), timeout=CALL_S)
    assert pb.StageReply.FromString(reply).nbytes == 5


async def test_a_stream_that_fails_midway_ends_with_its_error(channel: grpc.aio.Channel) -> None:
    method: Any = channel.unary_stream("/plexsvc.v1.Router/FetchResult")
    stream = method(pb.FetchResultRequest(offset=7).SerializeToString(), timeout=CALL_S)
    assert common_pb2.Chunk.FromString(await stream.read()).offset == 7
    with pytest.raises(grpc.aio.AioRpcError, match="the rest is gone"):
        await stream.read()


def test_options_of_methods_are_read_from_the_descriptor() -> None:
    methods = services.unary_methods(ROUTER)
    marked = {name for name, m in methods.items() if services.has_option(m, pb.operators_only)}
    assert marked == {
        "ChangeNode",
        "AddNode",
        "DrainInstance",
        "OpenInstance",
        "LendInstance",
        "Repack",
        "MoveJob",
        "PinJob",
        "CreateToken",
        "ListTokens",
        "RevokeToken",
        "SetQuota",
        "ShutOutNode",
        "ListQuotas",
    }
    reading = {name for name, m in methods.items() if services.has_option(m, pb.reads)}
    assert reading == {
        "ExplainOperation",
        "GetCheckpoints",
        "GetCost",
        "GetPack",
        "GetReport",
        "GetRewards",
        "GetStatus",
        "ListInstances",
        "ListJobs",
        "ListNodes",
        "Timeline",
        "WhatIf",
    }
    assert "Operate" not in methods
    assert services.reply_type(methods["ListJobs"]) is pb.ListJobsReply


class Servicer:
    """Has some of the router's methods, and one of another name."""

    async def list_jobs(self, request: pb.ListJobsRequest) -> pb.ListJobsReply:
        return await list_jobs(request, cast("Context", None))

    async def fetch_result(self, request: pb.FetchResultRequest) -> AsyncGenerator[bytes]:
        async for chunk in fetch(request, cast("Context", None)):
            yield chunk

    async def other(self) -> None:
        raise AssertionError


async def test_an_object_is_served_by_its_methods_names() -> None:
    server = new_server(KEYS)
    services.add_servicer(server, ROUTER, Servicer())
    address = listen(server, "127.0.0.1:0", KEYS, key="fake")
    await server.start()
    async with open_channel(address, KEYS) as opened:
        assert (await ask(opened, "lab")).jobs[0].tenant == "lab"
        with pytest.raises(PlexError, match="not you"):
            await ask(opened, "rival")
        stream: Any = opened.unary_stream("/plexsvc.v1.Router/FetchResult")
        chunks = stream(pb.FetchResultRequest(offset=3).SerializeToString(), timeout=CALL_S)
        assert common_pb2.Chunk.FromString(await chunks.read()).offset == 3
        upload: Any = opened.stream_unary("/plexsvc.v1.Router/StagePayload")
        with pytest.raises(grpc.aio.AioRpcError) as unserved:
            await upload(iter([b""]), timeout=CALL_S)
        assert unserved.value.code() is grpc.StatusCode.UNIMPLEMENTED
    await server.stop(0)
