"""Caps on what tenants may spend: a notice at nine tenths, the end of their jobs at all of it."""

from __future__ import annotations

from plexsvc.errors import ErrorCode, PlexError
from plexsvc.ids import TenantId
from plexsvc.log import Log
from plexsvc.scheduler.core.events import JobEndRequested, Post
from plexsvc.scheduler.core.view import ClusterView
from plexsvc.scheduler.core.vocabulary import JobState
from plexsvc.scheduler.ledger.bill import Bill
from plexsvc.scheduler.ledger.jobs import Registry

log = Log(__name__)


class Caps:
    """The quotas of `spend`: seconds of devices, switches included, in all that the ledger has."""

    def __init__(self, registry: Registry, bill: Bill, *, view: ClusterView, post: Post) -> None:
        self._registry = registry
        self._bill = bill
        self._view = view
        self._post = post
        self._warned: set[TenantId] = set()

    def notice(self, tenant: TenantId) -> str:
        """Return what a tenant is told that has spent nine tenths of its cap or more, else ""."""
        cap_s, spent_s = self._cap_s(tenant), self.spent_s(tenant)
        if not cap_s or 10 * spent_s < 9 * cap_s:
            return ""
        return (
            f"tenant {tenant!r} has spent {spent_s} of the {cap_s} device-seconds that it may; its "
            "jobs end there, unless an operator allows more (`plexctl quota set TENANT spend`)"
        )

    def spent_s(self, tenant: TenantId) -> int:
        """Return what a tenant has spent, in whole device-seconds."""
        return self._bill.spent_us(tenant) // 1_000_000

    def check(self, tenant: TenantId) -> None:
        """Refuse another job or operation of a tenant that has spent all it may.

        Raises:
            PlexError: `over_budget`.
        """
        cap_s = self._cap_s(tenant)
        if cap_s and self.spent_s(tenant) >= cap_s:
            raise PlexError(ErrorCode.OVER_BUDGET, self._told(tenant), limit=cap_s)

    def heed(self) -> None:
        """End the jobs of tenants that have spent all they may; say who has nearly."""
        for tenant in {job.tenant for job in self._view.jobs.values()}:
            cap_s, notice = self._cap_s(tenant), self.notice(tenant)
            if not notice:
                self._warned.discard(tenant)
            elif tenant not in self._warned:
                self._warned.add(tenant)
                log.warning("a tenant has spent nine tenths of its cap", tenant=tenant, cap_s=cap_s)
            if cap_s and self.spent_s(tenant) >= cap_s:
                self._end(tenant)

    def _end(self, tenant: TenantId) -> None:
        for job in [job for job in self._view.jobs.values() if job.tenant == tenant]:
            if job.ending is None:
                self._post(
                    JobEndRequested(
                        job_id=job.job_id,
                        outcome=JobState.FAILED,
                        reason=f"{ErrorCode.OVER_BUDGET}: {self._told(tenant)}",
                        code=ErrorCode.OVER_BUDGET,
                    )
                )

    def _told(self, tenant: TenantId) -> str:
        return (
            f"tenant {tenant!r} has spent {self.spent_s(tenant)} device-seconds, and its cap is "
            f"{self._cap_s(tenant)}; ask an operator for more (`plexctl quota set TENANT spend`), "
            "and start again"
        )

    def _cap_s(self, tenant: TenantId) -> int:
        return self._registry.quotas.get((tenant, "spend"), 0)
