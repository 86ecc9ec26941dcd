"""Timers of the core, and their keys on `SetTimer` and `TimerFired`.

`machine` says what follows when one is due, `awaited` whether anything does.
"""

from __future__ import annotations

from enum import StrEnum


class Timer(StrEnum):
    """What a timer is for."""

    GAP = "gap"
    """Ends a deployment's wait for a missing sequence number."""

    PLACE = "place"
    """Ends the wait of a new deployment for devices."""

    PROBE = "probe"
    """Ends the wait for a new deployment's first whole cycle."""

    DRAIN = "drain"
    """Wakes the core when a deployment that could not move may be asked again."""

    STAGE = "stage"
    """Ends the wait for an operation's payload."""

    AFTER = "after"
    """Ends the wait for an operation named in another's `after` that nobody has submitted."""

    SPAWN = "spawn"
    """Ends the wait for a WPG's processes to come up."""

    HOMELESS = "homeless"
    """Ends the wait of a WPG's instance that was on a lost node for another device."""

    RELOCATE = "relocate"
    """Ends the wait of a relocation to a WPG for a step boundary."""

    RETRY = "retry"
    """Wakes a WPG whose context switch found no room."""

    LINGER = "linger"
    """Wakes a WPG that left its devices to another's burst for a moment."""

    CIRCLE = "circle"
    """Ends the time that a lost or closed node has to come back before circles are opened."""

    def key(self, of: str | bytes) -> str:
        """Return the key of the timer of a deployment, an operation, a WPG or a node.

        >>> Timer.GAP.key("a/actor")
        'gap/a/actor'
        """
        return f"{self}/{of.hex() if isinstance(of, bytes) else of}"


def parse(key: str) -> tuple[Timer, str]:
    """Return what the timer of a key is for, and whose it is (an operation's id in hex).

    >>> parse("gap/a/actor")
    (<Timer.GAP: 'gap'>, 'a/actor')
    """
    kind, _, name = key.partition("/")
    return Timer(kind), name
