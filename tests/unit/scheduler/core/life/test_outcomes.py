"""Outcomes of orders: processes that die, do not come up or were told to end; failed moves."""

from __future__ import annotations

import pytest

from plexsvc.errors import RETRYABLE, ErrorCode
from plexsvc.ids import WpgId
from plexsvc.scheduler.core.actions import (
    AnswerOperation,
    CancelOperation,
    DeploymentChanged,
    ForgetWpg,
    MoveState,
    SpawnWpg,
    StopWpg,
)
from plexsvc.scheduler.core.events import (
    MoveFailed,
    ProcExited,
    SpawnFailed,
)
from plexsvc.scheduler.core.vocabulary import (
    DeploymentState,
    Fault,
    JobState,
    OperationKind,
)
from tests.fakes.fake_world import FakeWorld, codes, fault_of, op_id

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
    facts = dict(fault_of(actions[0]).facts)
    assert facts["worker"] == f"{B}/0"
    assert facts["signal"] == "9"
    assert facts["log_tail"] == "out of luck\n"
    assert codes(world.submit("b3", job="b", seq=3)) == [ErrorCode.DEPLOYMENT_FAILED]
    world.drain()
    assert ForgetWpg(wpg_id=B, lease_no=2) in world.log
    assert isinstance(world.answers[op_id("a1")][0], AnswerOperation)


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


def test_a_wpg_larger_than_its_device_fails_for_good() -> None:
    world = FakeWorld(device_bytes=101)
    world.join(train=1)
    world.job("a")
    world.deploy("a")
    actions = world.report_next(SpawnWpg)
    assert fault_of(actions[0]).code not in RETRYABLE
    assert dict(fault_of(actions[0]).facts)["need"] == "101"


def test_processes_that_end_as_they_were_told_to_have_stopped_and_not_died(
    world: FakeWorld,
) -> None:
    assert StopWpg(wpg_id=B) in world.end("b")
    assert world.die(B) == []
    world.report_next(StopWpg)
    changes = [a for a in world.report_next(ForgetWpg) if isinstance(a, DeploymentChanged)]
    assert [(a.state, a.fault) for a in changes] == [(DeploymentState.STOPPED, None)]


def test_a_deployment_goes_on_while_a_copy_of_its_state_is_written(world: FakeWorld) -> None:
    world.submit("save", job="b", seq=1, kind=OperationKind.SAVE)
    world.submit("step", job="b", seq=2)
    assert world.started[-1] == op_id("save"), "its state is being copied"
    world.copied("save")
    assert world.started[-1] == op_id("step")
    save, step = world.orders
    world.report(step)
    assert op_id("save") not in world.answers
    world.report(save)
    assert isinstance(world.answers[op_id("save")][0], AnswerOperation)


def test_a_neighbour_does_not_wait_for_a_copy_to_be_written(world: FakeWorld) -> None:
    world.submit("save", job="b", seq=1, kind=OperationKind.SAVE)
    world.submit("a1", job="a", seq=1)
    assert not any(isinstance(order, MoveState) for order in world.orders)
    world.copied("save")
    assert [order.wpg_id for order in world.orders if isinstance(order, MoveState)] == [B]


@pytest.mark.parametrize("kind", [OperationKind.SAVE, OperationKind.LOAD])
def test_what_may_use_what_is_being_written_waits_for_it(
    world: FakeWorld, kind: OperationKind
) -> None:
    world.submit("save", job="b", seq=1, kind=OperationKind.SAVE)
    world.submit("next", job="b", seq=2, kind=kind)
    world.copied("save")
    assert world.started[-1] == op_id("save")
    world.report(world.orders[0])
    assert world.started[-1] == op_id("next")


def test_a_slow_save_ends_no_deployment(world: FakeWorld) -> None:
    world.submit("save", job="b", seq=1, kind=OperationKind.SAVE)
    world.copied("save")
    fault = Fault(code=ErrorCode.OPERATION_TIMEOUT, message="the disk hangs")
    assert codes(world.report(world.orders[0], fault=fault)) == [ErrorCode.OPERATION_TIMEOUT]
    world.submit("step", job="b", seq=2)
    world.drain()
    assert isinstance(world.answers[op_id("step")][0], AnswerOperation)


def test_what_is_written_for_a_dead_deployment_is_cancelled(world: FakeWorld) -> None:
    world.submit("save", job="b", seq=1, kind=OperationKind.SAVE)
    world.copied("save")
    actions = world.die(B)
    assert CancelOperation(operation_id=op_id("save"), wpg_id=B) in actions
    assert codes(actions) == [ErrorCode.WORKER_DIED]


@pytest.mark.parametrize("outcome", [JobState.COMPLETED, JobState.CANCELLED])
def test_a_job_ends_when_its_copies_are_written_or_cancelled(
    world: FakeWorld, outcome: JobState
) -> None:
    world.submit("save", job="b", seq=1, kind=OperationKind.SAVE)
    world.copied("save")
    actions = world.end("b", outcome)
    is_cancelled = CancelOperation(operation_id=op_id("save"), wpg_id=B) in actions
    assert is_cancelled == (outcome is JobState.CANCELLED)
    assert StopWpg(wpg_id=B) not in actions
    assert StopWpg(wpg_id=B) in world.report(world.orders[0])


@pytest.mark.parametrize("is_told_by_its_exit", [True, False])
def test_a_deployment_that_cannot_start_fails_in_the_words_of_its_process(
    is_told_by_its_exit: bool,
) -> None:
    world = FakeWorld()
    world.join(train=0, rollout=1)
    world.job("a")
    world.deploy("a", "rollout", rollout=True)
    facts = (("log_tail", "started\nvLLM cannot run /m: head_dim=16\n"),)
    fault = Fault(code=ErrorCode.WORKER_DIED, message="wpg-1-1/0 ended", facts=facts)
    if is_told_by_its_exit:
        actions = world.tell(
            ProcExited(
                at_us=world.tick(),
                wpg_id=A,
                incarnation=1,
                rank=0,
                exit_code=1,
                signal=0,
                log_tail=facts[0][1],
            )
        )
    else:
        actions = world.tell(SpawnFailed(at_us=world.tick(), wpg_id=A, fault=fault))
    (changed,) = [action for action in actions if isinstance(action, DeploymentChanged)]
    assert changed.fault is not None
    assert changed.fault.code is ErrorCode.DEPLOYMENT_FAILED
    assert changed.fault.message == ("a/rollout did not come up: vLLM cannot run /m: head_dim=16")
