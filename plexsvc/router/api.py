"""The router's peers: scheduler and rollout manager, in this process or on the wire."""
# ruff: noqa: N802 - methods are called what service.proto calls them

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Protocol, TypeVar

import grpc
import grpc.aio

from plexclient.wire.v1 import operations_pb2 as ops
from plexclient.wire.v1 import service_pb2 as pb
from plexclient.wire.v1 import service_pb2_grpc, worker_pb2
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.frames.line import OrderLine
from plexsvc.router.config import RouterConfig
from plexsvc.rpc.errors import error_from

Request = TypeVar("Request")
Reply = TypeVar("Reply")


class SchedulerApi(Protocol):
    """The Scheduler service. Embedded it is the servicer object, called without a context.

    Every method raises a `PlexError` for what the scheduler refuses; `SubmitOperation` carries an
    operation's own refusal or failure in its result.
    """

    async def CreateJob(self, request: pb.CreateJobRequest, context: None, /) -> pb.Job:
        """Register a job; repeating it changes nothing."""
        ...

    async def KeepAlive(self, request: pb.KeepAliveRequest, context: None, /) -> pb.KeepAliveReply:
        """Extend a session and acknowledge answers."""
        ...

    async def EndJob(self, request: pb.EndJobRequest, context: None, /) -> pb.Job:
        """End a job."""
        ...

    async def CreateDeployment(
        self, request: pb.CreateDeploymentRequest, context: None, /
    ) -> pb.Deployment:
        """Bring a deployment up; return when it is ready."""
        ...

    async def GetDeployment(
        self, request: pb.GetDeploymentRequest, context: None, /
    ) -> pb.Deployment:
        """Return a deployment as it is."""
        ...

    async def SubmitOperation(
        self, request: ops.Operation, context: None, /
    ) -> ops.OperationResult:
        """Run an operation, or attach to it, or answer it from the record."""
        ...

    async def PayloadStaged(
        self, request: pb.PayloadStagedRequest, context: None, /
    ) -> pb.PayloadStagedReply:
        """Make an operation eligible, or refuse it for what its payload holds."""
        ...

    async def ListJobs(self, request: pb.ListJobsRequest, context: None, /) -> pb.ListJobsReply:
        """Return a tenant's jobs."""
        ...

    async def GetStatus(self, request: pb.GetStatusRequest, context: None, /) -> pb.ClusterStatus:
        """Return what a tenant may see of the cluster."""
        ...

    async def ExplainOperation(
        self, request: pb.ExplainRequest, context: None, /
    ) -> pb.ExplainReply:
        """Say why an operation waits."""
        ...

    async def Timeline(self, request: pb.TimelineRequest, context: None, /) -> pb.TimelineReply:
        """Return what devices did."""
        ...

    async def ListNodes(self, request: pb.ListNodesRequest, context: None, /) -> pb.ListNodesReply:
        """Return nodes and who lives there."""
        ...

    async def ChangeNode(self, request: pb.ChangeNodeRequest, context: None, /) -> pb.NodeView:
        """Cordon, drain or uncordon a node."""
        ...

    async def AddNode(self, request: pb.AddNodeRequest, context: None, /) -> pb.NodeView:
        """Take a node agent in."""
        ...

    async def GetPack(self, request: pb.PackRequest, context: None, /) -> pb.PackReply:
        """Return who owns which slots."""
        ...

    async def WhatIf(self, request: pb.WhatIfRequest, context: None, /) -> pb.WhatIfReply:
        """Say where a job would go."""
        ...

    async def Repack(self, request: pb.RepackRequest, context: None, /) -> pb.MovesReply:
        """Order the moves that pay."""
        ...

    async def MoveJob(self, request: pb.MoveJobRequest, context: None, /) -> pb.MovesReply:
        """Order a job elsewhere."""
        ...

    async def PinJob(self, request: pb.PinJobRequest, context: None, /) -> pb.PinJobReply:
        """Keep a job where it is, or not."""
        ...

    async def GetReport(self, request: pb.ReportRequest, context: None, /) -> pb.ReportReply:
        """Say who waited for whom."""
        ...


class FrameSource(Protocol):
    """The rollout manager, when it lives in this process."""

    def StreamFrames(
        self, request: worker_pb2.StreamFramesRequest, context: None, /
    ) -> AsyncIterator[ops.GenerateFrame]:
        """Yield the frames of a generate after a cursor, to the last."""
        ...


