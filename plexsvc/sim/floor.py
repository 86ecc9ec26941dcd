"""Floor of the simulator: jobs that play, groups with their runtimes, the clock's heap.

The floor performs what planning and runtime decided and asks them at the moments the service would;
which moments those are is the simulator's part.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np

from plexsvc.ids import ResidentId
from plexsvc.scheduler.core.planning.board import Board
from plexsvc.scheduler.core.planning.planner import Placed, Planner
from plexsvc.scheduler.core.planning.policies import Policy
from plexsvc.scheduler.core.planning.profile import SECOND_US, Profile
from plexsvc.scheduler.core.planning.rooms import Gang
from plexsvc.scheduler.core.planning.runtime import (
    Counts,
    Decision,
    GroupRuntime,
    Member,
    Run,
    SwitchTo,
)
from plexsvc.sim.cluster import GB, SimCluster
from plexsvc.sim.jobs import Losses, run_of
from plexsvc.sim.jobs import Run as JobRun
from plexsvc.sim.records import Record, Stay


class Kind(IntEnum):
    """What an event of the heap is; its subject is a job, or a node."""

    ARRIVAL = 0
    BEGIN = 1
    JOB_TIMER = 2
    OPERATION_END = 3
    SWITCH_END = 4
    NODE_LOST = 5
    NODE_BACK = 6
    MOVE_END = 7
    NODE_EVENT = 8
    REPACK = 9


@dataclass(slots=True, kw_only=True)
class Playing:
    """A job on the cluster; `epoch` tells events of an earlier stay from those of this one."""

    record: Record
    run: JobRun
    group_id: int
    profile: Profile
    """Its cycle as planning knows it now."""

    is_submitted: bool = False
    is_moving: bool = False
    epoch: int = 0
    submitted_us: int = 0
    started_us: int = 0
    losses: Losses = field(default_factory=Losses)

    waited_us: int = 0
    """All waiting of its operations so far: the clock its cycle is measured on stands still."""

    @property
    def job_id(self) -> ResidentId:
        """Return the job's id."""
        return self.record.job.demand.resident_id


@dataclass(slots=True, kw_only=True)
class SimGroup:
    """A group's runtime, and since when it has its present size."""

    runtime: GroupRuntime
    size: int
    since_us: int


