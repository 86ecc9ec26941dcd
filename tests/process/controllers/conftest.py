"""A router that only keeps jobs, in a thread, for drills of the command line."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent import futures
from pathlib import Path

import grpc
import pytest

from plexclient.wire.v1 import service_pb2, service_pb2_grpc
from plexsvc.cluster.places import Card, write_card

TOKEN = "letmein"


class FakeJobsRouter(service_pb2_grpc.RouterServicer):
    """Keeps jobs and their ends; refuses other tokens."""

    def __init__(self) -> None:
        self.jobs: dict[str, service_pb2.Job] = {}
        self.unavailable_ends = 0
        """How many EndJob calls are still to be answered with UNAVAILABLE."""
        self.cancels_first = False
        """Whether someone cancels a job just before its controller's end is told."""
        self.is_full = False

    def CreateJob(
        self, request: service_pb2.CreateJobRequest, context: grpc.ServicerContext
    ) -> service_pb2.Job:
        _authenticate(context)
        if self.is_full:
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "no more jobs")
        job = service_pb2.Job(
            job_id=request.job_id,
            name=request.name,
            state=service_pb2.JOB_STATE_RUNNING,
            labels=request.labels,
        )
        return self.jobs.setdefault(request.job_id, job)

    def EndJob(
        self, request: service_pb2.EndJobRequest, context: grpc.ServicerContext
    ) -> service_pb2.Job:
        _authenticate(context)
        if self.unavailable_ends > 0:
            self.unavailable_ends -= 1
            context.abort(grpc.StatusCode.UNAVAILABLE, "not now")
        job = self.jobs[request.job_id]
        if self.cancels_first:
            job.state, job.reason = service_pb2.JOB_STATE_CANCELLED, "enough"
            return job
        job.state = request.outcome
        job.reason = request.reason
        if request.HasField("exit_code"):
            job.exit_code = request.exit_code
        return job

    def ListJobs(
        self, request: service_pb2.ListJobsRequest, context: grpc.ServicerContext
    ) -> service_pb2.ListJobsReply:
        _authenticate(context)
        ended = {
            service_pb2.JOB_STATE_COMPLETED,
            service_pb2.JOB_STATE_FAILED,
            service_pb2.JOB_STATE_CANCELLED,
        }
        jobs = [j for j in self.jobs.values() if request.include_ended or j.state not in ended]
        return service_pb2.ListJobsReply(jobs=jobs)

    def GetStatus(
        self,
        request: service_pb2.GetStatusRequest,
        context: grpc.ServicerContext,
    ) -> service_pb2.ClusterStatus:
        _authenticate(context)
        return service_pb2.ClusterStatus(now_us=1, jobs=list(self.jobs.values()))

    def ExplainOperation(
        self, request: service_pb2.ExplainRequest, context: grpc.ServicerContext
    ) -> service_pb2.ExplainReply:
        _authenticate(context)
        return service_pb2.ExplainReply(text=f"{request.operation_id.hex()} waits", facts=["why"])


def _authenticate(context: grpc.ServicerContext) -> None:
    if ("authorization", f"Bearer {TOKEN}") not in context.invocation_metadata():
        context.abort(grpc.StatusCode.UNAUTHENTICATED, "wrong token")


@pytest.fixture
def fake_router(tmp_path: Path) -> Iterator[FakeJobsRouter]:
    """A router whose card lies in `tmp_path`."""
    router = FakeJobsRouter()
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=4))
    service_pb2_grpc.add_RouterServicer_to_server(router, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    write_card(tmp_path, Card(address=f"127.0.0.1:{port}", token=TOKEN, pid=0))
    yield router
    server.stop(None).wait()
