"""Handlers for jobs and their sessions: create, keep alive, end."""

from __future__ import annotations

from typing import Final

from plexclient.wire.v1 import service_pb2
from plexsvc.errors import ErrorCode, PlexError, bad_request, queue_full
from plexsvc.ids import JobId, TenantId
from plexsvc.rpc.services import Methods
from plexsvc.scheduler.core.events import (
    Acknowledged,
    ControllerReplaced,
    JobEndRequested,
    JobSubmitted,
)
from plexsvc.scheduler.core.planning.profile import PPM
from plexsvc.scheduler.core.vocabulary import JobState
from plexsvc.scheduler.ledger import messages
from plexsvc.scheduler.ledger.jobs import JobRecord
from plexsvc.scheduler.live import LiveScheduler
from plexsvc.slots import Limit

OUTCOMES: Final = {
    service_pb2.JOB_STATE_COMPLETED: JobState.COMPLETED,
    service_pb2.JOB_STATE_FAILED: JobState.FAILED,
    service_pb2.JOB_STATE_CANCELLED: JobState.CANCELLED,
}
MAX_SLOWDOWN: Final = 1000.0
"""Largest bound a job may name; beyond, it is not a bound."""


async def create_job(
    scheduler: LiveScheduler, request: service_pb2.CreateJobRequest
) -> service_pb2.Job:
    """Open a job, or return the one already open under this id, or the one that is resumed.

    Raises:
        PlexError: `queue_full` beyond `max_jobs` or the tenant's quota, `over_budget`, `not_found`
            for another tenant's job, `forbidden` for a priority above the tenant's.
    """
    scheduler.check_open()
    if request.resume_id and (former := _former(scheduler, request)) is not None:
        await _resume(scheduler, former, request)
        return messages.job(former)
    if JobId(request.job_id) in scheduler.registry.jobs:
        record = scheduler.registry.job(request.job_id, tenant=request.tenant)
        scheduler.sessions.heard(record)
        return messages.job(record)
    tenants = [job.tenant for job in scheduler.registry.live_jobs()]
    limit = Limit(total=scheduler.config.max_jobs, what="jobs", key="scheduler.max_jobs")
    tenant = TenantId(request.tenant)
    held, quota = tenants.count(tenant), scheduler.registry.quotas.get((tenant, "jobs"))
    limit.check(request.tenant, held=held, taken=len(tenants))
    if quota and held >= quota:
        raise queue_full(
            f"job {request.job_id!r} not opened: tenant {tenant!r} has {held} jobs, and its quota "
            f"is {quota}; end one, or ask an operator for more (`plexctl quota`)",
            limit=quota,
        )
    scheduler.caps.check(TenantId(request.tenant))
    highest = scheduler.config.tenant_priorities.get(request.tenant, 0)
    if request.priority > highest:
        raise PlexError(
            ErrorCode.FORBIDDEN,
            f"job {request.job_id!r} asks for priority {request.priority}; tenant "
            f"{request.tenant!r} may give {highest} at most; ask an operator for more "
            "(scheduler.tenant_priorities)",
            limit=highest,
        )
    slowdown_ppm = _slowdown_ppm(request)
    record = JobRecord(
        job_id=JobId(request.job_id),
        tenant=TenantId(request.tenant),
        name=request.name,
        labels=dict(request.labels),
        created_us=scheduler.clock.wall_us(),
        session_ttl_us=scheduler.sessions.ttl_us(request.session_ttl_us),
    )
    scheduler.recorder.job_opened(record)
    scheduler.sessions.opened(record)
    scheduler.post(
        JobSubmitted(
            job_id=record.job_id,
            tenant=record.tenant,
            name=record.name,
            priority=request.priority,
            max_slowdown_ppm=slowdown_ppm,
            expected_steps=request.expected_steps,
        )
    )
    return messages.job(record)


