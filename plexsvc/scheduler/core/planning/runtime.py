"""Runtime of one group in the planning simulator: grants, switches, prefetches, event by event.

Each job of the group is *away*, *on* its units, *switching* onto them (for an operation, or ahead
of one: a prefetch) or *running* there. Jobs that share no unit go on side by side; where all live
on all units, one at a time does. Each method is told the time, updates the group and returns
decisions, which the caller performs and reports back. A job that is next in order and finds some of
its units taken has the others kept free for it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from plexsvc.ids import ResidentId, UnitId
from plexsvc.scheduler.core.planning.prefetch import Expected, next_arrival, spread_us
from plexsvc.scheduler.core.planning.profile import Mode, Profile
from plexsvc.scheduler.core.planning.runtime_rules import Entry, Rules, choose

_SMOOTHING: Final = 4
"""A new measurement weighs one over this."""


@dataclass(frozen=True, slots=True)
class Run:
    """Start the head operation of a job; report `finished`."""

    resident_id: ResidentId


@dataclass(frozen=True, slots=True)
class SwitchTo:
    """Bring a job's state to the devices; report `switched`."""

    resident_id: ResidentId
    is_prefetch: bool


Decision = Run | SwitchTo


EVERYWHERE: Final = frozenset({UnitId("")})
"""The units of a job that shares all of them with every other."""


