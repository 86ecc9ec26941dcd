"""Records of jobs, deployments, WPGs and operations, kept beside the core for the outside."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from google.protobuf.message import Message

from plexclient.specs import Parallel
from plexclient.wire.v1 import operations_pb2, service_pb2
from plexsvc.errors import ErrorCode, PlexError, bad_request, not_found, queue_full
from plexsvc.ids import DeploymentId, JobId, MoveId, NodeId, OperationId, TenantId, WpgId
from plexsvc.scheduler.config import SchedulerConfig
from plexsvc.scheduler.core.vocabulary import (
    DeploymentState,
    Fault,
    JobState,
    OperationKind,
    Place,
)
from plexsvc.scheduler.ledger.durable import Durable
from plexsvc.scheduler.ledger.held import Awaited, Held, Published
from plexsvc.scheduler.ledger.training import TrainingMeter
from plexsvc.store.rows import QuotaRow

ENDED: Final = frozenset({JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED})


@dataclass(slots=True, kw_only=True)
class JobRecord:
    """A job as its client knows it."""

    job_id: JobId
    tenant: TenantId
    name: str
    labels: Mapping[str, str]
    created_us: int
    session_ttl_us: int
    state: JobState = JobState.QUEUED
    reason: str = ""
    exit_code: int | None = None
    ended_us: int = 0
    device_us: int = 0
    """How long its operations held devices; known when it has ended."""
    operations_done: int = 0
    deployment_ids: list[DeploymentId] = field(default_factory=list)
    metrics: Mapping[str, float] = field(default_factory=dict)
    metrics_us: int = 0
    training: TrainingMeter = field(default_factory=TrainingMeter)
    controller: int = 0
    """How many controllers there were before its present one."""
    resume_id: str = ""
    """Of the call by which that one took the job over."""

    def check_controller(self, number: int) -> None:
        """Refuse what a former controller sends.

        Raises:
            PlexError: `job_ended`.
        """
        if number != self.controller:
            raise PlexError(
                ErrorCode.JOB_ENDED,
                f"job {self.job_id!r} was resumed by another controller; this one has it no more",
            )

    @property
    def has_ended(self) -> bool:
        """Whether nothing of it is left but this record."""
        return self.state in ENDED


@dataclass(slots=True, kw_only=True)
class DeploymentRecord:
    """A deployment as its client knows it."""

    deployment_id: DeploymentId
    job_id: JobId
    tenant: TenantId
    name: str
    spec: service_pb2.DeploymentSpec
    """What the client asked for; never changed."""
    initialize_id: OperationId
    vocab_size: int
    max_sequence_length: int
    model_files: Sequence[str]
    host_bytes: int = 0
    """What its state and versions are placed by, on all its devices together."""
    instance_bytes: int = 0
    """Of a rollout that shares devices: what an instance takes of its device; 0: all."""
    state: DeploymentState = DeploymentState.STARTING
    fault: Fault | None = None
    wpg: WpgRecord | None = None
    """Its current WPG, also when that is gone: results may still lie on its nodes."""
    applied_seq: int = 0
    position: str = ""
    """Where its client was in its data at its last step, as JSON; empty if it did not say."""
    acked_seq: int = 0
    former_nodes: tuple[NodeId, ...] = ()
    """Where it ran before: results and published versions may still lie there."""
    durable: Durable | None = None
    """What it is rebuilt from when its processes die, if it is."""
    versions: bytes = b""
    """Its published versions, as the store keeps them (`orders/versions.py`)."""

    @property
    def nodes(self) -> list[NodeId]:
        """The nodes it has ranks on, each once."""
        return [] if self.wpg is None else self.wpg.nodes

    @property
    def is_rollout(self) -> bool:
        """Whether the rollout manager runs its operations."""
        return is_rollout(self.spec)


@dataclass(slots=True, kw_only=True, eq=False)
class WpgRecord:
    """The processes of a deployment, and where they are."""

    wpg_id: WpgId
    deployment: DeploymentRecord
    incarnation: int
    places: tuple[Place, ...]
    is_stopping: bool = False
    respawned: dict[int, int] = field(default_factory=dict)
    """Incarnation of each process that was started in the place of a lost one, by rank."""

    def incarnation_of(self, rank: int) -> int:
        """Return which process of a rank is the current one."""
        return self.respawned.get(rank, self.incarnation)

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Copies:
    """Complete copies of a WPG's state, if it has any, and the operation that reads them."""

    published: Published | None
    initialize_id: OperationId
    from_wpg_id: WpgId
    lease_no: int


