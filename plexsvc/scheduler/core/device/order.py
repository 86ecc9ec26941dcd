"""The order in which waiting operations get a device, and how long a burst's next one is awaited.

Who is next is decided by the rules that the simulator uses too (`planning/runtime_rules.py`):
highest response ratio with setup (HRRS, PlexRL §4.4), bursts kept together, slack used, starvation
bounded. Here they are asked again and again, since operations of a group may use different devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from plexsvc.scheduler.core.planning.runtime_rules import Entry, Rules, choose

LINGER_GRACE_US: Final = 2_000
"""How much later than expected a burst's next operation may come and still find its device."""


def in_turn(entries: Sequence[Entry], *, rules: Rules, now_us: int) -> list[Entry]:
    """Return `entries`, the one to run first ahead. `O(n^2)`."""
    left = list(entries)
    ordered: list[Entry] = []
    while len(left) > 1:
        chosen = choose(left, rules=rules, now_us=now_us)
        ordered.append(chosen)
        left.remove(chosen)
    return ordered + left


def linger_us(*, gap_us: int, switch_us: int) -> int:
    """Return how long a device is kept for the next operation of a burst, after the last one.

    Not longer than the switch that waiting saves: at worst a wait of twice the switch, as in
    anticipatory scheduling (Iyer and Druschel, SOSP 2001). Zero for a gap that is not worth it.

    >>> linger_us(gap_us=1_000, switch_us=50_000)
    4000
    >>> linger_us(gap_us=60_000, switch_us=50_000)
    0
    """
    return 0 if gap_us > switch_us else min(2 * gap_us + LINGER_GRACE_US, switch_us)


def smoothed(previous_us: int | None, measured_us: int) -> int:
    """Return the exponentially weighted mean after one more measurement (weight one quarter)."""
    if previous_us is None:
        return measured_us
    return previous_us + (measured_us - previous_us) // 4
