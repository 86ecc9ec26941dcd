"""Copies of a planner that do not change, for whoever plans beside the core.

A copy answers whatever changes nothing: where a job would go, which jobs should move. It costs the
event loop one pass over the names of groups and units, and a copy of each group that changed since
the copy before; the others are shared with that. The tenants' shares are not copied.
"""

from __future__ import annotations

import copy
from typing import TypeVar

from plexsvc.scheduler.core.planning.board import Board
from plexsvc.scheduler.core.planning.groups import Group
from plexsvc.scheduler.core.planning.planner import Planner

T = TypeVar("T")


def copy_of(planner: Planner, *, before: Planner | None = None) -> Planner:
    """Return a planner that stays as `planner` is now; `before` is the copy made before this."""
    made = _apart(planner)
    made.board = board = _board(planner.board, before=None if before is None else before.board)
    made.paces = _apart(planner.paces)
    made.paces.board = board
    return made


def _board(board: Board, *, before: Board | None) -> Board:
    made = _apart(board)
    if before is not None and before.rooms.version == board.rooms.version:
        made.rooms = before.rooms
    else:
        made.rooms = board.rooms.copy()
        made.rooms.version = board.rooms.version
    made.memory = board.memory.copy()
    made.free_units = copy.deepcopy(board.free_units)
    known = {} if before is None else before.groups
    groups = {name: _group(group, known.get(name)) for name, group in board.groups.items()}
    made.groups = groups
    made.by_size = {
        size: {name: groups[name] for name in same} for size, same in board.by_size.items()
    }
    return made


def _group(group: Group, before: Group | None) -> Group:
    is_same = before is not None and before.version == group.version
    return before if is_same and before is not None else group.copy()


def _apart(one: T) -> T:
    """Return a copy with dictionaries, lists and sets of its own."""
    made = copy.copy(one)
    for name, value in vars(made).items():
        if isinstance(value, dict | list | set):
            setattr(made, name, value.copy())
    return made
