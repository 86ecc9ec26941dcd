"""Upload relay: a client's payload to the nodes that need it, chunk by chunk.

The router parses and checks the header and adds the batch's rules. It then passes each message to
every target, as the bytes it came as, before it reads the next. So it holds one message for each
target and what gRPC's flow control lets in. It looks only at the bytes of `cu_seqlens`, wherever
they lie in the bundle (bounded by `router.max_batch_sequences`): their lengths make the dispatch
plan. When all targets have the whole bundle, the router tells the scheduler. An upload that breaks
off leaves nothing, and repeating one that had finished is answered at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

import grpc.aio
import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from plexclient.wire import tensors
from plexclient.wire.errors import to_wire
from plexclient.wire.v1 import common_pb2, operations_pb2, service_pb2
from plexsvc.batches import lengths_of, rules_of
from plexsvc.errors import ErrorCode, PlexError, bad_batch, bad_request, unavailable
from plexsvc.ids import TenantId, show
from plexsvc.router import bounds
from plexsvc.router.api import SchedulerApi
from plexsvc.router.channels import STAGE, ChannelPool
from plexsvc.router.config import RouterConfig
from plexsvc.router.deployments import DeploymentCache, staging_targets
from plexsvc.router.validation import OperationRules, check_operation_id
from plexsvc.rpc.errors import checked, error_from, first_failure
from plexsvc.slots import Limit, Slots


class LengthsTap:
    """Copies the bytes of `cu_seqlens` out of a passing stream: at most a few hundred KiB."""

    def __init__(self, spec: common_pb2.TensorSpec) -> None:
        self._spec = spec
        self._bytes = bytearray(spec.nbytes)
        self._position = 0

    @property
    def is_full(self) -> bool:
        """Whether every byte has passed."""
        return self._position >= self._spec.offset + self._spec.nbytes

    def look(self, message: bytes) -> None:
        """Take what a serialised `StageRequest` holds of the array.

        Raises:
            PlexError: `bad_request` for a message that is no chunk, or not the next one.
        """
        otherwise = "after its header an upload has only chunks; something else came"
        chunk = _parse(message, part="chunk", otherwise=otherwise).chunk
        if chunk.offset != self._position:
            raise bad_request(
                f"an upload's chunk starts at byte {chunk.offset}, expected {self._position}; send "
                "chunks in order, each byte once"
            )
        self._position += len(chunk.data)
        low = max(chunk.offset, self._spec.offset)
        high = min(chunk.offset + len(chunk.data), self._spec.offset + self._spec.nbytes)
        if low < high:
            piece = chunk.data[low - chunk.offset : high - chunk.offset]
            self._bytes[low - self._spec.offset : high - self._spec.offset] = piece

    def lengths(self) -> npt.NDArray[np.int64]:
        """Return the sequence lengths.

        Raises:
            PlexError: `bad_batch` when one is not positive.
        """
        lengths = lengths_of(np.frombuffer(self._bytes, dtype=tensors.DTYPES[self._spec.dtype]))
        if lengths.size == 0 or lengths.min() < 1:
            raise bad_batch("cu_seqlens must grow from 0 with each sequence")
        return lengths


class Target:
    """The upload's stream to one state manager."""

    def __init__(self, channel: grpc.aio.Channel, *, timeout_s: float) -> None:
        self._call: grpc.aio.StreamUnaryCall[bytes, bytes] = channel.stream_unary(STAGE)(
            timeout=timeout_s
        )
        self.has_answered = False

    async def send(self, message: bytes) -> None:
        """Pass a message on; a target that has answered already needs no more."""
        if self.has_answered:
            return
        try:
            await self._call.write(message)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            self.has_answered = True

    async def end(self) -> None:
        """Say that everything was sent."""
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):  # it has ended meanwhile
            if not self.has_answered:
                await self._call.done_writing()

    async def answer(self) -> None:
        """Return when it has everything, which may be before everything was sent.

        Raises:
            PlexError: what the state manager refused or why it could not be reached.
        """
        try:
            reply = service_pb2.StageReply.FromString(await self._call)
        except grpc.aio.AioRpcError as failure:
            raise error_from(failure) from failure
        self.has_answered = True
        checked(reply)

    def cancel(self) -> None:
        """Drop the stream; the state manager frees what had arrived. Safe after the end."""
        self._call.cancel()


@dataclass(frozen=True, slots=True)
class RelayedUpload:
    """An upload whose header stands: what is coming, for whom, and the rest of the stream."""

    header: service_pb2.StageHeader
    deployment: service_pb2.Deployment
    messages: AsyncIterator[bytes]


