"""The queue of waiting jobs and where each goes: admission, placement and the reasons for waiting.

A job is offered to groups only when something changed for it: a group that lost or took a job,
nodes that became idle, or the job being new. Placement is all or nothing: training gang and rollout
nodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from typing import Final

from plexsvc.ids import JobId, NodeId
from plexsvc.scheduler.core.planning.board import Board, Group
from plexsvc.scheduler.core.planning.fit import Fitter
from plexsvc.scheduler.core.planning.interference import Load, is_commensurate, slowdowns_ppm
from plexsvc.scheduler.core.planning.policies import Policy, Preference, QueueOrder
from plexsvc.scheduler.core.planning.profile import PPM, Demand, Profile

MAX_CANDIDATES: Final = 64
"""Groups a new job is checked against."""

PACE_SMOOTHING: Final = 8
"""A measured cycle weighs one over this in a job's pace."""

COST_GRAIN_PPM: Final = 10_000
"""Predicted slowdowns closer than this count as equal; commensurate periods decide."""

DRIFT_SHARE: Final = 20
"""A resident is re-anchored when it drifted by more than one over this of its period."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A job that may start: where, and how far its cycle slides."""

    job_id: JobId
    group_id: int
    nodes: tuple[NodeId, ...]
    rollout_nodes: tuple[NodeId, ...]
    shift_slots: int
    overlap_ppm: int
    opened: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Choice:
    group: Group | None
    shift_slots: int = 0
    overlap_ppm: int = 0


