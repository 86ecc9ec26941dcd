"""Host memory is booked before it is taken: versions, copies, moves, reads from other hosts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from plexsvc.ids import DeploymentId, NodeId, VersionId, WpgId
from plexsvc.residency import Residency
from plexsvc.scheduler.api.views.story import explain
from plexsvc.scheduler.core.actions import Action, CarryState, ForgetWpg, StartOperation
from plexsvc.scheduler.core.events import Event, VersionRead, VersionsHeld
from plexsvc.scheduler.core.limits import Limits
from plexsvc.scheduler.core.planning.groups import Group
from plexsvc.scheduler.core.planning.memory import HostMemory, Use
from plexsvc.scheduler.core.planning.places import Search, Spot
from plexsvc.scheduler.core.planning.profile import Demand
from plexsvc.scheduler.core.vocabulary import COPYING_KINDS, Fault, NodeBytes, OperationKind
from plexsvc.scheduler.ledger.held import Published
from plexsvc.scheduler.orders.versions import Versions
from tests.fakes.fake_world import FakeWorld, Order, op_id
from tests.rigs.core_invariants import check_memory
from tests.unit.scheduler.core.test_properties import LIMITS, AnyHistory

KEPT, VERSION, STATE = 2, 15, 60


@dataclass(slots=True)
class Hosts(FakeWorld):
    """A world whose state managers hold what orders have them hold; the core must have room."""

    version_bytes: int = (KEPT + 1) * VERSION
    versions: Versions = field(default_factory=lambda: Versions(keep=KEPT))
    used: set[VersionId] = field(default_factory=set)
    """Versions that instances serve, or that pulls will read."""
    made: list[VersionId] = field(default_factory=list)

    @property
    def memory(self) -> HostMemory:
        return self.core.cluster.placement.memory

    def tell(self, event: Event) -> list[Action]:
        actions = FakeWorld.tell(self, event)
        check_memory(self.memory)
        booked = {
            place.node_id: self.memory.booked_at(place.unit) for place in self.core.view.devices
        }
        for node_id, nbytes in self.held().items():
            assert nbytes <= booked.get(node_id, 0), (event, node_id, nbytes, booked)
        return actions

    def report(self, order: Order, *, fault: Fault | None = None) -> list[Action]:
        published = self.kind_of(order) is OperationKind.PUBLISH and fault is None
        if isinstance(order, StartOperation) and published and order.wpg_id in self.core.view.wpgs:
            self.publish(order.wpg_id)
        wpg = self.core.view.wpgs.get(order.wpg_id) if isinstance(order, ForgetWpg) else None
        if wpg is not None and self.core.cluster.is_current(wpg):
            self.versions.forget(wpg.deployment_id)
            self.release()
        return FakeWorld.report(self, order, fault=fault)

    def publish(self, wpg_id: WpgId) -> None:
        wpg = self.core.view.wpgs[wpg_id]
        version = VersionId(wpg.deployment_id, wpg.incarnation, len(self.made) + 1)
        nodes = Counter(place.node_id for place in wpg.places)
        nbytes = tuple(count * VERSION for count in nodes.values())
        self.made.append(version)
        self.versions.add(Published(version=version, nodes=tuple(nodes), nbytes=nbytes))
        self.release()
        self.tell_held(wpg.deployment_id)

    def release(self) -> None:
        gone = self.versions.surplus(used=self.used)
        for deployment_id in dict.fromkeys(one.version.deployment_id for one in gone):
            self.tell_held(DeploymentId(deployment_id))

    def tell_held(self, deployment_id: DeploymentId) -> None:
        found = self.versions.held(deployment_id).items()
        held = tuple(NodeBytes(node_id=node, nbytes=n) for node, n in sorted(found))
        told = VersionsHeld(at_us=self.tick(), deployment_id=deployment_id, held=held)
        self.tell(told)

    def held(self) -> Counter[NodeId]:
        """Return what state managers hold, by node."""
        found = Counter[NodeId]()
        for wpg in self.core.view.wpgs.values():
            if not wpg.is_rollout and wpg.residency is not Residency.NONE:
                found.update({n: c * STATE for n, c in self.nodes(wpg.wpg_id).items()})
        for deployment_id in {DeploymentId(one.deployment_id) for one in self.made}:
            # what is released is gone before it is told, so what is told counts at least
            found.update(self.versions.held(deployment_id, with_next=False))
        carrying = [order for order in self.orders if isinstance(order, CarryState)]
        made = [m for m in self.log if isinstance(m, CarryState) and m.move_id in self.copies]
        for move in (*carrying, *made):
            old = self.core.view.wpgs.get(move.from_wpg_id)
            if old is not None and not old.is_rollout:
                found.update({n: c * STATE for n, c in self.nodes(old.wpg_id).items()})
        for order in self.orders:
            if isinstance(order, StartOperation) and order.wpg_id in self.core.view.wpgs:
                found.update(self.working(order))
        return found

    def working(self, order: StartOperation) -> Counter[NodeId]:
        """Return what an operation that runs has made, or may have made already."""
        nodes, kind = self.nodes(order.wpg_id), self.kind_of(order)
        if kind is OperationKind.PUBLISH:
            return Counter({node: count * VERSION for node, count in nodes.items()})
        if kind not in COPYING_KINDS:
            return Counter()
        return Counter({node: count * STATE for node, count in nodes.items()})

    def nodes(self, wpg_id: WpgId) -> Counter[NodeId]:
        wpg = self.core.view.wpgs.get(wpg_id)
        return Counter[NodeId]() if wpg is None else Counter(p.node_id for p in wpg.places)

    def kind_of(self, order: Order) -> OperationKind | None:
        if not isinstance(order, StartOperation):
            return None
        operation = self.core.view.operations.get(order.operation_id)
        return None if operation is None else operation.kind


class AnyBookings(AnyHistory):
    """Random events; after each, what is booked bounds what state managers hold."""

    def new_world(self) -> FakeWorld:
        return Hosts(limits=LIMITS)

    @property
    def hosts(self) -> Hosts:
        assert isinstance(self.world, Hosts)
        return self.world

    @precondition(lambda self: self.hosts.made)
    @rule(data=st.data())
    def serve(self, data: st.DataObject) -> None:
        self.hosts.used.add(data.draw(st.sampled_from(self.hosts.made)))

    @precondition(lambda self: self.hosts.used)
    @rule(data=st.data())
    def serve_no_more(self, data: st.DataObject) -> None:
        self.hosts.used.discard(data.draw(st.sampled_from(sorted(self.hosts.used))))
        self.hosts.release()

    def teardown(self) -> None:
        super().teardown()
        self.hosts.used.clear()
        self.hosts.release()
        for place in self.world.core.view.devices:
            found = self.hosts.memory.uses_at(place.unit)
            assert found == {}, (place, found)


TestAnyBookings = AnyBookings.TestCase
TestAnyBookings.settings = settings(
    max_examples=40,
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


def world_of(**nodes: int) -> Hosts:
    world = Hosts()
    for node, train in nodes.items():
        world.join(node, train=train, rollout=1)
    return world


def booked(world: Hosts, node: str) -> dict[Use, int]:
    return world.memory.uses_at(next(p.unit for p in world.core.view.devices if p.node_id == node))


def test_a_save_is_booked_until_it_is_written_for_its_part_on_each_node() -> None:
    world = world_of(n0=2, n1=2)
    world.bring_up("a", devices=4)
    before = booked(world, "n0")
    world.submit("save", job="a", seq=1, kind=OperationKind.SAVE)
    world.copied("save")
    assert booked(world, "n0") == {**before, Use.COPIES: 2 * STATE}
    assert booked(world, "n1") == {**before, Use.COPIES: 2 * STATE}
    world.report_next(StartOperation)
    assert booked(world, "n0") == booked(world, "n1") == before


def test_an_export_is_booked_as_weights_alone() -> None:
    world = world_of(n0=1)
    world.bring_up("a")
    world.submit("export", job="a", seq=1, kind=OperationKind.EXPORT)
    assert booked(world, "n0")[Use.COPIES] == (KEPT + 1) * VERSION


def test_nobody_is_placed_where_a_copy_takes_the_room_until_it_is_gone() -> None:
    world = Hosts(device_bytes=400)
    world.join("n0", train=1, nbytes=1000)
    world.bring_up("a")
    world.submit("save", job="a", seq=1, kind=OperationKind.SAVE)
    world.job("b")
    world.deploy("b", state_bytes=300)
    assert world.core.view.unplaced == ["b/actor"]
    world.report_next(StartOperation)
    assert not world.core.view.unplaced


def test_versions_in_use_are_booked_beyond_those_that_are_kept() -> None:
    world = world_of(n0=1)
    world.bring_up("a")
    for seq in range(1, 5):
        world.submit(f"p{seq}", job="a", seq=seq, kind=OperationKind.PUBLISH)
        world.drain()
        world.used.add(world.made[0])
    assert booked(world, "n0")[Use.VERSIONS] == (KEPT + 2) * VERSION, "one is served, one to come"
    world.end("a")
    world.drain()
    assert booked(world, "n0") == {Use.VERSIONS: VERSION}
    world.used.clear()
    world.release()
    assert booked(world, "n0") == {}


def test_what_instances_read_from_another_host_is_booked_until_they_end() -> None:
    world = world_of(n0=1, n1=1)
    world.bring_up("a")
    world.bring_up("a", "rollout", rollout=True)
    wpg = world.core.view.wpg_of(world.core.view.deployments[DeploymentId("a/rollout")])
    assert wpg is not None
    node_id = wpg.places[0].node_id
    told = NodeBytes(node_id=node_id, nbytes=VERSION)
    world.tell(VersionRead(at_us=world.tick(), wpg_id=wpg.wpg_id, read=(told,)))
    assert booked(world, node_id)[Use.READS] == VERSION
    world.end("a")
    world.drain()
    assert booked(world, node_id) == {}
    late = VersionRead(at_us=world.tick(), wpg_id=wpg.wpg_id, read=(told,))
    world.tell(late)
    assert booked(world, node_id) == {}


def test_a_waiting_job_is_told_what_host_memory_is_booked_for() -> None:
    world = Hosts(device_bytes=400)
    world.join("n0", train=1, nbytes=1000)
    world.bring_up("a")
    world.submit("save", job="a", seq=1, kind=OperationKind.SAVE)
    world.job("b")
    world.deploy("b", state_bytes=400)
    world.submit("op", job="b", seq=1)
    told = explain(world.core.view, op_id("op"), now_us=world.now_us)
    assert told is not None
    assert "host n0 has 845 B of 1000 B booked (state 400 B, versions 45 B, copies 400 B)" in (
        told.text
    )


def test_those_that_wait_are_offered_places_again_only_where_memory_came_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = FakeWorld(limits=Limits(max_deployments_per_group=1))
    for node in ("n0", "n1"):
        world.join(node)
    for job in "abc":
        world.bring_up(job)
    offered: list[list[str]] = []
    spot_for = Search.spot_for

    def noted(self: Search, demand: Demand, groups: list[Group], **how: Any) -> Spot | None:
        offered.append([unit_id for group in groups for unit_id in group.units])
        return spot_for(self, demand, groups, **how)

    monkeypatch.setattr(Search, "spot_for", noted)
    for nbytes in (300, 500, 200):
        held = (NodeBytes(node_id=NodeId("n1"), nbytes=nbytes),)
        actor = DeploymentId("b/actor")
        world.tell(VersionsHeld(at_us=world.tick(), deployment_id=actor, held=held))
        assert offered == ([["n1:0"]] if nbytes == 200 else [])
