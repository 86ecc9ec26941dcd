"""Order in which waiting jobs are offered resources."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from plexsvc.scheduler.core.planning.policies import Policy, QueueOrder
from plexsvc.scheduler.core.planning.profile import PPM, Demand

_MAX_STEPS: Final = 62
"""Steps after which a priority has aged past every other."""


def in_order(demands: Iterable[Demand], *, policy: Policy, now_us: int) -> list[Demand]:
    """Return waiting jobs in the policy's order.

    A higher priority, as it has aged, always goes first, then a job that lost its place.
    """
    waiting = list(demands)
    aged = Aged(waiting, policy=policy, now_us=now_us)

    def key(demand: Demand) -> tuple[int, ...]:
        return (*aged.rank(demand), *_key(demand, policy, now_us))

    return sorted(waiting, key=key)


class Aged:
    """Priorities of those that wait, as they have aged by `now_us`.

    With each `patience_ppm` that its response ratio passes, a job gains twice as much as with the
    one before (1, 3, 7, ...), but passes no higher priority than somebody waits with: among equals
    nothing changes, and a stream of higher priorities holds nobody back for ever.
    """

    def __init__(self, waiting: Iterable[Demand], *, policy: Policy, now_us: int) -> None:
        self._policy = policy
        self._now_us = now_us
        self._top = max((demand.priority for demand in waiting), default=0)

    def priority(self, demand: Demand) -> int:
        """Return the priority that a job has by now."""
        if demand.priority >= self._top or not self._policy.patience_ppm:
            return demand.priority
        steps = _ratio_ppm(demand, self._now_us) // self._policy.patience_ppm
        return min(self._top, demand.priority + (1 << min(steps, _MAX_STEPS)) - 1)

    def rank(self, demand: Demand) -> tuple[int, ...]:
        """Return what goes before all turns: the lowest first."""
        return (-self.priority(demand), demand.lost_place == 0)


def may_reserve(demand: Demand, *, policy: Policy, now_us: int) -> bool:
    """Return whether units are kept for a job while it is blocked.

    They are for one with a priority, one that lost its place, and one that waited long.
    """
    patience = policy.patience_ppm
    if patience is None:
        return False
    has_right = demand.priority > 0 or demand.lost_place > 0
    return has_right or _ratio_ppm(demand, now_us) >= patience


def _key(demand: Demand, policy: Policy, now_us: int) -> tuple[int, ...]:
    match policy.queue:
        case QueueOrder.FIFO:
            return (demand.arrived_us,)
        case QueueOrder.RATIO:
            return (-_ratio_ppm(demand, now_us), demand.arrived_us)
        case QueueOrder.LONGEST:
            return (-demand.expected_us, demand.arrived_us)
        case QueueOrder.PATIENT:
            return _patient(demand, policy, now_us)


def _patient(demand: Demand, policy: Policy, now_us: int) -> tuple[int, int, int]:
    """Sort impatient jobs ahead, the highest ratio first; the others longest first."""
    ratio = _ratio_ppm(demand, now_us)
    has_waited = ratio >= (policy.patience_ppm or 0)
    return (0, -ratio, 0) if has_waited else (1, -demand.expected_us, demand.arrived_us)


def _ratio_ppm(demand: Demand, now_us: int) -> int:
    expected = max(1, demand.expected_us)
    return (now_us - demand.arrived_us + expected) * PPM // expected
