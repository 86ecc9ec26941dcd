"""Lens of a caller: an operator sees everything, a tenant its own names and all times."""

from __future__ import annotations

import re
from functools import cached_property
from typing import Final, Protocol

from plexsvc.errors import not_found
from plexsvc.ids import JobId
from plexsvc.scheduler.ledger.jobs import JobRecord, Registry

HIDDEN: Final = "another tenant's"
"""What stands for the job or deployment of somebody else."""


class Asked(Protocol):
    """A request that says who asks; the router filled both fields."""

    tenant: str
    is_operator: bool


class Lens:
    """Looks at the registry for one caller."""

    def __init__(self, registry: Registry, asked: Asked) -> None:
        self._registry = registry
        self._tenant = asked.tenant
        self.sees_all: Final = asked.is_operator or not asked.tenant
        """Whether the caller is an operator."""

    def sees(self, job_id: str) -> bool:
        """Return whether a job's names may be shown."""
        record = self._registry.jobs.get(JobId(job_id))
        return self.sees_all or (record is not None and record.tenant == self._tenant)

    def job(self, job_id: str) -> JobRecord:
        """Return a job the caller may see.

        Raises:
            PlexError: `not_found`; a job of another tenant is not found either.
        """
        record = self._registry.jobs.get(JobId(job_id))
        if record is None or not self.sees(job_id):
            raise not_found(
                f"no job {job_id!r}; it was never created, or ended long ago: "
                "`plexctl job list --all` shows what is known"
            )
        return record

    def job_name(self, job_id: str) -> str:
        """Return a job's name, empty where it may not be shown."""
        record = self._registry.jobs.get(JobId(job_id))
        return record.name if record is not None and self.sees(job_id) else ""

    def tenant_of(self, job_id: str) -> str:
        """Return a job's tenant, empty where it may not be shown."""
        record = self._registry.jobs.get(JobId(job_id))
        return record.tenant if record is not None and self.sees(job_id) else ""

    def text(self, text: str) -> str:
        """Return a text of the core's without the ids of other tenants."""
        if self.sees_all:
            return text
        return self._foreign.sub(HIDDEN, text)

    @cached_property
    def _foreign(self) -> re.Pattern[str]:
        names = [
            re.escape(name)
            for record in self._registry.jobs.values()
            if record.tenant != self._tenant
            for name in (record.job_id, *record.deployment_ids)
        ]
        longest_first = "|".join(sorted(names, key=len, reverse=True))
        return re.compile(rf"(?<![\w/-])(?:{longest_first})(?![\w/-])" if names else r"(?!)")
