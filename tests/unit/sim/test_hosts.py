"""Hosts: whose parked state is in memory and whose on disk, and links that are shared."""

from __future__ import annotations

from dataclasses import replace

import pytest

from plexsvc.ids import UnitId, WpgId
from plexsvc.residency import Residency
from plexsvc.scheduler.core.planning.policies import PLEX, policy_named
from plexsvc.scheduler.core.planning.profile import SECOND_US
from plexsvc.sim.cluster import GB, SimCluster, SwitchModel
from plexsvc.sim.hosts import HostLinks, ParkingRoom
from plexsvc.sim.jobs import SimJob
from plexsvc.sim.records import Outcome
from plexsvc.sim.run import play
from plexsvc.sim.workloads import Workload
from tests.rigs.traces import job

A, B = UnitId("n00000"), UnitId("n00001")


def test_who_comes_first_has_the_memory_and_the_rest_is_on_disk() -> None:
    memory = ParkingRoom(host_bytes=lambda _: 100)
    memory.arrive(WpgId("a"), [A], nbytes=70)
    memory.arrive(WpgId("b"), [A, B], nbytes=70)
    assert (memory.disk_bytes(WpgId("a")), memory.disk_bytes(WpgId("b"))) == (0, 40)
    memory.leave(WpgId("b"))
    memory.arrive(WpgId("c"), [B], nbytes=120)
    assert memory.disk_bytes(WpgId("c")) == 20
    assert memory.disk_bytes(None) == 0


def test_moves_that_share_a_host_wait_for_each_other_and_directions_do_not() -> None:
    cluster = SimCluster(nodes=4, nodes_per_host=2, switch=SwitchModel(host_gb_s=10))
    links = HostLinks(cluster=cluster)

    def took_s(*nodes: UnitId, to: Residency = Residency.DEVICE) -> float:
        return links.take_us(nodes, to, nbytes=50 * GB, now_us=7) / SECOND_US

    assert took_s(A) == 5
    assert took_s(B) == 10
    assert took_s(UnitId("n00002"), UnitId("n00003")) == 10
    assert took_s(A, to=Residency.HOST) == 5


def pair(**cluster: object) -> Outcome:
    """Play two jobs of 100 GB that take turns on one node."""
    jobs: list[SimJob] = []
    for at in range(2):
        one = job(f"j{at}", cycles=10)
        jobs.append(replace(one, demand=replace(one.demand, state_bytes=100 * GB)))
    on = replace(SimCluster(nodes=1), **cluster)  # type: ignore[arg-type]  # fields of a cluster
    return play(Workload(jobs=tuple(jobs), cluster=on), policy=PLEX, seed=1).outcome


def load_s(outcome: Outcome, at: int) -> float:
    """Return the seconds of a job's longest load, its victim's way out included."""
    record = outcome.records[at]
    return max(end - start for start, end in (*record.switch, *record.prefetch)) / SECOND_US


def test_a_switch_from_disk_costs_disk() -> None:
    ample, scarce = pair(), pair(host_gb=150, switch=SwitchModel(link_gb_s=25, disk_gb_s=5))
    assert [record.disk_bytes for record in ample.records] == [0, 0]
    assert sorted(record.disk_bytes for record in scarce.records) == [0, 50 * GB]
    on_disk = max(range(2), key=lambda at: scarce.records[at].disk_bytes)
    more_s = load_s(scarce, on_disk) - load_s(ample, on_disk)
    assert more_s == pytest.approx(50 / 5 - 50 / 25, abs=0.01)


def test_a_disk_faster_than_the_link_costs_nothing_more() -> None:
    assert SwitchModel(link_gb_s=5, disk_gb_s=6).disk_us(100 * GB) == 0
    assert SwitchModel(link_gb_s=10, disk_gb_s=5).disk_us(10 * GB) == 2 * SECOND_US


def test_switches_of_one_host_are_charged_together() -> None:
    def longest_s(nodes_per_host: int) -> float:
        switch = SwitchModel(link_gb_s=50, host_gb_s=50)
        cluster = SimCluster(nodes=2, nodes_per_host=nodes_per_host, switch=switch)
        jobs = []
        for at in range(4):
            one = job(f"j{at}", cycles=10, switch=4)
            jobs.append(replace(one, demand=replace(one.demand, state_bytes=100 * GB)))
        pairs = Workload(jobs=tuple(jobs), cluster=cluster)
        outcome = play(pairs, policy=policy_named("spread"), seed=1).outcome
        return max(load_s(outcome, at) for at in range(4))

    apart_s, together_s = longest_s(1), longest_s(2)
    assert together_s > apart_s + 1
