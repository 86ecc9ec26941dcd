"""Keys of timers: what recorded journals hold, read back as what they were."""

from __future__ import annotations

import pytest

from plexsvc.scheduler.core.timers import Timer, parse

KEYS: dict[str, tuple[Timer, str | bytes]] = {
    "gap/job/actor": (Timer.GAP, "job/actor"),
    "place/job/actor": (Timer.PLACE, "job/actor"),
    "probe/job/actor": (Timer.PROBE, "job/actor"),
    "drain/job/actor": (Timer.DRAIN, "job/actor"),
    "stage/00ff": (Timer.STAGE, b"\x00\xff"),
    "after/00ff": (Timer.AFTER, b"\x00\xff"),
    "spawn/wpg-1-2": (Timer.SPAWN, "wpg-1-2"),
    "homeless/wpg-1-2": (Timer.HOMELESS, "wpg-1-2"),
    "relocate/wpg-1-2": (Timer.RELOCATE, "wpg-1-2"),
    "retry/wpg-1-2": (Timer.RETRY, "wpg-1-2"),
    "linger/wpg-1-2": (Timer.LINGER, "wpg-1-2"),
    "circle/n0": (Timer.CIRCLE, "n0"),
}


@pytest.mark.parametrize("key", KEYS)
def test_a_timer_keeps_the_key_that_journals_know(key: str) -> None:
    timer, of = KEYS[key]
    assert timer.key(of) == key
    assert parse(key) == (timer, key.split("/", 1)[1])


def test_the_keys_are_those_of_all_timers() -> None:
    assert {timer for timer, _ in KEYS.values()} == set(Timer)
