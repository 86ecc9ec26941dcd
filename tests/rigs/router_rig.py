"""A real router on a port, before a fake scheduler and a fake staging node, and a raw client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

import grpc.aio
import numpy as np
import numpy.typing as npt

from plexclient.ids import new_operation_id
from plexclient.wire import tensors
from plexclient.wire.v1 import common_pb2, service_pb2_grpc, worker_pb2
from plexclient.wire.v1 import operations_pb2 as ops
from plexclient.wire.v1 import service_pb2 as pb
from plexsvc.clock import SystemClock
from plexsvc.router.api import SchedulerApi
from plexsvc.router.config import RouterConfig
from plexsvc.router.servicer import RouterServicer, add_to_server
from plexsvc.rpc.channels import listen, new_server, open_channel
from plexsvc.rpc.services import add_service
from tests.fakes import fake_staging
from tests.fakes.fake_scheduler import FakeScheduler
from tests.fakes.fake_staging import FakeStaging
from tests.rigs.keys import KEYS
from tests.rigs.live_cluster import ROOT

TOKEN = "secret"
TENANT = "acme"
JOB = "job-1"
ACTOR = "job-1/actor"
VOCAB = 50
MAX_LENGTH = 512
CALL_S = 120.0

Arrays = Mapping[str, npt.NDArray[np.generic]]


def metadata(token: str = TOKEN) -> tuple[tuple[str, str], ...]:
    """Return what a call with `token` carries."""
    return (("authorization", f"Bearer {token}"),)


def batch(lengths: list[int], *, seed: int = 0) -> dict[str, npt.NDArray[np.generic]]:
    """Return a good PPO batch of sequences of these lengths."""
    dice = np.random.default_rng(seed)
    total = sum(lengths)
    return {
        "tokens": dice.integers(0, VOCAB, total).astype(np.int32),
        "cu_seqlens": np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32),
        "target_tokens": dice.integers(0, VOCAB, total).astype(np.int32),
        "logprobs": dice.normal(-2, 1, total).astype(np.float32),
        "advantages": dice.normal(0, 1, total).astype(np.float32),
        "mask": np.ones(total, np.float32),
    }


def actor(**changes: Any) -> pb.Deployment:
    """Return a ready actor deployment of job-1."""
    deployment = pb.Deployment(
        deployment_id=ACTOR,
        job_id=JOB,
        tenant=TENANT,
        name="actor",
        spec=pb.DeploymentSpec(
            role="actor",
            backend="megatron",
            parallel=common_pb2.Parallel(dp=2),
            optimizer=pb.Optimizer(kind="adamw", lr=1e-3),
            micro_batch_tokens=1024,
        ),
        state="ready",
        vocab_size=VOCAB,
        max_sequence_length=MAX_LENGTH,
    )
    deployment.MergeFrom(pb.Deployment(**changes))
    return deployment


@dataclass(slots=True)
class RawClient:
    """Sends operations with their payloads and numbers them; retries nothing."""

    channel: grpc.aio.Channel
    next_seq: int = 1
    job_id: str = JOB
    token: str = TOKEN

    @property
    def deployment_id(self) -> str:
        return f"{self.job_id}/actor"

    @property
    def stub(self) -> service_pb2_grpc.RouterAsyncStub:
        return service_pb2_grpc.RouterStub(self.channel)

    def operation(self, arrays: Arrays | None = None, **body: Any) -> ops.Operation:
        """Return the next operation; a large payload is only announced."""
        operation = ops.Operation(
            operation_id=new_operation_id(),
            job_id=self.job_id,
            deployment_id=self.deployment_id,
            seq=self.next_seq,
            **body,
        )
        self.next_seq += 1
        if arrays is not None:
            bundle = tensors.encode(arrays)
            if len(bundle.data) <= tensors.INLINE_PAYLOAD_BYTES:
                operation.payload.inline.CopyFrom(bundle)
            else:
                staged = operation.payload.staged
                staged.tensors.extend(bundle.tensors)
                staged.nbytes = len(bundle.data)
        return operation

    async def submit(self, operation: ops.Operation) -> ops.OperationResult:
        return await self.stub.SubmitOperation(
            operation, metadata=metadata(self.token), timeout=CALL_S
        )

    async def stage(self, operation: ops.Operation, arrays: Arrays) -> pb.StageReply:
        requests = stage_requests(operation, arrays)
        return await self.stub.StagePayload(
            iter(requests), metadata=metadata(self.token), timeout=CALL_S
        )

    async def run(self, operation: ops.Operation, arrays: Arrays) -> ops.OperationResult:
        """Submit an operation and stage its payload at the same time."""
        async with asyncio.TaskGroup() as group:
            result = group.create_task(self.submit(operation))
            group.create_task(self.stage(operation, arrays))
        return result.result()


def stage_requests(operation: ops.Operation, arrays: Arrays) -> list[pb.StageRequest]:
    """Return the messages of an upload."""
    bundle = tensors.encode(arrays)
    header = pb.StageHeader(
        operation_id=operation.operation_id,
        job_id=operation.job_id,
        deployment_id=operation.deployment_id,
        tensors=bundle.tensors,
        nbytes=len(bundle.data),
    )
    chunks = tensors.chunks([memoryview(bundle.data)])
    return [pb.StageRequest(header=header), *(pb.StageRequest(chunk=chunk) for chunk in chunks)]


async def until(holds: Callable[[], object]) -> None:
    """Return when `holds()`; the test's own timeout bounds it."""
    while not holds():  # noqa: ASYNC110 - the event is another task's or process's
        await asyncio.sleep(0.001)


