"""Planning policy of a live cluster: what is configured, and guesses of what was never measured."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from plexsvc.scheduler.core.limits import Limits
from plexsvc.scheduler.core.planning.policies import Policy, Preference, policy_named
from plexsvc.scheduler.core.planning.profile import SECOND_US, Profile, Segment

GUESS: Final = Profile(
    period_us=60 * SECOND_US,
    segments=(Segment(phase="training", offset_us=0, duration_us=18 * SECOND_US),),
)
"""The cycle assumed of a deployment never measured. Only its duty matters: so large that three such
fill a group until it is known what they leave free."""

KEPT_PROFILES: Final = 1000
"""Cycles of earlier runs that are kept; where there may be more jobs, as many as those."""

PRIOR_JOB_US: Final = 3_600_000_000
"""Run time assumed of a job that did not say it and of whose name no run was completed."""


def live_policy(limits: Limits) -> Policy:
    """Return the configured policy as the service runs it, `plex` within the configured bounds."""
    policy = replace(policy_named(limits.policy), default_bound_ppm=limits.max_slowdown_ppm)
    if policy.preference is not Preference.PLEX:
        return policy
    return replace(
        policy,
        max_jobs=limits.max_deployments_per_group,
        duty_cap_ppm=limits.duty_cap_ppm or policy.duty_cap_ppm,
        target_slowdown_ppm=limits.target_slowdown_ppm or policy.target_slowdown_ppm,
        critical_target_ppm=limits.critical_target_ppm or policy.critical_target_ppm,
    )
