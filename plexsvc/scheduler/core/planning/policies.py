"""Placement policies as values: the paper's baselines, a control, and `plex`, the default.

`isolated` gives every job units of its own, strictly first in first out. `pack` joins the busiest
group with room before it opens one; `spread` opens a group while units are idle, then joins the
least busy; both are strict FIFO with two jobs a group and order operations by HRRS, the paper's
setting. `*_backfill` let jobs behind a blocked one go. `plex` is the product: up to five jobs a
group, a duty cap of 0.9, every job's slowdown bound, the longest job first (`docs/scheduling.md`).
`plex_crowded` has jobs share whatever it costs them, for trials on few devices. `plex_fcfs`,
`plex_sjf` and `plex_hrrs` place like `plex` and order operations so, without prefetch. Without one
of its mechanisms `plex` is played by `benchmarks/ablation.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from plexsvc.errors import ErrorCode, PlexError
from plexsvc.scheduler.core.limits import Limits
from plexsvc.scheduler.core.planning.profile import PPM, SECOND_US
from plexsvc.scheduler.core.planning.runtime_rules import Order

ROOM_PPM: Final = 750_000
"""The share of its own bound that a job may be predicted to use beside one that found no other
place."""

NO_BOUND_PPM: Final = 100_000_000
"""A bound from here on is none: devices that cannot do all that is asked slow jobs without end."""


class Preference(StrEnum):
    """Which of several possible places a job takes."""

    PACK = "pack"
    SPREAD = "spread"
    PLEX = "plex"


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How jobs are admitted and placed, and how their operations are ordered."""

    name: str
    max_jobs: int = 2
    """Jobs a group may hold."""

    duty_cap_ppm: int = PPM
    """Bound on the sum of a group's duties."""

    backfill: bool = False
    preference: Preference = Preference.SPREAD
    default_bound_ppm: int = 1_500_000
    """The bound of a job that asked for none; only such jobs share with one never measured."""

    target_slowdown_ppm: int = 1_500_000
    """Also the bound of jobs with slack that ask for a looser one."""

    critical_target_ppm: int = 1_500_000
    """The same for jobs that wait on their critical path: some waiting cannot be hidden."""

    patience_ppm: int | None = None
    """Wait, relative to a job's expected run, after which it goes first and units are kept for it;
    before that the longest goes first. None: first in, first out."""

    patience_us: int = 24 * 3600 * SECOND_US
    """The longest such wait, however long the job."""

    order: Order = Order.HRRS
    """Of operations that share devices; only `plex` brings state in ahead of them."""

    @property
    def is_plex(self) -> bool:
        """Whether it has the mechanisms of the product: bounds, turns, merged groups, movers."""
        return self.preference is Preference.PLEX

    def within_bounds(self) -> Policy:
        """Return the policy with targets near the bounds that jobs have themselves."""
        target_ppm = PPM + (self.default_bound_ppm - PPM) * ROOM_PPM // PPM
        return replace(
            self,
            duty_cap_ppm=PPM,
            target_slowdown_ppm=target_ppm,
            critical_target_ppm=target_ppm,
        )


PLEX: Final = Policy(
    name="plex",
    max_jobs=5,
    duty_cap_ppm=900_000,
    backfill=True,
    preference=Preference.PLEX,
    target_slowdown_ppm=1_050_000,
    critical_target_ppm=1_200_000,
    patience_ppm=14_000_000,
    order=Order.PLEX,
)

_ALL: Final = (
    Policy(name="isolated", max_jobs=1),
    Policy(name="isolated_backfill", max_jobs=1, backfill=True),
    Policy(name="pack", preference=Preference.PACK),
    Policy(name="spread"),
    Policy(name="spread_backfill", backfill=True),
    PLEX,
    replace(
        PLEX,
        name="plex_crowded",
        duty_cap_ppm=NO_BOUND_PPM,
        target_slowdown_ppm=NO_BOUND_PPM,
        critical_target_ppm=NO_BOUND_PPM,
    ),
    replace(PLEX, name="plex_fcfs", order=Order.FCFS),
    replace(PLEX, name="plex_sjf", order=Order.SJF),
    replace(PLEX, name="plex_hrrs", order=Order.HRRS),
)

POLICIES: Final[Mapping[str, Policy]] = MappingProxyType({p.name: p for p in _ALL})


def policy_named(name: str) -> Policy:
    """Return a policy by name.

    Raises:
        PlexError: `bad_request`, no such policy; the message lists them.
    """
    if name not in POLICIES:
        known = ", ".join(POLICIES)
        raise PlexError(
            ErrorCode.BAD_REQUEST,
            f"policy {name!r} asked for, but there are only {known}; choose one of them",
            policy=name,
        )
    return POLICIES[name]


def live_policy(limits: Limits) -> Policy:
    """Return the configured policy as the service runs it, `plex` within the configured bounds."""
    policy = replace(policy_named(limits.policy), default_bound_ppm=limits.max_slowdown_ppm)
    if not policy.is_plex:
        return policy
    return replace(
        policy,
        max_jobs=limits.max_deployments_per_group,
        duty_cap_ppm=limits.duty_cap_ppm or policy.duty_cap_ppm,
        target_slowdown_ppm=limits.target_slowdown_ppm or policy.target_slowdown_ppm,
        critical_target_ppm=limits.critical_target_ppm or policy.critical_target_ppm,
    )
