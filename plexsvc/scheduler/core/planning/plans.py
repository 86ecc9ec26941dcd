"""Plans: which jobs should live elsewhere, computed beside the core from a copy of its planner.

The core orders a plan with the version of the board it is for (`ComputePlan`), goes on, and gets it
back as a fact (`PlanComputed`). Computing it may take seconds on a large cluster; an idle device is
never left waiting for it, since admission does not come this way.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from plexsvc.ids import ResidentId
from plexsvc.scheduler.core.planning.planner import Planner
from plexsvc.scheduler.core.planning.repack import Relief, Repacking, propose, relieve


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

    rules: Repacking
    now_us: int


def compute(question: Question) -> Relief:
    """Return the plan: moves, pauses, and pauses that end."""
    planner, busy, rules = question.planner, question.busy, question.rules
    if question.goal is Goal.RELIEF:
        return relieve(planner, busy=busy, rules=rules, now_us=question.now_us)
    wanted = len(planner.board.rooms) if question.goal is Goal.EMPTY else None
    moves = propose(planner, busy=busy, rules=rules, now_us=question.now_us, wanted=wanted)
    return Relief(moves=tuple(moves))
