"""The time that the nodes of a cluster file offer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plexsvc.scheduler.core.planning.profile import SECOND_US
from plexsvc.sim.cluster import GB, NodeAction, NodeEvent, NodeGroup, SimCluster


def joining(*at_s: float, nodes: int = 2) -> SimCluster:
    events = [NodeEvent(at_s=at, action=NodeAction.JOIN, node=f"x{at:g}") for at in at_s]
    return SimCluster(nodes=nodes, events=tuple(events))


def test_a_node_offers_its_time_from_when_it_joins() -> None:
    cluster = joining(10, 30)
    assert (
        cluster.node_us(devices=8, from_us=0, until_us=40 * SECOND_US) == (80 + 30 + 10) * SECOND_US
    )
    assert (
        cluster.node_us(devices=8, from_us=20 * SECOND_US, until_us=40 * SECOND_US)
        == 70 * SECOND_US
    )


def test_nodes_of_each_size_offer_their_own_time() -> None:
    groups = (NodeGroup(count=3, devices=8), NodeGroup(count=2, devices=4, host_gb=1))
    cluster = SimCluster(nodes=5, unequal=groups)
    offered = [cluster.node_us(devices=size, from_us=0, until_us=10) for size in (8, 4, 2)]
    assert offered == [30, 20, 0]
    assert [cluster.group_of(name).devices for name in ("n00002", "n00003", "new")] == [8, 4, 8]
    assert [cluster.host_bytes(name) // GB for name in ("n00002", "n00003")] == [2000, 1]


def test_a_node_that_comes_back_offers_no_time_twice() -> None:
    back = NodeEvent(at_s=5, action=NodeAction.JOIN, node="n00000")
    assert (
        SimCluster(nodes=1, events=(back, back)).node_us(devices=8, from_us=0, until_us=100) == 100
    )


@given(st.integers(0, 10**9), st.lists(st.integers(0, 300), max_size=4, unique=True))
def test_no_time_shorter_than_the_least_holds_the_work(work_us: int, joins: list[int]) -> None:
    cluster = joining(*sorted(joins))
    least = cluster.least_us(work_us, devices=8, from_us=SECOND_US)
    offered = [
        cluster.node_us(devices=8, from_us=SECOND_US, until_us=SECOND_US + us)
        for us in (least - 1, least)
    ]
    assert offered[1] >= work_us
    assert least == 0 or offered[0] < work_us


def test_without_joins_the_least_time_is_the_work_of_each_node() -> None:
    assert joining().least_us(100, devices=8, from_us=0) == pytest.approx(50)