@dataclass(slots=True)
class Rig:
    """The parts of a running rig."""

    scheduler: FakeScheduler
    staging: FakeStaging
    router: RouterServicer
    address: str
    client: RawClient


class Frames(Protocol):
    """A rollout manager, as far as the router calls it."""

    def StreamFrames(
        self, request: worker_pb2.StreamFramesRequest, _: object
    ) -> AsyncGenerator[ops.GenerateFrame]: ...

    def Sample(self, request: ops.Operation, _: object) -> AsyncGenerator[ops.GenerateFrame]: ...


@asynccontextmanager
async def serving_frames(frames: Frames) -> AsyncIterator[str]:
    """Serve the frames; yield the address."""
    server = new_server(KEYS)
    worker = worker_pb2.DESCRIPTOR.services_by_name["Worker"]
    streams: dict[str, Any] = {"StreamFrames": frames.StreamFrames, "Sample": frames.Sample}
    add_service(server, worker, calls={}, streams=streams)
    address = listen(server, "127.0.0.1:0", KEYS, key="listen")
    await server.start()
    try:
        yield address
    finally:
        await server.stop(0)


@asynccontextmanager
async def start_rig(
    *,
    config: RouterConfig | None = None,
    frames: Frames | None = None,
    model: Path | None = None,
) -> AsyncIterator[Rig]:
    """Start a router with one job and one ready actor deployment."""
    tokens = {TOKEN: TENANT, "other": "rival"}
    config = config or RouterConfig(tokens=tokens, model_roots=(ROOT,))
    scheduler, staging = FakeScheduler(), FakeStaging()
    scheduler.jobs[JOB] = pb.Job(job_id=JOB, tenant=TENANT)
    async with AsyncExitStack() as stack:
        node = pb.NodeAddress(
            node_id="n0", state_manager=await stack.enter_async_context(fake_staging.serve(staging))
        )
        deployed = scheduler.deploy(actor(staging_nodes=[node]))
        if frames is not None:
            told = await stack.enter_async_context(serving_frames(frames))
            deployed.executor_address = told
        deployed.spec.model, deployed.spec.model_root = str(model or ""), str(ROOT)
        router = RouterServicer(
            cast("SchedulerApi", scheduler),  # operators' methods are not asked for here
            config=config,
            clock=SystemClock(),
            keys=KEYS,
        )
        stack.push_async_callback(router.aclose)
        server = new_server(router.tenants)
        add_to_server(router, server)
        address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        await server.start()
        stack.push_async_callback(server.stop, 0)
        channel = await stack.enter_async_context(open_channel(address, None))
        yield Rig(scheduler, staging, router, address, RawClient(channel))
