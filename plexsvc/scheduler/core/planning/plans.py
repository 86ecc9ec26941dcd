"""Moves that help groups: which jobs should live elsewhere, for bounds or for those who wait.

A group is emptied whole or not at all: only then do units become free. Each move is charged with
the job's state over the link between units, for all units of the gang; the gain is the group's
units for the longest time one of its jobs is still expected to run.

One look takes a few groups, so that the core goes on: those that were looked at longest ago.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from itertools import islice
from typing import Final

from plexsvc.ids import ResidentId
from plexsvc.scheduler.core.planning.groups import Group
from plexsvc.scheduler.core.planning.places import Spot
from plexsvc.scheduler.core.planning.planner import Planner
from plexsvc.scheduler.core.planning.profile import SECOND_US
from plexsvc.scheduler.core.planning.ring import turned

GAIN_OVER_COST: Final = 3
"""How many times its charge a repacking must gain."""

MAX_MOVED: Final = 16
"""Moves of one repacking."""

MAX_EMPTIED: Final = 16
"""Groups that one repacking tries to empty."""

MAX_RELIEVED: Final = 8
"""Groups that one relief tries to help."""

IsBusy = Callable[[ResidentId], bool]
"""Whether a job stays where it is."""


def lacking(planner: Planner) -> int:
    """Return how many units somebody who waits lacks at most."""
    idle = len(planner.board.idle)
    return max((demand.num_units - idle for demand in planner.waiting.values()), default=0)


def empty(
    planner: Planner, *, wanted: int, is_busy: IsBusy, link_bytes_s: int, now_us: int
) -> dict[ResidentId, Spot]:
    """Return which jobs go where, so that groups are emptied until so many units are free.

    The least busy groups are tried first; who is busy stays.
    """
    moves: dict[ResidentId, Spot] = {}
    taken: set[int] = set()
    groups = sorted(
        (g for g in planner.board.groups.values() if not g.is_probing),
        key=lambda g: (g.looked_us, g.duty_ppm, g.group_id),
    )
    for group in islice(groups, MAX_EMPTIED):
        if wanted <= 0 or len(moves) + len(group.residents) > MAX_MOVED:
            break
        group.looked_us = now_us
        if group.group_id in taken or any(map(is_busy, group.residents)):
            continue
        found = _empty(planner, group, taken, link_bytes_s=link_bytes_s, now_us=now_us)
        if found:
            moves |= found
            taken.add(group.group_id)
            taken.update(met.group_id for spot in found.values() for met in spot.groups)
            wanted -= group.size
    return moves


def relieve(planner: Planner, *, send: Callable[[ResidentId], bool], now_us: int) -> None:
    """Have one job leave each group that is over its bounds; `send` says whether it could.

    The job that grew most since it was placed goes elsewhere; else the worst-fitting one: the one
    without which the others' predicted slowdowns sum to least, of equals the busiest. A group that
    nobody can leave stays closed to further jobs.
    """
    for group in sorted(planner.in_trouble(), key=lambda g: g.looked_us)[:MAX_RELIEVED]:
        group.looked_us = now_us
        for resident_id in _worst_first(group):
            if send(resident_id):
                break


def _worst_first(group: Group) -> list[ResidentId]:
    def cost(resident_id: ResidentId) -> tuple[int, int, int, ResidentId]:
        resident = group.residents[resident_id]
        others = [r.lodger() for j, r in group.residents.items() if j != resident_id]
        sum_ppm = sum(turned(others).slowdowns.values())
        return -resident.grew_ppm, sum_ppm, -resident.demand.load.duty_ppm, resident_id

    return sorted(group.residents, key=cost)


def _empty(
    planner: Planner, group: Group, taken: Collection[int], *, link_bytes_s: int, now_us: int
) -> dict[ResidentId, Spot]:
    """Return where all jobs of a group go, each to another one; nothing if that does not pay."""
    moves: dict[ResidentId, Spot] = {}
    going, cost, lasts_us = {*taken, group.group_id}, 0, 0
    for resident in group.residents.values():
        demand = resident.demand
        spot = planner.best_spot(demand, barred=going)
        if spot is None:
            return {}
        moves[demand.resident_id] = spot
        going.update(met.group_id for met in spot.groups)
        cost += demand.state_bytes * SECOND_US // max(1, link_bytes_s) * len(spot.units)
        lasts_us = max(lasts_us, resident.remaining_us(now_us))
    # Both sides are microseconds of units: idle ones gained, and those that moves take.
    return moves if lasts_us * group.size >= GAIN_OVER_COST * cost else {}
