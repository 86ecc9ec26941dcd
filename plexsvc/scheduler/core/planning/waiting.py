"""Order in which waiting jobs are offered resources."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from plexsvc.scheduler.core.planning.board import Board
from plexsvc.scheduler.core.planning.policies import Policy, QueueOrder
from plexsvc.scheduler.core.planning.profile import PPM, Demand
from plexsvc.scheduler.core.planning.shares import Turn

_PATIENCES: Final = 2
"""Of its patiences that a job waits before it has the highest priority somebody waits with."""


def in_order(demands: Iterable[Demand], *, policy: Policy, now_us: int) -> list[Demand]:
    """Return waiting jobs in the policy's order.

    A higher priority, as it has aged, always goes first, then a job that lost its place.
    """
    waiting = list(demands)
    aged = Aged(waiting, policy=policy, now_us=now_us)

    def key(demand: Demand) -> tuple[int, ...]:
        return (*aged.rank(demand), *_key(demand, policy, now_us))

    return sorted(waiting, key=key)


def in_turn(
    demands: Iterable[Demand], board: Board, *, policy: Policy, now_us: int
) -> Iterable[Demand]:
    """Return waiting jobs in the policy's order; if it is fair, with their tenants in turn."""
    ordered = in_order(demands, policy=policy, now_us=now_us)
    if not policy.is_fair:
        return ordered
    aged = Aged(ordered, policy=policy, now_us=now_us)

    def turn(demand: Demand) -> Turn:
        return demand.tenant, aged.rank(demand)

    return board.shares.in_turn(ordered, kind=board.kind, turn=turn)


class Aged:
    """Priorities of those that wait, as they have aged by `now_us`.

    A job that has waited for twice its patience, twice `patience_us` at most, has the highest
    priority that somebody waits with. So among equals nothing changes, and a stream of higher
    priorities holds nobody back for ever.
    """

    def __init__(self, waiting: Iterable[Demand], *, policy: Policy, now_us: int) -> None:
        self._policy = policy
        self._now_us = now_us
        self._top = max((demand.priority for demand in waiting), default=0)

    def priority(self, demand: Demand) -> int:
        """Return the priority that a job has by now."""
        patience_us = _patience_us(demand, self._policy)
        if demand.priority >= self._top or patience_us is None:
            return demand.priority
        has_aged = self._now_us - demand.arrived_us >= _PATIENCES * patience_us
        return self._top if has_aged else demand.priority

    def rank(self, demand: Demand) -> tuple[int, ...]:
        """Return what goes before all turns: the lowest first."""
        return (-self.priority(demand), demand.lost_place == 0)


def may_reserve(demand: Demand, *, policy: Policy, now_us: int) -> bool:
    """Return whether units are kept for a job while it is blocked.

    They are for one with a priority, one that lost its place, and one that waited long.
    """
    patience_us = _patience_us(demand, policy)
    if patience_us is None:
        return False
    has_right = demand.priority > 0 or demand.lost_place > 0
    return has_right or now_us - demand.arrived_us >= patience_us


def _key(demand: Demand, policy: Policy, now_us: int) -> tuple[int, ...]:
    match policy.queue:
        case QueueOrder.FIFO:
            return (demand.arrived_us,)
        case QueueOrder.LONGEST:
            return (-demand.expected_us, demand.arrived_us)
        case QueueOrder.PATIENT:
            return _patient(demand, policy, now_us)


def _patient(demand: Demand, policy: Policy, now_us: int) -> tuple[int, int, int]:
    """Sort impatient jobs ahead, by when they became so; the others longest first.

    Who comes later than a job becomes impatient is never sorted before it: a stream of short jobs
    holds a long one back no longer than its patience.
    """
    ends_us = demand.arrived_us + (_patience_us(demand, policy) or 0)
    return (0, ends_us, 0) if ends_us <= now_us else (1, -demand.expected_us, demand.arrived_us)


def _patience_us(demand: Demand, policy: Policy) -> int | None:
    """Return how long a job waits before it has rights: in proportion to its run, and bounded."""
    if policy.patience_ppm is None:
        return None
    return max(1, min(demand.expected_us * policy.patience_ppm // PPM, policy.patience_us))
