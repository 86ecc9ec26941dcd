"""What an operator is told about those who live on a node."""

from __future__ import annotations

from plexsvc.ids import DeploymentId, NodeId, WpgId
from plexsvc.scheduler.api.views.nodes import what_next
from plexsvc.scheduler.core.actions import SpawnWpg, StartOperation
from plexsvc.scheduler.core.vocabulary import Place
from tests.fakes.fake_world import FakeWorld

N0, N1 = NodeId("n0"), NodeId("n1")


def told(world: FakeWorld) -> list[str]:
    """Return what becomes of each WPG, in the order they came."""
    view = world.core.view
    return [what_next(view, wpg, wpg.places[0].node_id) for wpg in view.wpgs.values()]


def moving() -> FakeWorld:
    """Job `a` on its way from `n0` to `n1`."""
    world = FakeWorld()
    world.join("n0")
    world.join("n1")
    world.bring_up("a")
    assert told(world) == [""]
    world.relocate("a", places=(Place(node_id=N1, device=0),))
    return world


def test_a_wpg_that_is_replaced_moves_and_is_stopped_and_the_other_arrives() -> None:
    world = moving()
    assert told(world) == ["moves to n1:0 (spawning)", "arrives here"]
    world.report_next(SpawnWpg)
    world.report(world.orders[0])
    world.report_next(StartOperation)
    assert told(world) == ["is being stopped: it moved away", ""]
    assert world.core.view.deployments[DeploymentId("a/actor")].wpg_id == "wpg-1-2"


def test_a_wpg_whose_move_failed_is_stopped_where_it_would_have_arrived() -> None:
    world = moving()
    world.die(WpgId("wpg-1-2"))
    assert told(world) == ["", "is being stopped"]
