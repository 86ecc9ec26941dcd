"""Waits of jobs for devices that others held: for whom, how long, what share of time."""

from __future__ import annotations

from collections import defaultdict

from plexsvc.ids import JobId
from plexsvc.scheduler.core.planning.profile import PPM
from plexsvc.scheduler.live import LiveScheduler


class Waits:
    """The waits of all jobs for one another as they are now. `O(pairs)` to make."""

    def __init__(self, scheduler: LiveScheduler) -> None:
        self._scheduler = scheduler
        self._by_waiter: dict[JobId, dict[JobId, int]] = defaultdict(dict)
        for (waiter, blocker), waited_us in scheduler.cluster.waits.items():
            if waiter != blocker:
                self._by_waiter[waiter][blocker] = waited_us

    def by_blocker(self, job_id: JobId) -> dict[JobId, int]:
        """Return what a job waited for each other one, in microseconds."""
        return self._by_waiter.get(job_id, {})

    def total_us(self, job_id: JobId) -> int:
        """Return what a job waited for others in all."""
        return sum(self.by_blocker(job_id).values())

    def ratio_ppm(self, job_id: JobId) -> int:
        """Return the share of its time that a job waited for others, at most all of it."""
        lasted = lasted_us(self._scheduler, job_id)
        return min(PPM, self.total_us(job_id) * PPM // lasted) if lasted else 0

    def pairs(self) -> list[tuple[JobId, JobId, int]]:
        """Return every (waiting job, blocking job, microseconds)."""
        return [
            (waiter, blocker, waited_us)
            for waiter, blockers in self._by_waiter.items()
            for blocker, waited_us in blockers.items()
        ]


def lasted_us(scheduler: LiveScheduler, job_id: JobId) -> int:
    """Return how long a job has run, or ran."""
    record = scheduler.registry.jobs.get(job_id)
    if record is None:
        return 0
    end_us = record.ended_us or scheduler.clock.wall_us()
    return max(0, end_us - record.created_us)