class Uploads:
    """Relays uploads, at most `max_uploads` at once, of which no tenant holds all."""

    def __init__(
        self,
        scheduler: SchedulerApi,
        *,
        deployments: DeploymentCache,
        rules: OperationRules,
        channels: ChannelPool,
        config: RouterConfig,
    ) -> None:
        self._scheduler = scheduler
        self._deployments = deployments
        self._rules = rules
        self._channels = channels
        self._config = config
        self.slots = Slots(
            Limit(
                total=config.max_uploads,
                what="uploads through this router",
                key="router.max_uploads",
                code=ErrorCode.STAGING_FULL,
            )
        )

    async def relay(
        self, messages: AsyncIterator[bytes], *, tenant: TenantId
    ) -> service_pb2.StageReply:
        """Relay one upload and tell the scheduler; a refused payload is answered in the reply.

        Raises:
            PlexError: what the client may try again, and uploads that belong to no operation.
        """
        upload = await self._open(self._unstalled(messages), tenant=tenant)
        header, reply = upload.header, service_pb2.StageReply()
        told = _about(header)
        try:
            bounds.check(header)
            self._rules.check_header(header)
            with self.slots.hold(tenant):
                told.plan.CopyFrom(await self._forward(upload))
            told.node_ids.extend(node.node_id for node in upload.deployment.staging_nodes)
            reply.nbytes = header.nbytes
        except PlexError as refusal:
            if refusal.retryable:
                # A deployment that moved has other nodes than the cached layout says.
                self._deployments.forget(upload.deployment)
                raise
            # A final refusal is told like a payload: the operation waits for it and ends with it.
            told.error.CopyFrom(to_wire(refusal))
            reply.error.CopyFrom(told.error)
        await self._scheduler.call("PayloadStaged", told, service_pb2.PayloadStagedReply)
        return reply

    async def _unstalled(self, messages: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Yield what comes, while it comes: an upload holds a slot, and room on the nodes.

        Raises:
            PlexError: `staging_timeout`.
        """
        while True:
            try:
                async with asyncio.timeout(self._config.upload_stall_us / 1e6):
                    message = await anext(messages, None)
            except TimeoutError as error:
                raise PlexError(
                    ErrorCode.STAGING_TIMEOUT,
                    f"an upload sent nothing for {self._config.upload_stall_us / 1e6:g} s and was "
                    "ended; submit the operation again with the next number",
                ) from error
            if message is None:
                return
            yield message

    async def _open(self, messages: AsyncIterator[bytes], *, tenant: TenantId) -> RelayedUpload:
        otherwise = "an upload starts with its header; none came"
        header = _parse(await anext(messages, b""), part="header", otherwise=otherwise).header
        check_operation_id(header.operation_id)
        header.tenant = tenant
        deployment = await self._deployments.get(
            tenant=tenant, job_id=header.job_id, deployment_id=header.deployment_id
        )
        header.rules.CopyFrom(rules_of(deployment))
        return RelayedUpload(header, deployment, messages)

    async def _forward(self, upload: RelayedUpload) -> operations_pb2.DispatchPlan:
        spec = next(spec for spec in upload.header.tensors if spec.name == "cu_seqlens")
        tap = LengthsTap(spec)
        header = service_pb2.StageRequest(header=upload.header).SerializeToString()
        loop = asyncio.get_running_loop()
        told_s = loop.time()
        async with self._streams(staging_targets(upload.deployment)) as streams:
            for stream in streams:
                await stream.send(header)
            async for message in upload.messages:
                # Else the scheduler would take the operation's payload for lost; it may not hear.
                if loop.time() - told_s >= self._config.upload_stall_us / 1e6:
                    told_s = loop.time()
                    told = _about(upload.header)
                    told.is_under_way = True
                    with suppress(PlexError):
                        await self._scheduler.call(
                            "PayloadStaged", told, service_pb2.PayloadStagedReply
                        )
                # Beside its data a chunk has an offset and the tags and lengths of fields: less
                # than 64 bytes.
                if len(message) > self._config.max_chunk_bytes + 64:
                    raise bad_request(
                        f"an upload message of {len(message)} bytes is over "
                        f"{self._config.max_chunk_bytes}; send chunks of {tensors.CHUNK_BYTES}"
                    )
                if not tap.is_full:
                    tap.look(message)
                for stream in streams:
                    await stream.send(message)
                # Nodes that have the bundle already, from an earlier try, answer at once.
                if tap.is_full and all(stream.has_answered for stream in streams):
                    break
        if not tap.is_full:
            raise unavailable(
                f"the upload for {show(upload.header.operation_id)} ended before its cu_seqlens; "
                "send it again"
            )
        return self._rules.plan(tap.lengths(), upload.deployment)

    @asynccontextmanager
    async def _streams(self, targets: Sequence[str]) -> AsyncIterator[list[Target]]:
        """Hold a stream to each target; end them after the block, and await their answers.

        Raises:
            PlexError: why a target refuses, which ends the block, whatever is yet to come.
        """
        timeout_s = self._config.wait_timeout_us / 1e6
        streams = [Target(self._channels.to(target), timeout_s=timeout_s) for target in targets]
        try:
            async with asyncio.TaskGroup() as answers:
                for stream in streams:
                    answers.create_task(stream.answer())
                yield streams
                for stream in streams:
                    await stream.end()
        except BaseExceptionGroup as failures:
            raise first_failure(failures) from failures
        finally:
            for stream in streams:
                stream.cancel()


def _about(header: service_pb2.StageHeader) -> service_pb2.PayloadStagedRequest:
    return service_pb2.PayloadStagedRequest(
        operation_id=header.operation_id,
        job_id=header.job_id,
        tenant=header.tenant,
        deployment_id=header.deployment_id,
    )


def _parse(message: bytes, *, part: str, otherwise: str) -> service_pb2.StageRequest:
    """Return a message of an upload that must be its header or a chunk."""
    try:
        request = service_pb2.StageRequest.FromString(message)
    except DecodeError as error:
        raise bad_request("an upload message is no StageRequest") from error
    if request.WhichOneof("part") != part:
        raise bad_request(otherwise)
    return request
