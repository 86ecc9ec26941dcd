"""A durable deployment loses its processes: what waits, what comes again, what replaces them."""

from __future__ import annotations

import pytest

from plexsvc.errors import ErrorCode
from plexsvc.ids import DeploymentId, JobId, NodeId, WpgId
from plexsvc.scheduler.api.views.story import explain_job
from plexsvc.scheduler.core.actions import (
    Action,
    AnswerOperation,
    DeploymentChanged,
    DeploymentLost,
    ForgetWpg,
    KeepState,
    MoveState,
    RefuseOperation,
    SpawnWpg,
    StartOperation,
    StopWpg,
)
from plexsvc.scheduler.core.events import (
    NodeLost,
    OperationFinished,
    PayloadStaged,
    SpawnFailed,
    StateCopied,
)
from plexsvc.scheduler.core.life.rebuilding import MAX_LOSSES
from plexsvc.scheduler.core.limits import Limits
from plexsvc.scheduler.core.vocabulary import (
    DeploymentState,
    Fault,
    OperationKind,
    Place,
    RelocationStage,
)
from tests.fakes.fake_world import FakeWorld, codes, fault_of, op_id

A, NEXT = WpgId("wpg-1-1"), WpgId("wpg-1-2")
ACTOR = DeploymentId("a/actor")
FB = OperationKind.FORWARD_BACKWARD


@pytest.fixture
def world() -> FakeWorld:
    """Two nodes of one training device; job `a`, which is durable, on the first."""
    world = FakeWorld()
    world.join("n0")
    world.join("n1")
    world.bring_up("a", durable=True)
    return world


def died(world: FakeWorld) -> None:
    """Kill the current WPG and report its end."""
    wpg_id = world.core.view.deployments[ACTOR].wpg_id
    assert wpg_id is not None
    world.die(wpg_id)
    world.report_next(StopWpg)
    world.report_next(ForgetWpg)


def test_the_state_is_kept_after_what_writes_weights(world: FakeWorld) -> None:
    kinds = [FB, OperationKind.STEP, OperationKind.LOAD, OperationKind.ZERO_GRAD]
    for seq, kind in enumerate(kinds, start=1):
        world.submit(f"a{seq}", job="a", seq=seq, kind=kind)
        world.drain()
    kept = [action for action in world.log if isinstance(action, KeepState)]
    assert [(one.wpg_id, one.seq) for one in kept] == [(A, 2), (A, 3)]


def test_a_save_whose_copy_is_gone_with_its_ranks_comes_again(world: FakeWorld) -> None:
    world.submit("a1", job="a", seq=1, kind=OperationKind.SAVE)
    world.tell(StateCopied(at_us=world.tick(), operation_id=op_id("a1")))
    assert StopWpg(wpg_id=A) not in world.die(A), "the copy may be enough to write"
    lost = OperationFinished(
        at_us=world.tick(),
        operation_id=op_id("a1"),
        fault=Fault(code=ErrorCode.WORKER_DIED, message="rank 0 died and its state with it"),
        is_refusal=False,
        run_us=1,
        digest="",
    )
    actions = world.tell(lost)
    (refused,) = (action for action in actions if isinstance(action, RefuseOperation))
    assert (refused.fault.code, refused.is_final) == (ErrorCode.UNAVAILABLE, False)
    assert StopWpg(wpg_id=A) in actions
    world.report_next(StopWpg)
    world.report_next(ForgetWpg)
    world.drain()
    world.submit("a1", job="a", seq=1, kind=OperationKind.SAVE)
    world.drain()
    assert any(isinstance(action, AnswerOperation) for action in world.log)


def test_what_ran_comes_again_and_what_waits_goes_on_where_it_was(world: FakeWorld) -> None:
    world.submit("a1", job="a", seq=1, kind=FB)
    world.submit("a2", job="a", seq=2)
    world.orders.clear()
    actions = world.die(A)
    (refused,) = (action for action in actions if isinstance(action, RefuseOperation))
    assert (refused.operation_id, refused.is_final) == (op_id("a1"), False)
    assert refused.fault.code is ErrorCode.UNAVAILABLE
    assert "deploy again" not in refused.fault.message
    lost = next(action for action in actions if isinstance(action, DeploymentLost))
    assert StopWpg(wpg_id=A) in actions
    world.report_next(StopWpg)
    (spawned,) = (a for a in world.report_next(ForgetWpg) if isinstance(a, SpawnWpg))
    assert (spawned.wpg_id, spawned.incarnation) == (NEXT, 2)
    assert spawned.places == (Place(node_id=NodeId("n0"), device=0),)
    assert world.submit("a1", job="a", seq=1, kind=FB) == []
    (restored,) = (a for a in world.report_next(SpawnWpg) if isinstance(a, StartOperation))
    assert (restored.operation_id, restored.wpg_id) == (lost.initialize_id, NEXT)
    world.drain()
    assert [one for one in world.started if one in {op_id("a1"), op_id("a2")}] == [
        op_id("a1"),
        op_id("a1"),
        op_id("a2"),
    ]
    for name in ("a1", "a2"):
        assert isinstance(world.answers[op_id(name)][-1], AnswerOperation)
    assert world.places() == ["n0:0"]


