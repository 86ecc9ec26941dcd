"""Handlers for deployments: create one, look one up."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Final

from plexclient.specs import Parallel
from plexclient.wire.v1 import service_pb2
from plexsvc import sizes
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.ids import DeploymentId, JobId, TenantId, new_operation_id
from plexsvc.rpc.services import Methods
from plexsvc.scheduler.api.views import status
from plexsvc.scheduler.core.events import DeploymentRequested
from plexsvc.scheduler.ledger.jobs import (
    DeploymentRecord,
    JobRecord,
    check_same_spec,
    is_rollout,
    num_devices,
)
from plexsvc.scheduler.live import LiveScheduler
from plexsvc.scheduler.orders import process_specs


async def create_deployment(
    scheduler: LiveScheduler, request: service_pb2.CreateDeploymentRequest
) -> service_pb2.Deployment:
    """Bring a deployment up, or find the one already known; return when it is ready.

    Raises:
        PlexError: `not_found` job, `job_ended`, `unknown_model`, `queue_full`, `bad_request`, or
            what it failed with.
    """
    record = await _record(scheduler, request)
    await scheduler.recorder.until_settled(record)
    return status.ready_deployment(scheduler, record)


async def get_deployment(
    scheduler: LiveScheduler, request: service_pb2.GetDeploymentRequest
) -> service_pb2.Deployment:
    """Return a deployment as it is."""
    record = scheduler.registry.deployment(
        request.deployment_id, job_id=request.job_id, tenant=request.tenant
    )
    return status.deployment(scheduler, record)


async def _record(
    scheduler: LiveScheduler, request: service_pb2.CreateDeploymentRequest
) -> DeploymentRecord:
    scheduler.check_open()
    job = scheduler.registry.job(request.job_id, tenant=request.tenant)
    deployment_id = DeploymentId(request.deployment_id)
    if deployment_id in scheduler.registry.deployments:
        return _known(scheduler, request)
    facts = await asyncio.to_thread(process_specs.read_model, request.spec)
    if deployment_id in scheduler.registry.deployments:
        return _known(scheduler, request)  # the same call came twice while the model was read
    _check_deployable(scheduler, job, request)
    record = _new_record(scheduler, request, facts)
    scheduler.recorder.deployment_opened(record)
    _post(scheduler, record, facts)
    return record


def _known(
    scheduler: LiveScheduler, request: service_pb2.CreateDeploymentRequest
) -> DeploymentRecord:
    """Return what is there under the id; nobody gets another deployment than they asked for."""
    record = scheduler.registry.deployment(
        request.deployment_id, job_id=request.job_id, tenant=request.tenant
    )
    check_same_spec(record, request.spec)
    return record


def _check_deployable(
    scheduler: LiveScheduler, job: JobRecord, request: service_pb2.CreateDeploymentRequest
) -> None:
    if job.has_ended or scheduler.sessions.has_expired(job):
        raise PlexError(ErrorCode.JOB_ENDED, f"job {request.job_id!r} has ended; start another")
    limit = scheduler.config.max_deployments_per_job
    if len(job.deployment_ids) >= limit:
        raise PlexError(
            ErrorCode.QUEUE_FULL,
            f"job {request.job_id!r} already has {limit} deployments "
            "(scheduler.max_deployments_per_job)",
            limit=limit,
        )
    if is_rollout(request.spec) and Parallel.from_wire(request.spec.parallel).world_size > 1:
        raise PlexError(
            ErrorCode.BAD_REQUEST,
            f"rollout deployment {request.name!r} asks for a parallel layout; an instance runs on "
            "one device, ask for more (instances=2)",
        )


def _new_record(
    scheduler: LiveScheduler,
    request: service_pb2.CreateDeploymentRequest,
    facts: process_specs.ModelFacts,
) -> DeploymentRecord:
    spec = request.spec
    longest = facts.max_sequence_length
    if is_rollout(spec):
        asked = spec.max_model_len or scheduler.config.max_model_len
        longest = min(asked, longest) if longest else asked
    return DeploymentRecord(
        deployment_id=DeploymentId(request.deployment_id),
        job_id=JobId(request.job_id),
        tenant=TenantId(request.tenant),
        name=request.name,
        spec=spec,
        initialize_id=new_operation_id(),
        vocab_size=facts.vocab_size,
        max_sequence_length=longest,
        model_files=facts.files,
    )


def _post(
    scheduler: LiveScheduler, record: DeploymentRecord, facts: process_specs.ModelFacts
) -> None:
    spec = record.spec
    size = _sizes(spec, facts)
    scheduler.post(
        DeploymentRequested(
            deployment_id=record.deployment_id,
            job_id=record.job_id,
            initialize_id=record.initialize_id,
            role=spec.role,
            backend=spec.backend,
            device_kind="rollout" if record.is_rollout and not spec.where_it_trains else "train",
            num_devices=num_devices(spec),
            is_rollout=record.is_rollout,
            is_shared=spec.shares_devices,
            where_it_trains=spec.where_it_trains,
            name=record.name,
            model=spec.model,
            layout=_layout(spec),
            state_bytes=size.state,
            version_bytes=size.version * scheduler.config.max_versions_per_deployment,
        )
    )


def _sizes(spec: service_pb2.DeploymentSpec, facts: process_specs.ModelFacts) -> sizes.Sizes:
    """Estimate what a deployment takes in host memory; instances have no state there."""
    if is_rollout(spec):
        return sizes.Sizes()
    is_trained = spec.HasField("optimizer")
    found = sizes.of(
        facts.config,
        backend=spec.backend,
        dtype=spec.dtype,
        parallel=Parallel.from_wire(spec.parallel),
        is_trained=is_trained,
    )
    return found if is_trained else replace(found, version=0)


def _layout(spec: service_pb2.DeploymentSpec) -> str:
    """Return what of a deployment, besides its model, decides how long its operations take."""
    p = Parallel.from_wire(spec.parallel)
    ranks = f"tp{p.tp} pp{p.pp} dp{p.dp} cp{p.cp} ep{p.ep}"
    return f"{spec.backend} {spec.role} {ranks} {spec.dtype} {spec.micro_batch_tokens}"


METHODS: Final[Methods] = {"CreateDeployment": create_deployment, "GetDeployment": get_deployment}
