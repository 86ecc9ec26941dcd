"""A deployment moves: what is ordered at each stage, and what is left when something fails."""

from __future__ import annotations

import pytest

from plexsvc.errors import ErrorCode
from plexsvc.ids import DeploymentId, JobId, MoveId, NodeId, WpgId
from plexsvc.scheduler.api.views.story import explain
from plexsvc.scheduler.core.actions import (
    Action,
    AnswerOperation,
    CarryState,
    CutOver,
    DeploymentChanged,
    DropCarried,
    ForgetWpg,
    MoveState,
    RelocationChanged,
    SetTimer,
    SpawnWpg,
    StartOperation,
    StopWpg,
)
from plexsvc.scheduler.core.events import (
    NodeCordoned,
    NodeLost,
    PayloadStaged,
    SpawnFailed,
    WpgReady,
)
from plexsvc.scheduler.core.limits import Limits
from plexsvc.scheduler.core.vocabulary import (
    DeploymentState,
    Fault,
    JobState,
    OperationKind,
    OperationState,
    Place,
    RelocationStage,
)
from tests.fakes.fake_world import FakeWorld, no_room, op_id

OLD, NEW = WpgId("wpg-1-1"), WpgId("wpg-1-2")
TO = (Place(node_id=NodeId("n1"), device=0),)
CARRY = MoveId("1.1")
FB = OperationKind.FORWARD_BACKWARD


def changed(stage: RelocationStage, fault: Fault | None = None) -> RelocationChanged:
    return RelocationChanged(
        deployment_id=DeploymentId("a/actor"), stage=stage, places=TO, reason="asked", fault=fault
    )


def carry(world: FakeWorld) -> CarryState:
    (order,) = (order for order in world.orders if isinstance(order, CarryState))
    return order


def to_carrying(world: FakeWorld) -> CarryState:
    world.relocate("a", places=TO)
    world.report_next(SpawnWpg)
    return carry(world)


def to_restoring(world: FakeWorld) -> StartOperation:
    order = world.report(to_carrying(world))[-1]
    assert isinstance(order, StartOperation)
    return order


def fault_of(actions: list[Action]) -> Fault:
    (fault,) = (a.fault for a in actions if isinstance(a, RelocationChanged) and a.fault)
    return fault


def runs_on(world: FakeWorld, name: str, wpg_id: WpgId) -> None:
    """Submit the next operation and see it run on a WPG."""
    seq = world.core.view.deployments[DeploymentId("a/actor")].next_seq
    started = [a for a in world.submit(name, job="a", seq=seq) if isinstance(a, StartOperation)]
    assert [(order.operation_id, order.wpg_id) for order in started] == [(op_id(name), wpg_id)]
    world.report(started[0])


def test_the_whole_way(world: FakeWorld) -> None:
    assert world.relocate("a", places=TO) == [
        changed(RelocationStage.SPAWNING),
        SpawnWpg(
            wpg_id=NEW,
            deployment_id=DeploymentId("a/actor"),
            incarnation=2,
            places=TO,
            replaces=OLD,
        ),
        SetTimer(key=f"spawn/{NEW}", at_us=world.now_us + 180_000_000),
        SetTimer(key=f"relocate/{NEW}", at_us=world.now_us + 600_000_000),
    ]
    runs_on(world, "a1", OLD)
    relocation = world.core.view.deployments[DeploymentId("a/actor")].relocation
    assert relocation is not None
    initialize_id = relocation.initialize_id
    assert world.report_next(SpawnWpg) == [
        changed(RelocationStage.WAITING),
        changed(RelocationStage.CARRYING),
        CarryState(
            deployment_id=DeploymentId("a/actor"),
            from_wpg_id=OLD,
            to_wpg_id=NEW,
            initialize_id=initialize_id,
            move_id=CARRY,
            lease_no=1,
        ),
    ]
    assert world.submit("a2", job="a", seq=2) == []
    restoring = world.report(carry(world))
    start = StartOperation(operation_id=initialize_id, wpg_id=NEW, lease_no=2)
    assert restoring[0] == changed(RelocationStage.RESTORING)
    assert restoring[-1] == start
    done = world.report(start)
    assert done == [
        AnswerOperation(operation_id=initialize_id, queued_us=0, switch_us=0, run_us=500),
        CutOver(deployment_id=DeploymentId("a/actor"), from_wpg_id=OLD, to_wpg_id=NEW),
        DropCarried(move_id=CARRY),
        changed(RelocationStage.DONE),
        DeploymentChanged(
            deployment_id=DeploymentId("a/actor"),
            state=DeploymentState.READY,
            wpg_id=NEW,
            fault=None,
        ),
        StopWpg(wpg_id=OLD),
        StartOperation(operation_id=op_id("a2"), wpg_id=NEW, lease_no=2),
    ]
    world.drain()
    assert [type(a) for a in world.log if isinstance(a, ForgetWpg)] == [ForgetWpg]
    cluster = world.core.view
    assert list(cluster.wpgs) == [NEW]
    assert list(cluster.deployments) == ["a/actor"]
    assert cluster.jobs[JobId("a")].deployments == ["a/actor"]


