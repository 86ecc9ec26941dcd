"""Who runs on one node group: grants, switches and prefetches, decided event by event.

Each job of the group is *away*, *on* its nodes, *switching* onto them (for an operation, or ahead
of one: a prefetch) or *running* there. Jobs that share no node go on side by side; where all live
on all nodes, one at a time does. Each method is told the time, updates the group and returns
decisions, which the caller performs and reports back. A job that is next in order and finds some of
its nodes taken has the others kept free for it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from plexsvc.ids import JobId, NodeId
from plexsvc.scheduler.core.planning.prefetch import Expected, next_arrival, spread_us
from plexsvc.scheduler.core.planning.profile import Mode, Profile
from plexsvc.scheduler.core.planning.runtime_rules import Entry, Rules, choose

_SMOOTHING: Final = 4
"""A new measurement weighs one over this."""


@dataclass(frozen=True, slots=True)
class Run:
    """Start the head operation of a job; report `finished`."""

    job_id: JobId


@dataclass(frozen=True, slots=True)
class SwitchTo:
    """Bring a job's state to the devices; report `switched`."""

    job_id: JobId
    is_prefetch: bool


Decision = Run | SwitchTo


EVERYWHERE: Final = frozenset({NodeId("")})
"""The nodes of a job that shares all of them with every other."""


@dataclass(slots=True, kw_only=True)
class Member:
    """A job of the group: its nodes, its cycle, its head operation, when it is expected next."""

    job_id: JobId
    nodes: frozenset[NodeId]
    profile: Profile
    waiting: Entry | None = None
    arrived_us: int | None = None
    """When its current burst, or its last one, arrived."""

    interval_us: int = 0
    expected_us: int | None = None
    is_paused: bool = False
    """Runs only while no other job of the group waits."""

    is_running: bool = False
    is_switching: bool = False
    is_prefetched: bool = False
    """Brought in ahead, and has not run since."""

    @property
    def is_busy(self) -> bool:
        """Whether its nodes are taken by what it does."""
        return self.is_running or self.is_switching


@dataclass(slots=True, kw_only=True)
class Counts:
    """What happened on the group."""

    switches: int = 0
    prefetches: int = 0
    prefetch_hits: int = 0
    prefetch_wasted: int = 0


