"""The Router service: what every call goes through, and where each goes.

The router keeps nothing but a few seconds of deployments' layouts: any replica can take any call.
Requests are authenticated, given their tenant and checked here; the order of operations, their
record and their deduplication are the scheduler's. A final refusal of an operation takes its place
in the order there, like an operation whose payload turned out bad: a gap would hold its successors.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Mapping
from contextlib import aclosing
from typing import Any, Final, NoReturn, TypeAlias, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import Message

from plexclient.wire.errors import refused, to_wire
from plexclient.wire.v1 import operations_pb2 as ops
from plexclient.wire.v1 import service_pb2 as pb
from plexsvc.clock import Clock
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.ids import TenantId
from plexsvc.log import Log
from plexsvc.router import models, names
from plexsvc.router.admin import Admin
from plexsvc.router.api import FrameSource, SchedulerApi
from plexsvc.router.auth import Tenants
from plexsvc.router.channels import ChannelPool
from plexsvc.router.config import RouterConfig
from plexsvc.router.deployments import DeploymentCache
from plexsvc.router.downloads import Downloads
from plexsvc.router.operating import OperationStreams
from plexsvc.router.relay import Uploads, announce
from plexsvc.router.validation import (
    OperationRules,
    bad_request,
    check_identity,
    check_operation_id,
)
from plexsvc.rpc.status import abort_with

log = Log(__name__)

SERVICE: Final = "plexsvc.v1.Router"

Request = TypeVar("Request", bound=Message)
Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
Unary = Callable[..., Coroutine[Any, Any, Message]]
Streaming = Callable[..., AsyncGenerator[bytes]]
Conversing = Callable[..., Coroutine[Any, Any, None]]


class RouterServicer:
    """The Router's methods, each given the caller's tenant; `add_to_server` puts it on the wire."""

    def __init__(
        self,
        scheduler: SchedulerApi,
        *,
        config: RouterConfig,
        clock: Clock,
        frames: FrameSource | None = None,
    ) -> None:
        self.tenants = Tenants(config.tokens)
        self.admin = Admin(scheduler, operators=config.operators)
        self._scheduler = scheduler
        self._config = config
        self._clock = clock
        self._rules = OperationRules(config)
        self._channels = ChannelPool()
        self._deployments = DeploymentCache(scheduler, config=config, clock=clock)
        self._uploads = Uploads(
            scheduler,
            deployments=self._deployments,
            rules=self._rules,
            channels=self._channels,
            config=config,
            clock=clock,
        )
        self.downloads = Downloads(
            scheduler,
            deployments=self._deployments,
            channels=self._channels,
            config=config,
            frames=frames,
        )
        self.operations = OperationStreams(
            self.submit_operation, max_operations=config.max_operations_per_stream
        )

    def stop(self) -> None:
        """Let streams that would stay open end; call it before the server is stopped."""
        self.operations.stop()

    async def aclose(self) -> None:
        """Close the connections to nodes."""
        await self._channels.aclose()

    async def create_job(self, request: pb.CreateJobRequest, *, tenant: TenantId) -> pb.Job:
        """Register a job."""
        names.check_job(request, self._config)
        request.tenant = tenant
        return await self._scheduler.CreateJob(request, None)

    async def keep_alive(
        self, request: pb.KeepAliveRequest, *, tenant: TenantId
    ) -> pb.KeepAliveReply:
        """Extend a session, whatever is wrong with the figures that came along.

        Raises:
            PlexError: `bad_request` for figures that cannot be shown; the session lives on.
        """
        request.tenant = tenant
        try:
            names.check_metrics(request, self._config)
        except PlexError:
            request.ClearField("metrics")
            await self._scheduler.KeepAlive(request, None)
            raise
        return await self._scheduler.KeepAlive(request, None)

    async def end_job(self, request: pb.EndJobRequest, *, tenant: TenantId) -> pb.Job:
        """End a job."""
        outcomes = (pb.JOB_STATE_COMPLETED, pb.JOB_STATE_FAILED, pb.JOB_STATE_CANCELLED)
        if request.outcome not in outcomes:
            raise bad_request("end_job needs the outcome COMPLETED, FAILED or CANCELLED")
        request.tenant = tenant
        return await self._scheduler.EndJob(request, None)

    async def create_deployment(
        self, request: pb.CreateDeploymentRequest, *, tenant: TenantId
    ) -> pb.Deployment:
        """Check a deployment against its model and bring it up."""
        request.tenant = tenant
        if not request.deployment_id or not request.job_id:
            raise bad_request("create_deployment needs job_id and deployment_id")
        names.check_deployment(request, self._config)
        spec = request.spec
        models.check_spec(spec)
        if spec.model_deployment_id:
            await self._take_model(request, tenant=tenant)
        if spec.backend != "noop":
            await asyncio.to_thread(_check_model, spec, self._config)
        return await self._scheduler.CreateDeployment(request, None)

    async def submit_operation(
        self, operation: ops.Operation, *, tenant: TenantId
    ) -> ops.OperationResult:
        """Admit an operation and wait for its answer; refusals are answers too.

        `SubmitOperation` is this, and so is each message of `Operate`.
        """
        try:
            return await self._submit(operation, tenant=tenant)
        except PlexError as error:
            return refused(operation.operation_id, error)

    async def stage_payload(
        self, messages: AsyncIterator[bytes], *, tenant: TenantId
    ) -> pb.StageReply:
        """Relay a batch to the nodes that need it."""
        return await self._uploads.relay(messages, tenant=tenant)

    async def list_jobs(self, request: pb.ListJobsRequest, *, tenant: TenantId) -> pb.ListJobsReply:
        """Return the tenant's jobs."""
        request.tenant = tenant
        return await self._scheduler.ListJobs(request, None)

    async def get_status(
        self, request: pb.GetStatusRequest, *, tenant: TenantId
    ) -> pb.ClusterStatus:
        """Return what the tenant may see."""
        request.tenant = tenant
        return await self._scheduler.GetStatus(request, None)

    async def explain_operation(
        self, request: pb.ExplainRequest, *, tenant: TenantId
    ) -> pb.ExplainReply:
        """Say why an operation waits, or what each deployment of a job waits for."""
        if request.operation_id or not request.job_id:
            check_operation_id(request.operation_id)
        return await self._scheduler.ExplainOperation(self.admin.filled(request, tenant), None)

    async def timeline(self, request: pb.TimelineRequest, *, tenant: TenantId) -> pb.TimelineReply:
        """Return what devices did."""
        request.tenant = tenant
        return await self._scheduler.Timeline(request, None)

    async def _submit(self, operation: ops.Operation, *, tenant: TenantId) -> ops.OperationResult:
        check_identity(operation)
        operation.tenant = tenant
        deployment = await self._deployments.get(
            tenant=tenant, job_id=operation.job_id, deployment_id=operation.deployment_id
        )
        try:
            self._rules.admit(operation, deployment)
        except PlexError as refusal:
            return await self._refuse(operation, refusal)
        return await self._scheduler.SubmitOperation(operation, None)

    async def _refuse(self, operation: ops.Operation, refusal: PlexError) -> ops.OperationResult:
        """Let a refused operation take its number: submit its outline, refused by its payload."""
        outline = _outline(operation)
        request = pb.PayloadStagedRequest(
            operation_id=operation.operation_id,
            job_id=operation.job_id,
            tenant=operation.tenant,
            deployment_id=operation.deployment_id,
            error=to_wire(refusal),
        )
        async with asyncio.TaskGroup() as group:
            telling = group.create_task(self._tell(request))
            result = await self._answer(outline)
            telling.cancel()
        return result

    async def _tell(self, request: pb.PayloadStagedRequest) -> None:
        timeout_us = self._config.announce_timeout_us
        try:
            await announce(self._scheduler, request, clock=self._clock, timeout_us=timeout_us)
        except PlexError as error:  # the submission's answer says more
            log.info("refusal not announced", operation_id=request.operation_id, error=error)

    async def _answer(self, outline: ops.Operation) -> ops.OperationResult:
        try:
            return await self._scheduler.SubmitOperation(outline, None)
        except PlexError as error:
            return refused(outline.operation_id, error)

    async def _take_model(self, request: pb.CreateDeploymentRequest, *, tenant: TenantId) -> None:
        """Use the model of another deployment of the job."""
        source = await self._deployments.get(
            tenant=tenant,
            job_id=request.job_id,
            deployment_id=request.spec.model_deployment_id,
        )
        if request.spec.model not in {"", source.spec.model}:
            raise bad_request(
                f"deployment {request.name!r} names model {request.spec.model!r} and takes the one "
                f"of {source.name!r}, which is {source.spec.model!r}; give one of the two"
            )
        request.spec.model = source.spec.model


