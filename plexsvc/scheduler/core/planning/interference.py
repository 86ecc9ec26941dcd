"""What sharing a group is predicted to cost: the slowdown of each job that would live there.

Phases drift by jitter, so the prediction takes arrivals as random and operations as what they are:
a burst finds another's operation running with the probability of its duty, and waits for the rest
of it. Waiting that fits a job's slack costs it nothing. With r the others' duty and b the expected
rest of a running operation, an entry waits w = b / (1 - r), as in a single-server queue; once in
the other's cycle its longest operation and a switch may exceed the slack. The prediction is

    slowdown = 1 + entries * w / period + sum_j max(0, longest_j + switch - slack) / period_j

and not less than the sum of everyone's device time with its switches over its period.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from plexsvc.scheduler.core.planning.profile import PPM, Mode, Profile, SyncAt

_MAX_LOAD_PPM = 990_000


def slowdown_ppm(job: Profile, others: Iterable[Profile]) -> int:
    """Return the predicted cycle time shared over alone, in ppm. `O(jobs * segments)`."""
    rest_us = load_ppm = excess_ppm = 0
    total_ppm = (job.busy_us + job.switch_us) * PPM // job.period_us
    for other in others:
        squares = sum(s.duration_us * s.duration_us for s in other.segments)
        rest_us += squares // (2 * other.period_us)
        load_ppm += other.duty_ppm
        total_ppm += (other.busy_us + other.switch_us) * PPM // other.period_us
        over_us = other.longest_us + other.switch_us + job.switch_us - job.slack_us
        excess_ppm += max(0, over_us) * PPM // other.period_us
    if job.slack_us == 0:
        excess_ppm = 0
    wait_us = rest_us * PPM // (PPM - min(load_ppm, _MAX_LOAD_PPM))
    switch_us = job.switch_us * min(load_ppm, PPM) // PPM
    waits_ppm = _critical_entries(job) * (wait_us + switch_us) * PPM // job.period_us
    return max(PPM + waits_ppm + excess_ppm, total_ppm)


def group_slowdowns_ppm(jobs: Sequence[Profile]) -> list[int]:
    """Return the prediction for each of `jobs` sharing one group. `O(jobs^2 * segments)`."""
    return [slowdown_ppm(job, [*jobs[:at], *jobs[at + 1 :]]) for at, job in enumerate(jobs)]


def is_commensurate(period: int, other: int) -> bool:
    """Return whether one period is a multiple of the other.

    >>> is_commensurate(120, 360), is_commensurate(120, 180)
    (True, False)
    """
    return period % other == 0 or other % period == 0


def _critical_entries(job: Profile) -> int:
    """Return how many times a cycle the job enters the queue with no slack."""
    if job.mode is Mode.ASYNC1:
        return 1 if job.sync_at is SyncAt.BOUNDARY else 0
    joins = zip(job.segments, job.segments[1:], strict=False)
    return min(1, len(job.segments)) + sum(a.end_us < b.offset_us for a, b in joins)
