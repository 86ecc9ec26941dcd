"""What clients ask for, turned into events: jobs, sessions, deployments, operations, payloads."""

from __future__ import annotations

import asyncio

from plexclient.ids import OPERATION_ID_BYTES
from plexclient.wire.v1 import operations_pb2, service_pb2
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.ids import (
    DeploymentId,
    JobId,
    NodeId,
    OperationId,
    TenantId,
    new_operation_id,
    show,
)
from plexsvc.scheduler.core.events import (
    Acknowledged,
    DeploymentRequested,
    JobEndRequested,
    JobSubmitted,
    OperationSubmitted,
    PayloadRefused,
    PayloadStaged,
    Post,
)
from plexsvc.scheduler.core.planning.profile import PPM
from plexsvc.scheduler.core.vocabulary import JobState, OperationKind
from plexsvc.scheduler.driver.driver import SchedulerDriver
from plexsvc.scheduler.faults import fault_from_wire
from plexsvc.scheduler.ledger.jobs import (
    DeploymentRecord,
    Held,
    JobRecord,
    check_same_spec,
    is_rollout,
    num_devices,
)
from plexsvc.scheduler.orders import process_specs

OUTCOMES = {
    service_pb2.JOB_STATE_COMPLETED: JobState.COMPLETED,
    service_pb2.JOB_STATE_FAILED: JobState.FAILED,
    service_pb2.JOB_STATE_CANCELLED: JobState.CANCELLED,
}
MAX_SLOWDOWN = 1000.0
"""Largest bound a job may name; beyond, it is not a bound."""
TOKEN_BYTES = 4
"""Bytes of one packed token id."""


