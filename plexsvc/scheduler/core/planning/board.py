"""The planning board: nodes, node groups, who lives in each, and every slot they occupy.

A group is opened on idle nodes by its first job, grows when a job needs its nodes and others
(merging groups it meets), splits where jobs no longer share nodes, and dissolves with its last job.
Committing a job subtracts its whole footprint over the horizon at once: from its nodes' free
windows (the truth), from the global free-node profile, and from the bit slice that prefilters.
Removing it recomputes the windows from the footprints that stay, so that exactly what it took comes
back.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

import numpy as np

from plexsvc.ids import JobId, NodeId
from plexsvc.scheduler.core.planning.groups import Group, Part, Resident, check_group, connected
from plexsvc.scheduler.core.planning.interference import Load
from plexsvc.scheduler.core.planning.profile import SECOND_US, Demand, Profile
from plexsvc.scheduler.core.planning.rooms import Gang, NodeRoom, Rooms
from plexsvc.scheduler.core.structures.bit_slices import Lanes
from plexsvc.scheduler.core.structures.footprint import Footprint, footprint
from plexsvc.scheduler.core.structures.interval_set import IntervalSet
from plexsvc.scheduler.core.structures.ring import Ring
from plexsvc.scheduler.core.structures.segment_tree import SegmentTree


class Board:
    """All nodes and groups. Every method is atomic: it does all of it or raises before any."""

    def __init__(
        self, nodes: Iterable[NodeRoom], *, ring: Ring | None = None, slot_us: int = SECOND_US
    ) -> None:
        self.ring = ring or Ring()
        self.slot_us = slot_us
        self.rooms = Rooms(nodes)
        self.idle: dict[NodeId, None] = dict.fromkeys(self.rooms.in_order(self.rooms))
        self._is_idle_sorted = True
        self.num_freed = 0
        """Times a node became idle: grows with every chance to open a group."""

        self.cordoned: set[NodeId] = set()
        self.out: set[NodeId] = set()
        self.groups: dict[int, Group] = {}
        self.group_at: dict[NodeId, int] = {}
        self.by_size: dict[int, dict[int, Group]] = {}
        self.group_of: dict[JobId, int] = {}
        self.exclusive: dict[JobId, Gang] = {}
        self.free_nodes = SegmentTree(self.ring.size, initial=len(self.rooms))
        self._lanes = Lanes(self.ring.size)
        self._next_group = 1

    def first_idle(self, num_nodes: int, *, barred: Collection[NodeId] = ()) -> Gang | None:
        """Return the first idle nodes by host, position and name; None if too few."""
        self._sort_idle()
        chosen: list[NodeId] = []
        for node_id in self.idle:
            if len(chosen) == num_nodes:
                break
            if node_id not in barred:
                chosen.append(node_id)
        return tuple(chosen) if len(chosen) == num_nodes else None

    def idle_gang(self, num_nodes: int, *, barred: Collection[NodeId] = ()) -> Gang | None:
        """Return idle nodes that can make a gang, first by name; None if there are none."""
        if len(self.idle) < num_nodes:
            return None
        self._sort_idle()
        if self.rooms.has_hosts or barred:
            among = {node_id: None for node_id in self.idle if node_id not in barred}
            return next(self.rooms.gangs(num_nodes, among=among, burden=lambda _: 0), None)
        by_size: dict[int, list[NodeId]] = {}
        for node_id in self.idle:
            same = by_size.setdefault(self.rooms[node_id].num_devices, [])
            same.append(node_id)
            if len(same) == num_nodes:
                return tuple(same)
        return None

    def duty_on(self, node_id: NodeId) -> int:
        """Return the sum of the duties of the jobs on a node, in ppm."""
        group_id = self.group_at.get(node_id)
        return 0 if group_id is None else self.groups[group_id].duty_on(node_id)

    def open_group(self, nodes: Sequence[NodeId]) -> Group:
        """Make a group of nodes that are in none."""
        assert nodes, "a group has nodes"
        self._claim(nodes)
        return self._new_group(tuple(nodes))

    def gather(self, nodes: Sequence[NodeId]) -> Group:
        """Return one group that holds all of `nodes`: opened, found, or made of those they meet."""
        met = sorted({self.group_at[n] for n in nodes if n in self.group_at})
        loose = [node_id for node_id in nodes if node_id not in self.group_at]
        if not met:
            return self.open_group(nodes)
        self._claim(loose)
        if len(met) > 1 or loose:
            self._merge([self.groups[group_id] for group_id in met], loose)
        return self.groups[met[0]]

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

    def commit(
        self,
        group: Group,
        demand: Demand,
        *,
        anchor_slot: int,
        shift_slots: int,
        nodes: Gang | None = None,
    ) -> None:
        """Let a job live on nodes of a group (all of them by default).

        Its footprint leaves every structure at once.
        """
        assert demand.job_id not in self.group_of, demand.job_id
        group.residents[demand.job_id] = Resident(
            demand=demand,
            nodes=nodes or group.nodes,
            anchor_slot=anchor_slot,
            shift_slots=shift_slots,
            cells=self.cells(demand.profile, anchor_slot=anchor_slot + shift_slots),
            load=Load.of(demand),
        )
        self.group_of[demand.job_id] = group.group_id
        group.duty_ppm += demand.profile.duty_ppm
        group.state_bytes += demand.state_bytes
        group.slices.paint(group.lane, group.residents[demand.job_id].cells)
        self._refresh(group)

    def remove(self, job_id: JobId) -> list[Group]:
        """Take a job off the board; returns what is left of its group: none, one or several."""
        group = self.groups[self.group_of.pop(job_id)]
        resident = group.residents.pop(job_id)
        group.late.pop(job_id, None)
        group.probing.pop(job_id, None)
        group.paused.pop(job_id, None)
        group.duty_ppm -= resident.demand.profile.duty_ppm
        group.state_bytes -= resident.demand.state_bytes
        left = self._settle(group)
        self.release(job_id)
        return left

    def relearn(self, job_id: JobId, profile: Profile, *, anchor_slot: int) -> None:
        """Give a resident another cycle: it was profiled, or its cycle changed."""
        group = self.groups[self.group_of[job_id]]
        resident = group.residents[job_id]
        group.duty_ppm += profile.duty_ppm - resident.demand.profile.duty_ppm
        group.probing.pop(job_id, None)
        resident.demand = replace(resident.demand, profile=profile, is_cold=False)
        resident.load = Load.of(resident.demand)
        self.reanchor(job_id, anchor_slot=anchor_slot)

    def resize(self, job_id: JobId, state_bytes: int) -> None:
        """Note how many bytes a resident's state has on each of its nodes."""
        group = self.groups[self.group_of[job_id]]
        resident = group.residents[job_id]
        group.state_bytes += state_bytes - resident.demand.state_bytes
        resident.demand = replace(resident.demand, state_bytes=state_bytes)

    def move(self, job_id: JobId, nodes: Sequence[NodeId], *, anchor_slot: int) -> list[Group]:
        """Let a resident live on other nodes; what it holds for itself alone stays.

        Returns what is left of the group it left. Its nodes may be part of the new ones.
        """
        demand = self.groups[self.group_of[job_id]].residents[job_id].demand
        held = self.exclusive.pop(job_id, None)
        left = self.remove(job_id)
        group = self.gather(nodes)
        self.commit(group, demand, anchor_slot=anchor_slot, shift_slots=0, nodes=tuple(nodes))
        if demand.is_cold:
            group.probing[job_id] = None
        if held is not None:
            self.exclusive[job_id] = held
        return left

    def reanchor(self, job_id: JobId, *, anchor_slot: int) -> None:
        """Move a resident's cells to the phase it was measured at."""
        group = self.groups[self.group_of[job_id]]
        resident = group.residents[job_id]
        resident.cells = self.cells(resident.demand.profile, anchor_slot=anchor_slot)
        resident.anchor_slot, resident.shift_slots = anchor_slot, 0
        self._repaint(group)
        self._refresh(group)

    def hold(self, key: JobId, nodes: Sequence[NodeId]) -> None:
        """Give idle nodes to one holder for itself."""
        assert all(node_id in self.idle for node_id in nodes), nodes
        assert key not in self.exclusive, key
        for node_id in nodes:
            del self.idle[node_id]
        self.exclusive[key] = tuple(nodes)
        self.free_nodes.add(0, self.ring.size, -len(nodes))

    def exchange(self, one: JobId, other: JobId) -> None:
        """Give each of two holders what the other has."""
        held = self.exclusive
        held[one], held[other] = held[other], held[one]

    def release(self, key: JobId) -> None:
        """Take back what a holder had for itself, if it had anything."""
        held = self.exclusive.pop(key, ())
        self.free_nodes.add(0, self.ring.size, len(held))
        self._give_back(held)

    def join(self, room: NodeRoom) -> None:
        """Take a new node in."""
        assert room.node_id not in self.rooms, room
        self.rooms.join(room)
        self.free_nodes.add(0, self.ring.size, 1)
        self._give_back([room.node_id])

    def cordon(self, node_id: NodeId) -> list[JobId]:
        """Give a node no further work; returns the jobs that still live on it, and its holder."""
        self.cordoned.add(node_id)
        if node_id in self.idle:
            del self.idle[node_id]
            self._take_out(node_id)
        affected = [job for job, nodes in self.exclusive.items() if node_id in nodes]
        if node_id in self.group_at:
            group = self.groups[self.group_at[node_id]]
            group.is_closed = True
            affected.extend(j for j, r in group.residents.items() if node_id in r.nodes)
        return affected

    def uncordon(self, node_id: NodeId) -> None:
        """Let a node take work again."""
        self.cordoned.discard(node_id)
        if node_id in self.group_at:
            group = self.groups[self.group_at[node_id]]
            group.is_closed = any(node in self.cordoned for node in group.nodes)
        if node_id in self.out:
            self.out.discard(node_id)
            self.free_nodes.add(0, self.ring.size, 1)
            self._give_back([node_id])

    def leave(self, node_id: NodeId) -> None:
        """Forget a cordoned node on which nothing lives any more."""
        assert node_id in self.out, node_id
        self.out.discard(node_id)
        self.cordoned.discard(node_id)
        self.rooms.leave(node_id)

    def check(self) -> None:
        """Assert that structures agree with the footprints, and that nodes are in one place."""
        for group in self.groups.values():
            check_group(group, ring_size=self.ring.size, cordoned=self.cordoned)
        self._check_places()
        self._check_profile()

    def _check_places(self) -> None:
        groups = self.groups.values()
        assert self.group_at == {n: g.group_id for g in groups for n in g.nodes}
        assert self.group_of == {j: g.group_id for g in groups for j in g.residents}
        for size, same in self.by_size.items():
            assert same == {g.group_id: g for g in groups if g.size == size}, size
        assert self.out <= self.cordoned, self.out
        held = [node for nodes in self.exclusive.values() for node in nodes]
        seen = [*self.idle, *self.group_at, *held, *self.out]
        assert sorted(seen) == sorted(self.rooms), "a node is in two places or in none"

    def _check_profile(self) -> None:
        held = sum(map(len, self.exclusive.values()))
        in_service = len(self.rooms) - held - len(self.out)
        profile = np.full(self.ring.size, in_service, dtype=np.int32)
        for part in (part for group in self.groups.values() for part in group.parts):
            busy = IntervalSet.complement(self.ring.size, [part.free.arrays()])
            for start, end in busy.ranges():
                profile[start:end] -= len(part.nodes)
        self.free_nodes.check()
        assert np.array_equal(self.free_nodes.values(), profile), "free-node profile"

    def _new_group(self, nodes: Gang) -> Group:
        slices, lane = self._lanes.take()
        group = Group(
            group_id=self._next_group,
            nodes=nodes,
            parked_bytes=min(self.rooms[node_id].parked_bytes for node_id in nodes),
            lane=lane,
            slices=slices,
            parts=[self._untouched(nodes)],
            is_closed=any(node_id in self.cordoned for node_id in nodes),
        )
        self._next_group += 1
        self._enter(group)
        return group

    def _enter(self, group: Group) -> None:
        self.groups[group.group_id] = group
        self.by_size.setdefault(group.size, {})[group.group_id] = group
        self.group_at.update(dict.fromkeys(group.nodes, group.group_id))

    def _forget(self, group: Group) -> None:
        """Take a group off the lists; its nodes and jobs are another's then."""
        del self.groups[group.group_id]
        del self.by_size[group.size][group.group_id]
        for node_id in group.nodes:
            del self.group_at[node_id]

    def _merge(self, groups: Sequence[Group], loose: Sequence[NodeId]) -> None:
        """Let the first group take over the others' jobs and nodes, and loose nodes."""
        kept, *others = groups
        before = [part for group in groups for part in group.parts]
        if loose:
            before.append(self._untouched(tuple(loose)))
        for group in groups:
            self._forget(group)
        for group in others:
            kept.residents.update(group.residents)
            kept.late.update(group.late)
            kept.probing.update(group.probing)
            kept.paused.update(group.paused)
            kept.duty_ppm += group.duty_ppm
            kept.state_bytes += group.state_bytes
            self._lanes.give_back(group.slices, group.lane)
        self._span(kept, [n for part in before for n in part.nodes])
        self.group_of.update(dict.fromkeys(kept.residents, kept.group_id))
        self._repaint(kept)
        kept.parts = self._parts(kept)
        self._reprofile(before, kept.parts)

    def _settle(self, group: Group) -> list[Group]:
        """Bring a group that lost a job into order: dissolve it, split it, or repaint it."""
        if not group.residents:
            self._reprofile(group.parts, [self._untouched(group.nodes)])
            self._forget(group)
            self._lanes.give_back(group.slices, group.lane)
            self._give_back(group.nodes)
            return []
        if not group.is_uniform:
            pieces = connected(group.residents.values())
            if len(pieces) > 1 or len(pieces[0][0]) < group.size:
                return self._split(group, pieces)
        self._repaint(group)
        self._refresh(group)
        return [group]

    def _split(self, group: Group, pieces: list[tuple[set[NodeId], list[JobId]]]) -> list[Group]:
        """Divide a group over sets of connected jobs; nodes without a job become idle."""
        before, residents, was = group.parts, group.residents, group.nodes
        late, probing, paused = group.late, group.probing, group.paused
        self._forget(group)
        made = []
        for at, (nodes, jobs) in enumerate(pieces):
            piece = group if at == 0 else self._new_group(self.rooms.in_order(nodes))
            piece.residents = {j: r for j, r in residents.items() if j in jobs}
            piece.late = {j: ppm for j, ppm in late.items() if j in jobs}
            piece.probing = {j: None for j in probing if j in jobs}
            piece.paused = {j: why for j, why in paused.items() if j in jobs}
            piece.duty_ppm = sum(p.duty_ppm for p in piece.profiles)
            piece.state_bytes = sum(r.demand.state_bytes for r in piece.residents.values())
            if at == 0:
                self._span(piece, nodes)
            self.group_of.update(dict.fromkeys(piece.residents, piece.group_id))
            self._repaint(piece)
            piece.parts = self._parts(piece)
            made.append(piece)
        after = [part for piece in made for part in piece.parts]
        unused = tuple(n for n in was if n not in self.group_at)
        self._reprofile(before, [*after, self._untouched(unused)])
        self._give_back(unused)
        return made

    def _span(self, group: Group, nodes: Iterable[NodeId]) -> None:
        """Give a group that is on no list other nodes, and list it."""
        group.nodes = self.rooms.in_order(nodes)
        group.parked_bytes = min(self.rooms[node_id].parked_bytes for node_id in group.nodes)
        group.is_closed = any(node_id in self.cordoned for node_id in group.nodes)
        self._enter(group)

    def _untouched(self, nodes: Gang) -> Part:
        return Part(nodes, IntervalSet([(0, self.ring.size)]))

    def _parts(self, group: Group) -> list[Part]:
        group.is_uniform = all(len(r.nodes) == group.size for r in group.residents.values())
        if group.is_uniform:
            return [Part(group.nodes, self._free(list(group.residents.values())))]
        same: dict[tuple[JobId, ...], list[NodeId]] = {}
        for node_id in group.nodes:
            jobs = tuple(j for j, r in group.residents.items() if node_id in r.nodes)
            same.setdefault(jobs, []).append(node_id)
        return [
            Part(tuple(nodes), self._free([group.residents[j] for j in jobs]))
            for jobs, nodes in same.items()
        ]

    def _free(self, residents: Sequence[Resident]) -> IntervalSet:
        busy = [(r.cells.starts, r.cells.ends) for r in residents]
        return IntervalSet.complement(self.ring.size, busy)

    def _refresh(self, group: Group) -> None:
        before, group.parts = group.parts, self._parts(group)
        self._reprofile(before, group.parts)

    def _reprofile(self, before: Sequence[Part], after: Sequence[Part]) -> None:
        """Replace parts in the profile of free nodes; both are the same nodes."""
        change = np.zeros(self.ring.size + 1, dtype=np.int32)
        for parts, sign in ((after, 1), (before, -1)):
            for part in parts:
                starts, ends = part.free.arrays()
                change[starts] += sign * len(part.nodes)
                change[ends] -= sign * len(part.nodes)
        self.free_nodes.add_profile(np.cumsum(change[:-1], dtype=np.int32))

    def _repaint(self, group: Group) -> None:
        group.slices.clear(group.lane)
        for resident in group.residents.values():
            group.slices.paint(group.lane, resident.cells)

    def _claim(self, nodes: Sequence[NodeId]) -> None:
        """Take nodes for a group; by an operator's will also cordoned ones."""
        assert all(node_id in self.idle or node_id in self.out for node_id in nodes), nodes
        for node_id in nodes:
            if node_id in self.out:
                self.out.discard(node_id)
                self.free_nodes.add(0, self.ring.size, 1)
            else:
                del self.idle[node_id]

    def _give_back(self, nodes: Iterable[NodeId]) -> None:
        for node_id in nodes:
            if node_id in self.cordoned:
                self._take_out(node_id)
            else:
                self.idle[node_id] = None
                self._is_idle_sorted = False
                self.num_freed += 1

    def _sort_idle(self) -> None:
        if not self._is_idle_sorted:
            self.idle = dict.fromkeys(self.rooms.in_order(self.idle))
            self._is_idle_sorted = True

    def _take_out(self, node_id: NodeId) -> None:
        self.out.add(node_id)
        self.free_nodes.add(0, self.ring.size, -1)
