"""The virtual-time driver: plays jobs and time, performs what planning and runtime decide.

It holds the clock, the samples and the faults, and decides nothing: placement comes from `Planner`,
grants, switches and prefetches from `GroupRuntime`. Events of one instant happen in the order in
which they were made, so a seed and a trace give one history.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from plexsvc.ids import JobId, NodeId
from plexsvc.scheduler.core.planning.board import Board
from plexsvc.scheduler.core.planning.decisions import Placed
from plexsvc.scheduler.core.planning.planner import Planner
from plexsvc.scheduler.core.planning.policies import Policy
from plexsvc.scheduler.core.planning.profile import SECOND_US
from plexsvc.scheduler.core.planning.repack import Move, Repacking, propose, relieve
from plexsvc.scheduler.core.planning.rooms import NodeRoom
from plexsvc.scheduler.core.planning.runtime import (
    Counts,
    Decision,
    GroupRuntime,
    Run,
    SwitchTo,
)
from plexsvc.sim.cluster import GB, SimCluster
from plexsvc.sim.jobs import Run as JobRun
from plexsvc.sim.jobs import SimJob, run_of
from plexsvc.sim.records import Outcome, Record, Stay


class Kind(IntEnum):
    """What an event of the heap is; the second field says about whom."""

    ARRIVAL = 0
    BEGIN = 1
    JOB_TIMER = 2
    OPERATION_END = 3
    SWITCH_END = 4
    NODE_LOST = 5
    NODE_BACK = 6
    MOVE_END = 7


@dataclass(slots=True, kw_only=True)
class _Playing:
    """A job on the cluster."""

    record: Record
    run: JobRun
    group_id: int
    is_submitted: bool = False
    is_moving: bool = False
    epoch: int = 0


@dataclass(slots=True, kw_only=True)
class _Group:
    """A group's runtime and what the driver has under way for it."""

    runtime: GroupRuntime
    size: int
    opened_us: int
    epoch: int = 0
    started_us: int = 0
    switch_end_us: int = 0