class Intake:
    """Checks what only the driver can know, remembers it, and posts the event."""

    def __init__(self, driver: SchedulerDriver) -> None:
        self._driver = driver
        self._post: Post = driver.post
        self._registry = driver.registry
        self._config = driver.config

    def create_job(self, request: service_pb2.CreateJobRequest) -> JobRecord:
        """Open a job, or return the one already open under this id.

        Raises:
            PlexError: `queue_full` beyond `max_jobs`, `not_found` for another tenant's job.
        """
        self._driver.check_open()
        if JobId(request.job_id) in self._registry.jobs:
            record = self._registry.job(request.job_id, tenant=request.tenant)
            self._driver.sessions.heard(record)
            return record
        self._check_room(request)
        _slowdown_ppm(request)
        view = service_pb2.Job(
            job_id=request.job_id,
            name=request.name,
            tenant=request.tenant,
            state=service_pb2.JOB_STATE_QUEUED,
            created_us=self._driver.clock.wall_us(),
            session_ttl_us=self._driver.sessions.ttl_us(request.session_ttl_us),
            labels=request.labels,
        )
        record = JobRecord(view=view)
        self._registry.jobs[JobId(request.job_id)] = record
        self._driver.sessions.opened(record)
        self._driver.recorder.job_created(record)
        self._post(
            JobSubmitted(
                job_id=JobId(request.job_id),
                tenant=TenantId(request.tenant),
                name=request.name,
                priority=request.priority,
                max_slowdown_ppm=_slowdown_ppm(request),
            )
        )
        return record

    def keep_alive(self, request: service_pb2.KeepAliveRequest) -> service_pb2.KeepAliveReply:
        """Note that the client lives, what it has received and how far it is."""
        record = self._registry.job(request.job_id, tenant=request.tenant)
        self._driver.sessions.heard(record)
        if request.metrics:
            record.metrics = dict(request.metrics)
            record.metrics_us = self._driver.clock.wall_us()
        durable = {}
        for deployment_id in record.view.deployment_ids:
            deployment = self._registry.deployments[DeploymentId(deployment_id)]
            durable[deployment_id] = deployment.acked_seq
            self._acknowledge(deployment, request.acks.get(deployment_id, 0))
        return service_pb2.KeepAliveReply(
            durable_seqs=durable, state=record.view.state, reason=record.view.reason
        )

    def end_job(self, request: service_pb2.EndJobRequest) -> JobRecord:
        """End a job; ending it again changes nothing.

        Raises:
            PlexError: `not_found`, or `bad_request` for an outcome that is no end.
        """
        record = self._registry.job(request.job_id, tenant=request.tenant)
        if request.outcome not in OUTCOMES:
            raise PlexError(
                ErrorCode.BAD_REQUEST,
                f"job {request.job_id!r} cannot end as {request.outcome}; give COMPLETED, "
                "FAILED or "
                "CANCELLED",
            )
        if not record.ended.is_set():
            if request.HasField("exit_code") and not record.view.HasField("exit_code"):
                record.view.exit_code = request.exit_code
            self._post(
                JobEndRequested(
                    job_id=JobId(request.job_id),
                    outcome=OUTCOMES[request.outcome],
                    reason=request.reason,
                )
            )
        return record

    async def create_deployment(
        self, request: service_pb2.CreateDeploymentRequest
    ) -> DeploymentRecord:
        """Record a deployment and have it brought up, or return the one already known.

        Raises:
            PlexError: `not_found` job, `job_ended`, `unknown_model`, `queue_full`, `bad_request`.
        """
        self._driver.check_open()
        job = self._registry.job(request.job_id, tenant=request.tenant)
        deployment_id = DeploymentId(request.deployment_id)
        if deployment_id in self._registry.deployments:
            return self._known(request)
        spec = self._complete_spec(request)
        facts = await asyncio.to_thread(process_specs.read_model, spec.model)
        if deployment_id in self._registry.deployments:
            return self._known(request)  # the same call came twice while the model was read
        self._check_deployable(job, request)
        record = self._new_record(request, spec=spec, facts=facts)
        self._registry.deployments[deployment_id] = record
        job.view.deployment_ids.append(deployment_id)
        self._post_deployment(record)
        return record

    def submit(self, operation: operations_pb2.Operation) -> operations_pb2.OperationResult | None:
        """Post a new operation; return the kept answer of a known one, else `None`: await it.

        Raises:
            PlexError: what keeps it from being posted; nothing is recorded then.
        """
        operation_id = OperationId(operation.operation_id)
        known = self._driver.results.get(operation_id)
        if known is not None or operation_id in self._registry.held:
            return known
        kind = self._check(operation)
        is_staged = operation.payload.WhichOneof("form") != "staged"
        held = Held(
            operation=operation,
            kind=kind,
            nbytes=operation.ByteSize(),
            submitted_us=self._driver.clock.wall_us(),
        )
        self._registry.hold(operation_id, held)
        self._post(
            OperationSubmitted(
                operation_id=operation_id,
                job_id=JobId(operation.job_id),
                deployment_id=DeploymentId(operation.deployment_id),
                seq=operation.seq,
                kind=kind,
                after=tuple(map(OperationId, operation.after)),
                is_staged=is_staged,
                num_tokens=_num_tokens(operation),
            )
        )
        return None

    def payload_staged(self, request: service_pb2.PayloadStagedRequest) -> None:
        """Note what became of an operation's payload.

        Raises:
            PlexError: `not_found` when the operation is not here: submit it, then say so again.
        """
        operation_id = OperationId(request.operation_id)
        held = self._registry.held.get(operation_id)
        if held is None:
            if self._has_ended(operation_id):
                self._post(PayloadStaged(operation_id=operation_id))
                return
            raise PlexError(
                ErrorCode.NOT_FOUND,
                f"{show(operation_id)} has not been submitted; submit it, then announce its "
                "payload",
            )
        if request.HasField("error"):
            fault = fault_from_wire(request.error)
            self._post(PayloadRefused(operation_id=operation_id, fault=fault))
            return
        if request.HasField("plan"):
            held.operation.plan.CopyFrom(request.plan)
        held.staged_on = tuple(map(NodeId, request.node_ids))
        self._post(PayloadStaged(operation_id=operation_id))

    def _has_ended(self, operation_id: OperationId) -> bool:
        released = self._driver.core.cluster.released
        return self._driver.results.get(operation_id) is not None or operation_id in released

    def _acknowledge(self, record: DeploymentRecord, seq: int) -> None:
        if seq > record.acked_seq:
            record.acked_seq = seq
            deployment_id = DeploymentId(record.view.deployment_id)
            self._post(Acknowledged(deployment_id=deployment_id, seq=seq))

    def _check_room(self, request: service_pb2.CreateJobRequest) -> None:
        live = sum(1 for _ in self._registry.live_jobs())
        if live >= self._config.max_jobs:
            raise PlexError(
                ErrorCode.QUEUE_FULL,
                f"job {request.job_id!r} not accepted: {live} jobs are open (scheduler.max_jobs); "
                "try again when one has ended",
                limit=self._config.max_jobs,
            )

    def _known(self, request: service_pb2.CreateDeploymentRequest) -> DeploymentRecord:
        """Return what is there under the id; nobody gets another deployment than they asked for."""
        record = self._registry.deployment(
            request.deployment_id, job_id=request.job_id, tenant=request.tenant
        )
        check_same_spec(record.view, self._complete_spec(request))
        return record

    def _complete_spec(
        self, request: service_pb2.CreateDeploymentRequest
    ) -> service_pb2.DeploymentSpec:
        """Return the spec with the model of the deployment it takes it from."""
        spec = service_pb2.DeploymentSpec()
        spec.CopyFrom(request.spec)
        if spec.model_deployment_id and not spec.model:
            source = self._registry.deployment(
                spec.model_deployment_id, job_id=request.job_id, tenant=request.tenant
            )
            spec.model = source.view.spec.model
        return spec

    def _check_deployable(
        self, job: JobRecord, request: service_pb2.CreateDeploymentRequest
    ) -> None:
        if job.ended.is_set() or job.is_expired:
            raise PlexError(ErrorCode.JOB_ENDED, f"job {request.job_id!r} has ended; start another")
        limit = self._config.max_deployments_per_job
        if len(job.view.deployment_ids) >= limit:
            raise PlexError(
                ErrorCode.QUEUE_FULL,
                f"job {request.job_id!r} already has {limit} deployments "
                "(scheduler.max_deployments_per_job)",
                limit=limit,
            )
        p = request.spec.parallel
        if is_rollout(request.spec) and max(p.tp, p.pp, p.dp, p.cp) > 1:
            raise PlexError(
                ErrorCode.BAD_REQUEST,
                f"rollout deployment {request.name!r} asks for a parallel layout; an instance "
                "runs on "
                "one device, ask for more instances (num_instances)",
            )

    def _new_record(
        self,
        request: service_pb2.CreateDeploymentRequest,
        *,
        spec: service_pb2.DeploymentSpec,
        facts: process_specs.ModelFacts,
    ) -> DeploymentRecord:
        longest = facts.max_sequence_length
        if is_rollout(spec):
            asked = spec.max_model_len or self._config.max_model_len
            longest = min(asked, longest) if longest else asked
        view = service_pb2.Deployment(
            deployment_id=request.deployment_id,
            job_id=request.job_id,
            tenant=request.tenant,
            name=request.name,
            spec=spec,
            state="starting",
            vocab_size=facts.vocab_size,
            max_sequence_length=longest,
            model_files=facts.files,
        )
        return DeploymentRecord(view=view, initialize_id=new_operation_id())

    def _post_deployment(self, record: DeploymentRecord) -> None:
        view, initialize_id = record.view, record.initialize_id
        operation = operations_pb2.Operation(
            operation_id=initialize_id,
            tenant=view.tenant,
            job_id=view.job_id,
            deployment_id=view.deployment_id,
            initialize=operations_pb2.Initialize(),
        )
        self._registry.hold(
            initialize_id,
            Held(
                operation=operation,
                kind=OperationKind.INITIALIZE,
                nbytes=0,
                submitted_us=self._driver.clock.wall_us(),
            ),
        )
        rollout = is_rollout(view.spec)
        self._post(
            DeploymentRequested(
                deployment_id=DeploymentId(view.deployment_id),
                job_id=JobId(view.job_id),
                initialize_id=initialize_id,
                role=view.spec.role,
                backend=view.spec.backend,
                device_kind="rollout" if rollout else "train",
                num_devices=num_devices(view.spec),
                is_rollout=rollout,
                name=view.name,
                model=view.spec.model,
                layout=_layout(view.spec),
            )
        )

    def _check(self, operation: operations_pb2.Operation) -> OperationKind:
        """Refuse what no deployment could run; return the operation's kind."""
        self._driver.check_open()
        self._registry.job(operation.job_id, tenant=operation.tenant)
        body = operation.WhichOneof("body")
        if len(operation.operation_id) != OPERATION_ID_BYTES:
            raise PlexError(
                ErrorCode.BAD_REQUEST,
                f"operation id has {len(operation.operation_id)} bytes; mint {OPERATION_ID_BYTES}",
            )
        if body is None and not operation.seq:
            raise PlexError(
                ErrorCode.RESULT_GONE,
                f"{show(operation.operation_id)} is not known: its answer was acknowledged or "
                "dropped "
                "(scheduler.max_result_bytes)",
            )
        if body is None or body == OperationKind.INITIALIZE or not operation.seq:
            raise PlexError(
                ErrorCode.BAD_REQUEST,
                f"{show(operation.operation_id)} has body {body!r} and seq {operation.seq}; "
                "give it "
                "something to do and a number from 1",
            )
        return OperationKind(body)


