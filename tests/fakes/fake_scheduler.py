"""A scheduler without devices: it keeps the record of operations and counts what took effect.

It is called like the embedded servicer, and `serve` puts it on a port. An operation takes effect
when it is known and, if its payload is staged, when `PayloadStaged` has come; each id takes effect
once, and a sequence number is used once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeVar

import grpc.aio
from google.protobuf.message import Message

from plexclient.wire.errors import from_wire, to_wire
from plexclient.wire.v1 import operations_pb2 as ops
from plexclient.wire.v1 import service_pb2 as pb
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.ids import show
from plexsvc.rpc.channels import listen, new_server
from plexsvc.rpc.operating import OperationStreams
from plexsvc.rpc.services import add_service, unary_methods
from plexsvc.scheduler.api.records import page_of
from tests.rigs.keys import KEYS

Reply = TypeVar("Reply", bound=Message)
SERVICE = pb.DESCRIPTOR.services_by_name["Scheduler"]


@dataclass(slots=True)
class Record:
    """One operation as the fake knows it."""

    operation: ops.Operation
    is_staged: asyncio.Event = field(default_factory=asyncio.Event)
    plan: ops.DispatchPlan | None = None
    result: ops.OperationResult | None = None


class FakeScheduler:
    """Jobs, deployments and operations in dictionaries."""

    def __init__(self) -> None:
        self.jobs: dict[str, pb.Job] = {}
        self.deployments: dict[str, pb.Deployment] = {}
        self.records: dict[bytes, Record] = {}
        self.kept: dict[tuple[str, str], bytes] = {}
        """What routers remember, by tenant and key."""
        self.effects: list[bytes] = []
        self.staged_calls = 0
        self.under_way = 0
        self.lookups = 0
        self.shards: list[ops.ResultShard] = []
        self.beats: list[pb.KeepAliveRequest] = []
        """The keepalives that were taken."""
        self._seqs: dict[tuple[str, int], bytes] = {}
        self._early: dict[bytes, pb.PayloadStagedRequest] = {}

    def deploy(self, deployment: pb.Deployment) -> pb.Deployment:
        """Make a deployment known as it is."""
        self.deployments[deployment.deployment_id] = deployment
        return deployment

    async def call(self, method: str, request: Message, reply: type[Reply]) -> Reply:
        found = await getattr(self, method)(request, None)
        assert isinstance(found, reply)
        return found

    async def CreateJob(self, request: pb.CreateJobRequest, _: object) -> pb.Job:
        job = pb.Job(job_id=request.job_id, name=request.name, tenant=request.tenant)
        return self.jobs.setdefault(request.job_id, job)

    async def WatchTokens(self, request: pb.WatchTokensRequest, _: object) -> pb.WatchTokensReply:
        if request.revision:
            await asyncio.Event().wait()  # the table never changes
        return pb.WatchTokensReply(revision=1)

    async def KeepRecords(self, request: pb.KeepRecordsRequest, _: object) -> pb.KeepRecordsReply:
        for one in request.records:
            self.kept[request.tenant, one.key] = one.body
        for key in request.gone:
            self.kept.pop((request.tenant, key), None)
        return pb.KeepRecordsReply()

    async def GetRecords(self, request: pb.GetRecordsRequest, _: object) -> pb.GetRecordsReply:
        return page_of(
            pb.Record(key=key, body=body)
            for (tenant, key), body in sorted(self.kept.items())
            if tenant == request.tenant and key.startswith(request.prefix) and key > request.after
        )

    async def KeepAlive(self, request: pb.KeepAliveRequest, _: object) -> pb.KeepAliveReply:
        self._job(request.job_id, request.tenant)
        self.beats.append(request)
        return pb.KeepAliveReply(state=pb.JOB_STATE_RUNNING)

    async def EndJob(self, request: pb.EndJobRequest, _: object) -> pb.Job:
        job = self._job(request.job_id, request.tenant)
        job.state = request.outcome
        return job

    async def CreateDeployment(
        self, request: pb.CreateDeploymentRequest, _: object
    ) -> pb.Deployment:
        self._job(request.job_id, request.tenant)
        return self.deploy(
            pb.Deployment(
                deployment_id=request.deployment_id,
                job_id=request.job_id,
                tenant=request.tenant,
                name=request.name,
                spec=request.spec,
                state="ready",
            )
        )

    async def CreateDeployments(
        self, request: pb.CreateDeploymentsRequest, _: object
    ) -> pb.CreateDeploymentsReply:
        made = [await self.CreateDeployment(one, _) for one in request.deployments]
        return pb.CreateDeploymentsReply(deployments=made)

    async def GetDeployment(self, request: pb.GetDeploymentRequest, _: object) -> pb.Deployment:
        self.lookups += 1
        found = self.deployments.get(request.deployment_id)
        if found is None or (found.tenant, found.job_id) != (request.tenant, request.job_id):
            raise PlexError(ErrorCode.NOT_FOUND, f"no deployment {request.deployment_id!r}")
        return found

    async def submit(self, operation: ops.Operation) -> ops.OperationResult:
        record = self.records.get(operation.operation_id)
        if record is None:
            refusal = self._place(operation)
            if refusal is not None:
                return self._refused(operation.operation_id, refusal)
            record = self.records[operation.operation_id] = Record(operation)
            if operation.HasField("refusal"):
                record.result = self._refused(operation.operation_id, from_wire(operation.refusal))
            early = self._early.pop(operation.operation_id, None)
            if early is not None:
                self._stage(record, early)
            if operation.payload.WhichOneof("form") != "staged":
                record.is_staged.set()
        await record.is_staged.wait()
        return self._answer(record)

    async def GetResult(self, request: pb.GetResultRequest, _: object) -> ops.OperationResult:
        if request.no_wait:
            if request.operation_id not in self.records:
                raise PlexError(ErrorCode.NOT_FOUND, "no such operation")
            return ops.OperationResult()
        return self._answer(self.records[request.operation_id])

    async def PayloadStaged(
        self, request: pb.PayloadStagedRequest, _: object
    ) -> pb.PayloadStagedReply:
        if request.is_under_way:
            self.under_way += 1
            return pb.PayloadStagedReply()
        self.staged_calls += 1
        record = self.records.get(request.operation_id)
        if record is None:
            self._early[request.operation_id] = request
        elif not record.is_staged.is_set():
            self._stage(record, request)
        return pb.PayloadStagedReply()

    def _stage(self, record: Record, request: pb.PayloadStagedRequest) -> None:
        record.plan = request.plan
        if request.HasField("error"):
            record.result = self._refused(request.operation_id, from_wire(request.error))
        record.is_staged.set()

    async def ListJobs(self, request: pb.ListJobsRequest, _: object) -> pb.ListJobsReply:
        return pb.ListJobsReply(
            jobs=[job for job in self.jobs.values() if job.tenant == request.tenant]
        )

    async def GetStatus(self, request: pb.GetStatusRequest, _: object) -> pb.ClusterStatus:
        listed = await self.ListJobs(pb.ListJobsRequest(tenant=request.tenant), None)
        return pb.ClusterStatus(jobs=listed.jobs)

    async def ExplainOperation(self, request: pb.ExplainRequest, _: object) -> pb.ExplainReply:
        self._job(request.job_id, request.tenant)
        return pb.ExplainReply(text="it waits for nothing")

    async def Timeline(self, request: pb.TimelineRequest, _: object) -> pb.TimelineReply:
        return pb.TimelineReply(next_index=request.after_index)

    def _job(self, job_id: str, tenant: str) -> pb.Job:
        job = self.jobs.get(job_id)
        if job is None or job.tenant != tenant:
            raise PlexError(ErrorCode.NOT_FOUND, f"no job {job_id!r}")
        return job

    def _place(self, operation: ops.Operation) -> PlexError | None:
        taken = self._seqs.setdefault(
            (operation.deployment_id, operation.seq), operation.operation_id
        )
        if taken == operation.operation_id:
            return None
        return PlexError(ErrorCode.STALE_SEQUENCE, f"seq {operation.seq} is {show(taken)}'s")

    def _answer(self, record: Record) -> ops.OperationResult:
        if record.result is None:
            self.effects.append(record.operation.operation_id)
            record.result = ops.OperationResult(
                operation_id=record.operation.operation_id,
                state=ops.OPERATION_STATE_ANSWERED,
                shards=self.shards,
            )
        return record.result

    @staticmethod
    def _refused(operation_id: bytes, error: PlexError) -> ops.OperationResult:
        return ops.OperationResult(
            operation_id=operation_id, state=ops.OPERATION_STATE_REFUSED, error=to_wire(error)
        )


@asynccontextmanager
async def serve(fake: FakeScheduler) -> AsyncIterator[str]:
    """Serve the fake on a free port of loopback; yield its target."""
    server: grpc.aio.Server = new_server(KEYS)
    calls = {name: getattr(fake, name) for name in unary_methods(SERVICE) if hasattr(fake, name)}
    streams = OperationStreams(max_operations=64, key="scheduler.max_operations_per_stream")
    calls["Operate"] = lambda _, context: streams.serve(context, fake.submit)
    add_service(server, SERVICE, calls=calls)
    address = listen(server, "127.0.0.1:0", KEYS, key="fake")
    await server.start()
    try:
        yield address
    finally:
        await server.stop(0)
