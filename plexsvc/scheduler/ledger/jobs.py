"""What the driver keeps beside the core: the wire's view of jobs and deployments, and who waits."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import grpc
from google.protobuf.message import Message

from plexclient.wire.v1 import (
    common_pb2,
    operations_pb2,
    service_pb2,
    statemanager_pb2,
    worker_pb2,
    worker_pb2_grpc,
)
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.frames.line import OrderLine
from plexsvc.ids import DeploymentId, JobId, MoveId, NodeId, OperationId, WpgId
from plexsvc.scheduler.config import SchedulerConfig
from plexsvc.scheduler.core.vocabulary import OperationKind, Place

JOB_STATES = {
    "queued": service_pb2.JOB_STATE_QUEUED,
    "running": service_pb2.JOB_STATE_RUNNING,
    "completed": service_pb2.JOB_STATE_COMPLETED,
    "failed": service_pb2.JOB_STATE_FAILED,
    "cancelled": service_pb2.JOB_STATE_CANCELLED,
}


@dataclass(slots=True, kw_only=True)
class Rank:
    """One process of a WPG: where it answers."""

    node_id: NodeId
    device: int
    proc_id: str
    address: str
    channel: grpc.aio.Channel
    stub: worker_pb2_grpc.WorkerAsyncStub = field(init=False)
    orders: OrderLine[worker_pb2.ExecuteReply] | None = None
    """Where it takes operations without gRPC, if it does."""
    is_closed: bool = False

    def __post_init__(self) -> None:
        """Make the stub."""
        self.stub = worker_pb2_grpc.WorkerStub(self.channel)

    def take_orders(self, port: int) -> None:
        """Send operations to `port` of its host from now on; 0: by gRPC."""
        if port and self.orders is None:
            host = self.address.rpartition(":")[0]
            self.orders = OrderLine(
                host, port, reply=worker_pb2.ExecuteReply, is_alive=self._is_alive
            )

    async def execute(
        self, request: worker_pb2.ExecuteRequest, *, timeout_s: float
    ) -> worker_pb2.ExecuteReply:
        """Run an operation.

        Raises:
            grpc.aio.AioRpcError: the call broke.
            OSError: the line broke.
        """
        if self.orders is not None:
            return await self.orders.execute(request, timeout_s=timeout_s)
        reply: worker_pb2.ExecuteReply = await self.stub.Execute(request, timeout=timeout_s)
        return reply

    def _is_alive(self) -> bool:
        """Return whether its gRPC channel, which pings, is connected; connect if it is not."""
        state = self.channel.get_state(try_to_connect=True)
        return state is grpc.ChannelConnectivity.READY

    async def close(self) -> None:
        """Close the connections; calls under way are cancelled."""
        self.is_closed = True
        if self.orders is not None:
            self.orders.close()
        await self.channel.close()


@dataclass(slots=True, kw_only=True)
class JobRecord:
    """A job as its client sees it."""

    view: service_pb2.Job
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    metrics: dict[str, float] = field(default_factory=dict)
    metrics_us: int = 0
    seen_us: int = 0
    """When its client was last heard, on the monotonic clock."""
    is_expired: bool = False


@dataclass(slots=True, kw_only=True)
class DeploymentRecord:
    """A deployment as its client sees it."""

    view: service_pb2.Deployment
    initialize_id: OperationId
    settled: asyncio.Event = field(default_factory=asyncio.Event)
    wpg: WpgRecord | None = None
    """Its current WPG, also when that is gone: results may still lie on its nodes."""
    applied_seq: int = 0
    acked_seq: int = 0
    payloads: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while a staged payload is passed on to where the deployment is now."""
    former_nodes: tuple[NodeId, ...] = ()
    """Where it ran before: results and published versions may still lie there."""

    @property
    def nodes(self) -> list[NodeId]:
        """The nodes it has ranks on, each once."""
        return [] if self.wpg is None else self.wpg.nodes

    @property
    def is_rollout(self) -> bool:
        """Whether the rollout manager runs its operations."""
        return is_rollout(self.view.spec)


@dataclass(slots=True, kw_only=True, eq=False)
class WpgRecord:
    """The processes of a deployment: where they are, and how they are reached."""

    wpg_id: WpgId
    deployment: DeploymentRecord
    incarnation: int
    places: tuple[Place, ...]
    ranks: list[Rank] = field(default_factory=list)
    is_stopping: bool = False

    @property
    def nodes(self) -> list[NodeId]:
        """The nodes it has ranks on, each once."""
        return list(dict.fromkeys(place.node_id for place in self.places))

    @property
    def is_current(self) -> bool:
        """Whether it runs its deployment's operations; if not, it is coming or leaving."""
        return self.deployment.wpg is self

    @property
    def is_rollout(self) -> bool:
        """Whether the rollout manager runs its operations."""
        return self.deployment.is_rollout


@dataclass(slots=True, kw_only=True)
class Held:
    """An operation from its submission to its answer."""

    operation: operations_pb2.Operation
    kind: OperationKind
    nbytes: int
    submitted_us: int
    result: operations_pb2.OperationResult | None = None
    digest: str = ""
    lease_no: int = 0
    staged_on: tuple[NodeId, ...] = ()
    """Nodes whose staging memory has its payload."""
    copies: tuple[statemanager_pb2.VersionManifest, ...] = ()
    """What an `Initialize` starts from instead of the model's weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Copies:
    """Complete copies of a WPG's state, one a node, and the operation that reads them."""

    manifests: tuple[statemanager_pb2.VersionManifest, ...]
    initialize_id: OperationId
    from_wpg_id: WpgId
    lease_no: int


