"""Choice of a prefetch: the job expected next on idle devices, when that is clear."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import isqrt

from plexsvc.ids import ResidentId
from plexsvc.scheduler.core.planning.profile import PPM
from plexsvc.scheduler.core.planning.runtime_rules import Rules


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """When a job's next burst is expected to arrive."""

    resident_id: ResidentId
    at_us: int
    spread_us: int
    """How far off the expectation usually is: the jitter of its period."""

    switch_us: int
    """What bringing its state in takes; 0 when that costs nothing."""

    has_slack: bool = False
    """Whether a wait for its state costs the job nothing, mostly."""


def next_arrival(
    candidates: Iterable[Expected],
    *,
    resident: ResidentId | None,
    prefetched: ResidentId | None,
    rules: Rules,
    now_us: int,
) -> ResidentId | None:
    """Return the job whose state should come in now, None to leave the devices as they are.

    `resident` is on the devices, `prefetched` the last one brought in ahead that has not run since.
    The first arrival must lead every other by `rules.confidence_ppm` of the spread of the two
    together; that of a job with slack, which has little to gain, by `rules.slack_confidence_ppm`. A
    job that was brought in is left alone until its time has come. `O(candidates)`.

    >>> from plexsvc.scheduler.core.planning.runtime_rules import PLEX_RULES
    >>> soon = Expected(resident_id=ResidentId("a"), at_us=50, spread_us=10, switch_us=5)
    >>> later = Expected(resident_id=ResidentId("b"), at_us=90, spread_us=10, switch_us=5)
    >>> next_arrival([soon, later], resident=None, prefetched=None, rules=PLEX_RULES, now_us=0)
    'a'
    """
    if not rules.prefetches:
        return None
    in_order = sorted(candidates, key=lambda one: (one.at_us, one.resident_id))
    if not in_order:
        return None
    first, others = in_order[0], in_order[1:]
    if first.resident_id == resident or first.switch_us == 0:
        return None
    needed_ppm = rules.slack_confidence_ppm if first.has_slack else rules.confidence_ppm
    if any(_lead_ppm(first, other) < needed_ppm for other in others):
        return None
    if prefetched is not None and prefetched == resident and now_us < first.at_us:
        return None
    return first.resident_id


def _lead_ppm(first: Expected, other: Expected) -> int:
    """Return by how much of the spread of their difference one arrival leads another."""
    both_us = isqrt(first.spread_us**2 + other.spread_us**2)
    return (other.at_us - first.at_us) * PPM // max(1, both_us)


def spread_us(period_us: int, jitter_ppm: int) -> int:
    """Return how far off an expectation of a period is."""
    return period_us * jitter_ppm // PPM
