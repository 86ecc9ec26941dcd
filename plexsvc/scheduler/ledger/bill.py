"""Bill: what jobs have used, read from the core as from a meter, for the store and for reports.

Theory of operation. The core charges each job as it decides, so its journal and its snapshots make
whoever takes over charge the same. Now and then the core is read, and readings that changed are
written, one row for each job, kind of work and hour. A reading is a sum since the job's beginning:
to read or write it twice counts nothing twice, and one that was never written is in the next. What
pools lend is no business of the core: their own readings begin with each service, so they are added
to what the store has. What operations were charged the core keeps for a minute, numbered in each
job; each reading takes those that the store does not have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from operator import attrgetter
from typing import Final

from plexclient.wire.v1 import service_pb2
from plexsvc.clock import Clock
from plexsvc.ids import JobId, TenantId
from plexsvc.scheduler.core.accounts import Charge, Usage
from plexsvc.scheduler.core.view import ClusterView
from plexsvc.store.rows import ChargesRow, JobUsage, UsageRow

HOUR_US: Final = 3_600_000_000

FIGURES: Final = ("count", "device_us", "switch_us", "tokens", "nbytes", "host_mib_s")
CHARGED: Final = FIGURES[:-1]
"""Figures that operations have; host memory is of none."""
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
        self._charged: dict[JobId, int] | None = None
        """Up to which charge the store has each job's; None until that is known."""
        self._ended: set[JobId] = set()
        """Jobs of the core that have ended and were read since."""

    def begin(self, stored: Iterable[JobUsage], charged: Mapping[str, int]) -> None:
        """Take what the store has; what was read from the core since is newer."""
        self._pooled_us = {}
        self._charged = {JobId(job_id): last for job_id, last in charged.items()}
        for one in stored:
            known = self._read.setdefault(JobId(one.used.job_id), {})
            if one.used.kind not in known:
                known[one.used.kind] = one.used
                self._spent[TenantId(one.tenant)] += _spent_us(one.used)

    def rows(self) -> list[UsageRow | ChargesRow]:
        """Read the core; return the readings that the store does not have."""
        self._read_core()
        self._read_pools()
        return [*self._unwritten.values(), *self._charges()]

    def written(self, rows: Iterable[UsageRow | ChargesRow]) -> None:
        """Note that the store has some readings."""
        for row in rows:
            job_id = JobId(row.job_id)
            if isinstance(row, ChargesRow):
                if self._charged is not None:
                    self._charged[job_id] = row.last
            elif self._unwritten.get((job_id, row.kind)) is row:
                del self._unwritten[job_id, row.kind]

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
        if self._charged is not None:
            known = self._read.keys() | {charge.job_id for charge in self._view.charges}
            self._charged = {one: last for one, last in self._charged.items() if one in known}

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

    def _charges(self) -> Iterator[ChargesRow]:
        if self._charged is None:
            return
        fresh: dict[JobId, list[Charge]] = {}
        for charge in self._view.charges:
            if charge.number > self._charged.get(charge.job_id, 0):
                fresh.setdefault(charge.job_id, []).append(charge)
        for job_id, charges in fresh.items():
            yield ChargesRow(
                job_id=job_id,
                first=charges[0].number,
                last=charges[-1].number,
                body=service_pb2.CostReply(
                    costs=by_operation(map(_cost_of, charges))
                ).SerializeToString(),
            )

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


def by_operation(costs: Iterable[service_pb2.Cost]) -> list[service_pb2.Cost]:
    """Return the sum of what each operation was charged on each account, in their order."""
    found: dict[tuple[bytes, str], service_pb2.Cost] = {}
    for cost in costs:
        known = found.setdefault((cost.operation_id, cost.kind), cost)
        if known is not cost:
            known.at_us = cost.at_us
            for name in CHARGED:
                setattr(known, name, getattr(known, name) + getattr(cost, name))
    return [*found.values()]


def _cost_of(charge: Charge) -> service_pb2.Cost:
    return service_pb2.Cost(
        kind=charge.kind,
        operation_id=charge.operation_id,
        deployment_id=charge.deployment_id,
        seq=charge.seq,
        at_us=charge.at_us,
        **{name: getattr(charge.used, name) for name in CHARGED},
    )


def _spent_us(row: UsageRow) -> int:
    return row.device_us + row.switch_us
