"""A rollout manager that serves, with fake engines behind the real servicer, and operations."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from plexclient.wire.v1 import (
    common_pb2,
    operations_pb2,
    rollout_pb2,
    service_pb2,
    worker_pb2,
    worker_pb2_grpc,
)
from plexsvc.clock import SystemClock
from plexsvc.ids import new_operation_id
from plexsvc.rollout.config import ManagerConfig
from plexsvc.rollout.main import serve
from plexsvc.rollout.manager import RolloutManager
from plexsvc.rollout.managers import Managers
from plexsvc.rollout.recordfiles import RecordFile
from plexsvc.rollout.records import OperationRecord
from plexsvc.rpc.channels import open_channel
from tests.fakes.fake_engine import FakeEngine
from tests.fakes.fake_hosts import FakeManagerHosts
from tests.fakes.fake_instances import FakeInstance, publish
from tests.rigs.keys import KEYS
from tests.rigs.rollout_requests import Answer, collect

APPLIED = operations_pb2.OPERATION_STATE_APPLIED
FAST = ManagerConfig(frame_us=1000, probe_us=2000, frames_wait_us=300_000)
KEPT = tempfile.TemporaryDirectory()
"""Where records that no manager has are kept."""

PROMPTS = [[3, 4, 5], [6, 7, 8, 9]]


def new_record(operation: operations_pb2.Operation) -> OperationRecord:
    return OperationRecord(operation, file=RecordFile(Path(KEPT.name), operation))


@dataclass(slots=True)
class Bench:
    """A running manager and its instances."""

    manager: RolloutManager
    managers: Managers
    """Who leads it, by gRPC."""
    instances: list[FakeInstance]
    config: ManagerConfig
    """Of the manager."""
    hosts: FakeManagerHosts
    peer: RolloutManager | None
    """The manager of another node, if there is one."""
    killed: asyncio.Event
    """Whether a manager was to be killed because it hangs."""
    worker: worker_pb2_grpc.WorkerAsyncStub
    """The manager by gRPC."""
    serving: AsyncExitStack
    group: asyncio.TaskGroup
    leading: asyncio.Task[None]
    """What runs `managers`."""
    started: list[FakeInstance] = field(default_factory=list)
    """Instances that it ends, besides those that it has."""
    beside: list[asyncio.Task[None]] = field(default_factory=list)
    """What runs their pools."""
    seq: int = 0
    wpg_id: str = "wpg"
    source: str = ""
    """The deployment that its weights are of."""
    shared: bool = False
    """Whether its instances sleep while others have their devices."""
    ranges: list[service_pb2.InstanceRange] = field(default_factory=list)
    """Instances that its deployment asks for, besides these."""
    fence: common_pb2.Fence = field(
        default_factory=lambda: common_pb2.Fence(scheduler_epoch=1, lease_no=1, incarnation=1)
    )

    def operation(
        self,
        *,
        operation_id: bytes | None = None,
        **body: Any,
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
        **sampling: Any,
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
        **more: Any,
    ) -> operations_pb2.OperationResult:
        request = worker_pb2.ExecuteRequest(
            fence=self.fence, wpg_id=self.wpg_id, operation=operation, **more
        )
        return (await self.managers.execute(request)).result

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
                    shares_devices=self.shared,
                ),
            ),
            instance_addresses=[instance.address for instance in self.instances],
        )

    async def start_instance(self, *, held: bool = False) -> FakeInstance:
        """Return another instance, which ends with the bench."""
        self.started.append(FakeInstance(FakeEngine(held=held)))
        await self.started[-1].start()
        return self.started[-1]

    async def add_reserved(self, instance: FakeInstance) -> None:
        """Have an engine on a training device that serves this deployment's generates."""
        spec = service_pb2.DeploymentSpec(
            max_model_len=1000, shares_devices=True, where_it_trains=True, seeds="rollout"
        )
        deployment = service_pb2.Deployment(deployment_id="reserved", vocab_size=50, spec=spec)
        request = worker_pb2.ExecuteRequest(
            fence=self.fence,
            wpg_id="wpg-reserved",
            operation=self._reserved(initialize=operations_pb2.Initialize()),
            deployment=deployment,
            instance_addresses=[instance.address],
        )
        assert (await self.managers.execute(request)).result.state == APPLIED

    async def seed(
        self,
        generate: operations_pb2.Operation,
        *,
        trained: worker_pb2.Trained | None = None,
    ) -> operations_pb2.OperationResult:
        """Have engines on training devices serve a generate until the window is over."""
        operation = self._reserved(seed=operations_pb2.Seed(), after=[generate.operation_id])
        request = worker_pb2.ExecuteRequest(
            fence=self.fence, wpg_id="wpg-reserved", operation=operation, trained=trained
        )
        return (await self.managers.execute(request)).result

    def _reserved(self, **body: Any) -> operations_pb2.Operation:
        operation = self.operation(**body)
        operation.deployment_id = "reserved"
        return operation

    async def pull(self, version: int, **manifest: Any) -> operations_pb2.OperationResult:
        body = operations_pb2.Pull(source_deployment_id="actor", version=version)
        return await self.execute(self.operation(pull=body), published=publish(version, **manifest))

    async def move(self, to: rollout_pb2.InstancesMove) -> rollout_pb2.MoveInstancesReply:
        """Have the instances sleep or wake, under a lease of their own."""
        self.fence.lease_no += 1
        return await self.managers.move("rollout", fence=self.fence, to=to)

    async def stream(
        self, request: worker_pb2.StreamFramesRequest
    ) -> AsyncGenerator[operations_pb2.GenerateFrame]:
        async for frame in self.manager.stream_frames(request):
            yield operations_pb2.GenerateFrame.FromString(frame)

    async def sample(
        self, operation: operations_pb2.Operation
    ) -> AsyncGenerator[operations_pb2.GenerateFrame]:
        async with aclosing(self.manager.sample(operation)) as frames:
            async for frame in frames:
                parse = operations_pb2.GenerateFrame.FromString
                yield parse(frame) if isinstance(frame, bytes) else frame

    async def kill_manager(self) -> None:
        """End the manager and start its successor at the same address."""
        await self.serving.aclose()
        self.manager, _ = await self.serving.enter_async_context(serve(self.config, KEYS))

    async def replace_service(self, *, keeps_manager: bool = False) -> None:
        """End who leads, and the manager with it; a successor adopts the deployment."""
        ending = [self.leading, *self.beside]
        for task in ending:
            task.cancel()
        await asyncio.wait(ending)
        self.beside.clear()
        self.managers = lead(self.config, self.hosts)
        self.fence.scheduler_epoch += 1
        self.hosts.epoch += 1
        if not keeps_manager:
            await self.kill_manager()
        addresses = [instance.address for instance in self.instances]
        assert self.managers.adopt(
            "rollout", fence=self.fence, wpg_id=self.wpg_id, addresses=addresses
        )
        self.leading = self.group.create_task(self.managers.run())

    async def kill_node(self) -> None:
        """End the manager and its node for good; the one of the other node is read from now on."""
        assert self.peer is not None
        await self.serving.aclose()
        del self.hosts.up["node"]
        self.manager = self.peer

    async def restored(self) -> None:
        """Return when the manager was told of its deployment by who leads it now."""
        (deployment,) = vars(self.managers)["_deployments"].values()
        async with asyncio.timeout(120):
            while deployment.led_by != deployment.link.incarnation:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.001)

    async def told_of_leaving(self) -> None:
        """Return when the manager knows of every instance that is to go."""
        (deployment,) = vars(self.managers)["_deployments"].values()
        async with asyncio.timeout(120):
            while not deployment.leaving or deployment.has_untold:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.001)

    async def frames(
        self, operation_id: bytes, *, after: int = 0
    ) -> list[operations_pb2.GenerateFrame]:
        request = worker_pb2.StreamFramesRequest(
            operation_id=operation_id, after_cursor=after, deployment_id="rollout"
        )
        return [frame async for frame in self.stream(request)]

    async def answers(self, operation: operations_pb2.Operation) -> dict[tuple[int, int], Answer]:
        frames = await self.frames(operation.operation_id)
        return collect(delta for frame in frames for delta in frame.deltas)


