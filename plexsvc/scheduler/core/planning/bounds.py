"""Bounds on a place: its units, and what sharing it is predicted to cost each job.

Where every job of a group lives on all of its units, the group's sums are the units'. Where jobs
live on some, each unit has its own sums, and jobs that share no unit do not slow each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from plexsvc.ids import ResidentId
from plexsvc.scheduler.core.planning.forecast import forecast
from plexsvc.scheduler.core.planning.groups import Crowd, Group, Resident
from plexsvc.scheduler.core.planning.memory import HostMemory
from plexsvc.scheduler.core.planning.policies import Policy, Preference
from plexsvc.scheduler.core.planning.profile import PPM, Demand, Load, Lodger
from plexsvc.scheduler.core.planning.rooms import Gang

SETTLED_PPM: Final = 750_000
"""Where all who share are sharp, they may lose this share of what others may: with all of it they
drain no sooner (`steady`)."""

NOBODY: Final = ResidentId("")

LastBurst = Callable[[Demand], tuple[int, int] | None]
"""Says when a run of one cycle trains; None of another."""

LAST_PPM: Final = 700_000
"""The share of its bound that a job may lose by waits of its last burst: they seldom all happen."""


@dataclass(slots=True, kw_only=True)
class Spot:
    """A place a job could take: units, and the groups they are in; without one, idle units."""

    units: Gang
    groups: Sequence[Group] = ()
    is_whole: bool = False
    """Whether it is all of one group, whose jobs all live on all of its units."""

    cost_ppm: int = 0
    """What all are predicted to lose there together, once `refusal` was asked."""

    @property
    def size(self) -> int:
        """Return the number of units of all its groups together."""
        return len(self.units) if self.is_whole else sum(group.size for group in self.groups)

    @property
    def is_probing(self) -> bool:
        """Whether the cycle of some job there is not known yet."""
        return any(group.is_probing for group in self.groups)

    def met(self, *, without: ResidentId = NOBODY) -> list[Resident]:
        """Return the jobs it would share units with."""
        there = [r for group in self.groups for r in group.on(self.units)]
        return [r for r in there if r.demand.resident_id != without]

    def crowd(self) -> Crowd:
        """Return the most that lives on any of its units."""
        if self.is_whole:
            group = self.groups[0]
            return Crowd(len(group.residents), group.duty_ppm)
        crowds = [g.crowd([n for n in self.units if n in g.units]) for g in self.groups]
        return Crowd(
            num_jobs=max((c.num_jobs for c in crowds), default=0),
            duty_ppm=max((c.duty_ppm for c in crowds), default=0),
        )


NO_ROOM: Final = "no room for it in host memory"
"""Why a place does not take a job whose state and versions do not fit beside what is booked."""


def refusal(
    spot: Spot,
    demand: Demand,
    load: Load,
    *,
    policy: Policy,
    memory: HostMemory,
    last_burst: LastBurst = lambda _: None,
    without: ResidentId = NOBODY,
) -> str | None:
    """Return why a place does not take a job, None if it would; notes the cost on `spot`.

    `last_burst` tells runs of one cycle that meet from others (`Paces.last_burst`); without it, any
    two may. `without` is a resident that is about to leave; what it has in host memory stays there
    until it has moved.
    """
    shut = _why_shut(spot, demand, policy=policy, without=without)
    if shut is not None:
        return shut
    is_return = demand.lost_place > 0 and all(
        lived_with(demand, r, group) for group in spot.groups for r in group.on(spot.units)
    )
    full = _why_full(spot.crowd(), load, policy=policy, is_return=is_return)
    if full is not None:
        return full
    if not memory.holds(spot.units, demand.host_bytes):
        return NO_ROOM
    if policy.preference is not Preference.PLEX or demand.is_cold or is_return:
        return None
    is_late = _breaks_bound(spot, demand, load, policy=policy, without=without) or _ends_late(
        spot, demand, load, policy=policy, last_burst=last_burst, without=without
    )
    return "a job's predicted slowdown would pass its bound (max_slowdown)" if is_late else None


def is_full(group: Group, demand: Demand, load: Load, *, policy: Policy) -> bool:
    """Return whether all of a group refuses a job by its sums, which is told without a place."""
    if not group.is_uniform or demand.lost_place:
        return False
    crowd = Crowd(len(group.residents), group.duty_ppm)
    return _why_full(crowd, load, policy=policy, is_return=False) is not None


def _why_full(crowd: Crowd, load: Load, *, policy: Policy, is_return: bool) -> str | None:
    if crowd.num_jobs >= policy.max_jobs:
        return f"holds {policy.max_jobs} jobs (max_jobs)"
    cap_ppm = PPM if is_return else policy.duty_cap_ppm
    if crowd.duty_ppm + load.duty_ppm > cap_ppm:
        return f"duty would pass {cap_ppm / PPM:.0%} (duty_cap)"
    return None


def _why_shut(spot: Spot, demand: Demand, *, policy: Policy, without: ResidentId) -> str | None:
    """Return why a place takes no job, or not this one beside a cycle that is not known yet.

    A guess cannot keep a bound that is tighter than the default.
    """
    for group in spot.groups:
        if group.is_closed or group.late:
            return why_closed(group)
    if not (demand.is_cold or spot.is_probing):
        return None
    for one in [demand, *(r.demand for r in spot.met(without=without))]:
        if one.max_slowdown_ppm < policy.default_bound_ppm:
            name = one.resident_id
            return f"{name} asked for a tighter bound than a cycle not known yet can keep"
    return None


def lived_with(demand: Demand, other: Resident, group: Group) -> bool:
    """Return whether a resident of a group shared the place that a job lost.

    They were within their bounds together, and what is measured of them varies: nobody would be
    sent away for it.
    """
    there = {group.group_id, other.demand.lost_place}
    return demand.lost_place > 0 and demand.lost_place in there


def is_over(group: Group, *, policy: Policy) -> bool:
    """Return whether jobs of a group, as they are known by now, would not be placed together."""
    if not policy.is_bounded or len(group.residents) == 1:
        return False
    if group.duty_ppm > policy.duty_cap_ppm and group.is_uniform:
        return True
    lodgers = [r.lodger for r in group.residents.values() if not r.demand.is_cold]
    return _is_beyond(lodgers, forecast(lodgers), policy=policy)


def _target_ppm(load: Load, policy: Policy, *, is_settled: bool) -> int:
    """Return how slow a job may be predicted to become, `is_settled`: all there are sharp."""
    target_ppm = policy.critical_target_ppm if load.entries else policy.target_slowdown_ppm
    if is_settled:
        target_ppm = PPM + (target_ppm - PPM) * SETTLED_PPM // PPM
    return min(load.bound_ppm, target_ppm)


def _is_beyond(
    lodgers: Sequence[Lodger], slowdowns: dict[ResidentId, int], *, policy: Policy
) -> bool:
    """Return whether somebody is predicted to pass its target."""
    is_settled = all(one.load.bursts for one in lodgers)
    return any(
        slowdowns[one.resident_id] > _target_ppm(one.load, policy, is_settled=is_settled)
        for one in lodgers
    )


def _breaks_bound(
    spot: Spot, demand: Demand, load: Load, *, policy: Policy, without: ResidentId
) -> bool:
    """Return whether someone's slowdown would pass its bound; note what sharing would cost."""
    lodgers = [
        resident.lodger
        for group in spot.groups
        for resident_id, resident in group.residents.items()
        if resident_id != without and not resident.demand.is_cold
    ]
    lodgers.append(Lodger(resident_id=demand.resident_id, load=load, units=spot.units))
    slowdowns = forecast(lodgers)
    spot.cost_ppm = sum(slowdowns.values())
    return policy.is_bounded and _is_beyond(lodgers, slowdowns, policy=policy)


def _ends_late(
    spot: Spot,
    demand: Demand,
    load: Load,
    *,
    policy: Policy,
    last_burst: LastBurst,
    without: ResidentId,
) -> bool:
    """Return whether someone's run may end too late; note what that costs, too.

    Runs of one cycle that are not expected to meet cost each other nothing, but rollouts vary: the
    bound counts them as if they did.
    """
    own, do_meet, costs = last_burst(demand), False, []
    for resident in spot.met(without=without):
        one, other = resident.load, None if own is None else last_burst(resident.demand)
        costs.append((one, one.last_ppm(load)))
        if own is not None and other is not None:
            if own[0] >= other[1] or other[0] >= own[1]:
                continue
            do_meet = True
        spot.cost_ppm += one.last_ppm(load) + load.last_ppm(one)
    if not policy.is_bounded:
        return False
    costs.append((load, sum(load.last_ppm(one) for one, _ in costs)))
    is_over = any(ppm > (one.bound_ppm - PPM) * LAST_PPM // PPM for one, ppm in costs)
    return is_over or do_meet


def why_closed(group: Group) -> str:
    """Return why a closed group takes no further job."""
    if group.is_closed:
        return "a node is cordoned"
    return f"{group.late[0]} there waits past its bound (max_slowdown)"
