"""A state manager that only stages: it keeps uploads in dictionaries and can read slowly."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import grpc.aio

from plexclient.wire import tensors
from plexclient.wire.errors import to_wire
from plexclient.wire.v1 import common_pb2, service_pb2, statemanager_pb2, statemanager_pb2_grpc
from plexsvc.batches import check_batch
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.rpc.channels import listen, new_server
from plexsvc.rpc.status import abort_with
from tests.rigs.keys import KEYS

Requests = AsyncIterator[service_pb2.StageRequest]


@dataclass(slots=True)
class FakeStaging(statemanager_pb2_grpc.StateManagerServicer):
    """Stages for tests. With `gate` set, reading stops until it is opened."""

    staged: dict[bytes, bytes] = field(default_factory=dict)
    headers: list[service_pb2.StageHeader] = field(default_factory=list)
    partial: int = 0
    received: int = 0
    gate: asyncio.Event | None = None
    refusal: PlexError | None = None
    """Ends the next upload with this error, once its header has come."""

    async def Stage(
        self, requests: Requests, context: grpc.aio.ServicerContext
    ) -> service_pb2.StageReply:
        try:
            return await self._stage(requests)
        except PlexError as error:
            if not error.retryable:
                return service_pb2.StageReply(error=to_wire(error))
            await abort_with(context, error)

    async def ReadStaged(
        self, request: statemanager_pb2.ReadStagedRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[common_pb2.Chunk]:
        data = self.staged.get(request.staging_id)
        if data is None:
            await abort_with(context, PlexError(ErrorCode.RESULT_GONE, "no such staged result"))
        for chunk in tensors.chunks([memoryview(data)], start=request.offset):
            yield chunk

    async def _stage(self, requests: Requests) -> service_pb2.StageReply:
        first = await anext(aiter(requests))
        header = first.header
        self.headers.append(header)
        if self.refusal is not None:
            refusal, self.refusal = self.refusal, None
            raise refusal
        if header.operation_id in self.staged:
            return service_pb2.StageReply(nbytes=header.nbytes)
        self.partial += 1
        try:
            data = await self._collect(requests)
        finally:
            self.partial -= 1
        if len(data) != header.nbytes:
            raise PlexError(ErrorCode.UNAVAILABLE, f"{len(data)} of {header.nbytes} bytes came")
        check_batch(header.tensors, tensors.views(header.tensors, data), header.rules)
        self.staged[header.operation_id] = data
        return service_pb2.StageReply(nbytes=len(data))

    async def _collect(self, requests: Requests) -> bytes:
        data = bytearray()
        async for request in requests:
            if self.gate is not None:
                await self.gate.wait()
            if request.chunk.offset != len(data):
                raise PlexError(ErrorCode.BAD_REQUEST, f"byte {len(data)} was due")
            data += request.chunk.data
            self.received = len(data)
        return bytes(data)


@asynccontextmanager
async def serve(fake: FakeStaging) -> AsyncIterator[str]:
    """Serve the fake on a free port of loopback; yield its target."""
    server: grpc.aio.Server = new_server(KEYS)
    statemanager_pb2_grpc.add_StateManagerServicer_to_server(fake, server)
    address = listen(server, "127.0.0.1:0", KEYS, key="fake")
    await server.start()
    try:
        yield address
    finally:
        await server.stop(0)
