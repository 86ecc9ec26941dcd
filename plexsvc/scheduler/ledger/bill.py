"""Bill: what jobs have used, read from the core as from a meter, for the store and for reports.

Theory of operation. The core charges each job as it decides, so its journal and its snapshots make
whoever takes over charge the same. Now and then the core is read, and readings that changed are
written, one row for each job, kind of work and hour. A reading is a sum since the job's beginning:
to read or write it twice counts nothing twice, and one that was never written is in the next. What
pools lend is no business of the core: their own readings begin with each service, so they are added
to what the store has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from operator import attrgetter
from typing import Final

from plexsvc.clock import Clock
from plexsvc.ids import JobId, TenantId
from plexsvc.scheduler.core.state import Usage
from plexsvc.scheduler.core.view import ClusterView
from plexsvc.store.rows import JobUsage, UsageRow

HOUR_US: Final = 3_600_000_000

FIGURES: Final = ("count", "device_us", "switch_us", "tokens", "nbytes", "host_mib_s")
POOLED: Final = "pooled"
"""Kind of work: spot devices and lent engines."""

Pooled = Callable[[], Iterable[tuple[JobId, TenantId, int]]]
"""Returns for how many microseconds each job has had instances of pools since a service began."""

_figures: Final = attrgetter(*FIGURES)


class Bill:
    """The newest readings of the jobs that are known, and what each tenant has spent in all."""

    def __init__(self, view: ClusterView, *, clock: Clock, pooled: Pooled = tuple) -> None:
        self._view = view
        self._pooled = pooled
        self._pooled_us: dict[JobId, int] | None = None
        """What was read of pools; None until it is known what the store has."""
        self._clock = clock
        self._read: dict[JobId, dict[str, UsageRow]] = {}
        self._spent: Counter[TenantId] = Counter()
        self._unwritten: dict[tuple[JobId, str], UsageRow] = {}
        self._ended: set[JobId] = set()
        """Jobs of the core that have ended and were read since."""

    def begin(self, stored: Iterable[JobUsage]) -> None:
        """Take what the store has; what was read from the core since is newer."""
        self._pooled_us = {}
        for one in stored:
            known = self._read.setdefault(JobId(one.used.job_id), {})
            if one.used.kind not in known:
                known[one.used.kind] = one.used
                self._spent[TenantId(one.tenant)] += _spent_us(one.used)

    def rows(self) -> list[UsageRow]:
        """Read the core; return the readings that the store does not have."""
        self._read_core()
        self._read_pools()
        return [*self._unwritten.values()]

    def written(self, rows: Iterable[UsageRow]) -> None:
        """Note that the store has some readings."""
        for row in rows:
            key = (JobId(row.job_id), row.kind)
            if self._unwritten.get(key) is row:
                del self._unwritten[key]

    def of(self, job_id: JobId) -> dict[str, UsageRow]:
        """Return what a job had used when it was read last, by kind of work."""
        return self._read.get(job_id, {})

    def spent_us(self, tenant: TenantId) -> int:
        """Return the device and switch time of all jobs of a tenant, as it was read last."""
        return self._spent[tenant]

    def forget(self, keep: set[JobId]) -> None:
        """Drop the readings of jobs that nobody knows any more: they are in the store."""
        self._ended &= self._view.ended_usage.keys()
        for job_id in self._read.keys() - keep - self._view.jobs.keys() - self._ended:
            del self._read[job_id]
            (self._pooled_us or {}).pop(job_id, None)

    def _read_core(self) -> None:
        now_us = self._clock.wall_us()
        for job_id, usage in self._view.used(now_us=now_us).items():
            self._note(job_id, usage, tenant=self._view.jobs[job_id].tenant, now_us=now_us)
        for job_id, (tenant, usage) in self._view.ended_usage.items():
            if job_id not in self._ended:
                self._ended.add(job_id)
                self._note(job_id, usage, tenant=tenant, now_us=now_us)

    def _read_pools(self) -> None:
        if self._pooled_us is None:
            return
        now_us = self._clock.wall_us()
        for job_id, tenant, held_us in self._pooled():
            more_us = held_us - self._pooled_us.get(job_id, 0)
            self._pooled_us[job_id] = held_us
            if more_us > 0:  # less: what was of its oldest deployment is forgotten
                before = self.of(job_id).get(POOLED)
                used = Usage(device_us=more_us + (0 if before is None else before.device_us))
                self._note(job_id, {POOLED: used}, tenant=tenant, now_us=now_us)

    def _note(
        self, job_id: JobId, usage: Mapping[str, Usage], *, tenant: TenantId, now_us: int
    ) -> None:
        known = self._read.setdefault(job_id, {})
        for kind, used in usage.items():
            before = known.get(kind) or UsageRow(job_id=job_id, kind=kind, hour_us=0)
            figures = _figures(used)
            if figures != _figures(before):
                row = UsageRow(
                    job_id=job_id,
                    kind=kind,
                    hour_us=now_us - now_us % HOUR_US,
                    **dict(zip(FIGURES, figures, strict=True)),
                )
                known[kind] = self._unwritten[job_id, kind] = row
                self._spent[tenant] += _spent_us(row) - _spent_us(before)


def since(found: Iterable[JobUsage], before: Iterable[JobUsage]) -> list[JobUsage]:
    """Return what was used between two readings of the same jobs, where it was anything."""
    known = {(one.used.job_id, one.used.kind): _figures(one.used) for one in before}
    used = []
    for one in found:
        begun = known.get((one.used.job_id, one.used.kind), (0,) * len(FIGURES))
        figures = [now - then for now, then in zip(_figures(one.used), begun, strict=True)]
        if any(figures):
            row = replace(one.used, **dict(zip(FIGURES, figures, strict=True)))
            used.append(replace(one, used=row))
    return used


def _spent_us(row: UsageRow) -> int:
    return row.device_us + row.switch_us