def test_it_waits_until_no_gradients_are_accumulated(world: FakeWorld) -> None:
    world.submit("fb", job="a", seq=1, kind=FB)
    world.report_next(StartOperation)
    world.relocate("a", places=TO)
    assert world.report_next(SpawnWpg) == [changed(RelocationStage.WAITING)]
    world.submit("fb2", job="a", seq=2, kind=FB)
    world.submit("step", job="a", seq=3)
    assert not any(isinstance(a, CarryState) for a in world.report_next(StartOperation))
    assert any(isinstance(a, CarryState) for a in world.report_next(StartOperation))


def test_a_broken_window_is_open_until_zero_grad(world: FakeWorld) -> None:
    deployment = world.core.view.deployments[DeploymentId("a/actor")]
    broke = Fault(code=ErrorCode.WINDOW_BROKEN, message="nan")
    for number, (kind, fault, is_open) in enumerate(
        [
            (FB, None, True),
            (OperationKind.STEP, broke, True),
            (OperationKind.FORWARD, None, True),
            (OperationKind.ZERO_GRAD, None, False),
            (OperationKind.FORWARD, None, False),
            (FB, broke, True),
            (OperationKind.LOAD, None, False),
        ]
    ):
        world.submit(f"op{number}", job="a", seq=number + 1, kind=kind)
        world.report(world.orders[0], fault=fault)
        assert deployment.is_window_open is is_open, kind


def test_a_running_operation_and_a_switch_end_first(world: FakeWorld) -> None:
    world.relocate("a", places=TO)
    world.submit("a1", job="a", seq=1)
    assert world.report_next(SpawnWpg) == [changed(RelocationStage.WAITING)]
    actions = world.report_next(StartOperation)
    assert actions[-2:] == [changed(RelocationStage.CARRYING), carry(world)]


def test_a_payload_that_arrives_on_the_way_waits_with_its_operation(world: FakeWorld) -> None:
    world.submit("a1", job="a", seq=1, is_staged=False)
    order = to_carrying(world)
    assert world.tell(PayloadStaged(at_us=world.tick(), operation_id=op_id("a1"))) == []
    story = explain(world.core.view, op_id("a1"), now_us=world.now_us)
    assert story is not None
    assert "waits for its deployment to arrive on n1:0 (carrying)" in story.text
    assert story.state is OperationState.STAGED
    world.report(order)
    started = world.report_next(StartOperation)
    assert started[-1] == StartOperation(operation_id=op_id("a1"), wpg_id=NEW, lease_no=2)


def test_the_new_place_is_shared_like_any_other(world: FakeWorld) -> None:
    world.bring_up("b")
    assert world.core.view.wpgs[WpgId("wpg-1-2")].places == TO
    world.submit("b1", job="b", seq=1)
    world.relocate("a", places=TO)
    world.report_next(SpawnWpg)
    assert not any(isinstance(a, StartOperation) for a in world.report(carry(world)))
    parked = world.report_next(StartOperation)
    assert [a.wpg_id for a in parked if isinstance(a, MoveState)] == ["wpg-1-2"]
    restoring = world.report_next(MoveState)
    assert [a.wpg_id for a in restoring if isinstance(a, StartOperation)] == ["wpg-1-3"]


