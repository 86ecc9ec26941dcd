"""A node group: the jobs that time-share its nodes, each on all of them or on some.

Jobs are of one group when their nodes overlap, directly or over others. Nodes with the same jobs
share one set of free windows: a *part*. The windows of a gang are the intersection of its nodes'.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from plexsvc.ids import JobId, NodeId
from plexsvc.scheduler.core.planning.interference import Load
from plexsvc.scheduler.core.planning.profile import Demand, Profile
from plexsvc.scheduler.core.planning.rooms import Gang
from plexsvc.scheduler.core.structures.bit_slices import BitSlice
from plexsvc.scheduler.core.structures.footprint import Footprint
from plexsvc.scheduler.core.structures.interval_set import IntervalSet, gang_windows


@dataclass(slots=True, kw_only=True)
class Resident:
    """A job that lives in a group: on which of its nodes, and in which cells."""

    demand: Demand
    nodes: Gang
    anchor_slot: int
    shift_slots: int
    cells: Footprint
    load: Load

    def meets(self, nodes: Collection[NodeId]) -> bool:
        """Whether it lives on one of `nodes`."""
        return any(node_id in nodes for node_id in self.nodes)


@dataclass(frozen=True, slots=True)
class Part:
    """Nodes of a group on which the same jobs live, and when they are free."""

    nodes: Gang
    free: IntervalSet


class Crowd(NamedTuple):
    """The most that lives on any of some nodes: jobs, duty, and what parked state leaves free."""

    num_jobs: int
    duty_ppm: int
    spare_bytes: int


@dataclass(slots=True, kw_only=True)
class Group:
    """Nodes whose devices a set of jobs time-share."""

    group_id: int
    nodes: Gang
    parked_bytes: int
    lane: int
    slices: BitSlice
    parts: list[Part]
    residents: dict[JobId, Resident] = field(default_factory=dict)
    duty_ppm: int = 0
    """Sum of the duties of its jobs."""

    state_bytes: int = 0
    """Sum of the parked bytes a node of its jobs."""

    is_uniform: bool = True
    """Whether every job lives on all of its nodes."""

    late: dict[JobId, int] = field(default_factory=dict)
    """Jobs whose measured cycle passed their bound, in ppm of the cycle alone."""

    probing: dict[JobId, None] = field(default_factory=dict)
    """Cold jobs whose cycle is not known yet."""

    paused: dict[JobId, str] = field(default_factory=dict)
    """Jobs that run only while no other of the group waits, and why."""

    is_closed: bool = False
    """Takes no further job: one of its nodes is cordoned."""

    @property
    def size(self) -> int:
        """Return its number of nodes."""
        return len(self.nodes)

    @property
    def profiles(self) -> list[Profile]:
        """Return the cycles of its jobs."""
        return [resident.demand.profile for resident in self.residents.values()]

    @property
    def free(self) -> IntervalSet:
        """Return the windows in which all of its nodes are free."""
        return gang_windows([part.free for part in self.parts])

    def on(self, nodes: Collection[NodeId]) -> list[Resident]:
        """Return the jobs that live on any of `nodes`."""
        if self.is_uniform:
            return list(self.residents.values())
        return [resident for resident in self.residents.values() if resident.meets(nodes)]

    def crowd(self, nodes: Collection[NodeId]) -> Crowd:
        """Return the most that lives on any of `nodes`. `O(nodes * jobs)` unless uniform."""
        if self.is_uniform:
            spare_bytes = self.parked_bytes - self.state_bytes
            return Crowd(len(self.residents), self.duty_ppm, spare_bytes)
        there = [[r for r in self.residents.values() if n in r.nodes] for n in nodes]
        return Crowd(
            num_jobs=max(len(jobs) for jobs in there),
            duty_ppm=max(sum(r.load.duty_ppm for r in jobs) for jobs in there),
            spare_bytes=self.parked_bytes
            - max(sum(r.demand.state_bytes for r in jobs) for jobs in there),
        )

    def duty_on(self, node_id: NodeId) -> int:
        """Return the sum of the duties of the jobs on one node."""
        if self.is_uniform:
            return self.duty_ppm
        return sum(r.load.duty_ppm for r in self.residents.values() if node_id in r.nodes)


def connected(residents: Iterable[Resident]) -> list[tuple[set[NodeId], list[JobId]]]:
    """Return the sets of jobs whose nodes overlap, with their nodes, in the order of their jobs."""
    found: list[tuple[set[NodeId], list[JobId]]] = []
    for resident in residents:
        nodes, jobs = set(resident.nodes), [resident.demand.job_id]
        apart = []
        for other_nodes, other_jobs in found:
            if other_nodes.isdisjoint(nodes):
                apart.append((other_nodes, other_jobs))
            else:
                nodes |= other_nodes
                jobs = [*other_jobs, *jobs]
        found = [*apart, (nodes, jobs)]
    return found


def check_group(group: Group, *, ring_size: int, cordoned: Collection[NodeId]) -> None:
    """Assert that a group's sums, parts, windows and marks are those of its jobs."""
    residents = group.residents.values()
    assert sorted(n for part in group.parts for n in part.nodes) == sorted(group.nodes), group
    for part in group.parts:
        part.free.check()
        jobs = [resident for resident in residents if resident.meets(part.nodes)]
        assert all(set(part.nodes) <= set(r.nodes) for r in jobs), group.group_id
        busy = [(r.cells.starts, r.cells.ends) for r in jobs]
        want = IntervalSet.complement(ring_size, busy)
        assert part.free.ranges() == want.ranges(), group.group_id
    if residents:
        assert [nodes for nodes, _ in connected(residents)] == [set(group.nodes)], group.group_id
    num_busy = ring_size - group.free.num_slots
    assert group.slices.busy_slots(group.lane) == num_busy, group
    assert group.duty_ppm == sum(p.duty_ppm for p in group.profiles), group
    marked = group.late.keys() | group.probing.keys() | group.paused.keys()
    assert marked <= group.residents.keys(), group
    assert group.is_closed == any(node_id in cordoned for node_id in group.nodes), group
    assert group.is_uniform == all(len(r.nodes) == group.size for r in residents), group
