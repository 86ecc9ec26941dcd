"""Interference report: who had devices for how long, and who waited for whom.

A wait counts device work that could have run had the device been free. A tenant sees its own jobs
by name and everybody else as one, the nameless tenant.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Final

from plexclient.wire.v1 import service_pb2
from plexsvc.ids import JobId, TenantId
from plexsvc.rpc.services import Methods
from plexsvc.scheduler.api.views.lens import Lens
from plexsvc.scheduler.api.views.waiting import Waits, lasted_us
from plexsvc.scheduler.ledger import messages
from plexsvc.scheduler.ledger.bill import POOLED
from plexsvc.scheduler.ledger.jobs import JobRecord
from plexsvc.scheduler.live import LiveScheduler


async def report(
    scheduler: LiveScheduler, request: service_pb2.ReportRequest
) -> service_pb2.ReportReply:
    """Return the report of every job still known, ended ones too (`max_ended_jobs`)."""
    scheduler.read_bill()
    lens, waits = Lens(scheduler.registry, request), Waits(scheduler)
    records = list(scheduler.registry.jobs.values())
    now_us = scheduler.clock.wall_us()
    reply = service_pb2.ReportReply(
        now_us=now_us, since_us=min((r.created_us for r in records), default=now_us)
    )
    uses: dict[str, service_pb2.TenantUse] = {}
    for record in records:
        use = _job(scheduler, record, waits=waits, lens=lens)
        tenant = lens.tenant_of(record.job_id)
        _add(uses.setdefault(tenant, service_pb2.TenantUse(tenant=tenant)), use)
        if lens.sees(record.job_id):
            reply.jobs.append(use)
    for tenant, total in uses.items():
        if tenant:
            _share(scheduler, total)
    reply.tenants.extend(uses[tenant] for tenant in sorted(uses, key=lambda t: (not t, t)))
    _matrix(reply, waits=waits, lens=lens)
    return reply


def _job(
    scheduler: LiveScheduler, record: JobRecord, *, waits: Waits, lens: Lens
) -> service_pb2.JobUse:
    job_id = record.job_id
    used = dict(scheduler.bill.of(job_id))
    pooled = used.pop(POOLED, None)
    use = service_pb2.JobUse(
        job_id=job_id,
        name=record.name,
        tenant=record.tenant,
        state=messages.JOB_STATES[record.state],
        lasted_us=lasted_us(scheduler, job_id),
        device_us=sum(one.device_us for one in used.values()),
        wait_us=waits.total_us(job_id),
        wait_ratio_ppm=waits.ratio_ppm(job_id),
        switches=used["switch_in"].count if "switch_in" in used else 0,
        switch_us=sum(one.switch_us for one in used.values()),
    )
    for deployment_id in record.deployment_ids:
        scheduler.rollout.bill(deployment_id, use)
    use.pooled_us = 0 if pooled is None else pooled.device_us  # with that of earlier services
    for blocker, blocked_us in sorted(waits.by_blocker(job_id).items(), key=lambda w: -w[1]):
        seen = lens.sees(blocker)
        use.waits.append(
            service_pb2.JobWait(
                job_id=blocker if seen else "",
                job_name=lens.job_name(blocker),
                wait_us=blocked_us,
            )
        )
    _slowdown(scheduler, use, job_id)
    return use


def _slowdown(scheduler: LiveScheduler, use: service_pb2.JobUse, job_id: JobId) -> None:
    """Add the worst slowdown among the job's training deployments: predicted and measured."""
    cluster = scheduler.cluster
    job = cluster.jobs.get(job_id)
    for deployment_id in job.deployments if job is not None else ():
        deployment = cluster.deployments[deployment_id]
        planner = cluster.planners[deployment.device_kind]
        key = deployment.resident_id
        if key not in planner.board.group_of:
            continue
        group = planner.board.groups[planner.board.group_of[key]]
        use.predicted_ppm = max(use.predicted_ppm, planner.ring(group).slowdowns[key])
        use.measured_ppm = max(use.measured_ppm, group.residents[key].pace_ppm or 0)
        use.bound_ppm = group.residents[key].demand.max_slowdown_ppm


def _share(scheduler: LiveScheduler, total: service_pb2.TenantUse) -> None:
    """Add what a tenant may have, has and waits for."""
    cluster, tenant = scheduler.cluster, TenantId(total.tenant)
    waiting = [cluster.jobs[cluster.deployments[name].job_id] for name in cluster.unplaced]
    total.weight = cluster.shares.weight(tenant)
    total.share_ppm = cluster.shares.share_ppm(tenant)
    total.waiting = sum(job.tenant == tenant for job in waiting)
    total.max_priority = scheduler.config.tenant_priorities.get(tenant, 0)


def _add(total: service_pb2.TenantUse, use: service_pb2.JobUse) -> None:
    total.jobs += 1
    total.device_us += use.device_us
    total.wait_us += use.wait_us
    total.switches += use.switches
    total.switch_us += use.switch_us
    total.pooled_us += use.pooled_us
    total.cost += use.cost


def _matrix(reply: service_pb2.ReportReply, *, waits: Waits, lens: Lens) -> None:
    cells: dict[tuple[str, str], int] = defaultdict(int)
    for waiter, blocker, wait_us in waits.pairs():
        cells[lens.tenant_of(waiter), lens.tenant_of(blocker)] += wait_us
    for (waiting, blocking), wait_us in sorted(cells.items()):
        reply.matrix.append(
            service_pb2.Interference(waiting=waiting, blocking=blocking, wait_us=wait_us)
        )


METHODS: Final[Methods] = {"GetReport": report}
