"""Handlers for deployments: create one or a set, look one up."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from plexclient.specs import HOST, Parallel
from plexclient.wire.v1 import service_pb2
from plexsvc import sizes
from plexsvc.errors import ErrorCode, PlexError, bad_request, queue_full
from plexsvc.ids import DeploymentId, JobId, TenantId, new_operation_id, rollout_kind
from plexsvc.lora import Lora
from plexsvc.rpc.services import Methods
from plexsvc.scheduler.api.views import status
from plexsvc.scheduler.config import SchedulerConfig
from plexsvc.scheduler.core.events import DeploymentRequested, DeploymentsDeclared
from plexsvc.scheduler.faults import error_of
from plexsvc.scheduler.ledger.durable import Durable
from plexsvc.scheduler.ledger.jobs import (
    DeploymentRecord,
    JobRecord,
    check_same_spec,
    is_rollout,
    num_devices,
)
from plexsvc.scheduler.live import LiveScheduler
from plexsvc.scheduler.orders import process_specs

LEFT_LOOK_US: Final = 20_000
"""How often it is looked whether what a former controller had sent has ended."""

ENGINE_BYTES: Final = 256 << 20
"""What an engine computes in, beside its weights and its cache: a guess."""


async def create_deployment(
    scheduler: LiveScheduler, request: service_pb2.CreateDeploymentRequest
) -> service_pb2.Deployment:
    """Bring a deployment up, or find the one already known; return when it is ready.

    Raises:
        PlexError: `not_found` job, `job_ended`, `unknown_model`, `queue_full`, `bad_request`,
            `no_placement`, or what it failed with. One that the devices of all nodes cannot hold is
            refused before it is recorded, so nothing is left of it.
    """
    (made,) = await _ready(scheduler, [request])
    return made


async def create_deployments(
    scheduler: LiveScheduler, request: service_pb2.CreateDeploymentsRequest
) -> service_pb2.CreateDeploymentsReply:
    """Bring a job's deployments up as one set: all get devices at once, or none holds any.

    Raises:
        PlexError: as `create_deployment`. A refusal before devices are asked for leaves nothing.
    """
    made = await _ready(scheduler, request.deployments)
    return service_pb2.CreateDeploymentsReply(deployments=made)


async def get_deployment(
    scheduler: LiveScheduler, request: service_pb2.GetDeploymentRequest
) -> service_pb2.Deployment:
    """Return a deployment as it is."""
    record = scheduler.registry.deployment(
        request.deployment_id, job_id=request.job_id, tenant=request.tenant
    )
    return status.deployment(scheduler, record)


async def _ready(
    scheduler: LiveScheduler, asked: Sequence[service_pb2.CreateDeploymentRequest]
) -> list[service_pb2.Deployment]:
    records = await _records(scheduler, asked)
    for record in records:
        await scheduler.recorder.until_settled(record)
        while _has_left(scheduler, record):
            await scheduler.clock.sleep(LEFT_LOOK_US)
    return [status.ready_deployment(scheduler, record) for record in records]


async def _records(
    scheduler: LiveScheduler, asked: Sequence[service_pb2.CreateDeploymentRequest]
) -> list[DeploymentRecord]:
    scheduler.check_open()
    job = scheduler.registry.job(asked[0].job_id, tenant=asked[0].tenant)
    facts = {
        one.deployment_id: await asyncio.to_thread(process_specs.read_model, one.spec)
        for one in _unknown(scheduler, asked)
    }
    new = _unknown(scheduler, asked)  # the same call may have come twice while models were read
    _check_deployable(scheduler, job, new)
    records = {
        one.deployment_id: _new_record(scheduler, one, facts[one.deployment_id]) for one in new
    }
    found = [records.get(one.deployment_id) or _known(scheduler, one) for one in asked]
    wanted = [_wanted(scheduler, record, facts[name]) for name, record in records.items()]
    for record, one in zip(records.values(), wanted, strict=True):
        each = one.state_bytes + one.optimizer_bytes + one.version_bytes
        record.host_bytes = one.num_devices * each
    _check_quota(scheduler, job, "devices", asked=sum(one.num_devices for one in wanted))
    _check_quota(scheduler, job, "host_bytes", asked=sum(r.host_bytes for r in records.values()))
    fault = scheduler.cluster.never(wanted)
    if fault is not None:
        raise error_of(fault)
    for record in records.values():
        scheduler.recorder.deployment_opened(record)
    if len(wanted) == 1:
        scheduler.post(wanted[0])
    elif wanted:
        scheduler.post(DeploymentsDeclared(job_id=job.job_id, deployments=tuple(wanted)))
    return found


def _has_left(scheduler: LiveScheduler, record: DeploymentRecord) -> bool:
    """Whether operations of a former controller still run."""
    controller = scheduler.registry.jobs[record.job_id].controller
    deployment = scheduler.cluster.deployments.get(record.deployment_id)
    wpg = None if deployment is None else scheduler.cluster.wpg_of(deployment)
    if not controller or wpg is None:
        return False
    return any(
        (held := scheduler.registry.held.get(operation_id)) is None
        or held.operation.controller != controller
        for operation_id in (*wpg.running, *wpg.writing)
    )


def _unknown(
    scheduler: LiveScheduler, asked: Sequence[service_pb2.CreateDeploymentRequest]
) -> list[service_pb2.CreateDeploymentRequest]:
    known = scheduler.registry.deployments
    return [one for one in asked if DeploymentId(one.deployment_id) not in known]


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
    scheduler: LiveScheduler,
    job: JobRecord,
    asked: Sequence[service_pb2.CreateDeploymentRequest],
) -> None:
    if not asked:
        return
    if job.has_ended or scheduler.sessions.has_expired(job):
        raise PlexError(ErrorCode.JOB_ENDED, f"job {job.job_id!r} has ended; start another")
    limit = scheduler.config.max_deployments_per_job
    has = len(job.deployment_ids)
    if has + len(asked) > limit:
        raise bad_request(
            f"job {job.job_id!r} has {has} deployments and asks for {len(asked)} more; it may have "
            f"{limit}: start another job",
            limit=limit,
        )
    for one in asked:
        tp, kinds = one.spec.parallel.tp, {d.kind for d in scheduler.cluster.devices.values()}
        if tp > 1 and is_rollout(one.spec) and device_kind(one.spec) not in kinds:
            raise PlexError(
                ErrorCode.NO_PLACEMENT,
                f"rollout deployment {one.name!r} asks for parallel tp = {tp}; no node has a "
                f"device for that (there are {', '.join(sorted(kinds)) or 'none'}): ask for "
                f"another tp, or an operator for a rollout device with tp = {tp}",
                degree="tp",
            )


def _new_record(
    scheduler: LiveScheduler,
    request: service_pb2.CreateDeploymentRequest,
    facts: process_specs.DeclaredModel,
) -> DeploymentRecord:
    spec = request.spec
    longest = facts.max_sequence_length
    if longest and spec.max_model_len > longest:
        raise bad_request(
            f"deployment {request.name!r} asks for max_model_len={spec.max_model_len}; its model "
            f"{spec.model} takes sequences of {longest} at most",
            field="max_model_len",
            limit=longest,
        )
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
        instance_bytes=_instance_bytes(spec, facts, scheduler.config),
        durable=Durable() if spec.is_durable else None,
    )


def _check_quota(scheduler: LiveScheduler, job: JobRecord, what: str, *, asked: int) -> None:
    """Refuse deployments that ask for more than their tenant may have."""
    quota = scheduler.registry.quotas.get((job.tenant, what))
    if not quota or not asked:
        return  # most tenants: what they hold is not counted, which takes a look at every job
    if asked > quota:  # no wait mends that
        raise PlexError(
            ErrorCode.NO_PLACEMENT,
            f"not deployed: tenant {job.tenant!r} asks for {asked} {what}, and its quota is "
            f"{quota}; ask for less, or an operator for more (`plexctl quota`)",
            limit=quota,
        )
    held = scheduler.registry.held_by(job.tenant)[what]
    if held + asked > quota:
        raise queue_full(
            f"not deployed: tenant {job.tenant!r} has deployments on {held} {what} and asks for "
            f"{asked} more, and its quota is {quota}; end a job, or ask an operator for more "
            "(`plexctl quota`)",
            limit=quota,
        )


def _wanted(
    scheduler: LiveScheduler, record: DeploymentRecord, facts: process_specs.DeclaredModel
) -> DeploymentRequested:
    spec = record.spec
    size = _sizes(spec, facts)
    version_bytes = size.version if spec.HasField("optimizer") else 0
    return DeploymentRequested(
        deployment_id=record.deployment_id,
        job_id=record.job_id,
        initialize_id=record.initialize_id,
        role=spec.role,
        backend=spec.backend,
        device_kind=device_kind(spec),
        num_devices=num_devices(spec),
        is_rollout=record.is_rollout,
        is_shared=spec.shares_devices,
        where_it_trains=spec.where_it_trains,
        instance_bytes=record.instance_bytes,
        is_durable=spec.is_durable,
        name=record.name,
        model=spec.model,
        layout=_layout(spec),
        state_bytes=size.state - size.frozen,
        steps_on_host=spec.optimizer.on == HOST,
        optimizer_bytes=size.host,
        shared_model=_shared_model(spec) if size.frozen else "",
        model_bytes=size.frozen,
        version_bytes=version_bytes * (scheduler.config.max_versions_per_deployment + 1),
    )


def device_kind(spec: service_pb2.DeploymentSpec) -> str:
    """Return the kind of devices that a deployment is placed on."""
    if not is_rollout(spec) or spec.where_it_trains:
        return "train"
    return rollout_kind(max(1, spec.parallel.tp))


def _shared_model(spec: service_pb2.DeploymentSpec) -> str:
    """Return what all call a frozen model whose parts they can share."""
    ranks = Parallel.from_wire(spec.parallel).world_size
    return f"{spec.model_root}:{spec.model} {spec.dtype} on {ranks}"


def _instance_bytes(
    spec: service_pb2.DeploymentSpec, facts: process_specs.DeclaredModel, config: SchedulerConfig
) -> int:
    """Return what an engine that shares a rollout device takes of it: 0 for all that there is.

    So much is known of one whose cache has a size: that, its weights, and a quarter of these with
    `ENGINE_BYTES` for what it computes in.
    """
    cache_bytes = spec.kv_cache_bytes or config.kv_cache_bytes
    if not spec.shares_devices or spec.where_it_trains or not cache_bytes:
        return 0
    found = sizes.of(
        facts.config, backend="megatron", dtype=spec.dtype, parallel=Parallel(), is_trained=False
    )
    return found.state and found.state * 5 // 4 + cache_bytes + ENGINE_BYTES


def _sizes(spec: service_pb2.DeploymentSpec, facts: process_specs.DeclaredModel) -> sizes.Sizes:
    """Estimate what a deployment takes in host memory; instances have no state there."""
    if is_rollout(spec):
        return sizes.Sizes()
    return sizes.of(
        facts.config,
        backend=spec.backend,
        dtype=spec.dtype,
        parallel=Parallel.from_wire(spec.parallel),
        is_trained=spec.HasField("optimizer"),
        lora=Lora.from_wire(spec.lora) if spec.HasField("lora") else None,
        steps_on_host=spec.optimizer.on == HOST,
    )


def _layout(spec: service_pb2.DeploymentSpec) -> str:
    """Return what of a deployment, besides its model, decides how long its operations take."""
    p = Parallel.from_wire(spec.parallel)
    ranks = f"tp{p.tp} pp{p.pp} dp{p.dp} cp{p.cp} ep{p.ep}"
    rest = f"{spec.dtype} {spec.micro_batch_tokens} {spec.recompute}".rstrip()
    rest += " on host" * (spec.optimizer.on == HOST)
    rest += f" lora{spec.lora.rank}" * spec.HasField("lora")
    return f"{spec.backend} {spec.role} {ranks} {rest}{' zero1' * p.distributed_optimizer}"


METHODS: Final[Methods] = {
    "CreateDeployment": create_deployment,
    "CreateDeployments": create_deployments,
    "GetDeployment": get_deployment,
}