@pytest.mark.parametrize(
    ("stage", "drops"),
    [("spawning", False), ("waiting", False), ("carrying", False), ("restoring", True)],
)
def test_new_processes_that_die_change_nothing(world: FakeWorld, stage: str, drops: bool) -> None:
    world.submit("open", job="a", seq=1, kind=FB)
    world.report_next(StartOperation)
    world.relocate("a", places=TO)
    if stage != "spawning":
        world.report_next(SpawnWpg)
    if stage in {"carrying", "restoring"}:
        world.submit("step", job="a", seq=2)
        world.report_next(StartOperation)
    if stage == "restoring":
        world.report(carry(world))
    assert world.core.view.deployments[DeploymentId("a/actor")].relocation.stage == stage
    actions = world.die(NEW)
    assert fault_of(actions).code is ErrorCode.WORKER_DIED
    assert "stays where it is and goes on" in fault_of(actions).message
    assert StopWpg(wpg_id=NEW) in actions
    assert (DropCarried(move_id=CARRY) in actions) is drops
    runs_on(world, "next", OLD)
    world.drain()
    assert not world.copies
    assert list(world.core.view.wpgs) == [OLD]


def test_a_spawn_that_fails_or_hangs_ends_it(world: FakeWorld) -> None:
    world.relocate("a", places=TO)
    broken = Fault(code=ErrorCode.BAD_REQUEST, message="no such image")
    failed = world.tell(SpawnFailed(at_us=world.tick(), wpg_id=NEW, fault=broken))
    assert fault_of(failed).code is ErrorCode.BAD_REQUEST
    world.orders.clear()
    world.relocate("a", places=TO)
    assert fault_of(world.fire("spawn/wpg-1-3")).code is ErrorCode.OPERATION_TIMEOUT
    runs_on(world, "a1", OLD)


def test_state_that_could_never_fit_ends_it(world: FakeWorld) -> None:
    world.relocate("a", places=TO)
    ready = WpgReady(at_us=world.tick(), wpg_id=NEW, device_bytes=(101,))
    assert fault_of(world.tell(ready)).code is ErrorCode.NO_PLACEMENT


def test_a_copy_that_cannot_be_made_ends_it(world: FakeWorld) -> None:
    actions = world.report(to_carrying(world), fault=no_room())
    assert actions[:2] == [changed(RelocationStage.FAILED, no_room()), StopWpg(wpg_id=NEW)]
    runs_on(world, "a1", OLD)


def test_a_copy_that_comes_too_late_is_dropped(world: FakeWorld) -> None:
    order = to_carrying(world)
    world.die(NEW)
    assert world.report(order) == [DropCarried(move_id=CARRY)]


def test_an_initialize_that_fails_ends_it(world: FakeWorld) -> None:
    broke = Fault(code=ErrorCode.CHECKSUM_MISMATCH, message="block 3")
    actions = world.report(to_restoring(world), fault=broke)
    assert fault_of(actions).code is ErrorCode.CHECKSUM_MISMATCH
    runs_on(world, "a1", OLD)


def test_no_step_boundary_in_time_ends_it(world: FakeWorld) -> None:
    world.submit("fb", job="a", seq=1, kind=FB)
    world.report_next(StartOperation)
    world.relocate("a", places=TO)
    world.report_next(SpawnWpg)
    fault = fault_of(world.fire(f"relocate/{NEW}"))
    assert fault.code is ErrorCode.OPERATION_TIMEOUT
    assert "step or zero_grad" in fault.message
    assert world.core.view.deployments[DeploymentId("a/actor")].relocation_fault == fault


def test_its_time_does_not_run_while_the_deployment_is_held(world: FakeWorld) -> None:
    to_carrying(world)
    assert world.fire(f"relocate/{NEW}") == []


def test_old_processes_that_die_fail_the_deployment_and_free_both(world: FakeWorld) -> None:
    to_restoring(world)
    actions = world.die(OLD)
    assert fault_of(actions).code is ErrorCode.DEPLOYMENT_FAILED
    assert [a.wpg_id for a in actions if isinstance(a, StopWpg)] == [OLD, NEW]
    world.drain()
    assert not world.core.view.wpgs
    assert not world.copies


def test_a_lost_node_ends_it_or_the_deployment(world: FakeWorld) -> None:
    to_carrying(world)
    lost = world.tell(NodeLost(at_us=world.tick(), node_id=NodeId("n1"), reason="silence"))
    assert fault_of(lost).code is ErrorCode.NODE_LOST
    runs_on(world, "a1", OLD)


@pytest.mark.parametrize("stage", ["spawning", "carrying", "restoring"])
def test_a_job_that_ends_on_the_way_frees_both(world: FakeWorld, stage: str) -> None:
    if stage == "spawning":
        world.relocate("a", places=TO)
    else:
        to_carrying(world) if stage == "carrying" else to_restoring(world)
    assert fault_of(world.end("a", JobState.CANCELLED)).code is ErrorCode.JOB_ENDED
    world.drain()
    cluster = world.core.view
    assert not cluster.jobs
    assert not cluster.wpgs
    assert not cluster.deployments
    assert not world.copies


