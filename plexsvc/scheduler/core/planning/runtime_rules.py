"""Order of operations that share a group: which of those that wait is next.

`fcfs`, `sjf` and `hrrs` are for comparison: first come, shortest effective service `S' = S + I*C`,
and the highest `(W + S') / S'`. `plex` asks, in this order:

1. An operation that waited `STARVE_FACTOR * S'` goes first, the one that waited longest ahead. So
   no head-of-job operation waits more than that plus what then runs and one operation with its
   switch of every other job of the group.
2. A burst that is on the device is not torn, unless an operation whose wait lengthens its job's
   cycle is pending, the burst has the slack even for all of the other's, what is left of it exceeds
   the two extra switches, and the devices have time for them: where they have none, all are later.
3. Operations on a critical path go by response ratio; without one, the least slack first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from plexsvc.ids import ResidentId

STARVE_FACTOR: Final = 8
"""Times its effective service an operation may wait before it goes ahead of all others."""


class Order(StrEnum):
    """The orders there are."""

    FCFS = "fcfs"
    SJF = "sjf"
    HRRS = "hrrs"
    PLEX = "plex"


@dataclass(slots=True, kw_only=True)
class Entry:
    """The head operation of one job, waiting for the group."""

    resident_id: ResidentId
    since_us: int
    service_us: int
    setup_us: int
    """The switch it needs now; 0 for the job on the device."""

    burst_us: int = 0
    """Service left until its job pauses, its own included."""

    deadline_us: int = 0
    """When the burst must be over for the cycle not to get longer."""

    is_critical: bool = False
    continues_burst: bool = False
    has_room: bool = False
    """Of what continues a burst: whether its devices have time for more switches than one a cycle
    of each job."""

    @property
    def effective_us(self) -> int:
        """Return `S'`, at least 1."""
        return max(1, self.service_us + self.setup_us)

    def laxity_us(self, now_us: int) -> int:
        """Return how long it may still wait without cost to its job."""
        return self.deadline_us - now_us - self.burst_us - self.setup_us


def choose(entries: Sequence[Entry], *, order: Order, now_us: int) -> Entry:
    """Return which of `entries` (at least one) is next. `O(jobs)`; ties go to the longer wait."""
    match order:
        case Order.FCFS:
            return min(entries, key=lambda e: e.since_us)
        case Order.SJF:
            return min(entries, key=lambda e: (e.effective_us, e.since_us))
        case Order.HRRS:
            return highest_ratio(entries, now_us=now_us)
        case Order.PLEX:
            return _plex(entries, now_us=now_us)


def highest_ratio(entries: Sequence[Entry], *, now_us: int) -> Entry:
    """Return the entry of highest `(W + S') / S'`, compared exactly; ties by longer wait."""
    best = entries[0]
    for entry in entries[1:]:
        left = (now_us - entry.since_us) * best.effective_us
        right = (now_us - best.since_us) * entry.effective_us
        if left > right or (left == right and entry.since_us < best.since_us):
            best = entry
    return best


def has_starved(entry: Entry, *, now_us: int) -> bool:
    """Return whether an operation has waited so long that it goes ahead even of a burst."""
    return now_us - entry.since_us >= STARVE_FACTOR * entry.effective_us


def _plex(entries: Sequence[Entry], *, now_us: int) -> Entry:
    starved = [e for e in entries if has_starved(e, now_us=now_us)]
    if starved:
        return min(starved, key=lambda e: e.since_us)
    critical = [e for e in entries if e.is_critical or e.laxity_us(now_us) <= 0]
    kept = next((e for e in entries if e.continues_burst and e.setup_us == 0), None)
    if kept is not None and not _may_tear(kept, critical, now_us=now_us):
        return kept
    if critical:
        return highest_ratio(critical, now_us=now_us)
    return min(entries, key=lambda e: (e.laxity_us(now_us), e.since_us))


def _may_tear(kept: Entry, critical: Sequence[Entry], *, now_us: int) -> bool:
    waiting = [e for e in critical if e is not kept and e.is_critical]
    if not kept.has_room or kept.is_critical or not waiting:
        return False
    first = min(waiting, key=lambda e: e.effective_us)
    detour_us = first.burst_us + 2 * first.setup_us
    return kept.laxity_us(now_us) >= detour_us and kept.burst_us > 2 * first.setup_us