def test_what_comes_late_of_the_lost_processes_is_of_no_concern(world: FakeWorld) -> None:
    world.submit("a1", job="a", seq=1)
    (ran,) = world.orders
    died(world)
    world.report_next(SpawnWpg)
    world.submit("a1", job="a", seq=1)
    world.report(world.orders[-1])  # its `Initialize`
    assert world.orders[-1] == StartOperation(operation_id=op_id("a1"), wpg_id=NEXT, lease_no=2)
    late = Fault(code=ErrorCode.WORKER_DIED, message="connection refused")
    assert world.report(ran, fault=late) == []
    world.drain()
    assert isinstance(world.answers[op_id("a1")][-1], AnswerOperation)


def test_one_that_is_not_durable_fails(world: FakeWorld) -> None:
    world.bring_up("b")
    wpg_id = world.core.view.deployments[DeploymentId("b/actor")].wpg_id
    assert wpg_id is not None
    world.submit("b1", job="b", seq=1)
    assert codes(world.die(wpg_id)) == [ErrorCode.WORKER_DIED]


def test_a_death_while_it_is_rebuilt_begins_anew_a_bounded_number_of_times(
    world: FakeWorld,
) -> None:
    for _ in range(MAX_LOSSES):
        died(world)
        world.report_next(SpawnWpg)  # its `Initialize` runs
        world.orders.clear()
    wpg_id = world.core.view.deployments[ACTOR].wpg_id
    assert wpg_id is not None
    (told,) = (a for a in world.die(wpg_id) if isinstance(a, DeploymentChanged))
    assert (told.state, told.fault and told.fault.code) == (
        DeploymentState.FAILED,
        ErrorCode.WORKER_DIED,
    )
    world.drain()
    assert not world.core.view.wpgs


def test_a_death_while_it_starts_starts_it_again_a_bounded_number_of_times(
    world: FakeWorld,
) -> None:
    world.job("b")
    world.deploy("b", durable=True)
    deployment = world.core.view.deployments[DeploymentId("b/actor")]
    for number in range(MAX_LOSSES):
        assert deployment.wpg_id is not None
        if number:
            world.report_next(SpawnWpg)  # its `Initialize` runs
        world.die(deployment.wpg_id)
        assert "is started again" in str(explain_job(world.core.view, JobId("b"), now_us=9))
        world.report_next(StopWpg)
        world.orders = [one for one in world.orders if not isinstance(one, SpawnWpg)]
        world.report_next(ForgetWpg)
    world.report_next(SpawnWpg)
    world.submit("b1", job="b", seq=1)
    world.drain()
    assert isinstance(world.answers[op_id("b1")][-1], AnswerOperation)


def test_a_process_that_gives_up_while_it_starts_ends_the_deployment(world: FakeWorld) -> None:
    world.job("b")
    world.deploy("b", durable=True)
    (spawn,) = world.orders
    gave_up = Fault(
        code=ErrorCode.WORKER_DIED, message="ended", facts=(("exit_code", "1"), ("signal", "0"))
    )
    assert isinstance(spawn, SpawnWpg)
    world.orders.clear()
    failed = SpawnFailed(at_us=world.tick(), wpg_id=spawn.wpg_id, fault=gave_up)
    (told,) = (a for a in world.tell(failed) if isinstance(a, DeploymentChanged))
    assert told.fault is not None
    assert (told.state, told.fault.code) == (
        DeploymentState.FAILED,
        ErrorCode.DEPLOYMENT_FAILED,
    )


def test_an_applied_operation_makes_deaths_count_anew(world: FakeWorld) -> None:
    for seq in range(1, MAX_LOSSES + 3):
        died(world)
        world.drain()
        world.submit(f"a{seq}", job="a", seq=seq)
        world.drain()
        assert isinstance(world.answers[op_id(f"a{seq}")][0], AnswerOperation)


def test_state_that_cannot_be_restored_ends_the_deployment(world: FakeWorld) -> None:
    died(world)
    world.report_next(SpawnWpg)
    world.submit("a1", job="a", seq=1)
    order = next(order for order in world.orders if isinstance(order, StartOperation))
    fault = Fault(code=ErrorCode.DEPLOYMENT_FAILED, message="its last durable step is seq 4")
    assert codes(world.report(order, fault=fault)) == [
        ErrorCode.DEPLOYMENT_FAILED,
        ErrorCode.DEPLOYMENT_FAILED,
    ]
    world.drain()
    assert not world.core.view.wpgs


