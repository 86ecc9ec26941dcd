"""Nodes: what is lost with one, and what a returning one brings."""

from __future__ import annotations

from plexsvc.errors import ErrorCode
from plexsvc.ids import NodeId
from plexsvc.scheduler.core.events import (
    NodeLost,
)
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
