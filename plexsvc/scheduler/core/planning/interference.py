"""Predicted interference of a group: the slowdown of each job that would live there.

Phases drift by jitter, so the prediction takes arrivals as random and operations as what they are:
a burst finds another's operation running with the probability of its duty, and waits for the rest
of it. Waiting that fits a job's slack costs it nothing. With r the others' duty and b the expected
rest of a running operation, an entry waits w = b / (1 - r), as in a single-server queue; once in
the other's cycle its longest operation and a switch may exceed the slack. The prediction is

    slowdown = 1 + entries * w / period + sum_j max(0, longest_j + switch - slack) / period_j

and not less than the sum of everyone's device time with its switches over its period. Bursts of one
cycle share its slack.

Slack hides no wait of a run's last burst, since no rollout goes on beside it. Over many cycles that
is little; a run of few may lose the longest operations of others over all its cycles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from plexsvc.scheduler.core.planning.profile import PPM, Demand, Mode, Profile, SyncAt

_MAX_LOAD_PPM = 990_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What of a cycle the prediction needs, worked out once a job."""

    period_us: int
    held_us: int
    """How long it can keep the devices from another: its longest operation and a switch."""

    switch_us: int
    slack_us: int
    """How late each of a cycle's bursts may be."""

    bound_ppm: int
    """The slowdown the job accepts."""

    entries: int
    """Times a cycle the job enters the queue with no slack."""

    duty_ppm: int
    rest_us: int
    """Expected rest of whatever operation an arrival at random finds running."""

    total_ppm: int
    """Device time with its switch, over the period."""

    run_us: int = 0
    """All its cycles, of a job with slack that says how many they are; else 0."""

    @classmethod
    def of(cls, demand: Demand) -> Load:
        """Return the load of a job's cycle. `O(segments)`."""
        profile = demand.profile
        squares = sum(s.duration_us * s.duration_us for s in profile.segments)
        busy_us = profile.busy_us
        return cls(
            period_us=profile.period_us,
            held_us=profile.longest_us + profile.switch_us,
            switch_us=profile.switch_us,
            slack_us=profile.slack_us // max(1, profile.num_bursts),
            bound_ppm=demand.max_slowdown_ppm,
            entries=_critical_entries(profile),
            duty_ppm=profile.duty_ppm,
            rest_us=squares // (2 * profile.period_us),
            total_ppm=(busy_us + profile.switch_us) * PPM // profile.period_us,
            run_us=demand.expected_steps * profile.period_us if profile.slack_us else 0,
        )

    def last_ppm(self, other: Load) -> int:
        """Return by how much another may delay the end of the run, over the run, in ppm."""
        return other.held_us * PPM // self.run_us if self.run_us else 0


def slowdowns_ppm(jobs: Sequence[Load]) -> list[int]:
    """Return the predicted cycle time shared over alone, in ppm, of each job. `O(jobs^2)`."""
    rest_us = load_ppm = total_ppm = longest_us = 0
    for job in jobs:
        rest_us += job.rest_us
        load_ppm += job.duty_ppm
        total_ppm += job.total_ppm
        longest_us = max(longest_us, job.held_us)
    total_ppm = max(PPM, total_ppm) if len(jobs) > 1 else PPM
    return [
        total_ppm
        if not job.entries and longest_us <= job.slack_us - job.switch_us
        else _slowdown_ppm(job, jobs, rest_us - job.rest_us, load_ppm - job.duty_ppm, total_ppm)
        for job in jobs
    ]


def slowdown_ppm(job: Load, others: Sequence[Load], *, total_ppm: int) -> int:
    """Return the predicted slowdown of one job among `others` that share some of its units.

    `total_ppm` is the most device time with switches, over the period, on any of its units.
    """
    rest_us = sum(other.rest_us for other in others)
    load_ppm = sum(other.duty_ppm for other in others)
    return _slowdown_ppm(job, others, rest_us, load_ppm, total_ppm if others else PPM)


def _slowdown_ppm(
    job: Load, jobs: Sequence[Load], foreign_rest_us: int, foreign_ppm: int, total_ppm: int
) -> int:
    cost_ppm = 0
    if job.entries:
        idle_ppm = PPM - min(foreign_ppm, _MAX_LOAD_PPM)
        wait_us = foreign_rest_us * PPM // idle_ppm
        switch_us = job.switch_us * min(foreign_ppm, PPM) // PPM
        cost_ppm = job.entries * (wait_us + switch_us) * PPM // job.period_us
    if job.slack_us:
        bound_us = job.slack_us - job.switch_us
        for other in jobs:
            over_us = other.held_us - bound_us
            if over_us > 0 and other is not job:
                cost_ppm += over_us * PPM // other.period_us
    return max(PPM + cost_ppm, total_ppm)


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
    return job.num_bursts
