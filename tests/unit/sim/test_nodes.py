"""Nodes of a cluster file: which events they post, and when."""

from __future__ import annotations

from dataclasses import dataclass, field

from plexsvc.scheduler.core.events import Event, NodeJoined, NodeLost
from plexsvc.scheduler.core.limits import Limits
from plexsvc.scheduler.core.machine import Scheduler
from plexsvc.scheduler.core.planning.profile import SECOND_US
from plexsvc.sim.clients import Client, Posts
from plexsvc.sim.cluster import Faults, NodeAction, NodeEvent, SimCluster
from plexsvc.sim.nodes import Nodes
from plexsvc.sim.virtual_driver import VirtualDriver
from tests.unit.sim.test_predict import FakeCosts

HOUR_US = 3600 * SECOND_US


@dataclass(slots=True)
class Endless(Client):
    """A job that never ends."""

    @property
    def is_done(self) -> bool:
        return False

    def begin(self) -> Posts:
        return ()


@dataclass(slots=True)
class Seen:
    """The events of some hours, in seconds."""

    cluster: SimCluster
    seed: int = 1
    has_hope: bool = True
    at_s: dict[str, list[float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        nodes = Nodes(
            cluster=self.cluster, seed=self.seed, num_rollouts=0, has_hope=lambda: self.has_hope
        )
        driver = VirtualDriver(
            core=Scheduler(limits=Limits(), epoch=1),
            costs=FakeCosts(),
            clients=[nodes, Endless()],
            watch=lambda event, _: self.note(event),
            end_us=10 * HOUR_US,
        )
        driver.run()

    def note(self, event: Event) -> None:
        if isinstance(event, NodeJoined | NodeLost):
            name = f"{type(event).__name__} {event.node_id}"
            self.at_s.setdefault(name, []).append(round(event.at_us / SECOND_US, 3))

    def times(self, kind: str) -> list[float]:
        return sorted(at for name, times in self.at_s.items() if kind in name for at in times)


def test_a_lost_node_is_back_after_its_repair() -> None:
    seen = Seen(SimCluster(nodes=1, faults=Faults(node_mtbf_h=1, repair_s=90)))
    lost, joined = seen.times("NodeLost"), seen.times("NodeJoined")
    assert len(lost) > 3
    assert joined[0] == 0
    repairs_s = {round(back - at, 2) for at, back in zip(lost, joined[1:], strict=False)}
    assert repairs_s == {90.0}


def test_a_node_that_an_operator_joins_is_not_joined_again_when_repaired() -> None:
    lost_s = Seen(SimCluster(nodes=1, faults=Faults(node_mtbf_h=3, repair_s=600))).times("NodeLost")
    joins = (NodeEvent(at_s=lost_s[0] + 60, action=NodeAction.JOIN, node="n00000"),)
    faults = Faults(node_mtbf_h=3, repair_s=600)
    seen = Seen(SimCluster(nodes=1, faults=faults, events=joins))
    joined_s = [at for at in seen.times("NodeJoined") if lost_s[0] < at < lost_s[0] + 700]
    assert joined_s == [round(lost_s[0] + 60, 3)]


def test_an_operator_s_node_is_new() -> None:
    joins = (NodeEvent(at_s=60, action=NodeAction.JOIN, node="n00007"),)
    assert Seen(SimCluster(nodes=1, events=joins)).at_s["NodeJoined n00007"] == [60.0]


def test_losses_depend_on_the_seed_alone() -> None:
    cluster = SimCluster(nodes=3, faults=Faults(node_mtbf_h=1, repair_s=0))
    slow = SimCluster(nodes=3, faults=Faults(node_mtbf_h=1, repair_s=0, slow_switch_share=1))
    assert Seen(cluster).at_s == Seen(slow).at_s
    assert Seen(cluster).at_s != Seen(cluster, seed=2).at_s


def test_no_node_is_lost_where_nobody_has_a_place() -> None:
    cluster = SimCluster(nodes=3, faults=Faults(node_mtbf_h=1, repair_s=0))
    assert Seen(cluster, has_hope=False).times("NodeLost") == []
