"""Outcomes of orders: processes that die, do not come up or were told to end; failed moves."""

from __future__ import annotations

from plexsvc.errors import ErrorCode
from plexsvc.ids import WpgId
from plexsvc.scheduler.core.actions import (
    AnswerOperation,
    DeploymentChanged,
    ForgetWpg,
    SpawnWpg,
    StopWpg,
)
from plexsvc.scheduler.core.events import (
    MoveFailed,
    SpawnFailed,
)
from plexsvc.scheduler.core.vocabulary import (
    DeploymentState,
    Fault,
)
from tests.fakes.fake_world import FakeWorld, codes, op_id

A, B = WpgId("wpg-1-1"), WpgId("wpg-1-2")


def test_a_move_that_failed_for_another_reason_costs_the_deployment(world: FakeWorld) -> None:
    world.submit("a1", job="a", seq=1)
    order = world.orders.pop(0)
    fault = Fault(code=ErrorCode.INTERNAL, message="lost")
    actions = world.tell(
        MoveFailed(at_us=world.tick(), wpg_id=B, move_id=order.move_id, fault=fault)
    )
    assert StopWpg(wpg_id=B) in actions
    world.drain()
    assert isinstance(world.answers[op_id("a1")][0], AnswerOperation)


def test_a_dead_worker_fails_its_own_operations_and_nobody_elses(world: FakeWorld) -> None:
    world.submit("b1", job="b", seq=1)
    world.submit("b2", job="b", seq=2)
    world.submit("a1", job="a", seq=1)
    actions = world.die(B)
    assert codes(actions) == [ErrorCode.WORKER_DIED, ErrorCode.WORKER_DIED]
    facts = dict(actions[0].fault.facts)
    assert facts["worker"] == f"{B}/0"
    assert facts["signal"] == "9"
    assert facts["log_tail"] == "out of luck\n"
    assert codes(world.submit("b3", job="b", seq=3)) == [ErrorCode.DEPLOYMENT_FAILED]
    world.drain()
    assert ForgetWpg(wpg_id=B, lease_no=2) in world.log
    assert isinstance(world.answers[op_id("a1")][0], AnswerOperation)


def test_a_stuck_operation_is_found_and_its_processes_stopped(world: FakeWorld) -> None:
    world.submit("b1", job="b", seq=1)
    world.fire(f"watch/{B}")
    actions = world.fire(f"watch/{B}") if f"watch/{B}" in world.timers else []
    assert codes(actions) == [ErrorCode.OPERATION_TIMEOUT]
    assert StopWpg(wpg_id=B) in actions


def test_a_failed_spawn_fails_the_deployment_and_frees_the_device() -> None:
    world = FakeWorld()
    world.join(train=1)
    world.job("a")
    world.deploy("a")
    world.orders.clear()
    fault = Fault(code=ErrorCode.WORKER_DIED, message="import error")
    actions = world.tell(SpawnFailed(at_us=world.tick(), wpg_id=A, fault=fault))
    assert StopWpg(wpg_id=A) in actions
    world.drain()
    assert not world.core.view.wpgs


def test_a_wpg_larger_than_its_device_fails_with_no_room() -> None:
    world = FakeWorld(device_bytes=101)
    world.join(train=1)
    world.job("a")
    world.deploy("a")
    actions = world.report_next(SpawnWpg)
    assert actions[0].fault.code == ErrorCode.NO_ROOM
    assert dict(actions[0].fault.facts)["need"] == "101"


def test_processes_that_end_as_they_were_told_to_have_stopped_and_not_died(
    world: FakeWorld,
) -> None:
    assert StopWpg(wpg_id=B) in world.end("b")
    assert world.die(B) == []
    world.report_next(StopWpg)
    changes = [a for a in world.report_next(ForgetWpg) if isinstance(a, DeploymentChanged)]
    assert [(a.state, a.fault) for a in changes] == [(DeploymentState.STOPPED, None)]