class Planner:
    """Admission and placement on one board under one policy."""

    def __init__(self, board: Board, *, policy: Policy) -> None:
        self.board = board
        self.policy = policy
        self.fitter = Fitter(board=board)
        self.waiting: dict[JobId, Demand] = {}
        self._unseen: set[JobId] = set()
        self._changed: dict[int, None] = {}
        self._idle_seen = 0
        self._phases: dict[JobId, int] = {}
        self._started: dict[JobId, int] = {}
        self._paces: dict[JobId, int] = {}
        self._late_news = False
        self._costs: dict[int, int] = {}

    def submit(self, demand: Demand) -> None:
        """Queue a job."""
        assert demand.job_id not in self.waiting, demand
        self.waiting[demand.job_id] = demand
        self._unseen.add(demand.job_id)

    def withdraw(self, job_id: JobId) -> None:
        """Take a waiting job out of the queue."""
        del self.waiting[job_id]
        self._unseen.discard(job_id)

    def remove(self, job_id: JobId) -> None:
        """Take a placed job off; what it held is offered to those who wait at the next `admit`."""
        group = self.board.remove(job_id)
        self._phases.pop(job_id, None)
        self._started.pop(job_id, None)
        self._paces.pop(job_id, None)
        self.touch(group.group_id)

    def note_phase(self, job_id: JobId, at_us: int) -> None:
        """Remember when a resident's cycle was last seen to start; fits follow it.

        The measured cycle is averaged; past the job's bound, its group takes no further job.
        """
        before_us = self._phases.get(job_id)
        self._phases[job_id] = at_us
        if before_us is None:
            return
        group = self.board.groups[self.board.group_of[job_id]]
        demand = group.residents[job_id].demand
        measured_ppm = (at_us - before_us) * PPM // demand.profile.period_us
        pace = self._paces.get(job_id, PPM)
        pace = self._paces[job_id] = pace + (measured_ppm - pace) // PACE_SMOOTHING
        if pace > demand.max_slowdown_ppm:
            self._late_news = self._late_news or job_id not in group.late
            group.late[job_id] = pace
        elif group.late.pop(job_id, None) is not None:
            self.touch(group.group_id)

    def remaining_us(self, job_id: JobId, now_us: int) -> int:
        """Return how long a placed job is still expected to run, at least one period."""
        group = self.board.groups[self.board.group_of[job_id]]
        demand = group.residents[job_id].demand
        since_us = self._started.get(job_id, now_us)
        return max(demand.profile.period_us, demand.expected_us - (now_us - since_us))

    def best_host(
        self, demand: Demand, *, other_than: int, taken: Mapping[int, Sequence[Demand]]
    ) -> int | None:
        """Return the group a placed job could move to, counting those already moving there."""
        load = Load.of(demand)
        hosts = [
            group
            for group in self._groups_for(demand)
            if group.group_id != other_than
            and group.group_id not in taken
            and self._refusal(group, demand, load) is None
        ]
        return self._by_interference(demand, hosts)[0].group_id if hosts else None

    def move(self, job_id: JobId, to_group: int, *, now_us: int) -> None:
        """Let a placed job live in another group at the phase it was last measured at."""
        at_us = self._phases.get(job_id, now_us)
        left = self.board.group_of[job_id]
        self._paces.pop(job_id, None)
        self.board.move(job_id, to_group, anchor_slot=at_us // self.board.slot_us)
        self.touch(left)
        self.touch(to_group)

    def learned(self, job_id: JobId, profile: Profile, *, at_us: int) -> None:
        """Plan a resident by its measured cycle, last seen to start at `at_us`.

        A cold job's group opens to others; a group that is now over its bounds takes no further job
        and is left to repacking.
        """
        self.board.relearn(job_id, profile, anchor_slot=at_us // self.board.slot_us)
        group = self.board.groups[self.board.group_of[job_id]]
        if group.probing == job_id:
            group.probing = None
        self._paces.pop(job_id, None)
        self.touch(group.group_id)

    def touch(self, group_id: int) -> None:
        """Have waiting jobs look at a group again."""
        self._changed[group_id] = None

    @property
    def has_late(self) -> bool:
        """Whether some job's measured cycle passed its bound."""
        return any(group.late for group in self.board.groups.values())

    @property
    def has_news(self) -> bool:
        """Whether something changed for those who wait since the last `admit`."""
        if self._late_news or not self.waiting:
            return self._late_news
        return bool(self._unseen or self._changed) or len(self.board.idle) > self._idle_seen

    def admit(self, now_us: int) -> list[Placed]:
        """Place what can be placed now, in queue order."""
        changed = [self.board.groups[g] for g in self._changed if g in self.board.groups]
        self._changed.clear()
        self._late_news = False
        idle_grew = len(self.board.idle) > self._idle_seen
        placed: list[Placed] = []
        reserved = False
        if changed or idle_grew or self._unseen:
            for demand in self._in_order(now_us):
                done = self._offer(demand, changed, may_open=not reserved, now_us=now_us)
                if done is not None:
                    placed.append(done)
                    group = self.board.groups[done.group_id]
                    if group not in changed:
                        changed.append(group)
                elif not self.policy.backfill:
                    break
                elif self._is_impatient(demand, now_us):
                    reserved = True
        self._idle_seen = len(self.board.idle)
        return placed

    def why(self, job_id: JobId) -> str:
        """Say why a waiting job waits."""
        demand = self.waiting[job_id]
        groups = [g for g in self.board.groups.values() if self._right_size(g, demand)]
        facts = [f"{len(self.board.idle)} of {len(self.board.rooms)} nodes are idle"]
        counts: dict[str, int] = {}
        for group in groups:
            reason = self._refusal(group, demand, Load.of(demand))
            counts[reason or "may be joined"] = counts.get(reason or "may be joined", 0) + 1
        facts.extend(f"{count} groups of its size: {reason}" for reason, count in counts.items())
        asked = f"{demand.num_nodes} + {demand.rollout_nodes} nodes"
        return f"{job_id} waits for {asked}: " + "; ".join(facts)

    def _in_order(self, now_us: int) -> list[Demand]:
        demands = list(self.waiting.values())
        match self.policy.queue:
            case QueueOrder.FIFO:
                demands.sort(key=lambda d: (-d.priority, d.arrived_us))
            case QueueOrder.RATIO:
                demands.sort(key=lambda d: (-d.priority, -_ratio_ppm(d, now_us), d.arrived_us))
            case QueueOrder.LONGEST:
                demands.sort(key=lambda d: (-d.priority, -d.expected_us, d.arrived_us))
            case QueueOrder.PATIENT:
                demands.sort(key=lambda d: (-d.priority, *self._patient(d, now_us)))
        return demands

    def _patient(self, demand: Demand, now_us: int) -> tuple[int, int, int]:
        """Sort impatient jobs ahead, the highest ratio first; the others longest first."""
        ratio = _ratio_ppm(demand, now_us)
        is_impatient = ratio >= (self.policy.patience_ppm or 0)
        return (0, -ratio, 0) if is_impatient else (1, -demand.expected_us, demand.arrived_us)

    def _is_impatient(self, demand: Demand, now_us: int) -> bool:
        patience = self.policy.patience_ppm
        return patience is not None and _ratio_ppm(demand, now_us) >= patience

    def _offer(
        self, demand: Demand, changed: list[Group], *, may_open: bool, now_us: int
    ) -> Placed | None:
        is_new = demand.job_id in self._unseen
        self._unseen.discard(demand.job_id)
        if len(self.board.idle) < demand.rollout_nodes:
            self._unseen.add(demand.job_id)
            return None
        load = Load.of(demand)
        if demand.is_cold:
            is_new, changed = False, []
        pool = self._groups_for(demand) if is_new else changed
        groups = [g for g in pool if self._refusal(g, demand, load) is None]
        choice = self._choose(demand, groups, may_open=may_open, now_us=now_us)
        if choice is None:
            return None
        return self._commit(demand, choice, now_us=now_us)

    def _choose(
        self, demand: Demand, groups: list[Group], *, may_open: bool, now_us: int
    ) -> _Choice | None:
        can_open = may_open and self._gang(demand) is not None
        match self.policy.preference:
            case Preference.SPREAD:
                if can_open:
                    return _Choice(group=None)
                groups.sort(key=lambda g: (len(g.residents), g.duty_ppm, g.group_id))
            case Preference.PACK:
                groups.sort(key=lambda g: (-len(g.residents), -g.duty_ppm, g.group_id))
            case Preference.PLEX:
                groups = self._by_interference(demand, groups)
        if not groups:
            return _Choice(group=None) if can_open else None
        anchor = now_us // self.board.slot_us
        self._follow_drift(groups[0])
        if self.policy.preference is not Preference.PLEX:
            fit = self.fitter.soft(groups[0], demand.profile, anchor_slot=anchor)
            return _Choice(
                group=fit.group, shift_slots=fit.shift_slots, overlap_ppm=fit.overlap_ppm
            )
        best = self.fitter.best(groups[:1], demand.profile, anchor_slot=anchor)
        assert best is not None, groups
        return _Choice(group=best.group, shift_slots=best.shift_slots, overlap_ppm=best.overlap_ppm)

    def _follow_drift(self, group: Group) -> None:
        """Move residents' cells to the phases they were last measured at."""
        for job_id, resident in group.residents.items():
            at_us = self._phases.get(job_id)
            if at_us is None:
                continue
            period = resident.cells.period
            planned = resident.anchor_slot + resident.shift_slots
            drift = (at_us // self.board.slot_us - planned) % period
            if min(drift, period - drift) * DRIFT_SHARE > period:
                self.board.reanchor(job_id, anchor_slot=at_us // self.board.slot_us)

    def _by_interference(self, demand: Demand, groups: list[Group]) -> list[Group]:
        period = self.board.period_slots(demand.profile)

        def cost(group: Group) -> tuple[int, int, int, int]:
            residents = group.residents.values()
            odd = sum(not is_commensurate(period, r.cells.period) for r in residents)
            excess = self._costs[group.group_id]
            return group.size, excess // COST_GRAIN_PPM, odd, -group.duty_ppm

        return sorted(groups, key=lambda g: (*cost(g), g.group_id))

    def _groups_for(self, demand: Demand) -> list[Group]:
        """Return the groups a new job looks at: of its size, the least busy, a bounded number."""
        sizes = range(demand.num_nodes, demand.num_nodes * self.policy.oversize + 1)
        groups = [g for size in sizes for g in self.board.by_size.get(size, {}).values()]
        if len(groups) <= MAX_CANDIDATES:
            return groups
        return nsmallest(MAX_CANDIDATES, groups, key=lambda g: (g.duty_ppm, g.group_id))

    def _right_size(self, group: Group, demand: Demand) -> bool:
        return demand.num_nodes <= group.size <= demand.num_nodes * self.policy.oversize

    def _refusal(self, group: Group, demand: Demand, load: Load) -> str | None:
        """Return why a group does not take a job, None if it would."""
        policy = self.policy
        if not self._right_size(group, demand):
            return "of another size"
        if group.is_closed or group.late or group.probing is not None:
            return _why_closed(group)
        if len(group.residents) >= policy.max_jobs:
            return f"holds {policy.max_jobs} jobs (max_jobs)"
        if group.duty_ppm + load.duty_ppm > policy.duty_cap_ppm:
            return f"duty would pass {policy.duty_cap_ppm / PPM:.0%} (duty_cap)"
        if group.state_bytes + demand.state_bytes > group.parked_bytes:
            return "no room for its parked state"
        return self._breaks_bound(group, load) if policy.preference is Preference.PLEX else None

    def _breaks_bound(self, group: Group, load: Load) -> str | None:
        """Say whether someone's slowdown would pass its bound; remember what sharing would cost."""
        loads = [*(r.load for r in group.residents.values()), load]
        slowdowns = slowdowns_ppm(loads)
        self._costs[group.group_id] = sum(slowdowns)
        policy = self.policy
        for one, slowdown in zip(loads, slowdowns, strict=True):
            target = policy.critical_target_ppm if one.entries else policy.target_slowdown_ppm
            if policy.is_bounded and slowdown > min(one.bound_ppm, target):
                return "a job's predicted slowdown would pass its bound (max_slowdown)"
        return None

    def _gang(self, demand: Demand) -> tuple[NodeId, ...] | None:
        if len(self.board.idle) < demand.num_nodes + demand.rollout_nodes:
            return None
        return self.board.idle_gang(demand.num_nodes)

    def _commit(self, demand: Demand, choice: _Choice, *, now_us: int) -> Placed:
        opened = choice.group is None
        group = choice.group
        if group is None:
            gang = self._gang(demand)
            assert gang is not None, demand
            group = self.board.open_group(gang)
            group.probing = demand.job_id if demand.is_cold else None
        self.board.commit(
            group,
            demand,
            anchor_slot=now_us // self.board.slot_us,
            shift_slots=choice.shift_slots,
        )
        rollout = tuple(self.board.idle)[: demand.rollout_nodes]
        if rollout:
            self.board.hold(demand.job_id, rollout)
        del self.waiting[demand.job_id]
        self._started[demand.job_id] = now_us
        return Placed(
            job_id=demand.job_id,
            group_id=group.group_id,
            nodes=group.nodes,
            rollout_nodes=rollout,
            shift_slots=choice.shift_slots,
            overlap_ppm=choice.overlap_ppm,
            opened=opened,
        )


def _why_closed(group: Group) -> str:
    if group.is_closed:
        return "a node is cordoned"
    if group.probing is not None:
        return f"{group.probing} is being profiled there"
    return f"{next(iter(group.late))} there waits past its bound (max_slowdown)"


def _ratio_ppm(demand: Demand, now_us: int) -> int:
    expected = max(1, demand.expected_us)
    return (now_us - demand.arrived_us + expected) * PPM // expected
