"""The core, event by event: who runs, who moves, who is refused and why."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from plexsvc.errors import ErrorCode
from plexsvc.ids import DeploymentId, MoveId, ResidentId, WpgId
from plexsvc.residency import Residency
from plexsvc.scheduler import core
from plexsvc.scheduler.core.actions import (
    AnswerOperation,
    DropPayload,
    MoveState,
    RefuseOperation,
    ReleaseOperation,
    SetTimer,
    StartOperation,
)
from plexsvc.scheduler.core.cluster import Devices, Lives, Slice
from plexsvc.scheduler.core.events import (
    Acknowledged,
    PayloadRefused,
    PayloadStaged,
    PayloadUnderWay,
)
from plexsvc.scheduler.core.limits import Limits
from plexsvc.scheduler.core.vocabulary import (
    Fault,
    OperationKind,
    OperationState,
)
from tests.fakes.fake_world import FakeWorld, codes, fault_of, no_room, op_id

A, B = WpgId("wpg-1-1"), WpgId("wpg-1-2")


def test_second_wpg_waits_until_the_first_is_off_the_device(world: FakeWorld) -> None:
    assert world.submit("op", job="a", seq=1) == [
        MoveState(wpg_id=B, move_id=MoveId("1.2"), to=Residency.HOST, lease_no=3)
    ]
    assert world.report_next(MoveState) == [
        MoveState(wpg_id=A, move_id=MoveId("1.3"), to=Residency.DEVICE, lease_no=3)
    ]
    actions = world.report_next(MoveState)
    assert [a for a in actions if not isinstance(a, SetTimer)] == [
        StartOperation(operation_id=op_id("op"), wpg_id=A, lease_no=3)
    ]


def test_two_that_fit_together_need_no_switch() -> None:
    world = FakeWorld(device_bytes=40)
    world.join(train=1)
    world.bring_up("a")
    world.bring_up("b")
    for name, job in (("x", "a"), ("y", "b"), ("z", "a")):
        seq = 2 if name == "z" else 1
        actions = world.submit(name, job=job, seq=seq)
        assert not any(isinstance(action, MoveState) for action in actions)
        world.drain()
    assert not any(isinstance(action, MoveState) for action in world.log)


def test_one_device_never_runs_two_operations(world: FakeWorld) -> None:
    world.submit("b1", job="b", seq=1)
    assert world.submit("a1", job="a", seq=1) == []
    actions = world.report_next(StartOperation)
    assert [type(action) for action in actions] == [AnswerOperation, MoveState]


def test_two_node_groups_run_at_the_same_time() -> None:
    world = FakeWorld()
    world.join("n0", train=1)
    world.join("n1", train=1)
    world.bring_up("a")
    world.bring_up("b")
    world.submit("a1", job="a", seq=1)
    world.submit("b1", job="b", seq=1)
    assert world.started[-2:] == [op_id("a1"), op_id("b1")]


def test_operations_of_a_deployment_run_one_by_one_in_the_order_of_their_numbers() -> None:
    world = FakeWorld()
    world.join(train=1)
    world.bring_up("a")
    world.submit("third", job="a", seq=3)
    world.submit("second", job="a", seq=2)
    world.submit("first", job="a", seq=1)
    world.drain()
    assert world.started[1:] == [op_id("first"), op_id("second"), op_id("third")]


def test_a_failed_operation_does_not_stop_its_successors(world: FakeWorld) -> None:
    world.submit("bad", job="b", seq=1)
    world.submit("good", job="b", seq=2)
    fault = Fault(code=ErrorCode.WINDOW_BROKEN, message="no")
    actions = world.report(world.orders[0], fault=fault)
    assert actions == [
        RefuseOperation(operation_id=op_id("bad"), state=OperationState.FAILED, fault=fault),
        StartOperation(operation_id=op_id("good"), wpg_id=B, lease_no=2),
    ]


def test_a_missing_number_holds_its_successors_for_a_bounded_time(world: FakeWorld) -> None:
    assert world.submit("late", job="b", seq=2) == [
        SetTimer(key="gap/b/actor", at_us=world.now_us + world.limits.gap_timeout_us)
    ]
    assert codes(world.fire("gap/b/actor")) == [ErrorCode.SEQUENCE_GAP]
    assert codes(world.submit("missing", job="b", seq=1)) == [ErrorCode.STALE_SEQUENCE]
    world.submit("next", job="b", seq=3)
    assert world.started[-1] == op_id("next")


def test_a_number_too_far_ahead_is_refused_at_once(world: FakeWorld) -> None:
    actions = world.submit("far", job="b", seq=2 + world.limits.max_gap)
    assert codes(actions) == [ErrorCode.SEQUENCE_GAP]


def test_a_used_number_under_another_id_is_stale(world: FakeWorld) -> None:
    world.submit("one", job="b", seq=1)
    assert codes(world.submit("other", job="b", seq=1)) == [ErrorCode.STALE_SEQUENCE]
    world.submit("two", job="b", seq=2)
    assert codes(world.submit("other", job="b", seq=2)) == [ErrorCode.STALE_SEQUENCE]


def test_the_same_id_again_changes_nothing(world: FakeWorld) -> None:
    world.submit("one", job="b", seq=1)
    assert world.submit("one", job="b", seq=1) == []
    world.drain()
    assert world.submit("one", job="b", seq=1) == []
    assert len(world.answers[op_id("one")]) == 1


def test_queue_full_is_retryable_and_consumes_no_number() -> None:
    world = FakeWorld(limits=Limits(max_pending_per_wpg=2))
    world.join(train=1)
    world.bring_up("a")
    for seq in (1, 2, 3):
        world.submit(f"op{seq}", job="a", seq=seq)
    refused = world.submit("op4", job="a", seq=4)
    assert codes(refused) == [ErrorCode.QUEUE_FULL]
    world.drain()
    world.submit("op4", job="a", seq=4)
    assert world.started[-1] == op_id("op4")


def test_the_operation_that_fills_a_gap_is_let_into_a_full_queue() -> None:
    world = FakeWorld(limits=Limits(max_pending_per_wpg=2))
    world.join(train=1)
    world.bring_up("a")
    world.submit("op2", job="a", seq=2)
    world.submit("op3", job="a", seq=3)
    world.submit("op1", job="a", seq=1)
    world.drain()
    assert world.started[1:] == [op_id("op1"), op_id("op2"), op_id("op3")]


def test_an_operation_waits_for_what_it_comes_after(world: FakeWorld) -> None:
    world.bring_up("b", "critic")
    world.submit("publish", job="b", seq=2, kind=OperationKind.PUBLISH)
    world.submit("pull", job="b", to="critic", seq=1, after=("publish",))
    assert op_id("pull") not in world.started
    world.submit("step", job="b", seq=1)
    world.drain()
    order = [op_id("step"), op_id("publish"), op_id("pull")]
    assert world.started[-3:] == order


def test_an_operation_after_a_failed_one_is_refused(world: FakeWorld) -> None:
    world.bring_up("b", "critic")
    world.submit("step", job="b", seq=1)
    world.submit("pull", job="b", to="critic", seq=1, after=("step",))
    world.report(world.orders[0])  # park the critic
    world.report(world.orders[0])  # load the actor
    actions = world.report(world.orders[0], fault=Fault(code=ErrorCode.INTERNAL, message="nan"))
    assert codes(actions) == [ErrorCode.INTERNAL, ErrorCode.DEPENDENCY_FAILED]


@pytest.mark.parametrize("is_first", [True, False])
def test_nobody_waits_for_an_operation_of_a_deployment_that_is_gone(
    world: FakeWorld, is_first: bool
) -> None:
    world.bring_up("b", "critic")
    world.die(B)
    world.drain()
    submits = [
        lambda: world.submit("publish", job="b", seq=1, kind=OperationKind.PUBLISH),
        lambda: world.submit("pull", job="b", to="critic", seq=1, after=("publish",)),
    ]
    actions = [a for submit in (submits if is_first else submits[::-1]) for a in submit()]
    assert set(codes(actions)) == {ErrorCode.DEPLOYMENT_FAILED, ErrorCode.DEPENDENCY_FAILED}
    assert "out of luck" in fault_of(actions[-1]).message


def test_an_after_that_nobody_submits_is_given_up(world: FakeWorld) -> None:
    world.submit("op", job="b", seq=1, after=("ghost",))
    actions = world.fire(f"after/{op_id('op').hex()}")
    assert codes(actions) == [ErrorCode.DEPENDENCY_FAILED]


@pytest.mark.parametrize("comes_again", [True, False])
def test_an_after_that_was_refused_for_now_is_waited_for_within_bounds(comes_again: bool) -> None:
    world = FakeWorld(limits=Limits(max_move_tries=1))
    world.join(train=2)
    world.bring_up("a", "actor")
    world.bring_up("a", "critic")
    world.bring_up("b", "actor")
    world.submit("switched", job="a", seq=1)
    world.submit("after", job="a", to="critic", seq=1, after=("switched",))
    assert f"after/{op_id('after').hex()}" not in world.timers
    switch = next(order for order in world.orders if isinstance(order, MoveState))
    assert codes(world.report(switch, fault=no_room())) == [ErrorCode.NO_ROOM]
    world.drain()
    if comes_again:
        world.submit("switched", job="a", seq=1)
        world.drain()
        assert world.started[-2:] == [op_id("switched"), op_id("after")]
    else:
        actions = world.fire(f"after/{op_id('after').hex()}")
        assert codes(actions) == [ErrorCode.DEPENDENCY_FAILED]
        assert "nobody submitted" in fault_of(actions[0]).message


def test_an_operation_after_itself_is_refused(world: FakeWorld) -> None:
    actions = world.submit("op", job="b", seq=1, after=("op",))
    assert codes(actions) == [ErrorCode.BAD_REQUEST]
    world.submit("next", job="b", seq=2)
    assert world.started[-1] == op_id("next")


@pytest.mark.parametrize("is_first", [True, False])
def test_an_operation_after_a_later_one_of_its_line_is_refused(
    world: FakeWorld, is_first: bool
) -> None:
    submits = [
        lambda: world.submit("one", job="b", seq=1, after=("two",)),
        lambda: world.submit("two", job="b", seq=2),
    ]
    actions = [a for submit in (submits if is_first else submits[::-1]) for a in submit()]
    assert codes(actions) == [ErrorCode.BAD_REQUEST]
    assert world.started[-1] == op_id("two")


def test_a_circle_through_two_lines_is_refused_once(world: FakeWorld) -> None:
    world.bring_up("b", "critic")
    world.submit("a1", job="b", seq=1, after=("c2",))
    world.submit("c1", job="b", to="critic", seq=1, after=("a2",))
    world.submit("a2", job="b", seq=2)
    actions = world.submit("c2", job="b", to="critic", seq=2)
    assert codes(actions) == [ErrorCode.BAD_REQUEST]
    world.drain()
    assert {op_id("a2"), op_id("c2")} <= set(world.started)


def test_an_after_that_was_acknowledged_is_still_known(world: FakeWorld) -> None:
    world.submit("one", job="b", seq=1)
    world.drain()
    acknowledged = Acknowledged(at_us=world.tick(), deployment_id=DeploymentId("b/actor"), seq=1)
    assert world.tell(acknowledged) == [ReleaseOperation(operation_id=op_id("one"))]
    world.submit("two", job="b", seq=2, after=("one",))
    assert world.started[-1] == op_id("two")
    assert codes(world.submit("one", job="b", seq=1)) == [ErrorCode.RESULT_GONE]


def test_an_operation_is_not_eligible_before_its_payload_is_staged(world: FakeWorld) -> None:
    world.submit("big", job="a", seq=1, is_staged=False)
    assert not world.orders, "a switch must not begin for bytes that have not arrived"
    world.tell(PayloadStaged(at_us=world.tick(), operation_id=op_id("big")))
    assert isinstance(world.orders[0], MoveState)
    world.drain()
    assert DropPayload(operation_id=op_id("big")) in world.log


def test_a_payload_may_take_its_time_while_it_comes(world: FakeWorld) -> None:
    world.submit("big", job="b", seq=1, is_staged=False)
    key = f"stage/{op_id('big').hex()}"
    due_us = world.timers[key]
    world.now_us = due_us - 1_000_000
    world.tell(PayloadUnderWay(at_us=world.tick(), operation_id=op_id("big")))
    assert codes(world.fire(key)) == []
    assert world.timers[key] > due_us
    actions = world.fire(key)
    assert codes(actions) == [ErrorCode.STAGING_TIMEOUT]
    world.tell(PayloadUnderWay(at_us=world.tick(), operation_id=op_id("unknown")))


def test_a_payload_that_comes_again_after_its_operation_ended_is_dropped(world: FakeWorld) -> None:
    world.submit("big", job="b", seq=1, is_staged=False)
    again = op_id("big")
    assert DropPayload(operation_id=again) not in world.tell(
        PayloadStaged(at_us=world.tick(), operation_id=again)
    )
    assert world.tell(PayloadStaged(at_us=world.tick(), operation_id=again)) == []
    world.drain()
    late = world.tell(PayloadStaged(at_us=world.tick(), operation_id=again))
    assert late == [DropPayload(operation_id=again)]
    world.tell(Acknowledged(at_us=world.tick(), deployment_id=DeploymentId("b/actor"), seq=1))
    late = world.tell(PayloadStaged(at_us=world.tick(), operation_id=again))
    assert late == [DropPayload(operation_id=again)]


def test_a_payload_outlives_a_refusal_that_may_be_tried_again() -> None:
    world = FakeWorld(limits=Limits(max_pending_per_wpg=2))
    world.join(train=1)
    world.bring_up("a")
    for seq in (1, 2):
        world.submit(f"op{seq}", job="a", seq=seq, is_staged=False)
    full = world.submit("over", job="a", seq=3, is_staged=False)
    assert codes(full) == [ErrorCode.QUEUE_FULL]
    assert DropPayload(operation_id=op_id("over")) not in full
    stale = world.submit("stale", job="a", seq=1, is_staged=False)
    assert codes(stale) == [ErrorCode.STALE_SEQUENCE]
    assert DropPayload(operation_id=op_id("stale")) in stale


def test_a_refused_payload_consumes_the_number(world: FakeWorld) -> None:
    world.submit("big", job="b", seq=1, is_staged=False)
    world.submit("next", job="b", seq=2)
    fault = Fault(code=ErrorCode.BAD_BATCH, message="NaN")
    actions = world.tell(PayloadRefused(at_us=world.tick(), operation_id=op_id("big"), fault=fault))
    assert codes(actions) == [ErrorCode.BAD_BATCH]
    assert world.started[-1] == op_id("next")


def test_a_payload_that_never_comes_is_given_up(world: FakeWorld) -> None:
    world.submit("big", job="b", seq=1, is_staged=False)
    assert codes(world.fire(f"stage/{op_id('big').hex()}")) == [ErrorCode.STAGING_TIMEOUT]


def test_managed_operations_run_without_the_device(world: FakeWorld) -> None:
    world.submit("b1", job="b", seq=1)
    world.submit("publish", job="a", seq=1, kind=OperationKind.PUBLISH)
    assert world.started[-2:] == [op_id("b1"), op_id("publish")]


def test_a_wpg_is_not_parked_while_its_state_is_being_published(world: FakeWorld) -> None:
    world.submit("publish", job="b", seq=1, kind=OperationKind.PUBLISH)
    assert world.submit("a1", job="a", seq=1) == []
    actions = world.report_next(StartOperation)
    assert isinstance(actions[-1], MoveState)


def test_generates_overlap_and_a_pull_waits_for_them() -> None:
    world = FakeWorld()
    world.join(train=0, rollout=1)
    world.bring_up("a", "rollout", rollout=True)
    for seq, kind in enumerate(
        [OperationKind.GENERATE, OperationKind.GENERATE, OperationKind.PULL], start=1
    ):
        world.submit(f"op{seq}", job="a", to="rollout", seq=seq, kind=kind)
    world.submit("op4", job="a", to="rollout", seq=4, kind=OperationKind.GENERATE)
    assert world.started[1:] == [op_id("op1"), op_id("op2")]
    world.report(world.orders[0])
    assert world.started[1:] == [op_id("op1"), op_id("op2")]
    world.report(world.orders[0])
    assert world.started[1:] == [op_id("op1"), op_id("op2"), op_id("op3")]
    world.report(world.orders[0])
    assert world.started[-1] == op_id("op4")


def test_no_more_generates_overlap_than_the_limit_allows() -> None:
    world = FakeWorld(limits=Limits(max_overlapping_generates=2))
    world.join(train=0, rollout=1)
    world.bring_up("a", "rollout", rollout=True)
    for seq in (1, 2, 3):
        world.submit(f"op{seq}", job="a", to="rollout", seq=seq, kind=OperationKind.GENERATE)
    assert world.started[1:] == [op_id("op1"), op_id("op2")]
    world.report(world.orders[0])
    assert world.started[-1] == op_id("op3")


def test_a_payload_is_waited_for_as_long_as_configured() -> None:
    world = FakeWorld(limits=Limits(staging_timeout_us=7_000_000))
    world.join(train=1)
    world.bring_up("a")
    world.submit("big", job="a", seq=1, is_staged=False)
    key = f"stage/{op_id('big').hex()}"
    assert world.timers[key] == world.now_us + 7_000_000
    (refused,) = [a for a in world.fire(key) if isinstance(a, RefuseOperation)]
    assert refused.fault.code is ErrorCode.STAGING_TIMEOUT
    assert "for 7 s" in refused.fault.message


def test_a_cycle_is_measured_for_as_long_as_configured() -> None:
    world = FakeWorld(limits=Limits(probe_timeout_us=5_000_000))
    world.join(train=1)
    world.bring_up("a")
    planner, key = world.core.view.planners["train"], ResidentId("a/actor")
    guessed = planner.group_of(key).residents[key].demand
    assert guessed.is_cold
    assert world.timers["probe/a/actor"] <= world.now_us + 5_000_000
    world.fire("probe/a/actor")
    assert not planner.group_of(key).residents[key].demand.is_cold


def test_a_job_at_work_is_given_time_until_its_cycle_is_known() -> None:
    world = FakeWorld(limits=Limits(probe_timeout_us=5_000_000))
    world.join("n0", train=1, rollout=1)
    world.bring_up("a")
    world.bring_up("a", "roll", rollout=True)
    world.submit("g", job="a", to="roll", seq=1, kind=OperationKind.GENERATE)
    board = world.core.view.planners["train"].board
    for _ in range(5):
        world.fire("probe/a/actor")
        assert board.groups[1].is_probing, "it generates as long as that"
    world.fire("probe/a/actor")
    assert not board.groups[1].is_probing, "but not for ever"


def test_a_large_wpg_is_not_starved_by_small_ones() -> None:
    world = FakeWorld(device_bytes=30)
    world.join(train=2)
    world.bring_up("small1")
    world.bring_up("small2")
    world.bring_up("large", devices=2)
    world.submit("s1", job="small1", seq=1)
    world.submit("s2", job="small2", seq=1)
    world.submit("l1", job="large", seq=1)
    world.tick(10_000_000)
    world.submit("s1b", job="small1", seq=2)
    world.report(world.orders[0])  # s1 is over; small1's next must not jump ahead
    assert world.started[-1] == op_id("s2")
    world.report(world.orders[0])
    assert world.started[-1] == op_id("l1")


def test_the_longest_unused_resident_is_parked_first() -> None:
    world = FakeWorld(device_bytes=50)
    world.join(train=1)
    for job in ("a", "b", "c"):
        world.bring_up(job)
    assert world.core.view.wpgs[A].residency is Residency.HOST
    world.submit("b1", job="b", seq=1)
    world.drain()
    world.submit("a1", job="a", seq=1)
    assert world.orders[0].wpg_id == "wpg-1-3"


def test_no_room_on_the_host_is_tried_again_then_refused(world: FakeWorld) -> None:
    world.submit("a1", job="a", seq=1)
    for _ in range(world.limits.max_move_tries - 1):
        world.report(world.orders[0], fault=no_room())
        world.fire(f"retry/{A}")
    actions = world.report(world.orders[0], fault=no_room())
    assert codes(actions) == [ErrorCode.NO_ROOM]
    world.submit("a1", job="a", seq=1)
    world.drain()
    assert isinstance(world.answers[op_id("a1")][-1], AnswerOperation)


def test_lease_numbers_grow_with_each_grant_to_another() -> None:
    world = FakeWorld(limits=Limits(policy="spread"))
    world.join(train=1)
    world.bring_up("a")
    world.bring_up("b")
    numbers = []
    for seq in (1, 2):
        for job in ("a", "b"):
            world.submit(f"{job}{seq}", job=job, seq=seq)
            world.drain()
            numbers.append(world.core.cluster.devices.last_lease_no)
    assert numbers == [3, 4, 5, 6]
    world.submit("b3", job="b", seq=3)
    assert world.core.cluster.devices.last_lease_no == 6


def test_the_same_events_give_the_same_actions(world: FakeWorld) -> None:
    for seq in (1, 2, 3):
        world.submit(f"a{seq}", job="a", seq=seq)
        world.submit(f"b{seq}", job="b", seq=seq)
    world.drain()
    other = FakeWorld()
    assert [(event, other.core.handle(event)) for event, _ in world.history] == world.history


def test_no_room_of_the_core_is_given_the_whole_cluster() -> None:
    rooms = sorted(Path(core.__file__).parent.glob("*/*.py"))
    assert len(rooms) > 30
    assert [room.name for room in rooms if re.search(r"\bCluster\b", room.read_text())] == []


def test_every_room_knows_the_time_of_the_event_in_hand(world: FakeWorld) -> None:
    world.submit("op", job="a", seq=1)
    cluster = world.core.cluster
    rooms = [cluster, *(part for part in vars(cluster).values() if isinstance(part, Slice))]
    assert {type(room) for room in rooms} == {*Slice.__subclasses__(), Lives} - {Devices}
    assert {room.now_us for room in rooms} == {cluster.turn.now_us}