class Floor:
    """Jobs, groups and events in virtual time."""

    def __init__(self, *, cluster: SimCluster, planner: Planner, seed: int) -> None:
        self.cluster = cluster
        self.planner = planner
        self.seed = seed
        self.playing: dict[ResidentId, Playing] = {}
        self.groups: dict[int, SimGroup] = {}
        self.counts = Counts()
        self.now = 0
        self.group_node_us = 0
        self.dice = np.random.default_rng([seed, 77])
        self.heap: list[tuple[int, int, int, str, int]] = []
        self._made = 0

    @property
    def board(self) -> Board:
        """Return the planner's board."""
        return self.planner.board

    @property
    def policy(self) -> Policy:
        """Return the policy that is played."""
        return self.planner.policy

    def push(self, at: int, kind: Kind, subject: str, detail: int = 0) -> None:
        """Have an event happen at a time; of equal times in the order they were pushed."""
        self._made += 1
        heapq.heappush(self.heap, (at, self._made, int(kind), subject, detail))

    def place(self, record: Record, placed: Placed) -> None:
        """Start a job, or start it again after its nodes were lost."""
        shift_us = placed.shift_slots * self.board.slot_us
        group_id = self.board.group_of[placed.resident_id]
        record.stays.append(Stay(since_us=self.now, group_id=group_id, nodes=placed.units))
        if record.start_us is None:
            record.start_us, record.shift_us = self.now, shift_us
        group = self.board.groups[group_id]
        profile = group.residents[placed.resident_id].demand.profile
        playing = self.playing.get(placed.resident_id)
        if playing is None:
            run = run_of(record.job, record.job.rollout_us(self.seed))
            playing = Playing(record=record, run=run, group_id=group_id, profile=profile)
            self.playing[placed.resident_id] = playing
        playing.group_id = group_id
        self._park(playing, placed.units)
        first_us = self.now + shift_us + profile.slack_us + profile.segments[0].offset_us
        self.group_at(group_id).runtime.join(
            placed.resident_id, profile, units=frozenset(placed.units), expected_us=first_us
        )
        self.push(self.now + shift_us, Kind.BEGIN, placed.resident_id, playing.epoch)

    def group_at(self, group_id: int) -> SimGroup:
        """Return a group of the board as played, from now on if it was not yet."""
        group = self.groups.get(group_id)
        if group is None:
            runtime = GroupRuntime(rules=self.policy.rules, counts=self.counts)
            size = self.board.groups[group_id].size
            group = SimGroup(runtime=runtime, size=size, since_us=self.now)
            self.groups[group_id] = group
        return group

    def carry(self, playing: Playing, nodes: Gang, *, was: int) -> None:
        """Take a job that does not run to nodes where the planner booked it, and charge the move.

        `was` is its group before; call `settle_groups` when all moves are made.
        """
        job_id, left = playing.job_id, self.groups[was]
        expected_us = left.runtime.members[job_id].expected_us
        left.runtime.leave(job_id)
        playing.group_id = self.board.group_of[job_id]
        playing.is_submitted = playing.is_moving = True
        record = playing.record
        record.stays.append(Stay(since_us=self.now, group_id=playing.group_id, nodes=nodes))
        link = max(1, round(self.cluster.migrate_gb_s * GB))
        charge_us = record.job.demand.state_bytes * SECOND_US // link
        record.moves.append((self.now, self.now + charge_us))
        self._park(playing, nodes)
        runtime = self.group_at(playing.group_id).runtime
        runtime.join(job_id, playing.profile, units=frozenset(nodes), expected_us=expected_us)
        self.push(self.now + charge_us, Kind.MOVE_END, job_id, playing.epoch)

    def _park(self, playing: Playing, nodes: Gang) -> None:
        """Note where a job's state is parked: in host memory while there is room, else on disk."""
        there = self.board.groups[self.board.group_of[playing.job_id]].on(nodes)
        others = [r.demand.resident_id for r in there if r.demand.resident_id != playing.job_id]
        taken = sum(self.playing[j].record.host_bytes for j in others if j in self.playing)
        record = playing.record
        room = max(0, int(self.cluster.host_gb * GB) - taken)
        record.host_bytes = min(record.job.demand.state_bytes, room)
        record.disk_bytes = record.job.demand.state_bytes - record.host_bytes

    def settle_groups(self) -> list[int]:
        """Follow the board where groups dissolved, grew, shrank or split; returns the changed."""
        made: dict[int, None] = {}
        if self.policy.takes_parts or self.policy.merges:
            for job_id, playing in self.playing.items():
                group_id = self.board.group_of.get(job_id, playing.group_id)
                if group_id != playing.group_id:
                    self._change_group(playing, group_id)
                    made[group_id] = None
        for group_id, group in list(self.groups.items()):
            known = self.board.groups.get(group_id)
            size = 0 if known is None else known.size
            if size != group.size:
                self.group_node_us += group.size * (self.now - group.since_us)
                group.size, group.since_us = size, self.now
            if size == 0:
                del self.groups[group_id]
        return list(made)

    def _change_group(self, playing: Playing, group_id: int) -> None:
        """Take a job, with what it has under way, to a part of its group, or to a larger one."""
        left = self.groups[playing.group_id].runtime
        runtime = self.group_at(group_id).runtime
        job_id = playing.job_id
        left.hand_over(job_id, to=runtime)
        playing.group_id = group_id
        stay = playing.record.stays[-1]
        record = playing.record
        record.stays.append(Stay(since_us=self.now, group_id=group_id, nodes=stay.nodes))

    def wake(self, group_ids: Sequence[int]) -> None:
        """Let groups decide that may be free now."""
        for group_id in group_ids:
            group = self.groups.get(group_id)
            if group is not None:
                self.perform(group.runtime.next(now_us=self.now))

    def submit(self, playing: Playing) -> None:
        """Give a job's head operation to its group, if it has one that was not given yet."""
        operation = playing.run.head
        if operation is None or playing.is_submitted:
            return
        playing.is_submitted, playing.submitted_us = True, self.now
        if operation.starts_burst:
            self.planner.note_phase(playing.job_id, self.now)
        group = self.groups[playing.group_id]
        decision = group.runtime.submit(
            playing.job_id,
            operation.phase,
            service_us=operation.duration_us,
            burst_us=operation.burst_us,
            starts_burst=operation.starts_burst,
            now_us=self.now,
        )
        self.perform(decision)

    def perform(self, decisions: Sequence[Decision]) -> None:
        """Do what a group's runtime decided."""
        for decision in decisions:
            match decision:
                case Run(resident_id=job_id):
                    self._run(self.playing[job_id])
                case SwitchTo(resident_id=job_id, is_prefetch=is_prefetch):
                    playing = self.playing[job_id]
                    end = self.now + self._switch_us(playing.record)
                    spans = playing.record.prefetch if is_prefetch else playing.record.switch
                    spans.append((self.now, end))
                    self.push(end, Kind.SWITCH_END, job_id, playing.epoch)

    def _run(self, playing: Playing) -> None:
        operation = playing.run.head
        assert operation is not None, playing.job_id
        playing.started_us = self.now
        playing.waited_us += self.now - playing.submitted_us
        end = self.now + operation.duration_us
        self.push(end, Kind.OPERATION_END, playing.job_id, playing.epoch)

    def busy_jobs(self) -> set[ResidentId]:
        """Return the jobs that run, switch or move: they stay where they are for now."""
        return {
            job_id
            for job_id, playing in self.playing.items()
            if job_id in self.board.group_of and (playing.is_moving or self.member(playing).is_busy)
        }

    def member(self, playing: Playing) -> Member:
        """Return a job as its group's runtime knows it."""
        return self.groups[playing.group_id].runtime.members[playing.job_id]

    def finish(self, playing: Playing) -> None:
        """Take a job that is done off the cluster and let others have what it held."""
        playing.record.finish_us = self.now
        group_id, group = playing.group_id, self.groups[playing.group_id]
        self.planner.remove(playing.job_id)
        del self.playing[playing.job_id]
        group.runtime.leave(playing.job_id)
        self.wake([group_id, *self.settle_groups()])

    def lose(self, jobs: Sequence[ResidentId]) -> None:
        """Queue jobs whose nodes are gone: each goes on from its last trained cycle.

        Raises:
            PlexError: `no_placement` for a job that gets nowhere between its losses.
        """
        left: dict[int, None] = {}
        for job_id in jobs:
            playing = self.playing[job_id]
            playing.losses.note(
                playing.record.job, playing.run, mtbf_h=self.cluster.faults.node_mtbf_h
            )
            runtime = self.groups[playing.group_id].runtime
            left[playing.group_id] = None
            if runtime.members[job_id].is_running:
                playing.record.lost.append((playing.started_us, self.now))
            self._cut(playing.record)
            playing.record.restarts.append(self.now)
            runtime.abort(job_id)
            runtime.leave(job_id)
            playing.epoch += 1
            playing.is_submitted = playing.is_moving = False
            demand = self.planner.group_of(job_id).residents[job_id].demand
            self.planner.remove(job_id)
            self.planner.submit(demand)
        self.wake([*left, *self.settle_groups()])

    def _cut(self, record: Record) -> None:
        """End what was under way of a job that lost its nodes: a switch, a prefetch or a move."""
        for spans in (record.switch, record.prefetch, record.moves):
            if spans and spans[-1][1] > self.now:
                spans[-1] = (spans[-1][0], self.now)

    def _switch_us(self, record: Record) -> int:
        cost = record.job.demand.profile.switch_us
        faults = self.cluster.faults
        if faults.slow_switch_share and self.dice.random() < faults.slow_switch_share:
            return round(cost * faults.slow_switch_factor)
        return cost
