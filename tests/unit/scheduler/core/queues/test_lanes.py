"""What an operation comes after: remembered for its job, whatever others do."""

from __future__ import annotations

import pytest

from plexsvc.ids import DeploymentId
from plexsvc.scheduler.core import state
from plexsvc.scheduler.core.actions import StartOperation
from plexsvc.scheduler.core.events import Acknowledged
from tests.fakes.fake_world import FakeWorld, op_id


def acknowledged(world: FakeWorld, job: str, *, operations: int) -> None:
    """Run operations of a job to their release."""
    for seq in range(1, operations + 1):
        world.submit(f"{job}{seq}", job=job, seq=seq)
        world.drain()
    deployment_id = DeploymentId(f"{job}/actor")
    world.tell(Acknowledged(at_us=world.tick(), deployment_id=deployment_id, seq=operations))


def test_what_other_jobs_release_does_not_make_an_after_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(state, "MAX_REMEMBERED_IDS", 4)
    world = FakeWorld()
    world.join(train=2)
    world.bring_up("a")
    world.bring_up("b")
    acknowledged(world, "a", operations=1)
    acknowledged(world, "b", operations=8)
    actions = world.submit("last", job="a", seq=2, after=("a1",))
    assert [a.operation_id for a in actions if isinstance(a, StartOperation)] == [op_id("last")]


def test_an_operation_of_another_job_is_nothing_that_one_could_come_after() -> None:
    world = FakeWorld()
    world.join(train=2)
    world.bring_up("a")
    world.bring_up("b")
    acknowledged(world, "b", operations=1)
    world.submit("b2", job="b", seq=2)
    for name in ("b1", "b2"):
        seq = {"b1": 1, "b2": 2}[name]
        actions = world.submit(f"after {name}", job="a", seq=seq, after=(name,))
        assert not [a for a in actions if isinstance(a, StartOperation)]