@dataclass(slots=True, kw_only=True)
class GroupRuntime:
    """One node group at run time."""

    rules: Rules
    members: dict[JobId, Member] = field(default_factory=dict)
    counts: Counts = field(default_factory=Counts)
    is_uniform: bool = True
    """Whether every job lives on the same nodes."""

    resident: JobId | None = None
    """Whose state is on the devices, while the group is uniform."""

    resident_on: dict[NodeId, JobId] = field(default_factory=dict)
    """Whose state is on each node's devices, while it is not."""

    def join(
        self,
        job_id: JobId,
        profile: Profile,
        *,
        nodes: frozenset[NodeId] = EVERYWHERE,
        expected_us: int | None = None,
    ) -> None:
        """Let a job take part; its first burst is expected at `expected_us`."""
        assert job_id not in self.members, job_id
        self.members[job_id] = Member(
            job_id=job_id,
            nodes=nodes,
            profile=profile,
            interval_us=profile.period_us,
            expected_us=expected_us,
        )
        self._reshape()

    def leave(self, job_id: JobId) -> None:
        """Forget a job that has nothing running or moving in; call `next` when all have left."""
        member = self.members.pop(job_id)
        assert not member.is_busy, member
        self._forget(job_id)
        self._spend(member, is_hit=False)

    def abort(self, job_id: JobId) -> None:
        """Forget what a job has under way: its nodes are gone.

        On nodes that stay, a switch that was cut short has left nobody's state whole.
        """
        member = self.members[job_id]
        if member.is_switching:
            self._settle_on(member)
        member.is_running = member.is_switching = False

    def hand_over(self, job_id: JobId, *, to: GroupRuntime) -> None:
        """Let a job go on in another part or in a larger group, with what it has under way."""
        member = self.members[job_id]
        is_here = self.is_resident(member)
        to.members[job_id] = self.members.pop(job_id)
        self._forget(job_id)
        to._reshape()
        if is_here:
            to._settle_on(member)

    def relearn(self, job_id: JobId, profile: Profile) -> None:
        """Expect a job by another cycle from its next burst on."""
        member = self.members[job_id]
        member.profile = profile
        member.interval_us = profile.period_us

    def pause(self, job_id: JobId, *, is_paused: bool) -> None:
        """Let a job run only while no other waits, or as the others again."""
        member = self.members[job_id]
        member.is_paused = is_paused
        if member.waiting is not None:
            member.waiting.is_paused = is_paused

    def submit(
        self,
        job_id: JobId,
        phase: str,
        *,
        service_us: int,
        burst_us: int,
        starts_burst: bool,
        now_us: int,
    ) -> list[Decision]:
        """Take a job's next operation; `service_us` and `burst_us` are predictions."""
        member = self.members[job_id]
        assert member.waiting is None, member
        if starts_burst:
            self._note_arrival(member, now_us)
        profile = member.profile
        since = member.arrived_us if member.arrived_us is not None else now_us
        slack = profile.period_us if profile.mode is Mode.ASYNC1 else profile.busy_us
        member.waiting = Entry(
            job_id=job_id,
            phase=phase,
            since_us=now_us,
            service_us=service_us,
            setup_us=0 if self.is_resident(member) else profile.switch_us,
            burst_us=burst_us,
            deadline_us=since + slack,
            is_critical=profile.is_critical(phase),
            continues_burst=not starts_burst,
            is_paused=member.is_paused,
        )
        return self._decide(now_us)

    def finished(self, job_id: JobId, *, now_us: int, ends_burst: bool) -> None:
        """A running operation ended; call `next` after what it released was submitted."""
        member = self.members[job_id]
        assert member.is_running, member
        if ends_burst and member.profile.mode is Mode.SYNC and member.arrived_us is not None:
            member.expected_us = now_us + max(0, member.interval_us - member.profile.busy_us)
        member.is_running = False

    def next(self, *, now_us: int) -> list[Decision]:
        """Decide what free nodes do."""
        return self._decide(now_us)

    def switched(self, job_id: JobId, *, now_us: int) -> list[Decision]:
        """An ordered switch is done."""
        member = self.members[job_id]
        assert member.is_switching, member
        member.is_switching = False
        self._settle_on(member)
        for other in self.members.values():
            if other.waiting is not None:
                is_here = self.is_resident(other)
                other.waiting.setup_us = 0 if is_here else other.profile.switch_us
        return self._decide(now_us)

    def is_resident(self, member: Member) -> bool:
        """Return whether a job's state is on all of its nodes."""
        if self.is_uniform:
            return self.resident == member.job_id
        return all(self.resident_on.get(node_id) == member.job_id for node_id in member.nodes)

    def _settle_on(self, member: Member) -> None:
        if self.is_uniform:
            self.resident = member.job_id
        else:
            self.resident_on.update(dict.fromkeys(member.nodes, member.job_id))

    def _forget(self, job_id: JobId) -> None:
        if self.resident == job_id:
            self.resident = None
        self.resident_on = {n: j for n, j in self.resident_on.items() if j != job_id}
        self._reshape()

    def _reshape(self) -> None:
        """Follow whether all jobs live on the same nodes."""
        is_uniform = len({member.nodes for member in self.members.values()}) < 2
        if is_uniform and not self.is_uniform:
            here = [m.job_id for m in self.members.values() if self.is_resident(m)]
            self.resident = here[0] if here else None
            self.resident_on.clear()
        elif not is_uniform and self.is_uniform and self.resident is not None:
            nodes = self.members[self.resident].nodes
            self.resident_on.update(dict.fromkeys(nodes, self.resident))
            self.resident = None
        self.is_uniform = is_uniform

    def _note_arrival(self, member: Member, now_us: int) -> None:
        if member.arrived_us is not None:
            measured = min(now_us - member.arrived_us, 4 * member.profile.period_us)
            if member.profile.mode is Mode.ASYNC1:
                member.interval_us += (measured - member.interval_us) // _SMOOTHING
        member.arrived_us = now_us
        member.expected_us = now_us + member.interval_us

    def _decide(self, now_us: int) -> list[Decision]:
        if self.is_uniform and any(m.is_running or m.is_switching for m in self.members.values()):
            return []
        taken: set[NodeId] = set()
        entries: list[Entry] = []
        for member in self.members.values():
            if member.is_busy:
                taken |= member.nodes
            elif member.waiting is not None:
                entries.append(member.waiting)
        if self.is_uniform and entries:
            return [self._start(self.members[self._choose(entries, now_us).job_id])]
        decisions: list[Decision] = []
        while entries:
            member = self.members[self._choose(entries, now_us).job_id]
            if taken.isdisjoint(member.nodes):
                decisions.append(self._start(member))
            taken |= member.nodes
            entries = [e for e in entries if not self.members[e.job_id].nodes <= taken]
        self._prefetch(taken, decisions, now_us)
        return decisions

    def _choose(self, entries: list[Entry], now_us: int) -> Entry:
        return entries[0] if len(entries) == 1 else choose(entries, rules=self.rules, now_us=now_us)

    def _start(self, member: Member) -> Decision:
        if not member.profile.switch_us or self.is_resident(member):
            return self._run(member)
        return self._switch(member, is_prefetch=False)

    def _run(self, member: Member) -> Decision:
        self._spend_on(member)
        member.waiting = None
        member.is_running = True
        self._settle_on(member)
        return Run(member.job_id)

    def _switch(self, member: Member, *, is_prefetch: bool) -> Decision:
        member.is_prefetched, was = False, member.is_prefetched
        self.counts.prefetch_wasted += was
        self._spend_on(member)
        self.counts.switches += 1
        self.counts.prefetches += is_prefetch
        member.is_prefetched = is_prefetch
        member.is_switching = True
        return SwitchTo(member.job_id, is_prefetch)

    def _spend_on(self, member: Member) -> None:
        """Count what became of prefetches on nodes that a job takes now."""
        for other in self.members.values():
            if other.is_prefetched and (self.is_uniform or other.nodes & member.nodes):
                self._spend(other, is_hit=other is member)

    def _spend(self, member: Member, *, is_hit: bool) -> None:
        if member.is_prefetched:
            member.is_prefetched = False
            self.counts.prefetch_hits += is_hit
            self.counts.prefetch_wasted += not is_hit

    def _prefetch(self, taken: set[NodeId], decisions: list[Decision], now_us: int) -> None:
        """Bring in the jobs that are expected next on nodes nobody has or wants now."""
        if not self.rules.prefetches or len(self.members) < 2:
            return
        candidates = [
            m
            for m in self.members.values()
            if m.expected_us is not None and not m.is_paused and taken.isdisjoint(m.nodes)
        ]
        while candidates:
            first = min(candidates, key=lambda m: (m.expected_us or 0, m.job_id))
            rivals = [m for m in candidates if self.is_uniform or m.nodes & first.nodes]
            if self._is_clear(first, rivals, now_us):
                decisions.append(self._switch(first, is_prefetch=True))
            candidates = [m for m in candidates if m not in rivals]

    def _is_clear(self, first: Member, rivals: list[Member], now_us: int) -> bool:
        """Return whether the first of some jobs that share nodes is to be brought in now."""
        expected = [
            Expected(
                job_id=m.job_id,
                at_us=m.expected_us,
                spread_us=spread_us(m.profile.period_us, m.profile.jitter_ppm),
                switch_us=m.profile.switch_us,
            )
            for m in rivals
            if m.expected_us is not None
        ]
        resident = first.job_id if self.is_resident(first) else None
        ahead = [m for m in rivals if m.is_prefetched and self.is_resident(m)]
        if ahead and resident is None:
            resident = ahead[0].job_id
        chosen = next_arrival(
            expected,
            resident=resident,
            prefetched=ahead[0].job_id if ahead else None,
            rules=self.rules,
            now_us=now_us,
        )
        return chosen == first.job_id