async def keep_alive(
    scheduler: LiveScheduler, request: service_pb2.KeepAliveRequest
) -> service_pb2.KeepAliveReply:
    """Keep a session alive; take acknowledgements and progress figures."""
    record = scheduler.registry.job(request.job_id, tenant=request.tenant)
    record.check_controller(request.controller)
    scheduler.sessions.heard(record, period_us=request.period_us)
    if request.metrics:
        scheduler.recorder.job_progressed(record, request.metrics)
    durable: dict[str, int] = {}
    for deployment_id in record.deployment_ids:
        deployment = scheduler.registry.deployments[deployment_id]
        durable[deployment_id] = deployment.acked_seq
        seq = request.acks.get(deployment_id, 0)
        if scheduler.recorder.acknowledged(deployment, seq=seq):
            scheduler.post(Acknowledged(deployment_id=deployment_id, seq=seq))
    return service_pb2.KeepAliveReply(
        durable_seqs=durable,
        state=messages.JOB_STATES[record.state],
        reason=record.reason,
        notice=scheduler.notice(record.tenant),
    )


async def end_job(scheduler: LiveScheduler, request: service_pb2.EndJobRequest) -> service_pb2.Job:
    """End a job; return when its devices are free. Ending it again changes nothing.

    Raises:
        PlexError: `not_found`, or `bad_request` for an outcome that is no end.
    """
    record = scheduler.registry.job(request.job_id, tenant=request.tenant)
    if request.outcome not in OUTCOMES:
        raise bad_request(
            f"job {request.job_id!r} cannot end as {request.outcome}; give COMPLETED, FAILED or "
            "CANCELLED"
        )
    if request.HasField("controller"):
        record.check_controller(request.controller)
    if not record.has_ended:
        if request.HasField("exit_code"):
            scheduler.recorder.job_exited(record, request.exit_code)
        scheduler.post(
            JobEndRequested(
                job_id=record.job_id,
                outcome=OUTCOMES[request.outcome],
                reason=request.reason,
            )
        )
    await scheduler.recorder.until_ended(record)
    return messages.job(record)


def _former(scheduler: LiveScheduler, request: service_pb2.CreateJobRequest) -> JobRecord | None:
    """Return the job that a controller wants to go on with, if it is there.

    Raises:
        PlexError: `bad_request` when several have its name.
    """
    live = [
        job
        for job in scheduler.registry.live_jobs()
        if job.tenant == request.tenant and not scheduler.sessions.has_expired(job)
    ]
    by_id = [job for job in live if job.job_id == request.job_id]
    found = by_id or [job for job in live if job.name == request.name]
    if len(found) > 1:
        raise bad_request(
            f"{len(found)} jobs are called {request.name!r}: "
            f"{', '.join(job.job_id for job in found)}; end all but one, or give another name"
        )
    return found[0] if found else None


async def _resume(
    scheduler: LiveScheduler, record: JobRecord, request: service_pb2.CreateJobRequest
) -> None:
    """Give a job to another controller; what the one before had sent is cancelled.

    Raises:
        PlexError: `bad_request` when its controller lives.
    """
    if record.resume_id == request.resume_id:
        return
    if not request.is_seen_dead:
        await scheduler.sessions.check_silent(record)
    scheduler.recorder.job_resumed(record, resume_id=request.resume_id)
    scheduler.sessions.heard(record)
    for awaited in scheduler.registry.missing.values():
        if awaited.operation.job_id == record.job_id:
            awaited.arrival.set()  # it does not come any more
    await scheduler.post(ControllerReplaced(job_id=record.job_id)).decision


def _slowdown_ppm(request: service_pb2.CreateJobRequest) -> int:
    """Return a job's bound on its slowdown, 0 when it names none."""
    asked = request.max_slowdown
    if asked and not 1.0 <= asked <= MAX_SLOWDOWN:
        raise bad_request(
            f"job {request.job_id!r} asks for a max_slowdown of {asked:g}; give 1 (share with "
            f"nobody who costs time) to {MAX_SLOWDOWN:g}, or 0 for the cluster's default"
        )
    return round(asked * PPM)


METHODS: Final[Methods] = {"CreateJob": create_job, "KeepAlive": keep_alive, "EndJob": end_job}