class Registry:
    """Jobs, deployments and operations in flight, by id; and what tenants may have at most."""

    def __init__(self, config: SchedulerConfig, *, quotas: Sequence[QuotaRow] = ()) -> None:
        self._config = config
        self.quotas = {(TenantId(row.tenant), row.what): row.most for row in quotas}
        self.jobs: dict[JobId, JobRecord] = {}
        self.deployments: dict[DeploymentId, DeploymentRecord] = {}
        self.by_wpg: dict[WpgId, WpgRecord] = {}
        self.held: dict[OperationId, Held] = {}
        self.held_bytes = 0
        self._pulls: dict[str, dict[OperationId, int]] = {}
        """The versions that pulls under way need, by source and operation."""
        self.copies: dict[MoveId, Copies] = {}
        self.missing: dict[OperationId, Awaited] = {}
        self.answered_before: set[OperationId] = set()
        """Operations that ended under a former scheduler: the ranks may have their answers."""
        self.answers: dict[OperationId, operations_pb2.OperationResult] = {}
        """The answers of those of them that no rank has on record."""

    def job(self, job_id: str, *, tenant: str) -> JobRecord:
        """Return a tenant's job.

        Raises:
            PlexError: `not_found`; a job of another tenant is not found either.
        """
        record = self.jobs.get(JobId(job_id))
        if record is None or record.tenant != tenant:
            raise not_found(
                f"no job {job_id!r}: it was never created, ended long ago, or ended when the "
                "service was restarted; start another"
            )
        return record

    def deployment(self, deployment_id: str, *, job_id: str, tenant: str) -> DeploymentRecord:
        """Return a deployment of a tenant's job.

        Raises:
            PlexError: `not_found`.
        """
        record = self.deployments.get(DeploymentId(deployment_id))
        if record is None or (record.tenant, record.job_id) != (tenant, job_id):
            raise not_found(f"job {job_id!r} has no deployment {deployment_id!r}; create it first")
        return record

    def hold(self, held: Held) -> None:
        """Keep an operation until it is answered.

        Raises:
            PlexError: `queue_full` when the inline payloads of waiting operations take too much.
        """
        limit = self._config.max_held_payload_bytes
        if self.held_bytes + held.nbytes > limit:
            raise queue_full(
                f"waiting operations hold {self.held_bytes} bytes of inline payload; {held.nbytes} "
                f"more would exceed {limit}; submit again later",
                limit=limit,
            )
        operation_id = OperationId(held.operation.operation_id)
        self.held[operation_id] = held
        if held.kind is OperationKind.PULL:
            pull = held.operation.pull
            self._pulls.setdefault(pull.source_deployment_id, {})[operation_id] = pull.version
        self.held_bytes += held.nbytes

    def let_go(self, operation_id: OperationId) -> Held | None:
        """Take an answered operation out."""
        self.missing.pop(operation_id, None)
        held = self.held.pop(operation_id, None)
        if held is not None:
            self.held_bytes -= held.nbytes
            if held.kind is OperationKind.PULL:
                source = held.operation.pull.source_deployment_id
                del self._pulls[source][operation_id]
                if not self._pulls[source]:
                    del self._pulls[source]
        return held

    def pulled(self) -> list[tuple[DeploymentId, int]]:
        """Return the sources and versions that waiting and running pulls still need."""
        pulls = self._pulls.items()
        return [(DeploymentId(source), n) for source, of in pulls for n in of.values()]

    def forget_jobs(self) -> list[DeploymentId]:
        """Drop the oldest ended jobs beyond the bound; return the deployments that went too."""
        gone: list[DeploymentId] = []
        ended = [job_id for job_id, record in self.jobs.items() if record.has_ended]
        for job_id in ended[: max(0, len(ended) - self._config.max_ended_jobs)]:
            gone.extend(self.jobs.pop(job_id).deployment_ids)
        for deployment_id in gone:
            self.deployments.pop(deployment_id, None)
        return gone

    def live_jobs(self) -> Iterable[JobRecord]:
        """Return the jobs that have not ended."""
        return [record for record in self.jobs.values() if not record.has_ended]

    def held_by(self, tenant: str) -> dict[str, int]:
        """Return what a tenant's deployments have or wait for, by quota; shared devices each."""
        live = {job.job_id for job in self.live_jobs() if job.tenant == tenant}
        held = [
            record
            for record in self.deployments.values()
            if record.job_id in live and record.state is not DeploymentState.FAILED
        ]
        return {
            "devices": sum(num_devices(record.spec) for record in held),
            "host_bytes": sum(record.host_bytes for record in held),
        }


def is_rollout(spec: service_pb2.DeploymentSpec) -> bool:
    """Return whether a deployment is run by the rollout manager."""
    return spec.role == "rollout"


def num_devices(spec: service_pb2.DeploymentSpec) -> int:
    """Return how many devices a deployment needs."""
    if is_rollout(spec):
        return max(1, spec.num_instances)
    return Parallel.from_wire(spec.parallel).world_size


def check_same_spec(known: DeploymentRecord, asked: service_pb2.DeploymentSpec) -> None:
    """Refuse to take a deployment for another one of its name.

    Raises:
        PlexError: `bad_request`, naming the first field that differs.
    """
    for one in service_pb2.DeploymentSpec.DESCRIPTOR.fields:
        found, wanted = getattr(known.spec, one.name), getattr(asked, one.name)
        if found != wanted:
            raise bad_request(
                f"deployment {known.name!r} of job {known.job_id!r} has {one.name} "
                f"{_brief(found)} and is asked for with {_brief(wanted)}; deploy it under a name "
                "of its own"
            )


def _brief(value: object) -> str:
    if isinstance(value, Message):
        return "{" + ", ".join(f"{f.name}: {v}" for f, v in value.ListFields()) + "}"
    return repr(value)
