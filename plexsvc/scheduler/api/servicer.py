"""The `Scheduler` service: what routers call, by wire or, embedded, without a context."""

# ruff: noqa: N802 - the wire names the methods

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any, TypeAlias, TypeVar, cast

import grpc

from plexclient.wire.errors import refused
from plexclient.wire.v1 import operations_pb2, service_pb2, service_pb2_grpc
from plexsvc.errors import PlexError
from plexsvc.ids import OperationId
from plexsvc.rpc.status import abort_with
from plexsvc.scheduler.api import operators
from plexsvc.scheduler.api.intake import Intake
from plexsvc.scheduler.api.views import explaining, nodes, pictures, report, status
from plexsvc.scheduler.driver.driver import SchedulerDriver

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any] | None"
Method = TypeVar("Method", bound=Callable[..., Awaitable[Any]])


def _typed(method: Method) -> Method:
    """Send a `PlexError` as gRPC status with the wire error; raise it to an embedded caller."""

    @wraps(method)
    async def call(self: Any, request: Any, context: Context = None) -> Any:  # noqa: ANN401
        try:
            return await method(self, request, context)
        except PlexError as error:
            await abort_with(context, error)

    return cast("Method", call)


class SchedulerServicer(service_pb2_grpc.SchedulerServicer):
    """Routers' view of one driver."""

    def __init__(self, driver: SchedulerDriver) -> None:
        self._driver = driver
        self._intake = Intake(driver)
        self.line_port = 0
        """Where `answer` is served, told to routers."""

    @_typed
    async def CreateJob(
        self, request: service_pb2.CreateJobRequest, context: Context = None
    ) -> service_pb2.Job:
        """Open a job; repeating the call changes nothing."""
        del context
        return self._intake.create_job(request).view

    @_typed
    async def KeepAlive(
        self, request: service_pb2.KeepAliveRequest, context: Context = None
    ) -> service_pb2.KeepAliveReply:
        """Keep a session alive, take acknowledgements and progress figures."""
        del context
        return self._intake.keep_alive(request)

    @_typed
    async def EndJob(
        self, request: service_pb2.EndJobRequest, context: Context = None
    ) -> service_pb2.Job:
        """End a job; returns when its devices are free."""
        del context
        record = self._intake.end_job(request)
        await record.ended.wait()
        return record.view

    @_typed
    async def CreateDeployment(
        self, request: service_pb2.CreateDeploymentRequest, context: Context = None
    ) -> service_pb2.Deployment:
        """Bring a deployment up; returns when it is ready.

        Raises:
            PlexError: what it failed with.
        """
        del context
        record = await self._intake.create_deployment(request)
        await record.settled.wait()
        return status.ready_deployment(self._driver, record)

    @_typed
    async def GetDeployment(
        self, request: service_pb2.GetDeploymentRequest, context: Context = None
    ) -> service_pb2.Deployment:
        """Return a deployment as it is."""
        del context
        record = self._driver.registry.deployment(
            request.deployment_id, job_id=request.job_id, tenant=request.tenant
        )
        return status.deployment(self._driver, record)

    @_typed
    async def SubmitOperation(
        self, request: operations_pb2.Operation, context: Context = None
    ) -> operations_pb2.OperationResult:
        """Run, attach to or answer an operation from the record; errors travel in the result."""
        del context
        try:
            known = self._intake.submit(request)
        except PlexError as error:
            return refused(request.operation_id, error)
        return known or await self._driver.results.wait(OperationId(request.operation_id))

    @_typed
    async def GetLine(
        self, request: service_pb2.LineRequest, context: Context = None
    ) -> service_pb2.LineReply:
        """Say where `SubmitOperation` is taken without gRPC."""
        del request, context
        return service_pb2.LineReply(port=self.line_port)

    async def answer(self, order: bytes) -> bytes:
        """Do what `SubmitOperation` does, from bytes to bytes; every refusal is a result.

        Raises:
            DecodeError: `order` is no operation.
        """
        operation = operations_pb2.Operation.FromString(order)
        try:
            result: operations_pb2.OperationResult = await self.SubmitOperation(operation, None)
        except PlexError as error:
            result = refused(operation.operation_id, error)
        return result.SerializeToString()

    @_typed
    async def PayloadStaged(
        self, request: service_pb2.PayloadStagedRequest, context: Context = None
    ) -> service_pb2.PayloadStagedReply:
        """Make an operation eligible, or refuse it for what its payload holds.

        Raises:
            PlexError: `not_found` when the operation has not been submitted yet.
        """
        del context
        self._intake.payload_staged(request)
        return service_pb2.PayloadStagedReply()

    @_typed
    async def ListJobs(
        self, request: service_pb2.ListJobsRequest, context: Context = None
    ) -> service_pb2.ListJobsReply:
        """Return a tenant's jobs, oldest first."""
        del context
        return status.list_jobs(self._driver, request)

    @_typed
    async def GetStatus(
        self, request: service_pb2.GetStatusRequest, context: Context = None
    ) -> service_pb2.ClusterStatus:
        """Return nodes, devices, and a tenant's jobs and deployments."""
        del context
        return await status.status(self._driver, request)

    @_typed
    async def ExplainOperation(
        self, request: service_pb2.ExplainRequest, context: Context = None
    ) -> service_pb2.ExplainReply:
        """Say why an operation or a job waits, from the core's own record."""
        del context
        return explaining.explain(self._driver, request)

    @_typed
    async def Timeline(
        self, request: service_pb2.TimelineRequest, context: Context = None
    ) -> service_pb2.TimelineReply:
        """Return what devices did after a span index."""
        del context
        return status.timeline(self._driver, request)

    @_typed
    async def ListNodes(
        self, request: service_pb2.ListNodesRequest, context: Context = None
    ) -> service_pb2.ListNodesReply:
        """Return the nodes, and who lives on each."""
        del context
        return await nodes.list_nodes(self._driver, request)

    @_typed
    async def ChangeNode(
        self, request: service_pb2.ChangeNodeRequest, context: Context = None
    ) -> service_pb2.NodeView:
        """Cordon, drain or uncordon a node."""
        del context
        return await operators.change_node(self._driver, request)

    @_typed
    async def AddNode(
        self, request: service_pb2.AddNodeRequest, context: Context = None
    ) -> service_pb2.NodeView:
        """Take one more node agent in; returns when it has joined."""
        del context
        return await operators.add_node(self._driver, request)

    @_typed
    async def GetPack(
        self, request: service_pb2.PackRequest, context: Context = None
    ) -> service_pb2.PackReply:
        """Return who owns which slots of each node group."""
        del context
        return pictures.pack(self._driver, request)

    @_typed
    async def WhatIf(
        self, request: service_pb2.WhatIfRequest, context: Context = None
    ) -> service_pb2.WhatIfReply:
        """Say where a job would go and what it would cost the others."""
        del context
        return pictures.what_if(self._driver, request)

    @_typed
    async def Repack(
        self, request: service_pb2.RepackRequest, context: Context = None
    ) -> service_pb2.MovesReply:
        """Order the moves that pay for themselves now."""
        del context
        return await operators.repack(self._driver, request)

    @_typed
    async def MoveJob(
        self, request: service_pb2.MoveJobRequest, context: Context = None
    ) -> service_pb2.MovesReply:
        """Order a job's training deployments elsewhere."""
        del context
        return await operators.move_job(self._driver, request)

    @_typed
    async def PinJob(
        self, request: service_pb2.PinJobRequest, context: Context = None
    ) -> service_pb2.PinJobReply:
        """Keep a job where it is, or let it be moved again."""
        del context
        return await operators.pin_job(self._driver, request)

    @_typed
    async def GetReport(
        self, request: service_pb2.ReportRequest, context: Context = None
    ) -> service_pb2.ReportReply:
        """Say who waited for whom."""
        del context
        return report.report(self._driver, request)


def add_to_server(servicer: SchedulerServicer, server: grpc.aio.Server) -> None:
    """Serve the Scheduler service on `server`."""
    service_pb2_grpc.add_SchedulerServicer_to_server(servicer, server)