class Registry:
    """Jobs, deployments and operations in flight, by id."""

    def __init__(self, config: SchedulerConfig) -> None:
        self._config = config
        self.jobs: dict[JobId, JobRecord] = {}
        self.deployments: dict[DeploymentId, DeploymentRecord] = {}
        self.by_wpg: dict[WpgId, WpgRecord] = {}
        self.held: dict[OperationId, Held] = {}
        self.held_bytes = 0
        self.copies: dict[MoveId, Copies] = {}

    def job(self, job_id: str, *, tenant: str) -> JobRecord:
        """Return a tenant's job.

        Raises:
            PlexError: `not_found`; a job of another tenant is not found either.
        """
        record = self.jobs.get(JobId(job_id))
        if record is None or record.view.tenant != tenant:
            raise PlexError(
                ErrorCode.NOT_FOUND,
                f"no job {job_id!r}: it was never created, ended long ago, or ended when the "
                "service was restarted; start another",
            )
        return record

    def deployment(self, deployment_id: str, *, job_id: str, tenant: str) -> DeploymentRecord:
        """Return a deployment of a tenant's job.

        Raises:
            PlexError: `not_found`.
        """
        record = self.deployments.get(DeploymentId(deployment_id))
        if record is None or (record.view.tenant, record.view.job_id) != (tenant, job_id):
            raise PlexError(
                ErrorCode.NOT_FOUND,
                f"job {job_id!r} has no deployment {deployment_id!r}; create it first",
            )
        return record

    def hold(self, operation_id: OperationId, held: Held) -> None:
        """Keep an operation until it is answered.

        Raises:
            PlexError: `queue_full` when the inline payloads of waiting operations take too much.
        """
        limit = self._config.max_held_payload_bytes
        if self.held_bytes + held.nbytes > limit:
            raise PlexError(
                ErrorCode.QUEUE_FULL,
                f"waiting operations hold {self.held_bytes} bytes of inline payload; {held.nbytes} "
                f"more would exceed {limit} (scheduler.max_held_payload_bytes); submit again later",
                limit=limit,
            )
        self.held[operation_id] = held
        self.held_bytes += held.nbytes

    def let_go(self, operation_id: OperationId) -> Held | None:
        """Take an answered operation out."""
        held = self.held.pop(operation_id, None)
        if held is not None:
            self.held_bytes -= held.nbytes
        return held

    def ranks_on(self, node_id: NodeId) -> list[tuple[WpgId, int, int]]:
        """Return (WPG, rank, incarnation) of the processes that should run on a node."""
        return [
            (wpg_id, index, record.incarnation)
            for wpg_id, record in self.by_wpg.items()
            for index, rank in enumerate(record.ranks)
            if rank.node_id == node_id and not record.is_stopping
        ]

    async def close(self) -> None:
        """Close the connections to all ranks."""
        for record in self.by_wpg.values():
            for rank in record.ranks:
                await rank.close()

    def forget_jobs(self) -> list[DeploymentId]:
        """Drop the oldest ended jobs beyond the bound; return the deployments that went too."""
        gone: list[DeploymentId] = []
        ended = [job_id for job_id, record in self.jobs.items() if record.ended.is_set()]
        for job_id in ended[: max(0, len(ended) - self._config.max_ended_jobs)]:
            gone.extend(map(DeploymentId, self.jobs.pop(job_id).view.deployment_ids))
        for deployment_id in gone:
            self.deployments.pop(deployment_id, None)
        return gone

    def live_jobs(self) -> Iterable[JobRecord]:
        """Return the jobs that have not ended."""
        return [record for record in self.jobs.values() if not record.ended.is_set()]


def is_rollout(spec: service_pb2.DeploymentSpec) -> bool:
    """Return whether a deployment is run by the rollout manager."""
    return spec.role == "rollout"


def num_devices(spec: service_pb2.DeploymentSpec) -> int:
    """Return how many devices a deployment needs."""
    if is_rollout(spec):
        return max(1, spec.num_instances)
    p = spec.parallel
    return max(1, p.tp) * max(1, p.pp) * max(1, p.dp) * max(1, p.cp)


def check_same_spec(known: service_pb2.Deployment, asked: service_pb2.DeploymentSpec) -> None:
    """Refuse to take a deployment for another one of its name.

    Raises:
        PlexError: `bad_request`, naming the first field that differs.
    """
    for one in service_pb2.DeploymentSpec.DESCRIPTOR.fields:
        found, wanted = getattr(known.spec, one.name), getattr(asked, one.name)
        if found != wanted:
            raise PlexError(
                ErrorCode.BAD_REQUEST,
                f"deployment {known.name!r} of job {known.job_id!r} has {one.name} "
                f"{_brief(found)} and is asked for with {_brief(wanted)}; deploy it under a name "
                "of its own",
            )


def _brief(value: object) -> str:
    if isinstance(value, Message):
        return "{" + ", ".join(f"{f.name}: {v}" for f, v in value.ListFields()) + "}"
    return repr(value)


def blocks_of(places: Sequence[Place]) -> list[common_pb2.DeviceBlock]:
    """Return places as runs of neighbouring devices."""
    blocks: list[common_pb2.DeviceBlock] = []
    for place in places:
        last = blocks[-1] if blocks else None
        if (
            last is not None
            and last.node_id == place.node_id
            and last.first + last.count == place.device
        ):
            last.count += 1
        else:
            blocks.append(
                common_pb2.DeviceBlock(node_id=place.node_id, first=place.device, count=1)
            )
    return blocks
