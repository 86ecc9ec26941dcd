"""What a core still waits for follows from its records, after any history."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import invariant

from plexsvc.scheduler.core import awaited
from plexsvc.scheduler.core.actions import (
    CarryState,
    ForgetWpg,
    MoveState,
    SpawnInstance,
    SpawnWpg,
    StartOperation,
    StopWpg,
)
from plexsvc.scheduler.core.events import PayloadStaged, TimerFired
from plexsvc.scheduler.core.vocabulary import OperationState, RelocationStage, WpgState
from tests.fakes.fake_world import FakeWorld, Order, op_id
from tests.unit.scheduler.core.test_properties import AnyHistory

STATES = {
    SpawnWpg: WpgState.SPAWNING,
    StopWpg: WpgState.STOPPING,
    ForgetWpg: WpgState.FORGETTING,
}


def matters(world: FakeWorld, order: Order) -> bool:
    """Return whether the core would do anything with the order's outcome."""
    view = world.core.view
    if isinstance(order, CarryState):
        deployment = view.deployments.get(order.deployment_id)
        relocation = None if deployment is None else deployment.relocation
        if relocation is None or relocation.stage is not RelocationStage.CARRYING:
            return False
        return relocation.move_id == order.move_id
    if isinstance(order, StartOperation):
        operation = view.operations.get(order.operation_id)
        return operation is not None and operation.state is OperationState.RUNNING
    wpg = view.wpgs.get(order.wpg_id)
    if isinstance(order, SpawnInstance):
        is_awaited = wpg is not None and wpg.state is WpgState.READY and order.rank in wpg.absent
        return is_awaited and wpg.incarnation_of(order.rank) == order.incarnation
    if isinstance(order, MoveState):
        return wpg is not None and wpg.move_id == order.move_id
    return wpg is not None and wpg.state is STATES[type(order)]


def told(order: object) -> str:
    """Return an order as text, a carry without its lease.

    A switch may take the lease of a WPG that is being carried; the order is repeated with the new
    one, because nobody takes orders of an old one.
    """
    return repr(replace(order, lease_no=0) if isinstance(order, CarryState) else order)


class AnyUnfinishedHistory(AnyHistory):
    """Random events; the orders that matter are those that the records tell of."""

    @invariant()
    def what_is_awaited_is_what_was_ordered(self) -> None:
        found = list(awaited.orders(self.world.core.cluster))
        wanted = [
            replace(order, place=None) if isinstance(order, SpawnInstance) else order
            for order in self.world.orders
            if matters(self.world, order)
        ]  # where it is to be stands in the records
        assert sorted(map(told, found)) == sorted(map(told, wanted))


TestAnyUnfinishedHistory = AnyUnfinishedHistory.TestCase
TestAnyUnfinishedHistory.settings = settings(
    max_examples=25, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
)


@pytest.fixture
def world() -> FakeWorld:
    world = FakeWorld()
    world.join()
    world.bring_up("a")
    return world


def keys(world: FakeWorld, kind: str) -> list[str]:
    return [key for key in world.timers if key.startswith(f"{kind}/")]


def test_the_wait_for_a_payload_is_over_when_it_arrived(world: FakeWorld) -> None:
    world.submit("staged", job="a", seq=1, is_staged=False)
    (key,) = keys(world, "stage")
    assert world.core.view.awaits(key)
    world.tell(PayloadStaged(at_us=world.tick(), operation_id=op_id("staged")))
    assert not world.core.view.awaits(key)


def test_the_wait_for_a_missing_number_or_operation_is_over_when_it_came(world: FakeWorld) -> None:
    world.submit("late", job="a", seq=2, after=("before",))
    (gap,) = keys(world, "gap")
    assert world.core.view.awaits(gap)
    world.submit("first", job="a", seq=1)
    assert not world.core.view.awaits(gap)
    world.drain()
    (after,) = keys(world, "after")
    assert world.core.view.awaits(after)
    world.submit("before", job="a", seq=3)  # a circle: refused
    assert not world.core.view.awaits(after)


def test_the_wait_for_processes_is_over_when_they_came_up(world: FakeWorld) -> None:
    (spawn,) = keys(world, "spawn")
    assert not world.core.view.awaits(spawn)
    world.job("b")
    world.deploy("b")
    assert [world.core.view.awaits(key) for key in keys(world, "spawn")] == [False, True]


def test_nothing_is_awaited_of_a_job_that_is_gone_and_nothing_would_follow(
    world: FakeWorld,
) -> None:
    world.submit("staged", job="a", seq=2, is_staged=False)
    world.end("a")
    world.drain()
    assert world.timers
    for key in world.timers:
        assert not world.core.view.awaits(key), key
        assert world.tell(TimerFired(at_us=world.tick(10**12), key=key)) == []
