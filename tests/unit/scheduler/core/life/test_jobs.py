"""Jobs: what their end does to operations that run, wait or switch."""

from __future__ import annotations

from plexsvc.errors import ErrorCode
from plexsvc.ids import JobId, WpgId
from plexsvc.scheduler.core.actions import (
    AnswerOperation,
    CancelOperation,
    ForgetWpg,
    JobChanged,
    StartOperation,
    StopWpg,
)
from plexsvc.scheduler.core.vocabulary import (
    JobState,
    OperationKind,
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
    assert actions[-1] == JobChanged(
        job_id=JobId("b"), state=JobState.COMPLETED, reason="done", device_us=actions[-1].device_us
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
