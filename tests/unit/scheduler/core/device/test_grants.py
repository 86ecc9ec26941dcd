"""The cost of granting a gang its devices: it grows with the gang, and not faster."""

from __future__ import annotations

import pytest

from plexsvc.scheduler.core.actions import Action
from plexsvc.scheduler.core.events import Event
from tests.fakes.fake_world import FakeWorld
from tests.rigs.counting import lines_run


def most_lines(monkeypatch: pytest.MonkeyPatch, *, num_devices: int) -> int:
    """Return the lines of the dearest event of three jobs that take turns on one gang."""
    world, counts = FakeWorld(), [0]
    for at in range(num_devices // 8):
        world.join(f"n{at:03}", train=8)
    for job in "abc":
        world.bring_up(job, devices=num_devices)
    handle = world.core.handle

    def counted(event: Event) -> list[Action]:
        actions: list[Action] = []
        counts.append(lines_run(lambda: actions.extend(handle(event))))
        return actions

    monkeypatch.setattr(world.core, "handle", counted)
    for seq in range(1, 4):
        for job in "abc":
            world.submit(f"{job}{seq}", job=job, seq=seq)
        world.drain()
    return max(counts)


def test_a_grant_to_a_gang_costs_no_more_for_each_device(monkeypatch: pytest.MonkeyPatch) -> None:
    few = most_lines(monkeypatch, num_devices=16)
    assert most_lines(monkeypatch, num_devices=64) <= 4 * few
