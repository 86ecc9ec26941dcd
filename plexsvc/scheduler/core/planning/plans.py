"""Moves that help groups: which jobs should live elsewhere, for bounds or for those who wait.

A group is emptied whole or not at all: only then do units become free. Each move is charged with
the job's state over the link between units, for all units of the gang; the gain is the group's
units for the longest time one of its jobs is still expected to run.

One look takes a few groups, so that the core goes on: those that were looked at longest ago.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from itertools import islice
from typing import Final

from plexsvc.ids import ResidentId, UnitId
from plexsvc.scheduler.core.planning.groups import Group
from plexsvc.scheduler.core.planning.planner import Planner
from plexsvc.scheduler.core.planning.profile import SECOND_US, Demand
from plexsvc.scheduler.core.planning.ring import turned
from plexsvc.scheduler.core.planning.rooms import Gang

NEW_GROUP: Final = 0

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A job that goes to another group."""

    resident_id: ResidentId
    to_group: int
    """`NEW_GROUP`: to idle units."""

    units: Gang
    """The units of that group it will use."""


def lacking(planner: Planner) -> int:
    """Return how many units somebody who waits lacks at most."""
    idle = len(planner.board.idle)
    return max((demand.num_units - idle for demand in planner.waiting.values()), default=0)


def empty(
    planner: Planner, *, wanted: int, is_busy: IsBusy, link_bytes_s: int, now_us: int
) -> list[Move]:
    """Return moves that empty groups until so many units are free; who is busy stays.

    The least busy groups are tried first.
    """
    moves: list[Move] = []
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
            moves.extend(found)
            taken.update([group.group_id, *(move.to_group for move in found)])
            wanted -= group.size
    return moves


def relieve(planner: Planner, *, is_busy: IsBusy, now_us: int) -> list[Move]:
    """Return moves that help groups that are over their bounds, one of each.

    The job that grew most since it was placed goes elsewhere; else the worst-fitting one: the one
    without which the others' predicted slowdowns sum to least, of equals the busiest. A group that
    nobody can leave stays closed to further jobs.
    """
    moves: list[Move] = []
    taken: set[int] = set()
    claimed: set[UnitId] = set()
    for group in sorted(planner.in_trouble(), key=lambda g: g.looked_us)[:MAX_RELIEVED]:
        group.looked_us = now_us
        if group.group_id in taken:
            continue
        names = [name for name in _worst_first(group) if not is_busy(name)]
        leaving = [group.residents[name].demand for name in names]
        found = (_move(planner, one, group, taken, onto_idle=claimed) for one in leaving)
        move = next((one for one in found if one is not None), None)
        if move is not None:
            moves.append(move)
            claimed.update(move.units)
            taken.add(move.to_group)
    return moves


def _worst_first(group: Group) -> list[ResidentId]:
    def cost(resident_id: ResidentId) -> tuple[int, int, int, ResidentId]:
        resident = group.residents[resident_id]
        others = [r.lodger() for j, r in group.residents.items() if j != resident_id]
        sum_ppm = sum(turned(others).slowdowns.values())
        return -resident.grew_ppm, sum_ppm, -resident.demand.load.duty_ppm, resident_id

    return sorted(group.residents, key=cost)


def _empty(
    planner: Planner, group: Group, taken: Collection[int], *, link_bytes_s: int, now_us: int
) -> list[Move]:
    """Return the moves of all jobs of a group, each to another one; none if that does not pay."""
    moves: list[Move] = []
    going, cost, lasts_us = set(taken), 0, 0
    for resident in group.residents.values():
        demand = resident.demand
        move = _move(planner, demand, group, going)
        if move is None:
            return []
        moves.append(move)
        going.add(move.to_group)
        cost += demand.state_bytes * SECOND_US // max(1, link_bytes_s) * len(move.units)
        lasts_us = max(lasts_us, resident.remaining_us(now_us))
    # Both sides are microseconds of units: idle ones gained, and those that moves take.
    return moves if lasts_us * group.size >= GAIN_OVER_COST * cost else []


def _move(
    planner: Planner,
    demand: Demand,
    group: Group,
    taken: Collection[int],
    *,
    onto_idle: Collection[UnitId] | None = None,
) -> Move | None:
    """Return the move of a job out of a group, to one nobody moves to yet; None without such."""
    spot = planner.best_spot(demand, other_than=group.group_id, taken=taken, onto_idle=onto_idle)
    if spot is None:
        return None
    return Move(
        resident_id=demand.resident_id,
        to_group=spot.groups[0].group_id if spot.groups else NEW_GROUP,
        units=spot.units,
    )
