"""Cost of a new job: where it would go now, and what it would cost those it meets.

It asks what placement would ask, so an answer and the decision after it agree.
"""

from __future__ import annotations

from dataclasses import dataclass

from plexsvc.ids import ResidentId
from plexsvc.scheduler.core.planning import answers
from plexsvc.scheduler.core.planning.planner import Planner
from plexsvc.scheduler.core.planning.profile import Demand, Lodger
from plexsvc.scheduler.core.planning.ring import Taken, simulate_insert, turned
from plexsvc.scheduler.core.planning.rooms import Gang


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

    taken: Taken | None = None
    """What it would get among others, and why there."""

    meets: tuple[Meeting, ...] = ()
    refusals: tuple[str, ...] = ()
    """When there is no place: why, place by place."""

    @property
    def opens(self) -> bool:
        """Whether it would have a group of its own."""
        return bool(self.units) and not self.group_ids


def what_if(planner: Planner, demand: Demand, *, now_us: int) -> WhatIf:
    """Say where a job would go now and what that costs whom; changes nothing."""
    search = planner.search
    barred = planner.kept.barred(demand, now_us=now_us)
    spot = search.spot_for(demand, search.whole_groups(demand), barred=barred, now_us=now_us)
    if spot is None:
        return WhatIf(refusals=tuple(answers.reasons_for(planner, demand, now_us=now_us)))
    residents = [r for group in spot.groups for r in group.residents.values()]
    there = [resident.lodger() for resident in residents]
    met = {r.demand.resident_id for r in spot.met()}
    own = Lodger(resident_id=demand.resident_id, load=demand.load, units=spot.units)
    before = turned(there, now_us=now_us).slowdowns
    ring = simulate_insert(there, own, now_us=now_us)
    taken = ring.taken(own, why=spot.why, at_us=now_us)
    del ring.slowdowns[demand.resident_id]
    return WhatIf(
        units=spot.units,
        group_ids=tuple(group.group_id for group in spot.groups),
        slowdown_ppm=taken.slowdown_ppm,
        taken=taken,
        meets=tuple(
            Meeting(resident_id=resident_id, before_ppm=before[resident_id], after_ppm=ppm)
            for resident_id, ppm in ring.slowdowns.items()
            if ppm != before[resident_id] or resident_id in met
        ),
    )
