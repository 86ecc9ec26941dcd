"""Operators' orders on a live cluster: drain, move, pin, repack; and what goes wrong on the way."""

from __future__ import annotations

import pytest

from plexsvc.errors import ErrorCode
from plexsvc.ids import DeploymentId, JobId, NodeId
from plexsvc.scheduler.core.actions import CarryState, RelocationChanged, SpawnWpg
from plexsvc.scheduler.core.events import (
    DeploymentRequested,
    JobMoveRequested,
    JobPinned,
    NodeCordoned,
    NodeUncordoned,
    RepackRequested,
)
from plexsvc.scheduler.core.place import placing
from plexsvc.scheduler.core.vocabulary import Fault, RelocationStage
from tests.fakes.fake_world import FakeWorld, op_id

N0, N1 = NodeId("n0"), NodeId("n1")


@pytest.fixture
def world() -> FakeWorld:
    """Two nodes of one training device; job `a` on the first."""
    world = FakeWorld()
    world.join("n0", train=1)
    world.join("n1", train=1)
    world.bring_up("a")
    return world


def places(world: FakeWorld, job: str = "a") -> list[str]:
    cluster = world.core.view
    deployment = cluster.deployments[DeploymentId(f"{job}/actor")]
    wpg = cluster.wpg_of(deployment)
    assert wpg is not None
    planner, key = placing.planner_of(world.core.cluster.placement, deployment)
    where = [placing.unit(place) for place in wpg.places]
    assert list(planner.group_of(key).residents[key].units) == where, "booked elsewhere"
    return [str(place) for place in where]


def stages(world: FakeWorld) -> list[RelocationStage]:
    return [a.stage for a in world.log if isinstance(a, RelocationChanged)]


def test_a_drained_nodes_job_moves_and_its_operations_go_on(world: FakeWorld) -> None:
    world.submit("a1", job="a", seq=1)
    world.tell(NodeCordoned(at_us=world.tick(), node_id=N0, is_drained=True))
    world.drain()
    assert places(world) == ["n1:0"]
    assert stages(world)[-1] is RelocationStage.DONE
    world.submit("a2", job="a", seq=2)
    world.drain()
    assert len(world.answers) >= 3
    planner = world.core.view.planners["train"]
    assert not planner.board.idle
    world.bring_up("b")
    assert places(world, "b") == ["n1:0"]


def test_a_cordoned_nodes_job_stays(world: FakeWorld) -> None:
    world.tell(NodeCordoned(at_us=world.tick(), node_id=N0))
    world.drain()
    assert places(world) == ["n0:0"]
    world.tell(NodeUncordoned(at_us=world.tick(), node_id=N0))
    world.bring_up("b")
    world.bring_up("c")
    assert places(world, "b") == ["n1:0"]


def test_a_job_with_nowhere_to_go_leaves_when_a_node_joins() -> None:
    world = FakeWorld()
    world.join("n0", train=1)
    world.bring_up("a")
    world.tell(NodeCordoned(at_us=world.tick(), node_id=N0, is_drained=True))
    world.drain()
    assert places(world) == ["n0:0"]
    world.join("n1", train=1)
    world.fire("drain/a/actor")
    world.drain()
    assert places(world) == ["n1:0"]


def test_a_move_that_fails_is_booked_back_and_tried_again(world: FakeWorld) -> None:
    world.tell(NodeCordoned(at_us=world.tick(), node_id=N0, is_drained=True))
    world.report_next(SpawnWpg)
    order = next(o for o in world.orders if isinstance(o, CarryState))
    world.report(order, fault=Fault(code=ErrorCode.UNAVAILABLE, message="no"))
    assert stages(world)[-1] is RelocationStage.FAILED
    assert places(world) == ["n0:0"]
    world.drain()
    world.fire("drain/a/actor")
    world.drain()
    assert places(world) == ["n1:0"]


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
    assert places(world) == ["n0:0"]
    world.drain()
    rollout = world.core.cluster.deployments[DeploymentId("b/rollout")]
    wpg = world.core.cluster.wpg_of(rollout)
    assert wpg is not None
    assert [place.node_id for place in wpg.places] == [N1]


def test_an_operator_moves_a_job_where_he_wants_or_is_told_why_not(world: FakeWorld) -> None:
    world.bring_up("b")
    world.tell(JobMoveRequested(at_us=world.tick(), job_id=JobId("a"), node_id=N1))
    world.drain()
    assert places(world) == ["n1:0"]
    again = world.tell(JobMoveRequested(at_us=world.tick(), job_id=JobId("a"), node_id=N1))
    (said,) = [a for a in again if isinstance(a, RelocationChanged)]
    assert said.fault is not None
    assert "lives there already" in said.fault.message
    nowhere = NodeId("n9")
    actions = world.tell(JobMoveRequested(at_us=world.tick(), job_id=JobId("a"), node_id=nowhere))
    (told,) = [a for a in actions if isinstance(a, RelocationChanged)]
    assert told.fault is not None
    assert "n9" in told.fault.message


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
    assert places(world, "a") == places(world, "b")
    assert len(world.core.view.planners["train"].board.idle) == 1