def add_to_server(router: RouterServicer, server: grpc.aio.Server) -> None:
    """Serve `router` on `server`. Streams of bytes pass through unparsed."""
    unary: Mapping[str, tuple[Unary, type[Message]]] = {
        "CreateJob": (router.create_job, pb.CreateJobRequest),
        "KeepAlive": (router.keep_alive, pb.KeepAliveRequest),
        "EndJob": (router.end_job, pb.EndJobRequest),
        "CreateDeployment": (router.create_deployment, pb.CreateDeploymentRequest),
        "SubmitOperation": (router.submit_operation, ops.Operation),
        "ListJobs": (router.list_jobs, pb.ListJobsRequest),
        "GetStatus": (router.get_status, pb.GetStatusRequest),
        "ExplainOperation": (router.explain_operation, pb.ExplainRequest),
        "Timeline": (router.timeline, pb.TimelineRequest),
        **router.admin.methods(),
    }
    streaming: Mapping[str, tuple[Streaming, type[Message]]] = {
        "FetchResult": (router.downloads.result, pb.FetchResultRequest),
        "StreamGenerate": (router.downloads.frames, pb.StreamGenerateRequest),
        "FetchModelFile": (router.downloads.model_file, pb.FetchModelFileRequest),
    }
    handlers = {
        name: grpc.unary_unary_rpc_method_handler(
            _unary(router, method),
            request_deserializer=kind.FromString,
            response_serializer=kind_serializer,
        )
        for name, (method, kind) in unary.items()
    }
    handlers |= {
        name: grpc.unary_stream_rpc_method_handler(
            _streaming(router, method), request_deserializer=kind.FromString
        )
        for name, (method, kind) in streaming.items()
    }
    handlers["StagePayload"] = grpc.stream_unary_rpc_method_handler(
        _unary(router, router.stage_payload), response_serializer=kind_serializer
    )
    handlers["Operate"] = grpc.stream_stream_rpc_method_handler(
        _conversing(router, router.operations.serve)
    )
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))


