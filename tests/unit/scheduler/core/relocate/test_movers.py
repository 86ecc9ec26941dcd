"""Movers: who leaves where for which cause, what is booked on the way and when a move fails."""

from __future__ import annotations

from dataclasses import replace

from plexsvc.errors import ErrorCode
from plexsvc.ids import DeploymentId, JobId, NodeId
from plexsvc.scheduler.api.views.story import explain_job
from plexsvc.scheduler.core.actions import (
    CarryState,
    RelocationChanged,
    SpawnWpg,
)
from plexsvc.scheduler.core.events import (
    DeploymentRequested,
    JobMoveRequested,
    JobPinned,
    NodeCordoned,
    NodeLost,
    NodeUncordoned,
    RelocationRequested,
    RepackRequested,
    SpawnFailed,
)
from plexsvc.scheduler.core.limits import Limits
from plexsvc.scheduler.core.relocate.movers import DRAIN_RETRY_US
from plexsvc.scheduler.core.vocabulary import (
    Fault,
    OperationKind,
    OperationState,
    Place,
    RelocationStage,
)
from tests.fakes.fake_world import FakeWorld, op_id, wanted

N0, N1 = NodeId("n0"), NodeId("n1")


def test_a_drained_nodes_job_moves_and_its_operations_go_on(world: FakeWorld) -> None:
    world.submit("a1", job="a", seq=1)
    world.tell(NodeCordoned(at_us=world.tick(), node_id=N0, is_drained=True))
    world.drain()
    assert world.places() == ["n1:0"]
    assert world.stages()[-1] is RelocationStage.DONE
    world.submit("a2", job="a", seq=2)
    world.drain()
    assert len(world.answers) >= 3
    planner = world.core.view.planners["train"]
    assert not planner.board.idle
    world.bring_up("b")
    assert world.places("b") == ["n1:0"]


def test_a_cordoned_nodes_job_stays(world: FakeWorld) -> None:
    world.tell(NodeCordoned(at_us=world.tick(), node_id=N0))
    world.drain()
    assert world.places() == ["n0:0"]
    world.tell(NodeUncordoned(at_us=world.tick(), node_id=N0))
    world.bring_up("b")
    world.bring_up("c")
    assert world.places("b") == ["n1:0"]


def test_a_job_with_nowhere_to_go_leaves_when_a_node_joins() -> None:
    world = FakeWorld()
    world.join("n0", train=1)
    world.bring_up("a")
    world.tell(NodeCordoned(at_us=world.tick(), node_id=N0, is_drained=True))
    world.drain()
    assert world.places() == ["n0:0"]
    world.join("n1", train=1)
    world.fire("drain/a/actor")
    world.drain()
    assert world.places() == ["n1:0"]


def test_a_gang_with_nowhere_to_go_leaves_the_drained_node_alone() -> None:
    world = FakeWorld()
    for name in ("n0", "n1", "n2"):
        world.join(name, train=1)
    world.bring_up("gang", devices=2)
    assert world.places("gang") == ["n0:0", "n1:0"]
    world.tell(NodeCordoned(at_us=world.tick(), node_id=N0, is_drained=True))
    world.drain()
    assert world.places("gang") == ["n2:0", "n1:0"]
    assert world.stages()[-1] is RelocationStage.DONE
    world.tell(NodeCordoned(at_us=world.tick(), node_id=N1, is_drained=True))
    world.fire("drain/gang/actor")
    world.drain()
    assert world.places("gang") == ["n2:0", "n1:0"], "no device is idle"


def test_a_gang_stays_whose_state_would_not_fit_twice() -> None:
    world = FakeWorld()
    for name in ("n0", "n1", "n2"):
        world.join(name, train=1, host_bytes=60)
    world.bring_up("gang", devices=2)
    world.tell(NodeCordoned(at_us=world.tick(), node_id=N0, is_drained=True))
    world.drain()
    assert world.places("gang") == ["n0:0", "n1:0"]


def test_repacking_empties_a_group_unless_its_job_is_pinned(world: FakeWorld) -> None:
    world.bring_up("b")
    for job in "ab":
        world.fire(f"probe/{job}/actor")
    for job in "ab":
        world.tell(JobPinned(at_us=world.tick(), job_id=JobId(job), is_pinned=True))
    world.tell(RepackRequested(at_us=world.tick()))
    assert not world.orders
    for job in "ab":
        world.tell(JobPinned(at_us=world.tick(), job_id=JobId(job), is_pinned=False))
    world.tell(RepackRequested(at_us=world.tick()))
    world.drain()
    assert world.places("a") == world.places("b")
    assert len(world.core.view.planners["train"].board.idle) == 1