@dataclass(slots=True, kw_only=True)
class Member:
    """A job of the group: its units, its cycle, its head operation, when it is expected next."""

    resident_id: ResidentId
    units: frozenset[UnitId]
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
        """Whether its units are taken by what it does."""
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
    """One group of units at run time."""

    rules: Rules
    members: dict[ResidentId, Member] = field(default_factory=dict)
    counts: Counts = field(default_factory=Counts)
    is_uniform: bool = True
    """Whether every job lives on the same units."""

    resident: ResidentId | None = None
    """Whose state is on the devices, while the group is uniform."""

    resident_on: dict[UnitId, ResidentId] = field(default_factory=dict)
    """Whose state is on each unit's devices, while it is not."""

    def join(
        self,
        resident_id: ResidentId,
        profile: Profile,
        *,
        units: frozenset[UnitId] = EVERYWHERE,
        expected_us: int | None = None,
    ) -> None:
        """Let a job take part; its first burst is expected at `expected_us`."""
        assert resident_id not in self.members, resident_id
        self.members[resident_id] = Member(
            resident_id=resident_id,
            units=units,
            profile=profile,
            interval_us=profile.period_us,
            expected_us=expected_us,
        )
        self._reshape()

    def leave(self, resident_id: ResidentId) -> None:
        """Forget a job that has nothing running or moving in; call `next` when all have left."""
        member = self.members.pop(resident_id)
        assert not member.is_busy, member
        self._forget(resident_id)
        self._spend(member, is_hit=False)

    def abort(self, resident_id: ResidentId) -> None:
        """Forget what a job has under way: its units are gone.

        On units that stay, a switch that was cut short has left nobody's state whole.
        """
        member = self.members[resident_id]
        if member.is_switching:
            self._settle_on(member)
        member.is_running = member.is_switching = False

    def hand_over(self, resident_id: ResidentId, *, to: GroupRuntime) -> None:
        """Let a job go on in another part or in a larger group, with what it has under way."""
        member = self.members[resident_id]
        is_here = self.is_resident(member)
        to.members[resident_id] = self.members.pop(resident_id)
        self._forget(resident_id)
        to._reshape()
        if is_here:
            to._settle_on(member)

    def relearn(self, resident_id: ResidentId, profile: Profile) -> None:
        """Expect a job by another cycle from its next burst on."""
        member = self.members[resident_id]
        member.profile = profile
        member.interval_us = profile.period_us

    def pause(self, resident_id: ResidentId, *, is_paused: bool) -> None:
        """Let a job run only while no other waits, or as the others again."""
        member = self.members[resident_id]
        member.is_paused = is_paused
        if member.waiting is not None:
            member.waiting.is_paused = is_paused

    def submit(
        self,
        resident_id: ResidentId,
        phase: str,
        *,
        service_us: int,
        burst_us: int,
        starts_burst: bool,
        now_us: int,
    ) -> list[Decision]:
        """Take a job's next operation; `service_us` and `burst_us` are predictions."""
        member = self.members[resident_id]
        assert member.waiting is None, member
        if starts_burst:
            self._note_arrival(member, now_us)
        profile = member.profile
        since = member.arrived_us if member.arrived_us is not None else now_us
        slack = profile.period_us if profile.mode is Mode.ASYNC1 else profile.busy_us
        member.waiting = Entry(
            resident_id=resident_id,
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

    def finished(self, resident_id: ResidentId, *, now_us: int, ends_burst: bool) -> None:
        """A running operation ended; call `next` after what it released was submitted."""
        member = self.members[resident_id]
        assert member.is_running, member
        if ends_burst and member.profile.mode is Mode.SYNC and member.arrived_us is not None:
            member.expected_us = now_us + max(0, member.interval_us - member.profile.busy_us)
        member.is_running = False

    def next(self, *, now_us: int) -> list[Decision]:
        """Decide what free units do."""
        return self._decide(now_us)

    def switched(self, resident_id: ResidentId, *, now_us: int) -> list[Decision]:
        """An ordered switch is done."""
        member = self.members[resident_id]
        assert member.is_switching, member
        member.is_switching = False
        self._settle_on(member)
        for other in self.members.values():
            if other.waiting is not None:
                is_here = self.is_resident(other)
                other.waiting.setup_us = 0 if is_here else other.profile.switch_us
        return self._decide(now_us)

    def is_resident(self, member: Member) -> bool:
        """Return whether a job's state is on all of its units."""
        if self.is_uniform:
            return self.resident == member.resident_id
        return all(self.resident_on.get(unit_id) == member.resident_id for unit_id in member.units)

    def _settle_on(self, member: Member) -> None:
        if self.is_uniform:
            self.resident = member.resident_id
        else:
            self.resident_on.update(dict.fromkeys(member.units, member.resident_id))

    def _forget(self, resident_id: ResidentId) -> None:
        if self.resident == resident_id:
            self.resident = None
        self.resident_on = {n: j for n, j in self.resident_on.items() if j != resident_id}
        self._reshape()

    def _reshape(self) -> None:
        """Follow whether all jobs live on the same units."""
        is_uniform = len({member.units for member in self.members.values()}) < 2
        if is_uniform and not self.is_uniform:
            here = [m.resident_id for m in self.members.values() if self.is_resident(m)]
            self.resident = here[0] if here else None
            self.resident_on.clear()
        elif not is_uniform and self.is_uniform and self.resident is not None:
            units = self.members[self.resident].units
            self.resident_on.update(dict.fromkeys(units, self.resident))
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
        taken: set[UnitId] = set()
        entries: list[Entry] = []
        for member in self.members.values():
            if member.is_busy:
                taken |= member.units
            elif member.waiting is not None:
                entries.append(member.waiting)
        if self.is_uniform and entries:
            return [self._start(self.members[self._choose(entries, now_us).resident_id])]
        decisions: list[Decision] = []
        while entries:
            member = self.members[self._choose(entries, now_us).resident_id]
            if taken.isdisjoint(member.units):
                decisions.append(self._start(member))
            taken |= member.units
            entries = [e for e in entries if not self.members[e.resident_id].units <= taken]
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
        return Run(member.resident_id)

    def _switch(self, member: Member, *, is_prefetch: bool) -> Decision:
        member.is_prefetched, was = False, member.is_prefetched
        self.counts.prefetch_wasted += was
        self._spend_on(member)
        self.counts.switches += 1
        self.counts.prefetches += is_prefetch
        member.is_prefetched = is_prefetch
        member.is_switching = True
        return SwitchTo(member.resident_id, is_prefetch)

    def _spend_on(self, member: Member) -> None:
        """Count what became of prefetches on units that a job takes now."""
        for other in self.members.values():
            if other.is_prefetched and (self.is_uniform or other.units & member.units):
                self._spend(other, is_hit=other is member)

    def _spend(self, member: Member, *, is_hit: bool) -> None:
        if member.is_prefetched:
            member.is_prefetched = False
            self.counts.prefetch_hits += is_hit
            self.counts.prefetch_wasted += not is_hit

    def _prefetch(self, taken: set[UnitId], decisions: list[Decision], now_us: int) -> None:
        """Bring in the jobs that are expected next on units nobody has or wants now."""
        if not self.rules.prefetches or len(self.members) < 2:
            return
        candidates = [
            m
            for m in self.members.values()
            if m.expected_us is not None and not m.is_paused and taken.isdisjoint(m.units)
        ]
        while candidates:
            first = min(candidates, key=lambda m: (m.expected_us or 0, m.resident_id))
            rivals = [m for m in candidates if self.is_uniform or m.units & first.units]
            if self._is_clear(first, rivals, now_us):
                decisions.append(self._switch(first, is_prefetch=True))
            candidates = [m for m in candidates if m not in rivals]

    def _is_clear(self, first: Member, rivals: list[Member], now_us: int) -> bool:
        """Return whether the first of some jobs that share units is to be brought in now."""
        expected = [
            Expected(
                resident_id=m.resident_id,
                at_us=m.expected_us,
                spread_us=spread_us(m.profile.period_us, m.profile.jitter_ppm),
                switch_us=m.profile.switch_us,
            )
            for m in rivals
            if m.expected_us is not None
        ]
        resident = first.resident_id if self.is_resident(first) else None
        ahead = [m for m in rivals if m.is_prefetched and self.is_resident(m)]
        if ahead and resident is None:
            resident = ahead[0].resident_id
        chosen = next_arrival(
            expected,
            resident=resident,
            prefetched=ahead[0].resident_id if ahead else None,
            rules=self.rules,
            now_us=now_us,
        )
        return chosen == first.resident_id
