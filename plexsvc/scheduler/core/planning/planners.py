"""The planners of a live cluster, one a device kind, under the configured policy."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Final

from plexsvc.ids import DeploymentId
from plexsvc.newest import Newest
from plexsvc.scheduler.core.limits import Limits
from plexsvc.scheduler.core.planning.board import Board
from plexsvc.scheduler.core.planning.memory import HostMemory
from plexsvc.scheduler.core.planning.planner import Planner
from plexsvc.scheduler.core.planning.policies import Policy, Preference, policy_named
from plexsvc.scheduler.core.planning.profile import SECOND_US, Profile, Segment
from plexsvc.scheduler.core.planning.profiler import ProfileBook, ProfileKey
from plexsvc.scheduler.core.planning.shares import Shares

_HAS_NEWS: Final = attrgetter("has_news")  # of each planner after each event

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
        duty_cap_ppm=limits.duty_cap_ppm,
        target_slowdown_ppm=limits.target_slowdown_ppm,
        critical_target_ppm=limits.critical_target_ppm,
    )


@dataclass(slots=True, kw_only=True)
class Planning:
    """The planners of one cluster, by device kind, and the profiles of earlier runs."""

    policy: Policy
    book: ProfileBook
    shares: Shares
    memory: HostMemory = field(default_factory=HostMemory)
    planners: dict[str, Planner] = field(default_factory=dict)
    has_changed: bool = False
    """Whether devices came free or were asked for since waiting deployments were last looked at."""

    looked_us: dict[str, int] = field(default_factory=dict)
    """When each cause for which deployments move was last looked at (`relocate/movers.py`)."""

    look_us: int = 0
    """When the next of them is due."""

    lost: Newest[ProfileKey, int] = field(default_factory=lambda: Newest(KEPT_PROFILES))
    """Deployments that lost a node and have not come back, and the groups they lived in."""

    short: dict[DeploymentId, None] = field(default_factory=dict)
    """Leads of sets that found a place when there were not enough devices for their instances."""

    moved: dict[DeploymentId, None] = field(default_factory=dict)
    """Deployments booked at places they are still on the way to."""

    @classmethod
    def of(cls, limits: Limits) -> Planning:
        """Return the planning of an empty cluster."""
        book = ProfileBook(limit=max(KEPT_PROFILES, limits.max_jobs))
        return cls(
            policy=live_policy(limits),
            book=book,
            shares=Shares(limits.tenant_weights),
        )

    @property
    def has_news(self) -> bool:
        """Whether something changed for deployments that wait."""
        return self.has_changed or any(map(_HAS_NEWS, self.planners.values()))

    def planner(self, kind: str) -> Planner:
        """Return the planner of a device kind."""
        known = self.planners.get(kind)
        if known is None:
            board = Board([], shares=self.shares, memory=self.memory, kind=kind)
            known = Planner(board, policy=self.policy, noun=f"{kind} device")
            self.planners[kind] = known
        return known