def test_one_that_is_rebuilt_waits_for_the_memory_of_a_neighbour_lost_amid_a_move() -> None:
    world = FakeWorld(device_bytes=100)
    world.join(train=1)
    for job in "ab":
        world.bring_up(job, durable=True)
    b_wpg = world.core.view.deployments[DeploymentId("b/actor")].wpg_id
    world.submit("a1", job="a", seq=1)
    world.drain()
    world.submit("b1", job="b", seq=1)
    world.report_next(MoveState)  # `a` has left
    (load,) = (order for order in world.orders if isinstance(order, MoveState))
    assert load.wpg_id == b_wpg
    died(world)
    world.report_next(SpawnWpg)
    assert world.orders == [load], "`b` has the device"
    silent = Fault(code=ErrorCode.WORKER_DIED, message="stopped answering during a move")
    world.report(load, fault=silent)
    world.report_next(StopWpg)
    assert [type(order) for order in world.orders] == [ForgetWpg], "nobody has its room yet"
    actions = world.report_next(ForgetWpg)
    (started,) = (one for one in actions if isinstance(one, StartOperation))
    assert started.wpg_id == world.core.view.deployments[ACTOR].wpg_id
    world.drain()
    for job in "ab":
        world.submit(f"{job}1", job=job, seq=1)
        world.submit(f"{job}2", job=job, seq=2)
    world.drain()
    assert all(isinstance(world.answers[op_id(f"{job}2")][-1], AnswerOperation) for job in "ab")


def test_what_was_allocated_before_an_initialize_failed_is_free_when_it_is_forgotten() -> None:
    world = FakeWorld(device_bytes=100)
    world.join(train=1)
    world.bring_up("a")
    world.submit("a1", job="a", seq=1)
    world.drain()
    world.job("b")
    world.deploy("b")
    world.report_next(SpawnWpg)
    world.report_next(MoveState)  # `a` makes room
    (order,) = (one for one in world.orders if isinstance(one, StartOperation))
    world.submit("a2", job="a", seq=2)
    world.report(order, fault=Fault(code=ErrorCode.INTERNAL, message="half of it is built"))
    world.report_next(StopWpg)
    assert [type(order) for order in world.orders] == [ForgetWpg]
    assert [type(one) for one in world.report_next(ForgetWpg)] == [MoveState]
    world.drain()
    assert isinstance(world.answers[op_id("a2")][-1], AnswerOperation)


def lose_node(world: FakeWorld, node_id: str) -> list[Action]:
    return world.tell(NodeLost(at_us=world.tick(), node_id=NodeId(node_id), reason="silence"))


def test_one_whose_node_is_lost_goes_on_elsewhere(world: FakeWorld) -> None:
    world.submit("a1", job="a", seq=1, kind=FB)
    world.submit("a2", job="a", seq=2)
    world.orders.clear()
    assert codes(lose_node(world, "n0")) == [ErrorCode.UNAVAILABLE]
    world.report_next(StopWpg)
    world.report_next(ForgetWpg)
    assert world.places() == ["n1:0"]
    world.submit("a1", job="a", seq=1, kind=FB)
    world.drain()
    for name in ("a1", "a2"):
        assert isinstance(world.answers[op_id(name)][-1], AnswerOperation)


def test_inputs_that_were_staged_on_a_lost_node_come_again(world: FakeWorld) -> None:
    world.submit("a1", job="a", seq=1, kind=FB)
    world.submit("a2", job="a", seq=2, kind=FB, is_staged=False)
    world.tell(PayloadStaged(at_us=world.tick(), operation_id=op_id("a2")))
    world.submit("a3", job="a", seq=3)
    world.orders.clear()
    world.die(A)
    again = [a for a in lose_node(world, "n0") if isinstance(a, RefuseOperation)]
    assert [(one.operation_id, one.is_final) for one in again] == [(op_id("a2"), False)]
    world.report_next(StopWpg)
    world.report_next(ForgetWpg)
    for seq in (1, 2):
        world.submit(f"a{seq}", job="a", seq=seq, kind=FB)
    world.drain()
    for name in ("a1", "a2", "a3"):
        assert isinstance(world.answers[op_id(name)][-1], AnswerOperation)


def test_one_whose_node_is_lost_waits_where_no_other_is(world: FakeWorld) -> None:
    lose_node(world, "n1")
    lose_node(world, "n0")
    world.report_next(StopWpg)
    assert codes(world.report_next(ForgetWpg)) == []
    assert "waits for devices" in str(explain_job(world.core.view, JobId("a"), now_us=9))
    world.join("n1")
    world.submit("a1", job="a", seq=1)
    world.drain()
    assert isinstance(world.answers[op_id("a1")][-1], AnswerOperation)