def test_who_lives_where_a_reservation_is_due_moves_to_what_came_free() -> None:
    world = FakeWorld(limits=Limits(max_deployments_per_group=1))
    for node in ("n0", "n1", "n2"):
        world.join(node)
    world.tell(NodeCordoned(at_us=world.tick(), node_id=NodeId("n2")))
    world.bring_up("a")
    world.bring_up("b")
    world.job("gang", priority=1)
    world.deploy("gang", devices=2)
    story = explain_job(world.core.view, JobId("gang"), now_us=world.now_us)
    assert story is not None
    assert "n0:0, n1:0 are kept for it, due in 3599 s" in story.text
    world.tell(NodeUncordoned(at_us=world.tick(), node_id=NodeId("n2")))
    world.drain()
    assert world.places() == ["n0:0"]
    world.fire("drain/gang/actor")
    world.drain()
    assert world.places() == ["n2:0"]
    world.end("b")
    world.drain()
    assert world.places("gang") == ["n0:0", "n1:0"]


def test_a_move_that_fails_is_booked_back_and_tried_again(world: FakeWorld) -> None:
    world.tell(NodeCordoned(at_us=world.tick(), node_id=N0, is_drained=True))
    world.report_next(SpawnWpg)
    order = next(o for o in world.orders if isinstance(o, CarryState))
    world.report(order, fault=Fault(code=ErrorCode.UNAVAILABLE, message="no"))
    assert world.stages()[-1] is RelocationStage.FAILED
    assert world.places() == ["n0:0"]
    world.drain()
    world.fire("drain/a/actor")
    world.drain()
    assert world.places() == ["n1:0"]


def test_instances_leave_the_devices_of_a_job_on_its_way_to_it(world: FakeWorld) -> None:
    """They would keep them, and a job whose move failed could not stay where it is."""
    world.tell(JobMoveRequested(job_id=JobId("a"), node_id=N1, at_us=world.tick()))
    world.job("b")
    world.tell(
        DeploymentRequested(
            at_us=world.tick(),
            deployment_id=DeploymentId("b/rollout"),
            job_id=JobId("b"),
            initialize_id=op_id("b/rollout/init"),
            role="rollout",
            backend="noop",
            device_kind="train",
            num_devices=1,
            is_rollout=True,
        )
    )
    world.report_next(SpawnWpg)
    order = next(o for o in world.orders if isinstance(o, CarryState))
    world.report(order, fault=Fault(code=ErrorCode.UNAVAILABLE, message="no"))
    assert world.places() == ["n0:0"]
    world.drain()
    rollout = world.core.cluster.deployments[DeploymentId("b/rollout")]
    wpg = world.core.cluster.wpg_of(rollout)
    assert wpg is not None
    assert [place.node_id for place in wpg.places] == [N1]


def test_an_operator_moves_a_job_where_he_wants_or_is_told_why_not(world: FakeWorld) -> None:
    world.bring_up("b")
    world.tell(JobMoveRequested(at_us=world.tick(), job_id=JobId("a"), node_id=N1))
    world.drain()
    assert world.places() == ["n1:0"]
    again = world.tell(JobMoveRequested(at_us=world.tick(), job_id=JobId("a"), node_id=N1))
    (said,) = [a for a in again if isinstance(a, RelocationChanged)]
    assert said.fault is not None
    assert "lives there already" in said.fault.message
    nowhere = NodeId("n9")
    actions = world.tell(JobMoveRequested(at_us=world.tick(), job_id=JobId("a"), node_id=nowhere))
    (told,) = [a for a in actions if isinstance(a, RelocationChanged)]
    assert told.fault is not None
    assert "n9" in told.fault.message


def seeded(*, nodes: int = 2) -> FakeWorld:
    """A world whose job `a` trains, and generates there too; state and engine take turns."""
    world = FakeWorld(device_bytes=100)
    for number in range(nodes):
        world.join(f"n{number}")
    world.bring_up("a")
    world.deploy("a", "rollout", rollout=True, where_it_trains=True)
    world.drain()
    return world