class Simulator:
    """One run of one trace on one cluster under one policy."""

    def __init__(
        self, jobs: Sequence[SimJob], *, cluster: SimCluster, policy: Policy, seed: int
    ) -> None:
        self.cluster = cluster
        self.policy = policy
        self.seed = seed
        rooms = (self._room(NodeId(f"n{at:05d}")) for at in range(cluster.nodes))
        self.planner = Planner(Board(rooms), policy=policy)
        self.records: dict[JobId, Record] = {}
        self.playing: dict[JobId, _Playing] = {}
        self.groups: dict[int, _Group] = {}
        self.counts = Counts()
        self.now = 0
        self.events = 0
        self.group_node_us = 0
        self._unfinished = len(jobs)
        self._repacked_us = 0
        self._heap: list[tuple[int, int, int, str | int, int]] = []
        self._made = 0
        self._dice = np.random.default_rng([seed, 77])
        for job in jobs:
            samples = job.rollout_us(seed)
            self.records[job.demand.job_id] = Record(job=job, alone_us=job.alone_us(samples))
            self._push(job.demand.arrived_us, Kind.ARRIVAL, job.demand.job_id)
        if cluster.faults.node_mtbf_h:
            self._plan_next_loss()

    def run(self, *, until_us: int | None = None) -> Outcome:
        """Play until every job is done, or up to a time; a later call goes on from there."""
        handlers: tuple[Callable[[str | int, int], None], ...] = (
            self._on_arrival,
            self._on_begin,
            self._on_job_timer,
            self._on_operation_end,
            self._on_switch_end,
            self._on_node_lost,
            self._on_node_back,
            self._on_move_end,
        )
        heap = self._heap
        while heap and self._unfinished and (until_us is None or heap[0][0] <= until_us):
            self.now, _, kind, subject, detail = heapq.heappop(heap)
            self.events += 1
            handlers[kind](subject, detail)
            if self.planner.has_news and (not heap or heap[0][0] > self.now):
                self._admit()
        assert until_us is not None or not self._unfinished, (
            f"{self._unfinished} jobs never ran: {self._stuck()}"
        )
        return Outcome(
            policy=self.policy.name,
            records=tuple(self.records.values()),
            counts=self.counts,
            events=self.events,
            group_node_us=self.group_node_us,
            pruned_share=self.planner.fitter.pruned.share,
        )

    def _stuck(self) -> str:
        first = next(iter(self.planner.waiting), None)
        return "nothing waits" if first is None else self.planner.why(first)

    def _room(self, node_id: NodeId) -> NodeRoom:
        parked = int((self.cluster.host_gb + self.cluster.disk_gb) * GB)
        return NodeRoom(
            node_id=node_id, num_devices=self.cluster.devices_per_node, parked_bytes=parked
        )

    def _push(self, at: int, kind: Kind, subject: str | int, detail: int = 0) -> None:
        self._made += 1
        heapq.heappush(self._heap, (at, self._made, int(kind), subject, detail))

    def _admit(self) -> None:
        for placed in self.planner.admit(self.now):
            self._place(placed)
        every_us = self.policy.repack_every_us
        is_due = every_us > 0 and self.now >= self._repacked_us + every_us
        if is_due and (self.planner.waiting or self.planner.needs_relief):
            self._repacked_us = self.now
            self._repack()

    def _repack(self) -> None:
        busy = {
            job_id
            for group in self.groups.values()
            for job_id in (group.runtime.running, group.runtime.switching)
            if job_id is not None
        }
        busy.update(p.record.job.demand.job_id for p in self.playing.values() if p.is_moving)
        rules = Repacking(link_bytes_s=round(self.cluster.migrate_gb_s * GB))
        relief = relieve(self.planner, busy=busy, rules=rules)
        for job_id in (*relief.paused, *relief.resumed):
            runtime = self.groups[self.playing[job_id].group_id].runtime
            runtime.pause(job_id, is_paused=job_id in relief.paused)
        for job_id, why in relief.paused.items():
            self.records[job_id].pauses.append((self.now, why))
        moves = list(relief.moves)
        if not moves:
            moves = propose(self.planner, busy=busy, rules=rules, now_us=self.now)
        left = {self.playing[move.job_id].group_id for move in moves}
        for move in moves:
            self._move(move)
        for group_id in sorted(left & self.groups.keys()):
            group = self.groups[group_id]
            self._perform(group_id, group, group.runtime.next(now_us=self.now))
        if self.planner.has_news:
            for placed in self.planner.admit(self.now):
                self._place(placed)

    def _move(self, move: Move) -> None:
        """Take a job that does not run out of its group and let it wait for its state."""
        playing = self.playing[move.job_id]
        left = self.groups[playing.group_id]
        expected_us = left.runtime.members[move.job_id].expected_us
        left.runtime.leave(move.job_id)
        self.planner.move(move.job_id, move.nodes, now_us=self.now)
        if not left.runtime.members:
            self.group_node_us += left.size * (self.now - left.opened_us)
            del self.groups[playing.group_id]
        playing.group_id = move.to_group
        playing.is_submitted = playing.is_moving = True
        stay = Stay(since_us=self.now, group_id=move.to_group, nodes=move.nodes)
        playing.record.stays.append(stay)
        playing.record.moves.append((self.now, self.now + move.charge_us))
        profile = playing.record.job.demand.profile
        group = self.groups[move.to_group]
        group.runtime.join(move.job_id, profile, expected_us=expected_us)
        self._push(self.now + move.charge_us, Kind.MOVE_END, move.job_id, playing.epoch)

    def _on_move_end(self, subject: str | int, epoch: int) -> None:
        playing = self.playing.get(JobId(str(subject)))
        if playing is not None and playing.epoch == epoch:
            playing.is_submitted = playing.is_moving = False
            self._submit(playing)

    def _place(self, placed: Placed) -> None:
        record = self.records[placed.job_id]
        group = self.groups.get(placed.group_id)
        if group is None:
            group = _Group(
                runtime=GroupRuntime(rules=self.policy.rules, counts=self.counts),
                size=len(placed.nodes),
                opened_us=self.now,
            )
            self.groups[placed.group_id] = group
        shift_us = placed.shift_slots * self.planner.board.slot_us
        record.stays.append(Stay(since_us=self.now, group_id=placed.group_id, nodes=placed.nodes))
        if record.start_us is None:
            record.start_us, record.shift_us = self.now, shift_us
        playing = self.playing.get(placed.job_id)
        if playing is None:
            run = run_of(record.job, record.job.rollout_us(self.seed))
            playing = _Playing(record=record, run=run, group_id=placed.group_id)
            self.playing[placed.job_id] = playing
        playing.group_id = placed.group_id
        profile = record.job.demand.profile
        first_us = self.now + shift_us + profile.slack_us + profile.segments[0].offset_us
        group.runtime.join(placed.job_id, profile, expected_us=first_us)
        self._push(self.now + shift_us, Kind.BEGIN, placed.job_id, playing.epoch)

    def _on_arrival(self, subject: str | int, _: int) -> None:
        self.planner.submit(self.records[JobId(str(subject))].job.demand)

    def _on_begin(self, subject: str | int, epoch: int) -> None:
        job_id = JobId(str(subject))
        playing = self.playing[job_id]
        if playing.epoch == epoch:
            self._timers(playing, playing.run.restart(self.now))

    def _on_job_timer(self, subject: str | int, detail: int) -> None:
        playing = self.playing.get(JobId(str(subject)))
        if playing is not None and playing.epoch == detail >> 1:
            self._timers(playing, playing.run.timer(detail & 1, self.now))
            self._submit(playing)

    def _timers(self, playing: _Playing, timers: Sequence[tuple[int, int]]) -> None:
        for kind, at in timers:
            job_id = playing.record.job.demand.job_id
            self._push(at, Kind.JOB_TIMER, job_id, playing.epoch << 1 | kind)

    def _submit(self, playing: _Playing) -> None:
        operation = playing.run.head
        if operation is None or playing.is_submitted:
            return
        playing.is_submitted = True
        job_id = playing.record.job.demand.job_id
        if operation.starts_burst:
            self.planner.note_phase(job_id, self.now)
        group = self.groups[playing.group_id]
        decision = group.runtime.submit(
            job_id,
            operation.phase,
            service_us=operation.duration_us,
            burst_us=operation.burst_us,
            starts_burst=operation.starts_burst,
            now_us=self.now,
        )
        self._perform(playing.group_id, group, decision)

    def _perform(self, group_id: int, group: _Group, decision: Decision | None) -> None:
        match decision:
            case None:
                return
            case Run(job_id=job_id):
                operation = self.playing[job_id].run.head
                assert operation is not None, job_id
                group.started_us = self.now
                end = self.now + operation.duration_us
                self._push(end, Kind.OPERATION_END, group_id, group.epoch)
            case SwitchTo(job_id=job_id, is_prefetch=is_prefetch):
                record = self.records[job_id]
                end = self.now + self._switch_us(record)
                spans = record.prefetch if is_prefetch else record.switch
                spans.append((self.now, end))
                group.switch_end_us = end
                self._push(end, Kind.SWITCH_END, group_id, group.epoch)

    def _switch_us(self, record: Record) -> int:
        cost = record.job.demand.profile.switch_us
        faults = self.cluster.faults
        if faults.slow_switch_share and self._dice.random() < faults.slow_switch_share:
            return round(cost * faults.slow_switch_factor)
        return cost

    def _on_operation_end(self, subject: str | int, epoch: int) -> None:
        group = self.groups.get(int(subject))
        if group is None or group.epoch != epoch:
            return
        job_id = group.runtime.running
        assert job_id is not None, subject
        playing = self.playing[job_id]
        operation = playing.run.head
        assert operation is not None, job_id
        playing.record.busy.append((group.started_us, self.now))
        playing.record.phases.append(operation.phase)
        playing.is_submitted = False
        timers = playing.run.finished(self.now)
        group.runtime.finished(now_us=self.now, ends_burst=operation.ends_burst)
        self._timers(playing, timers)
        if playing.run.is_done:
            self._finish(playing, group)
            return
        self._submit(playing)
        if group.runtime.running is None:
            self._perform(int(subject), group, group.runtime.next(now_us=self.now))

    def _on_switch_end(self, subject: str | int, epoch: int) -> None:
        group = self.groups.get(int(subject))
        if group is not None and group.epoch == epoch:
            self._perform(int(subject), group, group.runtime.switched(now_us=self.now))

    def _finish(self, playing: _Playing, group: _Group) -> None:
        job_id = playing.record.job.demand.job_id
        playing.record.finish_us = self.now
        self._unfinished -= 1
        self.planner.remove(job_id)
        del self.playing[job_id]
        group.runtime.leave(job_id)
        if group.runtime.members:
            decision = group.runtime.next(now_us=self.now)
            self._perform(playing.group_id, group, decision)
        else:
            self.group_node_us += group.size * (self.now - group.opened_us)
            del self.groups[playing.group_id]

    def _plan_next_loss(self) -> None:
        mean_us = self.cluster.faults.node_mtbf_h * 3600 * SECOND_US / self.cluster.nodes
        after = round(self._dice.exponential(mean_us))
        victim = int(self._dice.integers(self.cluster.nodes))
        self._push(self.now + after, Kind.NODE_LOST, f"n{victim:05d}")

    def _on_node_lost(self, subject: str | int, _: int) -> None:
        self._plan_next_loss()
        board, node_id = self.planner.board, NodeId(str(subject))
        if node_id not in board.rooms:
            return
        affected = board.cordon(node_id)
        for group_id in sorted({self.playing[job_id].group_id for job_id in affected}):
            self._lose_group(group_id)
        board.leave(node_id)
        back = self.now + round(self.cluster.faults.repair_s * SECOND_US)
        self._push(back, Kind.NODE_BACK, node_id)

    def _lose_group(self, group_id: int) -> None:
        """Queue a group's jobs again: each goes on from its last trained cycle."""
        group = self.groups.pop(group_id)
        self.group_node_us += group.size * (self.now - group.opened_us)
        if group.runtime.running is not None:
            record = self.playing[group.runtime.running].record
            record.lost.append((group.started_us, self.now))
        for job_id in group.runtime.members:
            playing = self.playing[job_id]
            playing.epoch += 1
            playing.is_submitted = playing.is_moving = False
            self.planner.remove(job_id)
            self.planner.submit(playing.record.job.demand)

    def _on_node_back(self, subject: str | int, _: int) -> None:
        self.planner.board.join(self._room(NodeId(str(subject))))
