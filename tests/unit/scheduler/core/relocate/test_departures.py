"""Departures: where operators send jobs, what is booked on the way and when a move fails."""

from __future__ import annotations

from plexsvc.errors import ErrorCode
from plexsvc.ids import DeploymentId, JobId, NodeId
from plexsvc.scheduler.core.actions import CarryState, RelocationChanged, SpawnWpg
from plexsvc.scheduler.core.events import (
    DeploymentRequested,
    JobMoveRequested,
    NodeCordoned,
)
from plexsvc.scheduler.core.vocabulary import Fault, RelocationStage
from tests.fakes.fake_world import FakeWorld, op_id

N0, N1 = NodeId("n0"), NodeId("n1")


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
