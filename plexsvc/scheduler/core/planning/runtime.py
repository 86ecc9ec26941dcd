"""Who runs on one node group: grants, switches and prefetches, decided event by event.

States of the group: *idle*, *running* one operation, *switching* to a job (for an operation, or
ahead of one: a prefetch). Each method is told the time, updates the group and returns at most one
decision, which the caller performs and reports back.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from plexsvc.ids import JobId
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


@dataclass(slots=True, kw_only=True)
class Member:
    """A job of the group: its cycle, its head operation, when it is expected next."""

    job_id: JobId
    profile: Profile
    waiting: Entry | None = None
    arrived_us: int | None = None
    """When its current burst, or its last one, arrived."""

    interval_us: int = 0
    expected_us: int | None = None
    is_paused: bool = False
    """Runs only while no other job of the group waits."""


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
    resident: JobId | None = None
    running: JobId | None = None
    switching: JobId | None = None
    prefetched: JobId | None = None
    counts: Counts = field(default_factory=Counts)

    def join(self, job_id: JobId, profile: Profile, *, expected_us: int | None = None) -> None:
        """Let a job take part; its first burst is expected at `expected_us`."""
        assert job_id not in self.members, job_id
        self.members[job_id] = Member(
            job_id=job_id,
            profile=profile,
            interval_us=profile.period_us,
            expected_us=expected_us,
        )

    def leave(self, job_id: JobId) -> None:
        """Forget a job that has nothing running or moving in; call `next` when all have left."""
        assert job_id not in {self.running, self.switching}, job_id
        del self.members[job_id]
        if self.resident == job_id:
            self.resident = None
        if self.prefetched == job_id:
            self.prefetched = None
            self.counts.prefetch_wasted += 1

    def hand_over(self, job_id: JobId, *, to: GroupRuntime) -> None:
        """Let a job go on in a part that split off the group, with what it has under way."""
        to.members[job_id] = self.members.pop(job_id)
        if self.resident == job_id:
            self.resident, to.resident = None, job_id
        if self.running == job_id:
            self.running, to.running = None, job_id
        if self.switching == job_id:
            self.switching, to.switching = None, job_id
        if self.prefetched == job_id:
            self.prefetched, to.prefetched = None, job_id

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
    ) -> Decision | None:
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
            setup_us=0 if self.resident == job_id else profile.switch_us,
            burst_us=burst_us,
            deadline_us=since + slack,
            is_critical=profile.is_critical(phase),
            continues_burst=not starts_burst,
            is_paused=member.is_paused,
        )
        return self._decide(now_us)

    def finished(self, *, now_us: int, ends_burst: bool) -> None:
        """The running operation ended; call `next` after what it released was submitted."""
        assert self.running is not None, "nothing ran"
        member = self.members[self.running]
        if ends_burst and member.profile.mode is Mode.SYNC and member.arrived_us is not None:
            member.expected_us = now_us + max(0, member.interval_us - member.profile.busy_us)
        self.running = None

    def next(self, *, now_us: int) -> Decision | None:
        """Decide what the free group does."""
        return self._decide(now_us)

    def switched(self, *, now_us: int) -> Decision | None:
        """The ordered switch is done."""
        assert self.switching is not None, "no switch was ordered"
        self.resident = self.switching if self.switching in self.members else None
        self.switching = None
        for member in self.members.values():
            if member.waiting is not None:
                is_here = member.job_id == self.resident
                member.waiting.setup_us = 0 if is_here else member.profile.switch_us
        return self._decide(now_us)

    def _note_arrival(self, member: Member, now_us: int) -> None:
        if member.arrived_us is not None:
            measured = min(now_us - member.arrived_us, 4 * member.profile.period_us)
            if member.profile.mode is Mode.ASYNC1:
                member.interval_us += (measured - member.interval_us) // _SMOOTHING
        member.arrived_us = now_us
        member.expected_us = now_us + member.interval_us

    def _decide(self, now_us: int) -> Decision | None:
        if self.running is not None or self.switching is not None:
            return None
        entries = [m.waiting for m in self.members.values() if m.waiting is not None]
        if not entries:
            return self._prefetch(now_us)
        entry = (
            entries[0] if len(entries) == 1 else choose(entries, rules=self.rules, now_us=now_us)
        )
        if self.resident != entry.job_id and self.members[entry.job_id].profile.switch_us:
            return self._switch(entry.job_id, is_prefetch=False)
        return self._run(entry)

    def _run(self, entry: Entry) -> Decision:
        if self.prefetched is not None:
            self.counts.prefetch_hits += self.prefetched == entry.job_id
            self.counts.prefetch_wasted += self.prefetched != entry.job_id
            self.prefetched = None
        self.members[entry.job_id].waiting = None
        self.resident = self.running = entry.job_id
        return Run(entry.job_id)

    def _switch(self, job_id: JobId, *, is_prefetch: bool) -> Decision:
        if self.prefetched is not None:
            self.counts.prefetch_wasted += 1
            self.prefetched = None
        self.counts.switches += 1
        if is_prefetch:
            self.counts.prefetches += 1
            self.prefetched = job_id
        self.switching = job_id
        return SwitchTo(job_id, is_prefetch)

    def _prefetch(self, now_us: int) -> Decision | None:
        """Bring in the job that is expected next, when that is clear enough."""
        if not self.rules.prefetches or len(self.members) < 2:
            return None
        expected = [
            Expected(
                job_id=m.job_id,
                at_us=m.expected_us,
                spread_us=spread_us(m.profile.period_us, m.profile.jitter_ppm),
                switch_us=m.profile.switch_us,
            )
            for m in self.members.values()
            if m.expected_us is not None and not m.is_paused
        ]
        job_id = next_arrival(
            expected,
            resident=self.resident,
            prefetched=self.prefetched,
            rules=self.rules,
            now_us=now_us,
        )
        return None if job_id is None else self._switch(job_id, is_prefetch=True)
