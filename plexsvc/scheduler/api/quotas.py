"""Handlers for quotas: how much a tenant may have, set and listed by operators."""

from __future__ import annotations

from collections import Counter
from typing import Final

from plexclient.wire.v1 import service_pb2 as pb
from plexsvc.ids import TenantId
from plexsvc.rpc.services import Methods
from plexsvc.scheduler.live import LiveScheduler
from plexsvc.store.rows import QuotaRow


async def set_quota(scheduler: LiveScheduler, request: pb.SetQuotaRequest) -> pb.ListQuotasReply:
    """Set or lift a tenant's quota, which binds what comes; return all.

    Raises:
        PlexError: why it could not be stored; the one before stays.
    """
    scheduler.check_open()
    most = 0 if request.is_lifted else request.most
    await scheduler.remember(QuotaRow(tenant=request.owner, what=request.what, most=most))
    quotas, tenant = scheduler.registry.job_quotas, TenantId(request.owner)
    if most:
        quotas[tenant] = most
    else:
        quotas.pop(tenant, None)
    return await list_quotas(scheduler, pb.ListQuotasRequest())


async def list_quotas(scheduler: LiveScheduler, _: pb.ListQuotasRequest) -> pb.ListQuotasReply:
    """Return the quotas by tenant, with what each has."""
    used = Counter(job.tenant for job in scheduler.registry.live_jobs())
    return pb.ListQuotasReply(
        quotas=[
            pb.QuotaView(owner=tenant, what="jobs", most=most, used=used[tenant])
            for tenant, most in sorted(scheduler.registry.job_quotas.items())
        ]
    )


METHODS: Final[Methods] = {"SetQuota": set_quota, "ListQuotas": list_quotas}
