"""Downloads relayed to clients: staged results, token streams, tokenizer files."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Final

from plexclient.wire import tensors
from plexclient.wire.v1 import (
    common_pb2,
    operations_pb2,
    service_pb2,
    statemanager_pb2,
    worker_pb2,
)
from plexsvc import paths
from plexsvc.errors import ErrorCode, PlexError, bad_request, not_found, unavailable
from plexsvc.families import MODEL_FILES
from plexsvc.ids import TenantId, show
from plexsvc.paths import CheckedPath
from plexsvc.router.api import SchedulerApi
from plexsvc.router.channels import READ_STAGED, SAMPLE, STREAM_FRAMES, ChannelPool
from plexsvc.router.config import RouterConfig
from plexsvc.router.deployments import DeploymentCache
from plexsvc.router.looks import Looks
from plexsvc.router.validation import OperationRules, check_operation_id

MAX_MODEL_FILE_BYTES: Final = 256 << 20


_OfDeployment = (
    service_pb2.FetchResultRequest
    | service_pb2.StreamGenerateRequest
    | service_pb2.FetchModelFileRequest
    | operations_pb2.Operation
)


class Downloads:
    """Relays streams to clients, a message at a time, as the bytes they come as."""

    def __init__(
        self,
        scheduler: SchedulerApi,
        *,
        deployments: DeploymentCache,
        channels: ChannelPool,
        config: RouterConfig,
        rules: OperationRules,
        looks: Looks,
    ) -> None:
        self._scheduler = scheduler
        self._deployments = deployments
        self._channels = channels
        self._timeout_s = config.wait_timeout_us / 1e6
        self._rules = rules
        self._looks = looks

    async def result(
        self, request: service_pb2.FetchResultRequest, *, tenant: TenantId
    ) -> AsyncGenerator[bytes]:
        """Yield a shard's bytes from `offset` on, as serialised chunks.

        Raises:
            PlexError: `not_found`, `result_gone`, `unavailable`; what the operation failed with.
        """
        check_operation_id(request.operation_id)
        deployment = await self._deployment(request, tenant=tenant)
        payload = (await self._shard(request, tenant=tenant)).payload
        if payload.WhichOneof("form") == "staged":
            targets = _holders(payload.staged, deployment)
            if not targets:  # it may have moved since the router last asked
                self._deployments.forget(deployment)
                deployment = await self._deployment(request, tenant=tenant)
                targets = _holders(payload.staged, deployment)
            read = statemanager_pb2.ReadStagedRequest(
                staging_id=payload.staged.staging_id,
                offset=request.offset,
                job_id=request.job_id,
            )
            for target in targets:
                stream = self._stream(target, READ_STAGED, read.SerializeToString())
                try:
                    async with aclosing(stream) as messages:
                        async for message in messages:
                            yield message
                except PlexError as error:
                    if error.code is not ErrorCode.NOT_FOUND:
                        raise
                else:
                    return
            self._deployments.forget(deployment)
            raise _not_there(payload.staged, deployment)
        for chunk in tensors.chunks([memoryview(payload.inline.data)], start=request.offset):
            yield chunk.SerializeToString()

    async def frames(
        self, request: service_pb2.StreamGenerateRequest, *, tenant: TenantId
    ) -> AsyncGenerator[bytes]:
        """Yield a generate's frames after a cursor, serialised.

        Raises:
            PlexError: `not_found` for an operation that nobody knows; what its rollout manager
                refused, or why it could not be reached.
        """
        check_operation_id(request.operation_id)
        deployment = await self._deployment(request, tenant=tenant)
        known = await self._result(request, tenant=tenant, no_wait=True)
        ask = worker_pb2.StreamFramesRequest(
            operation_id=request.operation_id,
            after_cursor=request.after_cursor,
            deployment_id=request.deployment_id,
            tenant=tenant,
            is_answered=known.state == operations_pb2.OPERATION_STATE_ANSWERED,
        )
        async with aclosing(self._frames_of(deployment, ask)) as messages:
            async for message in messages:
                yield message

    async def sample(
        self, operation: operations_pb2.Operation, *, tenant: TenantId
    ) -> AsyncGenerator[bytes]:
        """Yield the frames of a generate beside the order, serialised; it ends when they are left.

        Raises:
            PlexError: `bad_request` for anything but a generate without a number; `not_found`; what
                the rollout manager refused, or why it could not be reached.
        """
        check_operation_id(operation.operation_id)
        if operation.seq or operation.after or operation.WhichOneof("body") != "generate":
            raise bad_request("sample takes a generate with seq 0 that waits for no operation")
        deployment = await self._deployment(operation, tenant=tenant)
        operation.tenant = tenant
        self._rules.admit(operation, deployment)
        sent = operation.SerializeToString()
        stream = self._stream(deployment.executor_address, SAMPLE, sent)
        async with aclosing(stream) as messages:
            async for message in messages:
                yield message

    async def model_file(
        self, request: service_pb2.FetchModelFileRequest, *, tenant: TenantId
    ) -> AsyncGenerator[bytes]:
        """Yield a tokenizer or configuration file from `offset` on, as serialised chunks.

        Raises:
            PlexError: `bad_request` for a name that is not one of `MODEL_FILES`, `not_found` for
                one the model does not have.
        """
        if request.name not in MODEL_FILES:
            known = ", ".join(MODEL_FILES)
            raise bad_request(f"model file {request.name!r} is not served; ask for one of {known}")
        deployment = await self._deployment(request, tenant=tenant)
        offset, spec = request.offset, deployment.spec
        place = CheckedPath(path=Path(spec.model, request.name), root=Path(spec.model_root))
        while data := await self._looks.look(tenant, partial(_read, place, offset=offset)):
            yield common_pb2.Chunk(offset=offset, data=data).SerializeToString()
            offset += len(data)

    async def _deployment(
        self, request: _OfDeployment, *, tenant: TenantId
    ) -> service_pb2.Deployment:
        return await self._deployments.get(
            tenant=tenant, job_id=request.job_id, deployment_id=request.deployment_id
        )

    def _frames_of(
        self, deployment: service_pb2.Deployment, ask: worker_pb2.StreamFramesRequest
    ) -> AsyncGenerator[bytes]:
        if deployment.spec.role != "rollout":
            raise bad_request(
                f"deployment {deployment.name!r} streams no tokens; generate on one in role rollout"
            )
        return self._stream(deployment.executor_address, STREAM_FRAMES, ask.SerializeToString())

    async def _shard(
        self, request: service_pb2.FetchResultRequest, *, tenant: TenantId
    ) -> operations_pb2.ResultShard:
        result = await self._result(request, tenant=tenant)
        if request.shard >= len(result.shards):
            raise not_found(
                f"{show(request.operation_id)} has no result shard {request.shard}; it answered "
                f"{len(result.shards)}"
            )
        return result.shards[request.shard]

    async def _result(
        self,
        request: service_pb2.FetchResultRequest | service_pb2.StreamGenerateRequest,
        *,
        tenant: TenantId,
        no_wait: bool = False,
    ) -> operations_pb2.OperationResult:
        asked = service_pb2.GetResultRequest(
            operation_id=request.operation_id,
            tenant=tenant,
            job_id=request.job_id,
            no_wait=no_wait,
        )
        return await self._scheduler.call("GetResult", asked, operations_pb2.OperationResult)

    def _stream(self, target: str, method: str, request: bytes) -> AsyncGenerator[bytes]:
        return self._channels.stream(target, method, request, timeout_s=self._timeout_s)


def _holders(staged: common_pb2.StagedBundle, deployment: service_pb2.Deployment) -> list[str]:
    """Return the state managers that have a result, of the nodes that its deployment has used."""
    nodes = (*deployment.staging_nodes, *deployment.former_nodes)
    return [node.state_manager for node in nodes if node.node_id in staged.node_ids]


def _not_there(staged: common_pb2.StagedBundle, deployment: service_pb2.Deployment) -> PlexError:
    """Return why a result cannot be read: it is gone, or comes again in a durable deployment."""
    on = ", ".join(staged.node_ids) or "no node"
    if deployment.spec.is_durable:
        return unavailable(
            f"the result is not on {on} any more; deployment {deployment.name!r} may be rebuilt, "
            "and have it again"
        )
    return PlexError(
        ErrorCode.RESULT_GONE,
        f"the result was on {on}, where deployment {deployment.name!r} no longer has it; run the "
        "operation again",
    )


def _read(place: CheckedPath, *, offset: int) -> bytes:
    try:
        left = max(0, MAX_MODEL_FILE_BYTES - offset)
        return paths.read_file(place, offset=offset, nbytes=min(left, tensors.CHUNK_BYTES))
    except PlexError as error:
        raise not_found(
            f"the model has no {place.path.name}: {error.message}; Deployment.model_files lists "
            "those it has"
        ) from error