def lead(config: ManagerConfig, hosts: FakeManagerHosts) -> Managers:
    """Return who leads the managers of these nodes."""
    directory = Path(config.listen.removeprefix("unix:")).parent
    leads = Managers(config, clock=SystemClock(), keys=KEYS, directory=directory)
    leads.hosts = hosts
    return leads


def _placed(config: ManagerConfig, stack: AsyncExitStack, *, managers: int) -> ManagerConfig:
    """Return the configuration of a manager with directories of its own."""
    below, records = (stack.enter_context(tempfile.TemporaryDirectory()) for _ in range(2))
    listen, records_dir = f"unix:{below}/manager.sock", Path(records)
    return replace(config, listen=listen, records_dir=records_dir, managers=managers)


@asynccontextmanager
async def bench(
    *,
    instances: int = 1,
    held: bool = False,
    config: ManagerConfig = FAST,
    managers: int = 1,
    source: str = "",
    shared: bool = False,
    others: Sequence[FakeInstance] = (),
    has_peer: bool = False,
) -> AsyncIterator[Bench]:
    """Yield a bench of fake instances, or of `others` that serve already.

    With `has_peer` there is another node, with a manager.
    """
    async with AsyncExitStack() as stack:
        configs = [_placed(config, stack, managers=managers) for _ in range(managers + has_peer)]
        peer = None
        for further in configs[1:]:
            peer, _ = await stack.enter_async_context(serve(further, KEYS))
        killed = asyncio.Event()
        serving = await stack.enter_async_context(AsyncExitStack())
        manager, address = await serving.enter_async_context(serve(configs[0], KEYS))
        worker = await stack.enter_async_context(open_channel(address, KEYS))
        group = await stack.enter_async_context(asyncio.TaskGroup())
        addresses = {"node": [one.listen for one in configs[:managers]]}
        if has_peer:
            addresses["other"] = [configs[-1].listen]
        hosts = FakeManagerHosts(addresses, killed)
        hosts.instances = {"rollout": ["node"]}
        leads = lead(configs[0], hosts)
        starts = [FakeInstance(FakeEngine(held=held)) for _ in range(0 if others else instances)]
        for instance in starts:
            stack.push_async_callback(instance.kill)
            await instance.start()
        made = Bench(
            manager,
            leads,
            [*(others or starts)],
            config=configs[0],
            hosts=hosts,
            peer=peer,
            killed=killed,
            worker=worker_pb2_grpc.WorkerStub(worker),
            serving=serving,
            group=group,
            leading=group.create_task(leads.run()),
            source=source,
            shared=shared,
        )
        try:
            assert (await made.initialize()).state == APPLIED
            yield made
        finally:
            for task in (made.leading, *made.beside):
                task.cancel()
            for instance in (*made.instances, *made.started):
                await instance.kill()


async def recorded(b: Bench, operation: operations_pb2.Operation, *, tokens: int) -> None:
    """Return when the stream of `operation` has brought `tokens` tokens."""
    request = worker_pb2.StreamFramesRequest(operation_id=operation.operation_id)
    async with asyncio.timeout(120):
        async for frame in b.stream(request):
            tokens -= sum(len(delta.token_ids) for delta in frame.deltas)
            if tokens <= 0:
                return