def where(world: FakeWorld) -> str:
    """Return the device on which job `a` generates."""
    deployment = world.core.view.deployments[DeploymentId("a/rollout")]
    wpg = world.core.view.wpg_of(deployment)
    assert wpg is not None
    (place,) = wpg.places
    return place.unit


def generates(world: FakeWorld, *, seq: int) -> OperationState:
    kind, name = OperationKind.GENERATE, f"g{seq}"
    world.submit(name, job="a", to="rollout", seq=seq, kind=kind)
    world.drain()
    return world.core.view.operations[op_id(name)].state


def test_engines_follow_the_training_on_whose_devices_they_live() -> None:
    world = seeded()
    assert generates(world, seq=1) is OperationState.ANSWERED
    assert where(world) == "n0:0"
    world.relocate("a", places=(Place(node_id=NodeId("n1"), device=0),))
    world.drain()
    assert (world.places(), where(world)) == (["n1:0"], "n1:0")
    assert generates(world, seq=2) is OperationState.ANSWERED
    assert not world.core.cluster.roll.following
    assert len(world.core.view.wpgs) == 2, "those before are gone"


def test_engines_that_could_not_follow_try_again() -> None:
    world = seeded()
    world.relocate("a", places=(Place(node_id=NodeId("n1"), device=0),))
    coming: list[SpawnWpg] = []
    while where(world) == "n0:0":
        spawns = [order for order in world.orders if isinstance(order, SpawnWpg)]
        coming = [one for one in spawns if one.deployment_id == "a/rollout"]
        if coming:
            break
        world.report(world.orders[0])
    world.orders.remove(coming[0])
    fault = Fault(code=ErrorCode.WORKER_DIED, message="no memory")
    world.tell(SpawnFailed(at_us=world.tick(), wpg_id=coming[0].wpg_id, fault=fault))
    world.drain()
    assert where(world) == "n0:0"
    assert generates(world, seq=1) is OperationState.ANSWERED, "where they were"
    world.tick(DRAIN_RETRY_US)
    world.submit("next", job="a", seq=1)
    world.drain()
    assert where(world) == "n1:0"


def test_a_drained_node_is_left_by_training_with_its_engines() -> None:
    world = seeded()
    world.tell(NodeCordoned(at_us=world.tick(), node_id=NodeId("n0"), is_drained=True))
    world.drain()
    assert (world.places(), where(world)) == (["n1:0"], "n1:0")


def test_engines_are_not_moved_without_their_training() -> None:
    world = seeded()
    place = Place(node_id=NodeId("n1"), device=0)
    asked = RelocationRequested(
        at_us=world.tick(),
        deployment_id=DeploymentId("a/rollout"),
        places=(place,),
        reason="asked",
    )
    (told,) = [a for a in world.tell(asked) if isinstance(a, RelocationChanged)]
    assert told.fault is not None
    assert "move the training" in told.fault.message
    world.drain()
    assert where(world) == "n0:0"


def engine_on_a_training_device(world: FakeWorld, job: str) -> None:
    world.job(job)
    asked = wanted(job, "rollout", devices=1, rollout=True)
    world.tell(replace(asked, at_us=world.tick(), device_kind="train"))
    world.drain()


def test_training_is_not_moved_onto_devices_that_instances_have_for_themselves() -> None:
    world = FakeWorld()
    world.join("n0")
    world.bring_up("a")
    world.join("n1")
    engine_on_a_training_device(world, "b")
    told = world.tell(JobMoveRequested(at_us=world.tick(), job_id=JobId("a"), node_id=N1))
    told += world.relocate("a", places=(Place(node_id=N1, device=0),))
    assert [one.stage for one in told if isinstance(one, RelocationChanged)] == [
        RelocationStage.FAILED
    ] * 2
    assert world.places() == ["n0:0"]


def test_instances_get_what_a_lost_node_left_once_it_is_kept_for_nobody() -> None:
    world = FakeWorld()
    world.join("n0")
    world.join("n1")
    world.bring_up("a", devices=2)
    world.tell(NodeLost(at_us=world.tick(), node_id=N0, reason="silence"))
    world.drain()
    engine_on_a_training_device(world, "b")
    assert world.core.view.unplaced == ["b/rollout"]
    world.fire("drain/b/rollout")
    assert not world.core.view.unplaced
