"""Plans: which jobs should live elsewhere, computed beside the core from a copy of its planner.

The core orders a plan with the version of the board it is for (`ComputePlan`), goes on, and gets it
back as a fact (`PlanComputed`). Computing it may take seconds on a large cluster; an idle device is
never left waiting for it, since admission does not come this way.

A group is emptied whole or not at all: only then do units become free. Each move is charged with
the job's state over the link between units, for all units of the gang; the gain is the group's
units for the longest time one of its jobs is still expected to run.

A copy answers whatever changes nothing. It costs the event loop one pass over the names of groups
and units, and a copy of each group that changed since the copy before; the others are shared with
that. The tenants' shares are not copied.
"""

from __future__ import annotations

import copy
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeVar

from plexsvc.ids import ResidentId, UnitId
from plexsvc.scheduler.core.planning.board import Board
from plexsvc.scheduler.core.planning.groups import Group
from plexsvc.scheduler.core.planning.planner import Planner
from plexsvc.scheduler.core.planning.profile import SECOND_US, Demand
from plexsvc.scheduler.core.planning.ring import turned
from plexsvc.scheduler.core.planning.rooms import Gang

T = TypeVar("T")

NEW_GROUP: Final = 0

GAIN_OVER_COST: Final = 3
"""How many times its charge a repacking must gain."""

MAX_REPACKED: Final = 16
"""Moves of one repacking."""

MAX_RELIEVED: Final = 8
"""Moves of one relief."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A job that goes to another group."""

    resident_id: ResidentId
    to_group: int
    """`NEW_GROUP`: to idle units."""

    units: Gang
    """The units of that group it will use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Which jobs should live elsewhere."""

    moves: tuple[Move, ...] = ()


class Goal(StrEnum):
    """What a plan is for."""

    RELIEF = "relief"
    """Help the groups that are over their bounds, or in which a job waits past its own."""

    REPACK = "repack"
    """Empty groups for those who wait."""

    EMPTY = "empty"
    """Empty as many groups as the bounds allow: an operator asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What a plan is made from; nothing of it changes while it is computed."""

    planner: Planner
    goal: Goal
    busy: frozenset[ResidentId]
    """Jobs that stay where they are."""

    link_bytes_s: int
    """Of a link between units: what a repacking's moves are charged by."""

    now_us: int


def compute(question: Question) -> Plan:
    """Return the plan that a question asks for."""
    is_relief = question.goal is Goal.RELIEF
    moves = relieve(question.planner, busy=question.busy) if is_relief else propose(question)
    return Plan(moves=tuple(moves))


def propose(question: Question) -> list[Move]:
    """Return moves that empty groups for those who wait; who is busy stays.

    As many units are freed as some waiting job lacks, or as can be. `O(groups^2)` within one size
    at worst; the least busy groups are tried first.
    """
    planner, wanted = question.planner, len(question.planner.board.rooms)
    if question.goal is not Goal.EMPTY:
        idle = len(planner.board.idle)
        wanted = max((d.num_units - idle for d in planner.waiting.values()), default=0)
    moves: list[Move] = []
    if wanted == 0:
        return moves
    taken: dict[int, list[Demand]] = {}
    groups = sorted(planner.board.groups.values(), key=lambda g: (g.duty_ppm, g.group_id))
    for group in groups:
        if wanted <= 0 or len(moves) + len(group.residents) > MAX_REPACKED:
            break
        is_busy = group.is_probing or any(j in question.busy for j in group.residents)
        if group.group_id in taken or is_busy:
            continue
        found = _empty(question, group, taken)
        if found:
            moves.extend(found)
            taken[group.group_id] = []
            wanted -= group.size
    return moves


