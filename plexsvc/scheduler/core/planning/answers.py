"""Answers of planning that change nothing: where a job would go, why it waits, why it stays.

Each asks what placement would ask, so an answer and the decision after it agree.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Final

from plexsvc.ids import ResidentId, UnitId
from plexsvc.scheduler.core.planning.forecast import forecast
from plexsvc.scheduler.core.planning.memory import size
from plexsvc.scheduler.core.planning.places import (
    NO_ROOM,
    NOBODY,
    Barred,
    has_whole,
    joining,
    refusal,
    whole_groups,
)
from plexsvc.scheduler.core.planning.planner import Planner
from plexsvc.scheduler.core.planning.profile import SECOND_US, Demand, Load, Lodger
from plexsvc.scheduler.core.planning.rooms import Gang

TOLD_HOSTS: Final = 3
"""Hosts without room of which an answer says what is booked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """What a new job would cost one it meets: predicted slowdowns in ppm, before and after."""

    resident_id: ResidentId
    before_ppm: int
    after_ppm: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """Where a job would go now; nothing was changed for the answer."""

    units: Gang = ()
    """Empty when there is no place for it."""

    group_ids: tuple[int, ...] = ()
    """The groups it would join; several would become one. None: it would open one."""

    slowdown_ppm: int = 1_000_000
    """Its own predicted cycle shared over alone."""

    meets: tuple[Meeting, ...] = ()
    refusals: tuple[str, ...] = ()
    """When there is no place: why, place by place."""

    @property
    def opens(self) -> bool:
        """Whether it would have a group of its own."""
        return bool(self.units) and not self.group_ids


def what_if(planner: Planner, demand: Demand, *, now_us: int) -> WhatIf:
    """Say where a job would go now and what that costs whom; changes nothing."""
    groups = whole_groups(planner.board, demand)
    barred = planner.kept.barred(demand, now_us=now_us) | planner.search.being_left(demand)
    spot = planner.search.spot_for(demand, groups, barred=barred, now_us=now_us)
    if spot is None:
        return WhatIf(refusals=tuple(_reasons(planner, demand, now_us=now_us)))
    there = [r.lodger for group in spot.groups for r in group.residents.values()]
    met = {r.demand.resident_id for r in spot.met()}
    own = Lodger(resident_id=demand.resident_id, load=Load.of(demand), units=spot.units)
    before, after = forecast(there), forecast([*there, own])
    own_ppm = after.pop(demand.resident_id)
    return WhatIf(
        units=spot.units,
        group_ids=tuple(group.group_id for group in spot.groups),
        slowdown_ppm=own_ppm,
        meets=tuple(
            Meeting(resident_id=resident_id, before_ppm=before[resident_id], after_ppm=ppm)
            for resident_id, ppm in after.items()
            if ppm != before[resident_id] or resident_id in met
        ),
    )


def why(planner: Planner, resident_id: ResidentId, *, now_us: int) -> str:
    """Say why a waiting job waits, and what is kept for it."""
    demand = planner.waiting[resident_id]
    asked = f"{demand.num_units} {planner.noun}(s)"
    facts = _reasons(planner, demand, now_us=now_us)
    kept = planner.kept.reservations.get(resident_id)
    if kept is not None:
        due_s = max(0, kept.due_us - now_us) // SECOND_US
        facts.append(f"{', '.join(kept.units)} are kept for it, due in {due_s} s")
    return f"{resident_id} waits for {asked}: " + "; ".join(facts)


def why_stays(planner: Planner, resident_id: ResidentId, *, now_us: int) -> str:
    """Say what a placed job finds elsewhere: why it is not rehomed."""
    resident = planner.group_of(resident_id).residents[resident_id]
    facts = _reasons(
        planner, resident.demand, barred=resident.units, without=resident_id, now_us=now_us
    )
    return "; ".join(facts)


def _reasons(
    planner: Planner,
    demand: Demand,
    *,
    barred: Barred = (),
    without: ResidentId = NOBODY,
    now_us: int,
) -> list[str]:
    policy, load = planner.policy, Load.of(demand)
    kept = planner.kept.barred(demand, now_us=now_us)
    left = planner.search.being_left(demand)
    barred = {*barred, *kept, *left}
    board, num_units = planner.board, demand.num_units
    is_whole = has_whole(board, demand, barred=barred)
    groups = [
        group
        for group in board.groups.values()
        if (group.size == num_units if is_whole else group.size > num_units)
    ]
    facts = [f"{len(planner.board.idle)} of {len(planner.board.rooms)} {planner.noun}s are idle"]
    if kept:
        jobs = ", ".join(planner.kept.reservations)
        facts.append(f"{len(kept)} are kept for {jobs}, which goes before it")
    if left:
        facts.append(f"{len(left)} are being left by jobs that move")
    counts: dict[str, int] = {}
    full = dict.fromkeys(board.memory.without_room(list(board.idle), demand.host_bytes))
    for spot in joining(board, demand, groups, barred=barred):
        why_not = refusal(
            spot,
            demand,
            load,
            policy=policy,
            memory=board.memory,
            last_burst=partial(planner.paces.last_burst, now_us=now_us),
            without=without,
        )
        reason = why_not or "may be joined"
        counts[reason] = counts.get(reason, 0) + 1
        if reason == NO_ROOM:
            full.update(dict.fromkeys(board.memory.without_room(spot.units, demand.host_bytes)))
    which = "of its size" if is_whole else "larger than it"
    facts.extend(f"{count} groups {which}: {reason}" for reason, count in counts.items())
    facts.extend(_booked(planner, full, demand))
    return facts


def _booked(planner: Planner, full: Iterable[UnitId], demand: Demand) -> list[str]:
    """Say what is booked on hosts that lack room for a job; of many, on a few."""
    memory = planner.board.memory
    by_host = {memory.host_of(unit_id): unit_id for unit_id in full}
    told = [memory.told(unit_id) for _, unit_id in sorted(by_host.items())[:TOLD_HOSTS]]
    needed = f"it needs {size(demand.host_bytes)} there for each {planner.noun}"
    return [*told, needed] if told else []
