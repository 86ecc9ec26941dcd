"""Handlers for quotas: how much a tenant may have, set and listed by operators."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from plexclient.wire.v1 import service_pb2 as pb
from plexsvc.ids import TenantId
from plexsvc.rpc.services import Methods
from plexsvc.scheduler.live import LiveScheduler
from plexsvc.store.rows import QuotaRow


class Quotas:
    """The quotas of all tenants; `on_changed` is called for each that is set or lifted."""

    def __init__(self, scheduler: LiveScheduler, *, on_changed: Callable[[], None]) -> None:
        self._scheduler = scheduler
        self._on_changed = on_changed
        self.methods: Methods = {"SetQuota": self.set, "ListQuotas": self.list}

    async def set(self, request: pb.SetQuotaRequest) -> pb.ListQuotasReply:
        """Set or lift a tenant's quota, which binds what comes; return all.

        Raises:
            PlexError: why it could not be stored; the one before stays.
        """
        self._scheduler.check_open()
        most = 0 if request.is_lifted else request.most
        row = QuotaRow(tenant=request.owner, what=request.what, most=most)
        await self._scheduler.remember(row)
        self._scheduler.registry.quotas[TenantId(row.tenant), row.what] = most
        self._on_changed()
        return await self.list(pb.ListQuotasRequest())

    async def list(self, _: pb.ListQuotasRequest) -> pb.ListQuotasReply:
        """Return the quotas that bind, by tenant, with what each has."""
        registry = self._scheduler.registry
        jobs = Counter(job.tenant for job in registry.live_jobs())
        reply = pb.ListQuotasReply()
        for (tenant, what), most in sorted(registry.quotas.items()):
            if most:
                match what:
                    case "jobs":
                        used = jobs[tenant]
                    case "devices" | "host_bytes":
                        used = registry.held_by(tenant)[what]
                    case "spend":
                        used = self._scheduler.caps.spent_s(tenant)
                    case _:  # routers count requests, each for itself
                        used = 0
                reply.quotas.add(owner=tenant, what=what, most=most, used=used)
        return reply