def relieve(planner: Planner, *, busy: AbstractSet[ResidentId]) -> list[Move]:
    """Return moves that help the groups that are over their bounds.

    The job that grew most since it was placed goes elsewhere; else the worst-fitting one: the one
    without which the others' predicted slowdowns sum to least, of equals the busiest. A group that
    nobody can leave stays closed to further jobs.
    """
    moves: list[Move] = []
    taken: dict[int, list[Demand]] = {}
    claimed: set[UnitId] = set()
    for group in planner.in_trouble():
        if group.group_id in taken or len(moves) == MAX_RELIEVED:
            continue
        names = [name for name in _worst_first(planner, group) if name not in busy]
        leaving = [group.residents[name].demand for name in names]
        found = (_move(planner, one, group, taken, onto_idle=claimed) for one in leaving)
        move = next((one for one in found if one is not None), None)
        if move is not None:
            moves.append(move)
            claimed.update(move.units)
            taken[move.to_group] = [group.residents[move.resident_id].demand]
    return moves


def _worst_first(planner: Planner, group: Group) -> list[ResidentId]:
    def cost(resident_id: ResidentId) -> tuple[int, int, int, ResidentId]:
        resident = group.residents[resident_id]
        others = [r for j, r in group.residents.items() if j != resident_id]
        sum_ppm = sum(turned(list(map(planner.paces.lodger, others))).slowdowns.values())
        return -resident.grew_ppm, sum_ppm, -resident.load.duty_ppm, resident_id

    return sorted(group.residents, key=cost)


def _empty(question: Question, group: Group, taken: dict[int, list[Demand]]) -> list[Move]:
    planner, moves, added, cost = question.planner, [], [], 0
    for resident in group.residents.values():
        move = _move(planner, resident.demand, group, taken)
        if move is None:
            break
        moves.append(move)
        taken.setdefault(move.to_group, []).append(resident.demand)
        added.append(move.to_group)
        charge_us = resident.demand.state_bytes * SECOND_US // max(1, question.link_bytes_s)
        cost += charge_us * len(move.units)
    demands = [resident.demand for resident in group.residents.values()]
    stays_us = (planner.paces.remaining_us(one, now_us=question.now_us) for one in demands)
    lasts_us = max(stays_us, default=0)
    # Both sides are microseconds of units: idle ones gained, and those that moves take.
    pays = lasts_us * group.size >= GAIN_OVER_COST * cost
    if len(moves) == len(group.residents) and pays:
        return moves
    # Its group is not emptied: what its jobs would have taken is there for others.
    for target in reversed(added):
        taken[target].pop()
        if not taken[target]:
            del taken[target]
    return []


def _move(
    planner: Planner,
    demand: Demand,
    group: Group,
    taken: dict[int, list[Demand]],
    *,
    onto_idle: AbstractSet[UnitId] | None = None,
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


def copy_of(planner: Planner, *, before: Planner | None = None) -> Planner:
    """Return a planner that stays as `planner` is now; `before` is the copy made before this."""
    made = _apart(planner)
    made.board = board = _copy_of_board(
        planner.board, before=None if before is None else before.board
    )
    made.paces = _apart(planner.paces)
    made.search = _apart(planner.search)
    made.kept = _apart(planner.kept)
    for part in (made.search, made.kept):
        part.board, part.paces, part.waiting = board, made.paces, made.waiting
    return made


def _copy_of_board(board: Board, *, before: Board | None) -> Board:
    made = _apart(board)
    if before is not None and before.rooms.version == board.rooms.version:
        made.rooms = before.rooms
    else:
        made.rooms = board.rooms.copy()
        made.rooms.version = board.rooms.version
    made.memory = board.memory.copy()
    known = {} if before is None else before.groups
    groups: dict[int, Group] = {}
    for name, group in board.groups.items():
        same = known.get(name)
        is_same = same is not None and same.version == group.version
        groups[name] = same if is_same and same is not None else group.copy()
    made.groups = groups
    made.by_size = {
        size: {name: groups[name] for name in same} for size, same in board.by_size.items()
    }
    return made


def _apart(one: T) -> T:
    """Return a copy with dictionaries, lists and sets of its own."""
    made = copy.copy(one)
    for name, value in vars(made).items():
        if isinstance(value, dict | list | set):
            setattr(made, name, value.copy())
    return made
