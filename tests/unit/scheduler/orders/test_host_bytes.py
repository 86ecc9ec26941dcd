"""What the core cannot know of host memory it is told once: versions in use, reads from hosts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import cast

import pytest

from plexsvc.ids import DeploymentId, NodeId, VersionId
from plexsvc.scheduler.core.events import Event, VersionRead, VersionsHeld
from plexsvc.scheduler.core.vocabulary import NodeBytes, Place
from plexsvc.scheduler.ledger.durable import Durable
from plexsvc.scheduler.ledger.held import Published
from plexsvc.scheduler.ledger.jobs import WpgRecord
from plexsvc.scheduler.orders import host_bytes
from plexsvc.scheduler.orders.reach import Reach
from plexsvc.scheduler.orders.versions import Versions

ACTOR = DeploymentId("job/actor")
HERE, BESIDE, FAR, GONE = map(NodeId, ("here", "beside", "far", "gone"))
ADDRESSES = {HERE: "10.0.0.1:1", BESIDE: "10.0.0.1:2", FAR: "10.0.0.2:1"}


class FakeNodes:
    """Nodes of two hosts; one is gone."""

    def is_up(self, node_id: NodeId) -> bool:
        return node_id in ADDRESSES

    def link(self, node_id: NodeId) -> SimpleNamespace:
        return SimpleNamespace(description=SimpleNamespace(state_manager=ADDRESSES[node_id]))


@dataclass
class FakeReach:
    """What the facts are made of, and where they go."""

    versions: Versions = field(default_factory=lambda: Versions(keep=2))
    nodes: FakeNodes = field(default_factory=FakeNodes)
    registry: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(deployments={}))
    told_bytes: dict[str, tuple[NodeBytes, ...]] = field(default_factory=dict)
    posted: list[Event] = field(default_factory=list)

    @property
    def post(self) -> Callable[[Event], object]:
        return self.posted.append


@pytest.fixture
def fake() -> FakeReach:
    return FakeReach()


@pytest.fixture
def reach(fake: FakeReach) -> Reach:
    return cast("Reach", fake)


def published(number: int, *nodes: NodeId, nbytes: int = 10) -> Published:
    version = VersionId(ACTOR, 1, number)
    return Published(version=version, nodes=nodes, nbytes=(nbytes,) * len(nodes))


def record(*places: NodeId) -> WpgRecord:
    found = tuple(Place(node_id=node_id, device=at) for at, node_id in enumerate(places))
    return cast("WpgRecord", SimpleNamespace(wpg_id="wpg", places=found, nodes=[*set(places)]))


def test_versions_are_told_with_room_for_the_next_and_only_when_they_change(
    fake: FakeReach, reach: Reach
) -> None:
    fake.versions.add(published(1, HERE, FAR))
    host_bytes.tell_held(reach, ACTOR)
    host_bytes.tell_held(reach, ACTOR)
    both = (NodeBytes(node_id=FAR, nbytes=20), NodeBytes(node_id=HERE, nbytes=20))
    assert fake.posted == [VersionsHeld(deployment_id=ACTOR, held=both)]
    fake.versions.forget(ACTOR)
    host_bytes.tell_held(reach, ACTOR)
    left = (NodeBytes(node_id=FAR, nbytes=10), NodeBytes(node_id=HERE, nbytes=10))
    fake.versions.surplus(used=set())
    host_bytes.tell_held(reach, ACTOR)
    assert fake.posted[1:] == [
        VersionsHeld(deployment_id=ACTOR, held=left),
        VersionsHeld(deployment_id=ACTOR, held=()),
    ]
    assert fake.told_bytes == {}


def test_each_process_on_another_host_reads_the_version_for_itself(
    fake: FakeReach, reach: Reach
) -> None:
    readers = record(HERE, BESIDE, FAR, FAR)
    host_bytes.tell_read(reach, readers, published(1, HERE, BESIDE, GONE))
    host_bytes.tell_read(reach, readers, published(2, HERE, BESIDE, GONE))
    read = (NodeBytes(node_id=FAR, nbytes=40),)
    assert fake.posted == [VersionRead(wpg_id=readers.wpg_id, read=read)]
    host_bytes.forget_reads(reach, readers)
    assert fake.told_bytes == {}


def test_what_is_mapped_on_one_host_is_not_read(fake: FakeReach, reach: Reach) -> None:
    host_bytes.tell_read(reach, record(HERE, BESIDE), published(1, HERE, BESIDE))
    assert fake.posted == []


def test_the_copy_of_a_durable_deployment_is_told_with_room_for_the_next(
    fake: FakeReach, reach: Reach
) -> None:
    durable = Durable(copy=published(1, HERE))
    fake.registry.deployments[ACTOR] = SimpleNamespace(durable=durable)
    host_bytes.tell_held(reach, ACTOR)
    held = (NodeBytes(node_id=HERE, nbytes=20),)
    assert fake.posted == [VersionsHeld(deployment_id=ACTOR, held=held)]
