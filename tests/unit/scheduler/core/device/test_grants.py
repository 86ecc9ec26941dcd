"""Grants: what they cost for a gang, and who does not keep others from an idle device."""

from __future__ import annotations

import pytest

from plexsvc.errors import ErrorCode
from plexsvc.ids import JobId
from plexsvc.residency import Residency
from plexsvc.scheduler.api.views.story import explain
from plexsvc.scheduler.core.actions import Action, MoveState, StartOperation
from plexsvc.scheduler.core.events import Event
from plexsvc.scheduler.core.limits import Limits
from plexsvc.scheduler.core.vocabulary import OperationKind, OperationState
from tests.fakes.fake_world import FakeWorld, codes, no_room, op_id
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


@pytest.mark.parametrize("kind", [OperationKind.SAVE, OperationKind.PUBLISH])
def test_a_save_or_publish_keeps_no_idle_device_from_others(kind: OperationKind) -> None:
    world = FakeWorld(device_bytes=40)
    world.join()
    world.bring_up("a")
    world.device_bytes = 70
    world.bring_up("big")
    world.device_bytes = 40
    world.bring_up("c")
    for job in "ac":  # both are on the device now
        world.submit(f"{job}0", job=job, seq=1)
        world.drain()
    world.submit("pin", job="a", seq=2, kind=kind)
    world.submit("big1", job="big", seq=1)  # needs both gone
    world.tick(2_000_000)
    world.submit("c1", job="c", seq=2)  # is on the device
    operations, waits = world.core.view.operations, world.core.view.waits
    assert operations[op_id("c1")].state is OperationState.RUNNING
    world.report(world.orders[-1])
    asked = explain(world.core.view, op_id("big1"), now_us=world.now_us)
    assert asked is not None
    assert f"{kind} of job a reads wpg-1-1 there since 2003.0 ms" in asked.text
    world.tick(500_000)
    before = waits.get((JobId("big"), JobId("a")), 0)
    assert waits[JobId("big"), JobId("c")] == 1000
    world.report(world.orders[0])
    assert waits[JobId("big"), JobId("a")] - before == 501_000
    assert all(isinstance(order, MoveState) for order in world.orders)
    world.drain()
    assert operations[op_id("big1")].state is OperationState.ANSWERED


def test_another_runs_on_the_device_of_a_step_on_the_host() -> None:
    world = FakeWorld(device_bytes=60)
    world.join()
    world.bring_up("b")
    world.bring_up("a", steps_on_host=True)
    world.submit("a1", job="a", seq=1, kind=OperationKind.FORWARD_BACKWARD)
    world.drain()
    world.submit("a2", job="a", seq=2, kind=OperationKind.STEP)
    (order,) = world.orders
    assert isinstance(order, MoveState)
    assert order.to is Residency.HOST
    world.report(order)
    (step,) = world.orders
    assert isinstance(step, StartOperation)
    world.submit("b1", job="b", seq=1, kind=OperationKind.FORWARD)
    world.report_next(MoveState)
    world.report(world.orders[-1])
    operations = world.core.view.operations
    assert operations[op_id("b1")].state is OperationState.ANSWERED
    assert operations[op_id("a2")].state is OperationState.RUNNING
    world.submit("a3", job="a", seq=3, kind=OperationKind.FORWARD)
    assert world.orders == [step], "its state stays where the step works on it"
    world.report(step)
    world.drain()
    assert [operations[op_id(f"a{n}")].state for n in (2, 3)] == [OperationState.ANSWERED] * 2


def test_a_step_on_the_host_whose_state_cannot_be_parked_is_tried_so_often_and_refused() -> None:
    world = FakeWorld(limits=Limits(max_move_tries=2))
    world.join()
    world.bring_up("a", steps_on_host=True)
    world.submit("a1", job="a", seq=1, kind=OperationKind.STEP)
    for _ in range(2):
        world.report(world.orders[0], fault=no_room())
        assert not world.orders, "after a pause"
        world.fire("retry/wpg-1-1")
    (refusal,) = world.answers[op_id("a1")]
    assert codes([refusal]) == [ErrorCode.NO_ROOM]
    world.submit("a2", job="a", seq=2, kind=OperationKind.FORWARD)
    world.drain()
    assert world.core.view.operations[op_id("a2")].state is OperationState.ANSWERED
