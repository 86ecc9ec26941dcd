"""A scheduler's driver over fake nodes, and the ways tests talk to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from plexclient.wire.v1 import common_pb2, operations_pb2, service_pb2, worker_pb2
from plexsvc.clock import SystemClock
from plexsvc.ids import new_operation_id
from plexsvc.scheduler.api.servicer import SchedulerServicer
from plexsvc.scheduler.config import SchedulerConfig
from plexsvc.scheduler.handler import A
from plexsvc.scheduler.live import LiveScheduler
from plexsvc.store.store import Store
from tests.fakes.fake_cluster import Behaviour, FakeAgent, FakeRolloutManager
from tests.rigs import stored
from tests.rigs.keys import KEYS

TENANT = "lab"


@dataclass(slots=True, kw_only=True)
class Rig:
    """Everything a driver test touches."""

    driver: LiveScheduler
    scheduler: SchedulerServicer
    behaviour: Behaviour
    agents: list[FakeAgent]
    rollout: FakeRolloutManager
    store: Store
    running: asyncio.Task[None]
    """The driver's work: cancelling it ends it."""
    seqs: dict[str, int] = field(default_factory=dict)

    def new_agent(self, node_id: str, **kinds: int) -> FakeAgent:
        """Return another node's agent, which is stopped with the rig."""
        self.agents.append(FakeAgent(node_id, self.behaviour, kinds=kinds))
        return self.agents[-1]

    async def job(self, job_id: str, *, ttl_us: int = 0) -> service_pb2.Job:
        """Open a job."""
        return await self.scheduler.call(
            "CreateJob",
            service_pb2.CreateJobRequest(
                job_id=job_id, name=job_id, tenant=TENANT, session_ttl_us=ttl_us
            ),
            service_pb2.Job,
        )

    async def deploy(
        self,
        job_id: str,
        name: str = "actor",
        *,
        tp: int = 1,
        role: str = "actor",
        shared: bool = False,
        instances: int = 0,
        durable: bool = False,
        checkpoint_every: int = 0,
        on_host: bool = False,
    ) -> service_pb2.Deployment:
        """Bring a deployment up."""
        spec = service_pb2.DeploymentSpec(
            role=role,
            backend="vllm" if role == "rollout" else "noop",
            shares_devices=shared,
            num_instances=instances,
            is_durable=durable or checkpoint_every > 0,
            checkpoint_every=checkpoint_every,
            checkpoints_kept=2 * min(1, checkpoint_every),
            checkpoint_root="/lab",
        )
        spec.parallel.tp = tp
        if on_host:
            spec.optimizer.on = "host"
        return await self.scheduler.call(
            "CreateDeployment",
            service_pb2.CreateDeploymentRequest(
                deployment_id=f"{job_id}/{name}",
                job_id=job_id,
                tenant=TENANT,
                name=name,
                spec=spec,
            ),
            service_pb2.Deployment,
        )

    def operation(
        self,
        job_id: str,
        kind: str = "noop",
        *,
        name: str = "actor",
        seq: int = 0,
        after: tuple[bytes, ...] = (),
        payload: common_pb2.Payload | None = None,
    ) -> operations_pb2.Operation:
        """Return the deployment's next operation."""
        deployment_id = f"{job_id}/{name}"
        if not seq:
            seq = self.seqs[deployment_id] = self.seqs.get(deployment_id, 0) + 1
        operation = operations_pb2.Operation(
            operation_id=new_operation_id(),
            tenant=TENANT,
            job_id=job_id,
            deployment_id=deployment_id,
            seq=seq,
            after=after,
            payload=payload,
        )
        getattr(operation, kind).SetInParent()
        return operation

    async def run(
        self, job_id: str, kind: str = "noop", **more: object
    ) -> operations_pb2.OperationResult:
        """Submit the next operation and return its result."""
        return await self.scheduler.submit(self.operation(job_id, kind, **more))  # type: ignore[arg-type] # passed on

    async def end(
        self, job_id: str, outcome: service_pb2.JobState = service_pb2.JOB_STATE_COMPLETED
    ) -> service_pb2.Job:
        """End a job."""
        return await self.scheduler.call(
            "EndJob",
            service_pb2.EndJobRequest(job_id=job_id, tenant=TENANT, outcome=outcome, reason="done"),
            service_pb2.Job,
        )


async def until(is_so: Callable[[], bool]) -> None:
    """Return when something is so."""
    async with asyncio.timeout(120):
        while not is_so():  # noqa: ASYNC110 - the agent's events come in their own time
            await asyncio.sleep(0.005)


def listen(driver: LiveScheduler, kind: type[A], heard: Callable[[A], None]) -> None:
    """Have `heard` told of every action of a kind that needs no other process."""
    handler = driver.handlers[kind]

    def perform(action: A) -> None:
        handler.perform(action)
        heard(action)

    driver.handlers[kind] = replace(handler, perform=perform)


@asynccontextmanager
async def start_rig(
    directory: Path, *, nodes: list[dict[str, int]], config: SchedulerConfig | None = None
) -> AsyncIterator[Rig]:
    """Run a driver over fake nodes with the given numbers of devices by kind."""
    behaviour = Behaviour()
    agents = [FakeAgent(f"node-{i}", behaviour, kinds=kinds) for i, kinds in enumerate(nodes)]
    rollout = FakeRolloutManager(behaviour)
    store = stored.open_new(directory)
    config = config or SchedulerConfig()
    try:
        targets = [await agent.start() for agent in agents]
        driver = LiveScheduler(config, store, SystemClock(), targets, rollout, KEYS)
        async with asyncio.TaskGroup() as group:
            running = group.create_task(driver.run())
            await driver.nodes.ready()
            await until(lambda: len(driver.cluster.nodes) == len(nodes))
            yield Rig(
                driver=driver,
                scheduler=SchedulerServicer(driver),
                behaviour=behaviour,
                agents=agents,
                rollout=rollout,
                store=store,
                running=running,
            )
            running.cancel()
    finally:
        store.close()
        for agent in agents:
            await agent.stop()


def held_open(rig: Rig, kind: str) -> tuple[asyncio.Event, asyncio.Event]:
    """Make operations of a kind wait; return (one has begun, let them go)."""
    begun, go = asyncio.Event(), asyncio.Event()

    async def wait(request: worker_pb2.ExecuteRequest) -> worker_pb2.ExecuteReply | None:
        if request.operation.WhichOneof("body") == kind:
            begun.set()
            await go.wait()
        return None

    rig.behaviour.on_execute = wait
    return begun, go
