"""Keys of timers: what recorded journals hold, read back as what they were."""

from __future__ import annotations

import pytest

from plexsvc.ids import DeploymentId, NodeId, OperationId, WpgId
from plexsvc.scheduler.core import timers

A = DeploymentId("job/actor")
OP = OperationId(b"\x00\xff")
W = WpgId("wpg-1-2")

KEYS: dict[str, timers.Timer] = {
    "gap/job/actor": timers.GapTimer(A),
    "place/job/actor": timers.PlaceTimer(A),
    "probe/job/actor": timers.ProbeTimer(A),
    "drain/job/actor": timers.DrainTimer(A),
    "stage/00ff": timers.StageTimer(OP),
    "after/00ff": timers.AfterTimer(OP),
    "spawn/wpg-1-2": timers.SpawnTimer(W),
    "relocate/wpg-1-2": timers.RelocateTimer(W),
    "retry/wpg-1-2": timers.RetryTimer(W),
    "linger/wpg-1-2": timers.LingerTimer(W),
    "circle/n0": timers.CircleTimer(NodeId("n0")),
}


@pytest.mark.parametrize("key", KEYS)
def test_a_timer_keeps_the_key_that_journals_know(key: str) -> None:
    assert KEYS[key].key == key
    assert timers.parse(key) == KEYS[key]


def test_timers_of_two_kinds_differ_though_they_are_of_one_wpg() -> None:
    retry: timers.Timer = timers.RetryTimer(W)
    assert retry != timers.LingerTimer(W)
