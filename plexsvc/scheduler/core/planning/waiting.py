"""In which order waiting jobs are offered resources."""

from __future__ import annotations

from collections.abc import Iterable

from plexsvc.scheduler.core.planning.policies import Policy, QueueOrder
from plexsvc.scheduler.core.planning.profile import PPM, Demand


def in_order(demands: Iterable[Demand], *, policy: Policy, now_us: int) -> list[Demand]:
    """Return waiting jobs in the policy's order; a higher priority always goes first."""
    match policy.queue:
        case QueueOrder.FIFO:
            return sorted(demands, key=lambda d: (-d.priority, d.arrived_us))
        case QueueOrder.RATIO:
            return sorted(
                demands, key=lambda d: (-d.priority, -_ratio_ppm(d, now_us), d.arrived_us)
            )
        case QueueOrder.LONGEST:
            return sorted(demands, key=lambda d: (-d.priority, -d.expected_us, d.arrived_us))
        case QueueOrder.PATIENT:
            return sorted(demands, key=lambda d: (-d.priority, *_patient(d, policy, now_us)))


def is_impatient(demand: Demand, *, policy: Policy, now_us: int) -> bool:
    """Return whether a blocked job's response ratio has earned it the next idle units."""
    patience = policy.patience_ppm
    return patience is not None and _ratio_ppm(demand, now_us) >= patience


def _patient(demand: Demand, policy: Policy, now_us: int) -> tuple[int, int, int]:
    """Sort impatient jobs ahead, the highest ratio first; the others longest first."""
    ratio = _ratio_ppm(demand, now_us)
    has_waited = ratio >= (policy.patience_ppm or 0)
    return (0, -ratio, 0) if has_waited else (1, -demand.expected_us, demand.arrived_us)


def _ratio_ppm(demand: Demand, now_us: int) -> int:
    expected = max(1, demand.expected_us)
    return (now_us - demand.arrived_us + expected) * PPM // expected
