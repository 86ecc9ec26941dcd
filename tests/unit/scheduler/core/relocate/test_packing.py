"""Packing: who leaves a draining node, and what repacking empties."""

from __future__ import annotations

from plexsvc.ids import JobId, NodeId, ResidentId
from plexsvc.scheduler.core.actions import Action, ComputePlan
from plexsvc.scheduler.core.events import (
    JobPinned,
    NodeCordoned,
    NodeUncordoned,
    PlanComputed,
    RepackRequested,
)
from plexsvc.scheduler.core.limits import Limits
from plexsvc.scheduler.core.planning.plans import Goal, compute
from plexsvc.scheduler.core.relocate import packing
from plexsvc.scheduler.core.vocabulary import RelocationStage
from tests.fakes.fake_world import FakeWorld

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
    story = world.core.view.explain_job(JobId("gang"), now_us=world.now_us)
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


def two_on_two_nodes() -> FakeWorld:
    """Jobs `a` and `b`, each alone on a node, and nobody who computes plans."""
    world = FakeWorld(device_bytes=20, computes_plans=False)
    world.join("n0")
    world.join("n1")
    for job in "ab":
        world.bring_up(job)
        world.fire(f"probe/{job}/actor")
    return world


def ordered(actions: list[Action]) -> list[ComputePlan]:
    return [action for action in actions if isinstance(action, ComputePlan)]


def test_a_plan_is_carried_out_when_it_comes_and_not_before() -> None:
    world = two_on_two_nodes()
    (order,) = ordered(world.tell(RepackRequested(at_us=world.tick())))
    assert order == ComputePlan(device_kind="train", goal=Goal.EMPTY, base=order.base)
    world.submit("b1", job="b", seq=1)
    world.drain()
    assert world.places("a") != world.places("b")
    world.computed(order)
    world.drain()
    assert world.places("a") == world.places("b")


def test_no_second_plan_is_ordered_while_one_is_computed() -> None:
    world = two_on_two_nodes()
    (order,) = ordered(world.tell(RepackRequested(at_us=world.tick())))
    assert ordered(world.tell(RepackRequested(at_us=world.tick()))) == []
    world.computed(order)
    assert ordered(world.computed(order)) == []


def test_a_plan_whose_base_does_not_stand_is_made_anew_a_few_times() -> None:
    world = two_on_two_nodes()
    (order,) = ordered(world.tell(RepackRequested(at_us=world.tick())))
    plan = compute(world.core.view.question(order.device_kind, order.goal))
    assert len(plan.moves) == 1
    for attempt in range(1, packing.MAX_ATTEMPTS + 1):
        assert order.attempt == attempt
        planner = world.core.cluster.placement.planning.planners["train"]
        planner.resize(ResidentId("a/actor"), 20 + attempt)
        told = PlanComputed(
            at_us=world.tick(), device_kind="train", goal=order.goal, base=order.base, plan=plan
        )
        again = ordered(world.tell(told))
        assert not world.orders
        assert len(again) == (attempt < packing.MAX_ATTEMPTS)
        order = again[0] if again else order
    assert not world.core.cluster.placement.plans
    assert ordered(world.tell(RepackRequested(at_us=world.tick())))


def test_a_plan_that_moves_a_job_which_was_pinned_meanwhile_is_made_anew() -> None:
    world = two_on_two_nodes()
    (order,) = ordered(world.tell(RepackRequested(at_us=world.tick())))
    plan = compute(world.core.view.question(order.device_kind, order.goal))
    for job in "ab":
        world.tell(JobPinned(at_us=world.tick(), job_id=JobId(job), is_pinned=True))
    told = PlanComputed(
        at_us=world.tick(), device_kind="train", goal=order.goal, base=order.base, plan=plan
    )
    (again,) = ordered(world.tell(told))
    world.computed(again)
    assert not world.orders
