"""Simulator of planning and the groups' runtime: plays jobs and time, performs the decisions.

It holds the clock, the samples and the faults, and decides nothing: placement comes from `Planner`,
grants, switches and prefetches from `GroupRuntime`. Events of one instant happen in the order in
which they were made, so a seed and a trace give one history.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from typing import Final

from plexsvc.errors import ErrorCode, PlexError
from plexsvc.ids import ResidentId, UnitId
from plexsvc.scheduler.core.planning import answers
from plexsvc.scheduler.core.planning.board import Board
from plexsvc.scheduler.core.planning.planner import Planner
from plexsvc.scheduler.core.planning.policies import Policy
from plexsvc.scheduler.core.planning.profile import SECOND_US
from plexsvc.scheduler.core.planning.repack import Repacking, propose, relieve
from plexsvc.scheduler.core.planning.rooms import UnitRoom
from plexsvc.sim.cluster import GB, NodeAction, SimCluster, node_name
from plexsvc.sim.floor import Floor, Kind, Playing
from plexsvc.sim.jobs import SimJob
from plexsvc.sim.learning import Learner, as_cold
from plexsvc.sim.records import Drained, Outcome, Record

_CHANGES_NOTHING: Final = frozenset({int(Kind.NODE_LOST), int(Kind.REPACK)})
"""Events that give no waiting job a place where nothing plays."""


class Simulator(Floor):
    """One run of one trace on one cluster under one policy."""

    def __init__(
        self,
        jobs: Sequence[SimJob],
        *,
        cluster: SimCluster,
        policy: Policy,
        seed: int,
        is_cold: bool = False,
    ) -> None:
        rooms = (self._room(cluster, UnitId(node_name(at))) for at in range(cluster.nodes))
        super().__init__(cluster=cluster, planner=Planner(Board(rooms), policy=policy), seed=seed)
        self.records: dict[ResidentId, Record] = {}
        self.events = 0
        self.learner = Learner() if is_cold else None
        self.drains: dict[UnitId, Drained] = {}
        self._unfinished = len(jobs)
        self._repacked_us = 0
        self._repack_at_us = 0
        for job in jobs:
            samples = job.rollout_us(seed)
            self.records[job.demand.resident_id] = Record(job=job, alone_us=job.alone_us(samples))
            self.push(job.demand.arrived_us, Kind.ARRIVAL, job.demand.resident_id)
        for at, event in enumerate(cluster.events):
            self.push(round(event.at_s * SECOND_US), Kind.NODE_EVENT, event.node, at)
        if cluster.faults.node_mtbf_h:
            self._plan_next_loss()

    def run(self, *, until_us: int | None = None) -> Outcome:
        """Play until every job is done, or up to a time; a later call goes on from there.

        Raises:
            PlexError: `no_placement` when nothing more will happen and jobs still wait, or when a
                job lost its nodes `MAX_LOSSES` times without training a cycle.
        """
        handlers: tuple[Callable[[str, int], None], ...] = (
            self._on_arrival,
            self._on_begin,
            self._on_job_timer,
            self._on_operation_end,
            self._on_switch_end,
            self._on_node_lost,
            self._on_node_back,
            self._on_move_end,
            self._on_node_event,
            self._on_repack,
        )
        heap = self.heap
        while heap and self._unfinished and (until_us is None or heap[0][0] <= until_us):
            self.now, _, kind, subject, detail = heapq.heappop(heap)
            self.events += 1
            handlers[kind](subject, detail)
            if self.planner.has_news and (not heap or heap[0][0] > self.now):
                self._evacuate(self.playing)
                self._admit()
        if until_us is None and self._unfinished:
            raise self._stuck()
        return Outcome(
            policy=self.policy.name,
            records=tuple(self.records.values()),
            counts=self.counts,
            events=self.events,
            group_node_us=self.group_node_us,
            pruned_share=self.planner.fitter.pruned.share,
            drains=tuple(self.drains.values()),
        )

    def _check_hope(self) -> None:
        """Stop a run in which nothing plays and only losses of nodes, or repacking, are to come."""
        if not self.playing and all(kind in _CHANGES_NOTHING for _, _, kind, _, _ in self.heap):
            raise self._stuck()

    def _stuck(self) -> PlexError:
        first = next(iter(self.planner.waiting), None)
        assert first is not None, f"{self._unfinished} jobs neither wait nor run"
        left, closed = len(self.planner.waiting), len(self.board.cordoned)
        return PlexError(
            ErrorCode.NO_PLACEMENT,
            f"{left} of {len(self.records)} jobs can never run under {self.policy.name}: "
            f"{answers.why(self.planner, first)}; {closed} nodes are closed and no event "
            "opens one again",
            job_id=first,
        )

    def _room(self, cluster: SimCluster, node_id: UnitId) -> UnitRoom:
        parked = int((cluster.host_gb + cluster.disk_gb) * GB)
        return UnitRoom(unit_id=node_id, num_devices=cluster.devices_per_node, parked_bytes=parked)

    def _admit(self) -> None:
        self._place_waiting()
        due_us = self._repacked_us + self.policy.repack_every_us
        if not self.policy.repack_every_us:
            return
        if self.planner.waiting or self.planner.needs_relief:
            if self.now >= due_us:
                self._repacked_us = self.now
                due_us += self.policy.repack_every_us
                self._repack()
            if self._repack_at_us <= self.now:
                self._repack_at_us = max(due_us, self.now + 1)
                self.push(self._repack_at_us, Kind.REPACK, "")

    def _place_waiting(self) -> None:
        admitted = self.planner.admit(self.now)
        for placed in admitted:
            self.place(self.records[placed.resident_id], placed)
        if any(placed.merged for placed in admitted):
            self.wake(self.settle_groups())

    def _on_repack(self, _subject: str, _detail: int) -> None:
        self._check_hope()
        self._admit()

    def _repack(self) -> None:
        busy = self.busy_jobs()
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
        left = {self.playing[move.resident_id].group_id for move in moves}
        for move in moves:
            playing = self.playing[move.resident_id]
            was = playing.group_id
            self.planner.move(move.resident_id, move.units, now_us=self.now)
            self.carry(playing, move.units, was=was)
        self.wake(sorted(left.union(self.settle_groups())))
        if self.planner.has_news:
            self._place_waiting()

    def _evacuate(self, jobs: Sequence[ResidentId] | dict[ResidentId, Playing]) -> None:
        """Move jobs off draining nodes that have another place and do not run just now."""
        if not self.drains or all(drain.empty_us is not None for drain in self.drains.values()):
            return
        draining = [node_id for node_id, drain in self.drains.items() if drain.empty_us is None]
        busy = self.busy_jobs()
        left: dict[int, None] = {}
        for job_id in [job_id for job_id in jobs if job_id in self.board.group_of]:
            playing = self.playing[job_id]
            nodes = self.planner.group_of(job_id).residents[job_id].units
            if job_id in busy or not any(node_id in nodes for node_id in draining):
                continue
            placed = self.planner.rehome(job_id, now_us=self.now, avoid=draining)
            if placed is not None:
                left[playing.group_id] = None
                self.carry(playing, placed.units, was=playing.group_id)
        self.wake([*left, *self.settle_groups()])
        self._note_empty()

    def _note_empty(self) -> None:
        for node_id, drain in self.drains.items():
            if drain.empty_us is None and node_id in self.board.out:
                drain.empty_us = self.now

    def _on_arrival(self, subject: str, _: int) -> None:
        demand = self.records[ResidentId(subject)].job.demand
        self.planner.submit(demand if self.learner is None else as_cold(demand))

    def _on_begin(self, subject: str, epoch: int) -> None:
        playing = self.playing[ResidentId(subject)]
        if playing.epoch == epoch:
            self._timers(playing, playing.run.start(self.now))

    def _on_job_timer(self, subject: str, detail: int) -> None:
        playing = self.playing.get(ResidentId(subject))
        if playing is not None and playing.epoch == detail >> 1:
            self._timers(playing, playing.run.timer(detail & 1, self.now))
            self.submit(playing)

    def _timers(self, playing: Playing, timers: Sequence[tuple[int, int]]) -> None:
        for kind, at in timers:
            self.push(at, Kind.JOB_TIMER, playing.job_id, playing.epoch << 1 | kind)

    def _on_operation_end(self, subject: str, epoch: int) -> None:
        playing = self.playing.get(ResidentId(subject))
        if playing is None or playing.epoch != epoch:
            return
        operation = playing.run.head
        assert operation is not None, subject
        playing.record.busy.append((playing.started_us, self.now))
        playing.record.phases.append(operation.phase)
        playing.is_submitted = False
        timers = playing.run.finished(self.now)
        runtime = self.groups[playing.group_id].runtime
        runtime.finished(playing.job_id, now_us=self.now, ends_burst=operation.ends_burst)
        self._timers(playing, timers)
        if playing.run.is_done:
            self._unfinished -= 1
            self.finish(playing)
            self._note_empty()
            return
        if self.learner is not None:
            self._learn(playing, operation.phase)
        self._evacuate([playing.job_id])
        self.submit(playing)
        if not self.member(playing).is_busy:
            self.wake([playing.group_id])

    def _learn(self, playing: Playing, phase: str) -> None:
        assert self.learner is not None, "only cold jobs are measured"
        waited_us = playing.waited_us
        profile = self.learner.observe(
            playing.job_id,
            playing.profile,
            phase,
            start_us=playing.started_us - waited_us,
            end_us=self.now - waited_us,
        )
        if profile is not None:
            playing.profile = profile
            self.planner.learned(playing.job_id, profile, at_us=playing.started_us)
            self.groups[playing.group_id].runtime.relearn(playing.job_id, profile)

    def _on_switch_end(self, subject: str, epoch: int) -> None:
        playing = self.playing.get(ResidentId(subject))
        if playing is not None and playing.epoch == epoch:
            group = self.groups[playing.group_id]
            self.perform(group.runtime.switched(playing.job_id, now_us=self.now))

    def _on_move_end(self, subject: str, epoch: int) -> None:
        playing = self.playing.get(ResidentId(subject))
        if playing is not None and playing.epoch == epoch:
            playing.is_submitted = playing.is_moving = False
            self.submit(playing)

    def _plan_next_loss(self) -> None:
        mean_us = self.cluster.faults.node_mtbf_h * 3600 * SECOND_US / self.cluster.nodes
        after = round(self.dice.exponential(mean_us))
        victim = int(self.dice.integers(self.cluster.nodes))
        self.push(self.now + after, Kind.NODE_LOST, node_name(victim))

    def _on_node_lost(self, subject: str, _: int) -> None:
        self._check_hope()
        self._plan_next_loss()
        node_id = UnitId(subject)
        if node_id not in self.board.rooms:
            return
        self.lose(self.board.cordon(node_id))
        self.board.leave(node_id)
        back = self.now + round(self.cluster.faults.repair_s * SECOND_US)
        self.push(back, Kind.NODE_BACK, node_id)

    def _on_node_back(self, subject: str, _: int) -> None:
        if UnitId(subject) not in self.board.rooms:  # else an operator joined it before
            self.board.join(self._room(self.cluster, UnitId(subject)))

    def _on_node_event(self, subject: str, at: int) -> None:
        node_id = UnitId(subject)
        match self.cluster.events[at].action:
            case NodeAction.JOIN:
                if node_id not in self.board.rooms:
                    self.board.join(self._room(self.cluster, node_id))
                self._reopen(node_id)
            case NodeAction.UNCORDON:
                self._reopen(node_id)
            case NodeAction.CORDON:
                self.board.cordon(node_id)
            case NodeAction.DRAIN:
                self.board.cordon(node_id)
                self.drains[node_id] = Drained(node_id=node_id, asked_us=self.now)
                self._evacuate(self.playing)
                self._note_empty()

    def _reopen(self, node_id: UnitId) -> None:
        self.board.uncordon(node_id)
        drain = self.drains.get(node_id)
        if drain is not None and drain.empty_us is None:
            del self.drains[node_id]