def test_it_may_be_tried_again(world: FakeWorld) -> None:
    to_carrying(world)
    world.die(NEW)
    world.drain()
    world.relocate("a", places=TO)
    world.drain()
    assert world.core.view.deployments[DeploymentId("a/actor")].wpg_id == "wpg-1-3"
    assert world.core.view.wpgs[WpgId("wpg-1-3")].incarnation == 3


def test_the_time_limit_of_one_that_failed_does_not_end_the_next(world: FakeWorld) -> None:
    to_carrying(world)
    world.die(NEW)
    world.relocate("a", places=TO)
    assert world.fire(f"relocate/{NEW}") == []
    world.drain()
    assert world.core.view.deployments[DeploymentId("a/actor")].wpg_id == "wpg-1-3"


@pytest.mark.parametrize(
    ("places", "code"),
    [
        ((), ErrorCode.BAD_REQUEST),
        ((Place(node_id=NodeId("n7"), device=0),), ErrorCode.BAD_REQUEST),
        ((*TO, *TO), ErrorCode.BAD_REQUEST),
        ((Place(node_id=NodeId("n0"), device=0),), ErrorCode.BAD_REQUEST),
    ],
)
def test_impossible_places_are_refused(
    world: FakeWorld, places: tuple[Place, ...], code: ErrorCode
) -> None:
    (refused,) = world.relocate("a", places=places)
    assert isinstance(refused, RelocationChanged)
    assert refused.fault is not None
    assert refused.fault.code is code


def test_one_at_a_time_and_only_when_ready(world: FakeWorld) -> None:
    world.relocate("a", places=TO)
    assert fault_of(world.relocate("a", places=TO)).code is ErrorCode.UNAVAILABLE
    world.job("c")
    world.deploy("c")
    assert fault_of(world.relocate("c", places=TO)).code is ErrorCode.UNAVAILABLE


def test_instances_move_to_idle_devices_once_what_runs_has_ended() -> None:
    world = FakeWorld()
    world.join("n0", train=0, rollout=1)
    world.join("n1", train=0, rollout=1)
    world.bring_up("a", "rollout", rollout=True)
    world.submit("g1", job="a", to="rollout", seq=1, kind=OperationKind.GENERATE)
    running = world.orders[-1]
    world.relocate("a", "rollout", places=TO)
    world.report_next(SpawnWpg)
    held = world.submit("g2", job="a", to="rollout", seq=2, kind=OperationKind.GENERATE)
    assert not any(isinstance(a, StartOperation) for a in held)
    assert any(isinstance(a, CarryState) for a in world.report(running))
    world.report(carry(world))
    done = world.report_next(StartOperation)
    assert done[-1] == StartOperation(operation_id=op_id("g2"), wpg_id=NEW, lease_no=2)
    board = world.core.view.planners["rollout"].board
    assert list(board.exclusive.values()) == [("n0:0",), ("n1:0",)]
    world.drain()
    assert list(board.exclusive.values()) == [("n1:0",)]
    assert list(board.idle) == ["n0:0"]


def test_instances_without_idle_devices_stay_and_say_so() -> None:
    world = FakeWorld()
    world.join("n0", train=0, rollout=1)
    world.bring_up("a", "rollout", rollout=True)
    drained = world.tell(NodeCordoned(at_us=world.tick(), node_id=NodeId("n0"), is_drained=True))
    assert fault_of(drained).code is ErrorCode.NO_PLACEMENT
    world.join("n1", train=0, rollout=1)
    world.fire("drain/a/rollout")
    world.drain()
    assert world.core.view.wpgs[NEW].places == TO


def test_a_relocation_waits_for_a_step_boundary_as_long_as_configured() -> None:
    world = FakeWorld(limits=Limits(relocation_timeout_us=9_000_000))
    world.join("n0")
    world.join("n1")
    world.bring_up("a")
    world.submit("half", job="a", seq=1, kind=FB)
    world.drain()
    world.relocate("a", places=TO)
    assert world.timers[f"relocate/{NEW}"] == world.now_us + 9_000_000
    world.drain()
    told = [a.fault for a in world.fire(f"relocate/{NEW}") if isinstance(a, RelocationChanged)]
    assert [fault.code for fault in told if fault] == [ErrorCode.OPERATION_TIMEOUT]
    assert all("within 9 s" in f.message for f in told if f)
