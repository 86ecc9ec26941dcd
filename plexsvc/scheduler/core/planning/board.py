"""The planning board: nodes, node groups, who lives in each, and every slot they occupy.

A group is opened on free nodes by its first job and dissolves with its last. Committing a job
subtracts its whole footprint over the horizon at once: from the group's free windows (the truth,
shared by its nodes), from the global free-node profile, and from the bit slice that prefilters.
Removing it recomputes the windows from the footprints that stay, so that exactly what it took comes
back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from plexsvc.ids import JobId, NodeId
from plexsvc.scheduler.core.planning.interference import Load
from plexsvc.scheduler.core.planning.profile import SECOND_US, Demand, Profile
from plexsvc.scheduler.core.structures.bit_slices import LANES, BitSlice
from plexsvc.scheduler.core.structures.footprint import Footprint, footprint
from plexsvc.scheduler.core.structures.interval_set import IntervalSet
from plexsvc.scheduler.core.structures.ring import Ring
from plexsvc.scheduler.core.structures.segment_tree import SegmentTree


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRoom:
    """A node as planning sees it."""

    node_id: NodeId
    num_devices: int = 8
    parked_bytes: int = 1 << 62
    """Host memory and disk for the state of jobs that are not on the devices."""


@dataclass(slots=True, kw_only=True)
class Resident:
    """A job that lives in a group, and its cells."""

    demand: Demand
    anchor_slot: int
    shift_slots: int
    cells: Footprint
    load: Load


@dataclass(slots=True, kw_only=True)
class Group:
    """Nodes whose devices a set of jobs time-share."""

    group_id: int
    nodes: tuple[NodeId, ...]
    parked_bytes: int
    lane: int
    slices: BitSlice
    free: IntervalSet
    residents: dict[JobId, Resident] = field(default_factory=dict)
    duty_ppm: int = 0
    state_bytes: int = 0
    late: dict[JobId, int] = field(default_factory=dict)
    """Jobs whose measured cycle passed their bound, in ppm of the cycle alone."""

    probing: JobId | None = None
    """The cold job that has the group for itself until its cycle is known."""

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


class Board:
    """All nodes and groups. Every method is atomic: it does all of it or raises before any."""

    def __init__(
        self, nodes: Iterable[NodeRoom], *, ring: Ring | None = None, slot_us: int = SECOND_US
    ) -> None:
        self.ring = ring or Ring()
        self.slot_us = slot_us
        self.rooms = {room.node_id: room for room in nodes}
        self.idle: dict[NodeId, None] = dict.fromkeys(sorted(self.rooms))
        self.cordoned: set[NodeId] = set()
        self.out: set[NodeId] = set()
        self.groups: dict[int, Group] = {}
        self.by_size: dict[int, dict[int, Group]] = {}
        self.group_of: dict[JobId, int] = {}
        self.exclusive: dict[JobId, tuple[NodeId, ...]] = {}
        self.free_nodes = SegmentTree(self.ring.size, initial=len(self.rooms))
        self._slices: list[tuple[BitSlice, list[int]]] = []
        self._next_group = 1

    def idle_gang(self, num_nodes: int) -> tuple[NodeId, ...] | None:
        """Return idle nodes of one size that can make a gang, first by name; None if too few."""
        by_size: dict[int, list[NodeId]] = {}
        for node_id in self.idle:
            same = by_size.setdefault(self.rooms[node_id].num_devices, [])
            same.append(node_id)
            if len(same) == num_nodes:
                return tuple(same)
        return None

    def open_group(self, nodes: Sequence[NodeId]) -> Group:
        """Make a group of idle nodes."""
        assert nodes, "a group has nodes"
        assert all(node_id in self.idle for node_id in nodes), nodes
        for node_id in nodes:
            del self.idle[node_id]
        slices, lane = self._take_lane()
        group = Group(
            group_id=self._next_group,
            nodes=tuple(nodes),
            parked_bytes=min(self.rooms[node_id].parked_bytes for node_id in nodes),
            lane=lane,
            slices=slices,
            free=IntervalSet([(0, self.ring.size)]),
        )
        self._next_group += 1
        self.groups[group.group_id] = group
        self.by_size.setdefault(group.size, {})[group.group_id] = group
        return group

    def cells(self, profile: Profile, *, anchor_slot: int) -> Footprint:
        """Return what a cycle that starts at `anchor_slot` would occupy."""
        return footprint(
            self.ring,
            period=self.period_slots(profile),
            segments=self.segments(profile),
            anchor=anchor_slot,
        )

    def period_slots(self, profile: Profile) -> int:
        """Return the profile's period rounded to a divisor of the horizon."""
        return self.ring.round_period(max(1, round(profile.period_us / self.slot_us))).slots

    def segments(self, profile: Profile) -> list[tuple[int, int]]:
        """Return (offset, duration) in slots of the rounded period, durations rounded up."""
        scale = self.period_slots(profile) * self.slot_us / profile.period_us
        return [
            (
                int(segment.offset_us * scale) // self.slot_us,
                max(1, -(-segment.duration_us // self.slot_us)),
            )
            for segment in profile.segments
        ]

    def commit(self, group: Group, demand: Demand, *, anchor_slot: int, shift_slots: int) -> None:
        """Let a job live in a group: its footprint leaves every structure at once."""
        assert demand.job_id not in self.group_of, demand.job_id
        cells = self.cells(demand.profile, anchor_slot=anchor_slot + shift_slots)
        group.residents[demand.job_id] = Resident(
            demand=demand,
            anchor_slot=anchor_slot,
            shift_slots=shift_slots,
            cells=cells,
            load=Load.of(demand),
        )
        self.group_of[demand.job_id] = group.group_id
        group.duty_ppm += demand.profile.duty_ppm
        group.state_bytes += demand.state_bytes
        group.slices.paint(group.lane, cells)
        self._refresh(group)

    def remove(self, job_id: JobId) -> Group:
        """Take a job off the board; its group dissolves when it was the last. Returns the group."""
        group = self.groups[self.group_of.pop(job_id)]
        resident = group.residents.pop(job_id)
        group.late.pop(job_id, None)
        group.duty_ppm -= resident.demand.profile.duty_ppm
        group.state_bytes -= resident.demand.state_bytes
        self._repaint(group)
        self._refresh(group)
        if not group.residents:
            self._dissolve(group)
        held = self.exclusive.pop(job_id, ())
        self.free_nodes.add(0, self.ring.size, len(held))
        self._give_back(held)
        return group

    def relearn(self, job_id: JobId, profile: Profile, *, anchor_slot: int) -> None:
        """Give a resident another cycle: it was profiled, or its cycle changed."""
        group = self.groups[self.group_of[job_id]]
        resident = group.residents[job_id]
        group.duty_ppm += profile.duty_ppm - resident.demand.profile.duty_ppm
        resident.demand = replace(resident.demand, profile=profile, is_cold=False)
        resident.load = Load.of(resident.demand)
        self.reanchor(job_id, anchor_slot=anchor_slot)

    def move(self, job_id: JobId, to_group: int, *, anchor_slot: int) -> None:
        """Let a resident live in another group; what it holds for itself alone stays."""
        left = self.groups[self.group_of[job_id]]
        assert left.group_id != to_group, job_id
        demand = left.residents[job_id].demand
        held = self.exclusive.pop(job_id, None)
        self.remove(job_id)
        self.commit(self.groups[to_group], demand, anchor_slot=anchor_slot, shift_slots=0)
        if held is not None:
            self.exclusive[job_id] = held

    def reanchor(self, job_id: JobId, *, anchor_slot: int) -> None:
        """Move a resident's cells to the phase it was measured at."""
        group = self.groups[self.group_of[job_id]]
        resident = group.residents[job_id]
        resident.cells = self.cells(resident.demand.profile, anchor_slot=anchor_slot)
        resident.anchor_slot, resident.shift_slots = anchor_slot, 0
        self._repaint(group)
        self._refresh(group)

    def hold(self, job_id: JobId, nodes: Sequence[NodeId]) -> None:
        """Give idle nodes to one job for itself."""
        assert all(node_id in self.idle for node_id in nodes), nodes
        for node_id in nodes:
            del self.idle[node_id]
        self.exclusive[job_id] = tuple(nodes)
        self.free_nodes.add(0, self.ring.size, -len(nodes))

    def join(self, room: NodeRoom) -> None:
        """Take a new node in."""
        assert room.node_id not in self.rooms, room
        self.rooms[room.node_id] = room
        self.idle[room.node_id] = None
        self.free_nodes.add(0, self.ring.size, 1)

    def cordon(self, node_id: NodeId) -> list[JobId]:
        """Give a node no further work; returns the jobs that still live on it."""
        self.cordoned.add(node_id)
        if node_id in self.idle:
            del self.idle[node_id]
            self._take_out(node_id)
        affected = [job for job, nodes in self.exclusive.items() if node_id in nodes]
        for group in self.groups.values():
            if node_id in group.nodes:
                group.is_closed = True
                affected.extend(group.residents)
        return affected

    def uncordon(self, node_id: NodeId) -> None:
        """Let a node take work again."""
        self.cordoned.discard(node_id)
        for group in self.groups.values():
            group.is_closed = any(node in self.cordoned for node in group.nodes)
        if node_id in self.out:
            self.out.discard(node_id)
            self.free_nodes.add(0, self.ring.size, 1)
            self.idle[node_id] = None

    def leave(self, node_id: NodeId) -> None:
        """Forget a cordoned node on which nothing lives any more."""
        assert node_id in self.out, node_id
        self.out.discard(node_id)
        self.cordoned.discard(node_id)
        del self.rooms[node_id]

    def check(self) -> None:
        """Assert that structures agree with the footprints, and that nodes are in one place."""
        held = [node for nodes in self.exclusive.values() for node in nodes]
        in_service = len(self.rooms) - len(held) - len(self.out)
        profile = np.full(self.ring.size, in_service, dtype=np.int32)
        seen: list[NodeId] = [*self.idle]
        for group in self.groups.values():
            group.free.check()
            busy = [(r.cells.starts, r.cells.ends) for r in group.residents.values()]
            want = IntervalSet.complement(self.ring.size, busy)
            assert group.free.ranges() == want.ranges(), group.group_id
            for start, end in IntervalSet.complement(self.ring.size, [want.arrays()]).ranges():
                profile[start:end] -= group.size
            assert group.slices.busy_slots(group.lane) == self.ring.size - want.num_slots, group
            assert group.duty_ppm == sum(p.duty_ppm for p in group.profiles), group
            assert group.state_bytes <= group.parked_bytes, group
            seen.extend(group.nodes)
        seen.extend([*held, *self.out])
        assert self.out <= self.cordoned, self.out
        assert sorted(seen) == sorted(self.rooms), "a node is in two places or in none"
        self.free_nodes.check()
        assert np.array_equal(self.free_nodes.values(), profile), "free-node profile"

    def _refresh(self, group: Group) -> None:
        old_starts, old_ends = group.free.arrays()
        busy = [(r.cells.starts, r.cells.ends) for r in group.residents.values()]
        group.free = IntervalSet.complement(self.ring.size, busy)
        starts, ends = group.free.arrays()
        change = np.zeros(self.ring.size + 1, dtype=np.int32)
        change[starts] += group.size
        change[ends] -= group.size
        change[old_starts] -= group.size
        change[old_ends] += group.size
        self.free_nodes.add_profile(np.cumsum(change[:-1], dtype=np.int32))

    def _repaint(self, group: Group) -> None:
        group.slices.clear(group.lane)
        for resident in group.residents.values():
            group.slices.paint(group.lane, resident.cells)

    def _dissolve(self, group: Group) -> None:
        del self.groups[group.group_id]
        del self.by_size[group.size][group.group_id]
        for slices, lanes in self._slices:
            if slices is group.slices:
                lanes.append(group.lane)
        self._give_back(group.nodes)

    def _give_back(self, nodes: Iterable[NodeId]) -> None:
        for node_id in nodes:
            if node_id in self.cordoned:
                self._take_out(node_id)
            else:
                self.idle[node_id] = None

    def _take_out(self, node_id: NodeId) -> None:
        self.out.add(node_id)
        self.free_nodes.add(0, self.ring.size, -1)

    def _take_lane(self) -> tuple[BitSlice, int]:
        for slices, lanes in self._slices:
            if lanes:
                return slices, lanes.pop()
        slices, lanes = BitSlice(self.ring.size), list(range(LANES - 1, -1, -1))
        self._slices.append((slices, lanes))
        return slices, lanes.pop()
