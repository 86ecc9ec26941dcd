"""A rollout manager with fake engines behind the real servicer, and operations for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from plexclient.wire.v1 import common_pb2, operations_pb2, service_pb2, worker_pb2
from plexsvc.clock import SystemClock
from plexsvc.ids import new_operation_id
from plexsvc.rollout.config import RolloutConfig
from plexsvc.rollout.manager import RolloutManager
from tests.fakes.fake_instances import FakeInstance, publish, start_instance
from tests.rigs.keys import KEYS
from tests.rigs.rollout_requests import Answer, collect

APPLIED = operations_pb2.OPERATION_STATE_APPLIED
FAST = RolloutConfig(frame_us=1000, probe_us=2000, frames_wait_us=300_000)
PROMPTS = [[3, 4, 5], [6, 7, 8, 9]]


@dataclass(slots=True)
class Bench:
    """A running manager and its instances."""

    manager: RolloutManager
    instances: list[FakeInstance]
    seq: int = 0
    wpg_id: str = "wpg"
    source: str = ""
    """The deployment that its weights are of."""
    ranges: list[service_pb2.InstanceRange] = field(default_factory=list)
    """Instances that its deployment asks for, besides these."""
    fence: common_pb2.Fence = field(
        default_factory=lambda: common_pb2.Fence(scheduler_epoch=1, lease_no=1, incarnation=1)
    )

    def operation(
        self,
        *,
        operation_id: bytes | None = None,
        **body: Any,  # noqa: ANN401 - fields of a message
    ) -> operations_pb2.Operation:
        self.seq += 1
        return operations_pb2.Operation(
            operation_id=operation_id or new_operation_id(),
            job_id="job",
            deployment_id="rollout",
            seq=self.seq,
            **body,
        )

    def generate(
        self,
        prompts: Sequence[Sequence[int]] = PROMPTS,
        **sampling: Any,  # noqa: ANN401 - fields of a message
    ) -> operations_pb2.Operation:
        options = {"n": 2, "max_tokens": 12, "temperature": 1.0} | sampling
        return self.operation(
            generate=operations_pb2.Generate(
                prompts=[operations_pb2.Prompt(token_ids=p) for p in prompts],
                sampling=operations_pb2.SamplingParams(**options),
            )
        )

    async def execute(
        self,
        operation: operations_pb2.Operation,
        **more: Any,  # noqa: ANN401 - fields of a message
    ) -> operations_pb2.OperationResult:
        request = worker_pb2.ExecuteRequest(
            fence=self.fence, wpg_id=self.wpg_id, operation=operation, **more
        )
        return (await self.manager.Execute(request, None)).result

    async def initialize(self) -> operations_pb2.OperationResult:
        operation = self.operation(initialize=operations_pb2.Initialize())
        operation.seq = 0
        return await self.execute(
            operation,
            deployment=service_pb2.Deployment(
                deployment_id="rollout",
                vocab_size=50,
                spec=service_pb2.DeploymentSpec(
                    max_model_len=1000,  # more than the engine's 128
                    instances=self.ranges,
                    model_deployment_id=self.source,
                ),
            ),
            instance_addresses=[instance.address for instance in self.instances],
        )

    async def pull(self, version: int, **manifest: Any) -> operations_pb2.OperationResult:  # noqa: ANN401 - fields of a message
        body = operations_pb2.Pull(source_deployment_id="actor", version=version)
        return await self.execute(self.operation(pull=body), published=publish(version, **manifest))

    async def frames(
        self, operation_id: bytes, *, after: int = 0
    ) -> list[operations_pb2.GenerateFrame]:
        request = worker_pb2.StreamFramesRequest(
            operation_id=operation_id, after_cursor=after, deployment_id="rollout"
        )
        return [frame async for frame in self.manager.StreamFrames(request, None)]

    async def answers(self, operation: operations_pb2.Operation) -> dict[tuple[int, int], Answer]:
        frames = await self.frames(operation.operation_id)
        return collect(delta for frame in frames for delta in frame.deltas)


@asynccontextmanager
async def bench(
    *,
    instances: int = 1,
    held: bool = False,
    config: RolloutConfig = FAST,
    source: str = "",
) -> AsyncIterator[Bench]:
    manager = RolloutManager(config, SystemClock(), KEYS)
    async with asyncio.TaskGroup() as group:
        host = group.create_task(manager.run())
        made = Bench(
            manager, [await start_instance(held=held) for _ in range(instances)], source=source
        )
        assert (await made.initialize()).state == APPLIED
        try:
            yield made
        finally:
            host.cancel()
            for instance in made.instances:
                await instance.kill()


async def recorded(b: Bench, operation: operations_pb2.Operation, *, tokens: int) -> None:
    """Return when the stream of `operation` has brought `tokens` tokens."""
    request = worker_pb2.StreamFramesRequest(operation_id=operation.operation_id)
    async with asyncio.timeout(10):
        async for frame in b.manager.StreamFrames(request, None):
            tokens -= sum(len(delta.token_ids) for delta in frame.deltas)
            if tokens <= 0:
                return
