"""How long jobs waited for devices that others held, by whom, and what share of their time."""

from __future__ import annotations

from plexsvc.ids import JobId
from plexsvc.scheduler.core.planning.profile import PPM
from plexsvc.scheduler.core.state import Cluster
from plexsvc.scheduler.driver import SchedulerDriver


def waits_of(cluster: Cluster, job_id: JobId) -> dict[JobId, int]:
    """Return what a job waited for each other one, in microseconds."""
    return {
        blocker: waited_us
        for (waiter, blocker), waited_us in cluster.waits.items()
        if waiter == job_id and blocker != job_id
    }


def waited_us(cluster: Cluster, job_id: JobId) -> int:
    """Return what a job waited for others in all."""
    return sum(waits_of(cluster, job_id).values())


def lasted_us(driver: SchedulerDriver, job_id: JobId) -> int:
    """Return how long a job has run, or ran."""
    record = driver.registry.jobs.get(job_id)
    if record is None:
        return 0
    end_us = record.view.ended_us or driver.clock.wall_us()
    return max(0, end_us - record.view.created_us)


def wait_ratio_ppm(driver: SchedulerDriver, job_id: JobId) -> int:
    """Return the share of its time that a job waited for others, at most all of it."""
    lasted = lasted_us(driver, job_id)
    waited = waited_us(driver.core.cluster, job_id)
    return min(PPM, waited * PPM // lasted) if lasted else 0
