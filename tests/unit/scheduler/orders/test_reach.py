"""A call to a state manager that died is made again until its successor answers, not for ever."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

import grpc
import grpc.aio
import pytest

from plexclient.wire.v1.node_pb2 import NodeDescription
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.ids import DeploymentId, NodeId, VersionId
from plexsvc.scheduler.config import SchedulerConfig
from plexsvc.scheduler.ledger.held import Published
from plexsvc.scheduler.ledger.jobs import Registry
from plexsvc.scheduler.ledger.recorder import Recorder
from plexsvc.scheduler.orders.nodes import NodeLink, NodeLinks
from plexsvc.scheduler.orders.ranks import Ranks
from plexsvc.scheduler.orders.reach import Reach, RolloutPort
from plexsvc.scheduler.orders.versions import Versions
from plexsvc.scheduler.orders.watch import Watch
from tests.fakes.fake_clock import FakeHastyClock
from tests.rigs.keys import KEYS


@dataclass(slots=True)
class FakeCall:
    """Fails with the given statuses, one a call, then answers."""

    statuses: list[grpc.StatusCode]
    made: int = field(default=0)

    async def __call__(self, state: object) -> str:
        assert state is STATE
        self.made += 1
        if self.statuses:
            nothing = grpc.aio.Metadata()
            raise grpc.aio.AioRpcError(self.statuses.pop(0), nothing, nothing, "gone")
        return "moved"


@dataclass(slots=True)
class FakeLink:
    """A node that is up."""

    node_id: str = "n0"
    is_up: bool = True
    state: object = None
    description: NodeDescription = field(default_factory=NodeDescription)
    agent_answers: bool = True

    async def has_agent(self) -> bool:
        return self.agent_answers


STATE = object()
NODE = NodeId("n0")
DOWN = grpc.StatusCode.UNAVAILABLE


@pytest.fixture
def link() -> FakeLink:
    return FakeLink(state=STATE)


@pytest.fixture
def reach(link: FakeLink) -> Reach:
    config = SchedulerConfig(state_manager_retry_us=2_000_000, connect_retry_us=500_000)
    clock = FakeHastyClock()
    nodes = NodeLinks(
        (), config=config, clock=clock, epoch=1, post=print, ranks_on=lambda _: (), keys=KEYS
    )
    nodes.links.append(cast("NodeLink", link))
    return Reach(
        config=config,
        clock=clock,
        epoch=1,
        registry=cast("Registry", None),
        nodes=nodes,
        recorder=cast("Recorder", None),
        ranks=cast("Ranks", None),
        versions=Versions(keep=1),
        rollout=cast("RolloutPort", None),
        post=print,
        watch=Watch(clock, progress_timeout_us=config.progress_timeout_us),
    )


async def test_a_call_is_repeated_until_a_successor_answers(reach: Reach) -> None:
    call = FakeCall([DOWN, DOWN, DOWN])
    assert await reach.ask_state(NODE, call) == "moved"
    assert call.made == 4


async def test_a_call_is_not_repeated_for_ever(
    reach: Reach, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("random.uniform", lambda _low, _high: 1.0)
    call = FakeCall([DOWN] * 100)
    with pytest.raises(grpc.aio.AioRpcError):
        await reach.ask_state(NODE, call)
    assert call.made == 5
    assert isinstance(reach.clock, FakeHastyClock)
    assert sum(reach.clock.slept_us) == 2_000_000


async def test_what_the_state_manager_itself_answers_is_not_asked_again(reach: Reach) -> None:
    call = FakeCall([grpc.StatusCode.INVALID_ARGUMENT])
    with pytest.raises(grpc.aio.AioRpcError):
        await reach.ask_state(NODE, call)
    assert call.made == 1


async def test_a_node_without_its_agent_is_not_waited_for(reach: Reach, link: FakeLink) -> None:
    link.agent_answers = False
    call = FakeCall([DOWN])
    with pytest.raises(grpc.aio.AioRpcError):
        await reach.ask_state(NODE, call)
    assert call.made == 1


async def test_work_for_a_lost_node_is_not_asked_again(reach: Reach) -> None:
    call, lost = FakeCall([DOWN]), FakeLink(node_id="n1", agent_answers=False)
    reach.nodes.links.append(cast("NodeLink", lost))
    with pytest.raises(grpc.aio.AioRpcError):
        await reach.ask_state(NODE, call, which_asks=NodeId("n1"))
    assert call.made == 1


def test_a_version_is_located_without_a_node_whose_part_another_has(
    reach: Reach, link: FakeLink
) -> None:
    version = VersionId(DeploymentId("actor"), 1, 7)
    both = Published(version=version, nodes=(NODE, NodeId("gone")), parts=("p", "p"))
    (holder,) = reach.locate(both).holders
    assert (holder.node_id, holder.part) == (NODE, "p")
    for parts in (("p", "q"), ("p", ""), ()):
        lacking = Published(version=version, nodes=(NODE, NodeId("gone")), parts=parts)
        with pytest.raises(PlexError, match="node gone is not reachable") as caught:
            reach.locate(lacking)
        assert caught.value.code is ErrorCode.NODE_LOST
    link.is_up = False
    with pytest.raises(PlexError, match="node n0 is not reachable"):
        reach.locate(both)
