"""Nodes: what is lost with one, and what a returning one brings."""

from __future__ import annotations

from plexsvc.errors import ErrorCode
from plexsvc.ids import NodeId, UnitId
from plexsvc.scheduler.core.actions import SpawnWpg
from plexsvc.scheduler.core.events import NodeLost
from plexsvc.scheduler.core.limits import Limits
from plexsvc.scheduler.core.vocabulary import JobState
from tests.fakes.fake_world import FakeWorld, codes, op_id


def test_a_lost_node_fails_what_ran_there(world: FakeWorld) -> None:
    world.submit("b1", job="b", seq=1)
    actions = world.tell(NodeLost(at_us=world.tick(), node_id=NodeId("n0"), reason="silence"))
    assert codes(actions) == [ErrorCode.NODE_LOST]
    world.drain()
    world.join(train=1)
    world.bring_up("c")
    world.submit("c1", job="c", seq=1)
    assert world.started[-1] == op_id("c1")


def places(world: FakeWorld) -> dict[str, list[str]]:
    return {
        action.deployment_id: [place.unit for place in action.places]
        for action in world.log
        if isinstance(action, SpawnWpg)
    }


def lost_with_others_waiting() -> FakeWorld:
    """Return nodes of which `a` had two and lost one, while `b` waits and `c` has the third."""
    world = FakeWorld(limits=Limits(max_deployments_per_group=1))
    for node in ("n0", "n1", "n2"):
        world.join(node, train=1)
    world.bring_up("a", devices=2)
    world.bring_up("c")
    world.bring_up("b")
    world.tell(NodeLost(at_us=world.tick(), node_id=NodeId("n0"), reason="silence"))
    world.end("a", JobState.FAILED)
    world.drain()
    return world


def test_a_job_that_lost_its_node_goes_first_to_what_it_left() -> None:
    world = lost_with_others_waiting()
    assert "b/actor" not in places(world)
    world.job("again", called="a")
    world.deploy("again", devices=2)
    world.join("n0", train=1)
    world.drain()
    assert places(world)["again/actor"] == ["n0:0", "n1:0"]
    assert "b/actor" not in places(world)


def test_what_a_lost_job_left_is_others_when_it_does_not_come_back() -> None:
    world = lost_with_others_waiting()
    world.fire("drain/b/actor")
    assert places(world)["b/actor"] == ["n1:0"]


def test_a_nodes_disk_takes_parked_state_as_its_host_memory_does() -> None:
    memory = {}
    for disk_bytes in (0, 500):
        world = FakeWorld()
        world.join(train=2, host_bytes=1000, disk_bytes=disk_bytes)
        placement = world.core.cluster.devices.placement
        memory[disk_bytes] = placement.memory.total_at(UnitId("n0:0"))
    assert memory == {0: 1000, 500: 1500}
