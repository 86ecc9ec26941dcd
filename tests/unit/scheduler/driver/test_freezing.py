"""A core that was frozen and thawed: it goes on as if nothing had been."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import rule

from plexsvc.errors import ErrorCode, PlexError
from plexsvc.scheduler.core.actions import Action
from plexsvc.scheduler.core.events import Event
from plexsvc.scheduler.core.limits import Limits
from plexsvc.scheduler.core.machine import Scheduler
from plexsvc.scheduler.driver.freezing import freeze, thaw
from tests.fakes.fake_world import FakeWorld
from tests.rigs.known_cycles import record_cycles
from tests.unit.scheduler.core.test_properties import AnyHistory


class AnyFrozenHistory(AnyHistory):
    """Random events; what was frozen somewhere on the way is told the rest of them, too."""

    def __init__(self) -> None:
        self.thawed: Scheduler | None = None
        super().__init__()
        handle = self.world.core.handle

        def both(event: Event) -> list[Action]:
            actions = handle(event)
            if self.thawed is not None:
                assert self.thawed.handle(event) == actions
            return actions

        object.__setattr__(self.world.core, "handle", both)

    @rule()
    def go_on_from_a_snapshot(self) -> None:
        body = freeze(self.world.core)
        self.thawed = thaw(body)
        assert freeze(self.thawed) == body

    def teardown(self) -> None:
        super().teardown()
        if self.thawed is not None:
            assert freeze(self.thawed) == freeze(self.world.core)


TestAnyFrozenHistory = AnyFrozenHistory.TestCase
TestAnyFrozenHistory.settings = settings(
    max_examples=15, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
)


@pytest.fixture
def body() -> bytes:
    """The state of a core with an operation."""
    world = FakeWorld()
    world.join()
    world.bring_up("a")
    world.submit("one", job="a", seq=1)
    return freeze(world.core)


def test_what_jobs_that_share_were_promised_is_frozen_too() -> None:
    world = FakeWorld(limits=Limits(max_slowdown_ppm=1_200_000), device_bytes=100)
    world.join("n0", train=2, rollout=2)
    record_cycles(world, rollout="rollout", a=50, b=50)
    for job in ("a", "b"):
        world.bring_up(job)
        world.bring_up(job, "rollout", rollout=True, shared=True)
    taken = world.core.cluster.placement.planner("rollout").taken
    assert all(one.course is not None for one in taken.values())
    thawed = thaw(freeze(world.core))
    assert thawed.cluster.placement.planner("rollout").taken == taken


def test_a_field_that_a_snapshot_does_not_know_has_its_default(body: bytes) -> None:
    nodes = json.loads(body)
    operations = [told for kind, told, *_ in nodes if kind == "Operation"]
    assert operations
    for told in operations:
        del told["num_tokens"]
        told["was_removed"] = 1
    operation = next(iter(thaw(json.dumps(nodes).encode()).view.operations.values()))
    assert operation.num_tokens == 0
    assert not hasattr(operation, "was_removed")


def test_a_snapshot_without_a_field_that_has_no_default_is_refused_by_its_name(body: bytes) -> None:
    nodes = json.loads(body)
    for kind, told, *_ in nodes:
        if kind == "Operation":
            del told["seq"]
    with pytest.raises(PlexError, match="Operation has no seq there") as refused:
        thaw(json.dumps(nodes).encode())
    assert refused.value.code == ErrorCode.BAD_REQUEST


def test_what_cannot_be_written_down_is_named() -> None:
    @dataclass
    class Strange:
        """A record that is none of the core's."""

    world = FakeWorld()
    object.__setattr__(world.core.cluster.roll, "wpgs", Strange())
    with pytest.raises(TypeError, match="a record of the core holds") as refused:
        freeze(world.core)
    assert "Strange" in str(refused.value)
