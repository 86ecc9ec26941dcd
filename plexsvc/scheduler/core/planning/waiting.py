"""In which order waiting jobs are offered resources."""

from __future__ import annotations

from collections.abc import Iterable

from plexsvc.scheduler.core.planning.policies import Policy, QueueOrder
from plexsvc.scheduler.core.planning.profile import PPM, Demand


def in_order(demands: Iterable[Demand], *, policy: Policy, now_us: int) -> list[Demand]:
    """Return waiting jobs in the policy's order.

    A higher priority always goes first, then a job that lost its place.
    """

    def key(demand: Demand) -> tuple[int, ...]:
        return (-demand.priority, demand.lost_place == 0, *_key(demand, policy, now_us))

    return sorted(demands, key=key)


def is_impatient(demand: Demand, *, policy: Policy, now_us: int) -> bool:
    """Return whether a blocked job's response ratio has earned it the next idle units."""
    patience = policy.patience_ppm
    return patience is not None and _ratio_ppm(demand, now_us) >= patience


def may_reserve(demand: Demand, *, policy: Policy, now_us: int) -> bool:
    """Return whether units are kept for a job while it is blocked.

    They are for one with a priority, one that lost its place, and one that waited long.
    """
    if policy.patience_ppm is None:
        return False
    has_right = demand.priority > 0 or demand.lost_place > 0
    return has_right or is_impatient(demand, policy=policy, now_us=now_us)


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