def _slowdown_ppm(request: service_pb2.CreateJobRequest) -> int:
    """Return a job's bound on its slowdown, 0 when it names none."""
    asked = request.max_slowdown
    if asked and not 1.0 <= asked <= MAX_SLOWDOWN:
        raise PlexError(
            ErrorCode.BAD_REQUEST,
            f"job {request.job_id!r} asks for a max_slowdown of {asked:g}; give 1 (share with "
            f"nobody who costs time) to {MAX_SLOWDOWN:g}, or 0 for the cluster's default",
        )
    return round(asked * PPM)


def _layout(spec: service_pb2.DeploymentSpec) -> str:
    """Return what of a deployment, besides its model, decides how long its operations take."""
    p = spec.parallel
    ranks = f"tp{p.tp or 1} pp{p.pp or 1} dp{p.dp or 1} cp{p.cp or 1} ep{p.ep or 1}"
    return f"{spec.backend} {spec.role} {ranks} {spec.dtype} {spec.micro_batch_tokens}"


def _num_tokens(operation: operations_pb2.Operation) -> int:
    """Return the length of the packed `tokens` array, 0 without one."""
    payload = operation.payload
    specs = payload.staged.tensors if payload.HasField("staged") else payload.inline.tensors
    return next((s.nbytes // TOKEN_BYTES for s in specs if s.name == "tokens"), 0)
