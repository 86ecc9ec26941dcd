"""The order in which waiting operations get a device: highest response ratio with setup (HRRS).

`S' = S + I*C`: expected run time plus, if a context switch is needed, its measured cost. Priority
is `(W + S') / S'` with `W` the wait, compared exactly by cross multiplication (PlexRL, §4.4).

Plain HRRS tears bursts: a follow-up has waited nothing, so a `step` loses the device to any waiter
right after its `forward_backward`, and comes back at the price of two switches. So a follow-up that
was already there when its predecessor ended keeps the device if that takes less than the two
switches it saves, and if nobody has waited more than `PATIENCE` times its effective service.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cmp_to_key
from typing import Final

from plexsvc.ids import WpgId

PATIENCE: Final = 4
"""Times its effective service an operation waits before it ends another's burst."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """An operation that could run now; times in microseconds."""

    wpg_id: WpgId
    wait_us: int
    service_us: int
    setup_us: int
    is_follow_up: bool = False
    """Its WPG is resident and it was waiting when that WPG's last operation ended."""

    @property
    def effective_us(self) -> int:
        """Return `S'`, at least 1."""
        return max(1, self.service_us + self.setup_us)


def in_turn(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return `candidates` by response ratio, those that end a burst cheaply ahead."""
    ordered = by_response_ratio(candidates)
    kept = [candidate for candidate in ordered if _ends_its_burst(candidate, ordered)]
    return kept + [candidate for candidate in ordered if candidate not in kept]


def by_response_ratio(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return `candidates`, highest `(W + S') / S'` first; ties by longer wait, then by position.

    >>> def waiting(name, wait, setup):
    ...     return Candidate(wpg_id=WpgId(name), wait_us=wait, service_us=10, setup_us=setup)
    >>> [c.wpg_id for c in by_response_ratio([waiting("b", 9, 90), waiting("a", 2, 0)])]
    ['a', 'b']
    """
    return sorted(candidates, key=cmp_to_key(_compare))


def smoothed(previous_us: int | None, measured_us: int) -> int:
    """Return the exponentially weighted mean after one more measurement (weight one quarter)."""
    if previous_us is None:
        return measured_us
    return previous_us + (measured_us - previous_us) // 4


def _ends_its_burst(candidate: Candidate, among: Sequence[Candidate]) -> bool:
    return candidate.is_follow_up and all(
        candidate.service_us <= 2 * other.setup_us
        and other.wait_us <= PATIENCE * other.effective_us
        for other in among
        if other is not candidate
    )


def _compare(a: Candidate, b: Candidate) -> int:
    left = a.wait_us * b.effective_us
    right = b.wait_us * a.effective_us
    return (right > left) - (right < left) or (b.wait_us > a.wait_us) - (b.wait_us < a.wait_us)