class RemoteScheduler:
    """A scheduler in another process: every call has a deadline, every failure is a `PlexError`."""

    def __init__(self, channel: grpc.aio.Channel, *, config: RouterConfig) -> None:
        self._stub = service_pb2_grpc.SchedulerStub(channel)
        self._channel = channel
        self._host = config.scheduler.rpartition(":")[0].strip("[]")
        self._line: OrderLine[ops.OperationResult] | None = None
        self._has_line = True
        self._control_s = config.control_timeout_us / 1e6
        self._wait_s = config.wait_timeout_us / 1e6

    async def CreateJob(self, request: pb.CreateJobRequest, _: None = None, /) -> pb.Job:
        """Register a job."""
        return await _call(self._stub.CreateJob, request, timeout_s=self._control_s)

    async def KeepAlive(self, request: pb.KeepAliveRequest, _: None = None, /) -> pb.KeepAliveReply:
        """Extend a session."""
        return await _call(self._stub.KeepAlive, request, timeout_s=self._control_s)

    async def EndJob(self, request: pb.EndJobRequest, _: None = None, /) -> pb.Job:
        """End a job; waits until its devices are free."""
        return await _call(self._stub.EndJob, request, timeout_s=self._wait_s)

    async def CreateDeployment(
        self, request: pb.CreateDeploymentRequest, _: None = None, /
    ) -> pb.Deployment:
        """Bring a deployment up."""
        return await _call(self._stub.CreateDeployment, request, timeout_s=self._wait_s)

    async def GetDeployment(
        self, request: pb.GetDeploymentRequest, _: None = None, /
    ) -> pb.Deployment:
        """Return a deployment."""
        return await _call(self._stub.GetDeployment, request, timeout_s=self._control_s)

    async def SubmitOperation(
        self, request: ops.Operation, _: None = None, /
    ) -> ops.OperationResult:
        """Run an operation."""
        line = self._line or await self._find_line()
        if line is None:
            return await _call(self._stub.SubmitOperation, request, timeout_s=self._wait_s)
        try:
            return await line.execute(request, timeout_s=self._wait_s)
        except OSError as error:
            if line is self._line:
                self._line = None  # the next call asks where it is now
            raise PlexError(
                ErrorCode.UNAVAILABLE,
                f"the line to the scheduler broke ({error}); ask again: an operation runs once",
            ) from error

    async def _find_line(self) -> OrderLine[ops.OperationResult] | None:
        """Return the way to submit operations without gRPC, if the scheduler offers one.

        Raises:
            PlexError: the scheduler does not answer.
        """
        if not self._has_line:
            return None
        try:
            reply = await self._stub.GetLine(pb.LineRequest(), timeout=self._control_s)
        except grpc.aio.AioRpcError as failure:
            if failure.code() is not grpc.StatusCode.UNIMPLEMENTED:
                raise error_from(failure) from failure
            reply = pb.LineReply()
        self._has_line = reply.port > 0
        if self._has_line and self._line is None:
            self._line = OrderLine(
                self._host, reply.port, reply=ops.OperationResult, is_alive=self._is_alive
            )
        return self._line

    def _is_alive(self) -> bool:
        state = self._channel.get_state(try_to_connect=True)
        return state is grpc.ChannelConnectivity.READY

    def close(self) -> None:
        """Close the line; the channel is its owner's."""
        self._has_line = False
        if self._line is not None:
            self._line.close()

    async def PayloadStaged(
        self, request: pb.PayloadStagedRequest, _: None = None, /
    ) -> pb.PayloadStagedReply:
        """Make an operation eligible."""
        return await _call(self._stub.PayloadStaged, request, timeout_s=self._control_s)

    async def ListJobs(self, request: pb.ListJobsRequest, _: None = None, /) -> pb.ListJobsReply:
        """Return jobs."""
        return await _call(self._stub.ListJobs, request, timeout_s=self._control_s)

    async def GetStatus(self, request: pb.GetStatusRequest, _: None = None, /) -> pb.ClusterStatus:
        """Return the cluster's status."""
        return await _call(self._stub.GetStatus, request, timeout_s=self._control_s)

    async def ExplainOperation(
        self, request: pb.ExplainRequest, _: None = None, /
    ) -> pb.ExplainReply:
        """Explain an operation."""
        return await _call(self._stub.ExplainOperation, request, timeout_s=self._control_s)

    async def Timeline(self, request: pb.TimelineRequest, _: None = None, /) -> pb.TimelineReply:
        """Return spans."""
        return await _call(self._stub.Timeline, request, timeout_s=self._control_s)

    async def ListNodes(self, request: pb.ListNodesRequest, _: None = None, /) -> pb.ListNodesReply:
        """Return nodes and who lives there."""
        return await _call(self._stub.ListNodes, request, timeout_s=self._control_s)

    async def ChangeNode(self, request: pb.ChangeNodeRequest, _: None = None, /) -> pb.NodeView:
        """Cordon, drain or uncordon a node."""
        return await _call(self._stub.ChangeNode, request, timeout_s=self._control_s)

    async def AddNode(self, request: pb.AddNodeRequest, _: None = None, /) -> pb.NodeView:
        """Take a node agent in."""
        return await _call(self._stub.AddNode, request, timeout_s=self._control_s)

    async def GetPack(self, request: pb.PackRequest, _: None = None, /) -> pb.PackReply:
        """Return who owns which slots."""
        return await _call(self._stub.GetPack, request, timeout_s=self._control_s)

    async def WhatIf(self, request: pb.WhatIfRequest, _: None = None, /) -> pb.WhatIfReply:
        """Say where a job would go."""
        return await _call(self._stub.WhatIf, request, timeout_s=self._control_s)

    async def Repack(self, request: pb.RepackRequest, _: None = None, /) -> pb.MovesReply:
        """Order the moves that pay."""
        return await _call(self._stub.Repack, request, timeout_s=self._control_s)

    async def MoveJob(self, request: pb.MoveJobRequest, _: None = None, /) -> pb.MovesReply:
        """Order a job elsewhere."""
        return await _call(self._stub.MoveJob, request, timeout_s=self._control_s)

    async def PinJob(self, request: pb.PinJobRequest, _: None = None, /) -> pb.PinJobReply:
        """Keep a job where it is, or not."""
        return await _call(self._stub.PinJob, request, timeout_s=self._control_s)

    async def GetReport(self, request: pb.ReportRequest, _: None = None, /) -> pb.ReportReply:
        """Say who waited for whom."""
        return await _call(self._stub.GetReport, request, timeout_s=self._control_s)


async def _call(
    method: Callable[..., Awaitable[Reply]], request: Request, *, timeout_s: float
) -> Reply:
    try:
        return await method(request, timeout=timeout_s)
    except grpc.aio.AioRpcError as failure:
        raise error_from(failure) from failure