def kind_serializer(message: Message) -> bytes:
    """Return the bytes of a reply."""
    return message.SerializeToString()


def _unary(router: RouterServicer, method: Unary) -> Callable[..., Coroutine[Any, Any, Message]]:
    async def handle(request: object, context: Context) -> Message:
        try:
            return await method(request, tenant=router.tenants.caller(context))
        except PlexError as error:
            await abort_with(context, error)
        except Exception as error:  # noqa: BLE001 - the edge: a bug of ours is told, not swallowed
            await _abort_internal(context, error, method=method.__name__)

    return handle


def _streaming(router: RouterServicer, method: Streaming) -> Callable[..., AsyncGenerator[bytes]]:
    async def handle(request: object, context: Context) -> AsyncGenerator[bytes]:
        try:
            tenant = router.tenants.caller(context)
            async with aclosing(method(request, tenant=tenant)) as messages:
                async for message in messages:
                    yield message
        except PlexError as error:
            await abort_with(context, error)
        except Exception as error:  # noqa: BLE001 - the edge: a bug of ours is told, not swallowed
            await _abort_internal(context, error, method=method.__name__)

    return handle


def _conversing(
    router: RouterServicer, method: Conversing
) -> Callable[..., Coroutine[Any, Any, None]]:
    async def handle(messages: object, context: Context) -> None:
        del messages  # read from the context
        try:
            await method(context, tenant=router.tenants.caller(context))
        except PlexError as error:
            await abort_with(context, error)
        except Exception as error:  # noqa: BLE001 - the edge: a bug of ours is told, not swallowed
            await _abort_internal(context, error, method=method.__name__)

    return handle


async def _abort_internal(context: Context, error: Exception, *, method: str) -> NoReturn:
    log.error("call failed", method=method)
    text = f"the router failed in {method}: {type(error).__name__}: {error}; its log says where"
    await abort_with(context, PlexError(ErrorCode.INTERNAL, text))


def _outline(operation: ops.Operation) -> ops.Operation:
    """Return the operation without its contents: it waits for a payload and then is refused."""
    outline = ops.Operation(
        operation_id=operation.operation_id,
        tenant=operation.tenant,
        job_id=operation.job_id,
        deployment_id=operation.deployment_id,
        seq=operation.seq,
    )
    outline.payload.staged.staging_id = operation.operation_id
    kind = operation.WhichOneof("body") or "noop"
    getattr(outline, "noop" if kind == "initialize" else kind).SetInParent()
    return outline


def _check_model(spec: pb.DeploymentSpec, config: RouterConfig) -> None:
    directory = models.find_model(spec.model, roots=config.model_roots)
    models.check_layout(spec, models.ModelShape.read(directory))
    spec.model = str(directory)