def test_another_node_keeps_a_second_copy_if_it_has_room(world: FakeWorld) -> None:
    def kept_on() -> NodeId | None:
        seq = world.core.view.deployments[ACTOR].next_seq
        world.submit(f"a{seq}", job="a", seq=seq)
        world.drain()
        return [action for action in world.log if isinstance(action, KeepState)][-1].beside

    assert kept_on() == "n1"
    lose_node(world, "n1")
    assert kept_on() is None
    world.join("n2", host_bytes=1)
    assert kept_on() is None
    world.join("n3")
    assert kept_on() == "n3"


def beside(actions: list[Action]) -> list[tuple[int, NodeId | None]]:
    return [(action.seq, action.beside) for action in actions if isinstance(action, KeepState)]


def test_one_rebuilt_on_the_node_of_its_second_copy_gets_another_at_once(world: FakeWorld) -> None:
    world.submit("a1", job="a", seq=1)
    world.drain()
    world.join("n2")
    lose_node(world, "n0")
    world.report_next(StopWpg)
    world.report_next(ForgetWpg)
    assert world.places() == ["n1:0"]
    world.report_next(SpawnWpg)
    (order,) = (one for one in world.orders if isinstance(one, StartOperation))
    assert beside(world.report(order)) == [(0, "n2")]


def test_one_whose_other_node_was_lost_gets_a_second_copy_when_one_joins(world: FakeWorld) -> None:
    world.submit("a1", job="a", seq=1)
    world.drain()
    lose_node(world, "n1")
    world.log.clear()
    world.join("n2", host_bytes=1)
    assert beside(world.log) == []
    world.join("n1")
    world.join("n3")
    assert beside(world.log) == [(0, "n1")], "one is enough"
    died(world)
    world.drain()
    assert beside(world.log) == [(0, "n1")], "it is still there"


def test_a_job_that_ends_meanwhile_leaves_nothing(world: FakeWorld) -> None:
    world.die(A)
    world.end("a")
    world.drain()
    assert not world.core.view.jobs
    assert not world.core.view.wpgs
    assert not world.core.view.operations


def test_a_checkpoint_that_is_being_written_is_written(world: FakeWorld) -> None:
    world.submit("a1", job="a", seq=1, kind=OperationKind.SAVE)
    world.copied("a1")
    (save,) = world.orders
    assert StopWpg(wpg_id=A) not in world.die(A)
    assert world.submit("a2", job="a", seq=2) == []
    actions = world.report(save)
    assert StopWpg(wpg_id=A) in actions
    assert isinstance(world.answers[op_id("a1")][0], AnswerOperation)
    world.drain()
    assert isinstance(world.answers[op_id("a2")][0], AnswerOperation)


def test_a_relocation_ends_and_its_deployment_is_rebuilt_where_it_was(world: FakeWorld) -> None:
    to = (Place(node_id=NodeId("n1"), device=0),)
    world.relocate("a", places=to)
    world.die(A)
    assert world.stages()[-1] is RelocationStage.FAILED
    assert fault_of(world.relocate("a", places=to)[-1]).code is ErrorCode.UNAVAILABLE
    world.drain()
    world.submit("a1", job="a", seq=1)
    world.drain()
    assert isinstance(world.answers[op_id("a1")][0], AnswerOperation)
    assert world.places() == ["n0:0"]


HOUR_US = 3_600_000_000


def test_one_whose_node_is_lost_waits_as_long_as_one_that_is_new() -> None:
    world = FakeWorld(limits=Limits(placement_timeout_us=HOUR_US))
    world.join("n0")
    world.bring_up("a", durable=True)
    world.tick(HOUR_US - 1_000_000)
    lose_node(world, "n0")
    world.drain()
    assert world.timers["place/a/actor"] > world.now_us + HOUR_US - 10_000
    actions = world.fire("place/a/actor")
    (ended,) = (action for action in actions if isinstance(action, DeploymentChanged))
    assert ended.fault is not None
    assert ended.fault.code is ErrorCode.NO_PLACEMENT
    assert "no place found after 3600 s" in ended.fault.message


def test_jobs_that_lost_nodes_and_wait_for_each_other_are_told_so() -> None:
    world = FakeWorld(limits=Limits(max_deployments_per_group=1))
    for node in ("n0", "n1", "n2"):
        world.join(node, train=2)
    for job in "ab":
        world.bring_up(job, devices=2, durable=True)
    for job in "ab":
        world.bring_up(job, "critic")
    for node in ("n0", "n1"):
        lose_node(world, node)
    world.drain()
    assert world.core.view.unplaced == ["a/actor", "b/actor"]
    actions = world.fire("circle/n0")
    first = next(action for action in actions if isinstance(action, DeploymentChanged))
    assert first.fault is not None
    assert dict(first.fault.facts)["circle"] == "a b"
