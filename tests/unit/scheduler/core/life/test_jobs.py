"""Jobs: what their end, or a cancellation, does to operations that run, wait or switch."""

from __future__ import annotations

from plexsvc.errors import ErrorCode
from plexsvc.ids import JobId, WpgId
from plexsvc.scheduler.core.actions import (
    Action,
    AnswerOperation,
    CancelOperation,
    ForgetWpg,
    JobChanged,
    MoveState,
    RefuseOperation,
    StartOperation,
    StopWpg,
)
from plexsvc.scheduler.core.events import CancelRequested, ControllerReplaced
from plexsvc.scheduler.core.vocabulary import (
    Fault,
    JobState,
    OperationKind,
    OperationState,
)
from tests.fakes.fake_world import FakeWorld, codes, op_id

A, B = WpgId("wpg-1-1"), WpgId("wpg-1-2")


def test_an_ended_job_lets_its_running_operation_end_then_frees_everything(
    world: FakeWorld,
) -> None:
    world.submit("b1", job="b", seq=1)
    world.submit("b2", job="b", seq=2)
    actions = world.end("b")
    assert codes(actions) == [ErrorCode.JOB_ENDED]
    assert not any(isinstance(action, StopWpg) for action in actions)
    actions = world.report_next(StartOperation)
    assert [type(action) for action in actions] == [AnswerOperation, StopWpg]
    assert world.report_next(StopWpg) == [ForgetWpg(wpg_id=B, lease_no=2)]
    actions = world.report_next(ForgetWpg)
    last = actions[-1]
    assert isinstance(last, JobChanged)
    assert last == JobChanged(
        job_id=JobId("b"), state=JobState.COMPLETED, reason="done", device_us=last.device_us
    )
    assert codes(world.submit("b3", job="b", seq=3)) == [ErrorCode.JOB_ENDED]


def test_a_cancelled_job_cancels_its_generates() -> None:
    world = FakeWorld()
    world.join(train=0, rollout=1)
    world.bring_up("a", "rollout", rollout=True)
    world.submit("g", job="a", to="rollout", seq=1, kind=OperationKind.GENERATE)
    actions = world.end("a", JobState.CANCELLED)
    assert actions == [CancelOperation(operation_id=op_id("g"), wpg_id=A)]


def test_a_job_that_ends_in_the_middle_of_a_switch_leaves_the_other_able_to_run(
    world: FakeWorld,
) -> None:
    world.submit("a1", job="a", seq=1)
    assert codes(world.end("a")) == [ErrorCode.JOB_ENDED]
    world.drain()
    world.submit("b1", job="b", seq=1)
    world.drain()
    assert isinstance(world.answers[op_id("b1")][0], AnswerOperation)


def cancel(world: FakeWorld, name: str) -> list[Action]:
    return world.tell(CancelRequested(at_us=world.tick(), operation_id=op_id(name)))


def test_what_waits_is_refused_under_its_number_and_its_successors_go_on(
    world: FakeWorld,
) -> None:
    for seq in (1, 2, 3):
        world.submit(f"b{seq}", job="b", seq=seq)
    (refused,) = cancel(world, "b2")
    assert isinstance(refused, RefuseOperation)
    assert (refused.fault.code, refused.is_final) == (ErrorCode.CANCELLED, True)
    assert refused.state is OperationState.REFUSED
    world.drain()
    assert world.started[-2:] == [op_id("b1"), op_id("b3")]
    assert cancel(world, "b2") == cancel(world, "b3") == []


def test_what_waits_for_its_state_gives_the_device_back(world: FakeWorld) -> None:
    world.submit("a1", job="a", seq=1)
    move = next(order for order in world.orders if isinstance(order, MoveState))
    assert codes(cancel(world, "a1")) == [ErrorCode.CANCELLED]
    world.report(move)
    world.submit("b1", job="b", seq=1)
    world.drain()
    assert isinstance(world.answers[op_id("b1")][0], AnswerOperation)


def test_a_generate_that_runs_is_ended_and_anything_else_ends_by_itself() -> None:
    world = FakeWorld()
    world.join(train=1, rollout=1)
    world.bring_up("a", "rollout", rollout=True)
    world.bring_up("b")
    world.submit("g1", job="a", to="rollout", seq=1, kind=OperationKind.GENERATE)
    assert cancel(world, "g1") == [
        CancelOperation(operation_id=op_id("g1"), wpg_id=WpgId("wpg-1-1"))
    ]
    ended = Fault(code=ErrorCode.CANCELLED, message="cancelled while it ran")
    (answer,) = [
        action
        for action in world.report(world.orders[0], fault=ended)
        if isinstance(action, RefuseOperation)
    ]
    assert (answer.fault, answer.is_final) == (ended, True)
    world.submit("b1", job="b", seq=1)
    assert cancel(world, "b1") == []
    assert cancel(world, "never came") == []


def test_a_copy_that_is_being_written_is_given_up(world: FakeWorld) -> None:
    world.submit("save", job="b", seq=1, kind=OperationKind.SAVE)
    assert cancel(world, "save") == [], "it is being taken"
    world.copied("save")
    order = CancelOperation(operation_id=op_id("save"), wpg_id=WpgId("wpg-1-2"))
    assert cancel(world, "save") == [order]


def test_another_controller_finds_an_empty_line_without_gaps(world: FakeWorld) -> None:
    for seq in (1, 2, 3, 6):  # the first runs, and two more are on their way
        world.submit(f"b{seq}", job="b", seq=seq)
    told = world.tell(ControllerReplaced(at_us=world.tick(), job_id=JobId("b")))
    assert codes(told) == [ErrorCode.CANCELLED] * 3
    world.drain()
    assert world.started[-1] == op_id("b1")
    world.submit("b7", job="b", seq=7)
    world.drain()
    assert world.started[-1] == op_id("b7")
