"""A group of units: the jobs that time-share them, each on all of them or on some.

Jobs are of one group when their units overlap, directly or over others.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from plexsvc.ids import ResidentId, UnitId
from plexsvc.scheduler.core.planning.profile import PPM, Demand, Lodger
from plexsvc.scheduler.core.planning.ring import first_us
from plexsvc.scheduler.core.planning.rooms import Gang

NOISE_SHARE: Final = 4
"""A duty that is above another by less than one over this is as it was."""

SMOOTHING: Final = 8
"""A measured cycle weighs one over this in a job's pace."""


@dataclass(slots=True, kw_only=True)
class Resident:
    """A job that lives in a group, and on which of its units."""

    demand: Demand
    units: Gang
    booked_ppm: int = 0
    """The duty it was placed with."""

    is_late: bool = False
    """Whether its measured cycle passed its bound."""

    began_us: int = 0
    """When it was placed."""

    seen_us: int | None = None
    """When its cycle was last seen to start."""

    pace_ppm: int | None = None
    """Its cycle over its cycle alone, measured and averaged; None before two cycles."""

    @property
    def grew_ppm(self) -> int:
        """Return by how much its duty is above the one it was placed with, if that is clear."""
        more_ppm = self.demand.load.duty_ppm - self.booked_ppm
        return more_ppm if more_ppm * NOISE_SHARE > self.booked_ppm else 0

    def meets(self, units: Collection[UnitId]) -> bool:
        """Whether it lives on one of `units`."""
        return any(unit_id in units for unit_id in self.units)

    def lodger(self) -> Lodger:
        """Return it as it lies on the ring: from when its cycle was last seen to start.

        One that was just placed lies where it was put.
        """
        load, since_us = self.demand.load, self.seen_us
        return Lodger(
            resident_id=self.demand.resident_id,
            load=load,
            units=self.units,
            since_us=first_us(load, self.began_us) if since_us is None else since_us,
        )

    def note_phase(self, at_us: int, *, alone_us: int) -> None:
        """Remember that a cycle started, and how long the one before it took.

        `alone_us` is what the time since the last start would have been without waits, a period if
        that is not known: a job that pauses by itself is not late.
        """
        before_us, self.seen_us = self.seen_us, at_us
        if before_us is None:
            return
        alone_us = alone_us or self.demand.profile.period_us
        pace_ppm = PPM if self.pace_ppm is None else self.pace_ppm
        measured_ppm = (at_us - before_us) * PPM // alone_us
        self.pace_ppm = pace_ppm + (measured_ppm - pace_ppm) // SMOOTHING

    def remaining_us(self, now_us: int) -> int:
        """Return how long it is still expected to run, at least one period."""
        demand = self.demand
        return max(demand.profile.period_us, demand.expected_us - (now_us - self.began_us))


class Crowd(NamedTuple):
    """The most that lives on any of some units: jobs and duty."""

    num_jobs: int
    duty_ppm: int


@dataclass(slots=True, kw_only=True)
class Group:
    """Units whose devices a set of jobs time-share."""

    group_id: int
    units: Gang
    residents: dict[ResidentId, Resident] = field(default_factory=dict)
    duty_ppm: int = 0
    """Sum of the duties of its jobs."""

    is_uniform: bool = True
    """Whether every job lives on all of its units."""

    is_closed: bool = False
    """Takes no further job: one of its units is cordoned."""

    looked_us: int = 0
    """When it was last looked at whether jobs should leave it."""

    @property
    def size(self) -> int:
        """Return its number of units."""
        return len(self.units)

    @property
    def late(self) -> list[ResidentId]:
        """Return the jobs whose measured cycle passed their bound."""
        return [name for name, resident in self.residents.items() if resident.is_late]

    @property
    def why_closed(self) -> str:
        """Return why a closed group takes no further job."""
        if self.is_closed:
            return "a node is cordoned"
        return f"{self.late[0]} there waits past its bound (max_slowdown)"

    @property
    def is_probing(self) -> bool:
        """Whether the cycle of some job is not known yet."""
        return any(resident.demand.is_cold for resident in self.residents.values())

    def see_uniform(self) -> None:
        """Note whether every job lives on all of its units by now."""
        self.is_uniform = all(len(r.units) == self.size for r in self.residents.values())

    def on(self, units: Collection[UnitId]) -> list[Resident]:
        """Return the jobs that live on any of `units`."""
        if self.is_uniform:
            return list(self.residents.values())
        return [resident for resident in self.residents.values() if resident.meets(units)]

    def crowd(self, units: Collection[UnitId]) -> Crowd:
        """Return the most that lives on any of `units`. `O(units * jobs)` unless uniform."""
        if self.is_uniform:
            return Crowd(len(self.residents), self.duty_ppm)
        there = [[r for r in self.residents.values() if n in r.units] for n in units]
        return Crowd(
            num_jobs=max(len(jobs) for jobs in there),
            duty_ppm=max(sum(r.demand.load.duty_ppm for r in jobs) for jobs in there),
        )

    def duty_on(self, unit_id: UnitId) -> int:
        """Return the sum of the duties of the jobs on one unit."""
        if self.is_uniform:
            return self.duty_ppm
        return sum(r.demand.load.duty_ppm for r in self.residents.values() if unit_id in r.units)


def connected(residents: Iterable[Resident]) -> list[tuple[set[UnitId], list[ResidentId]]]:
    """Return the sets of jobs whose units overlap, with their units, in the order of their jobs."""
    # Each job joins what it meets of the sets so far, which become one.
    found: list[tuple[set[UnitId], list[ResidentId]]] = []
    for resident in residents:
        units, jobs = set(resident.units), [resident.demand.resident_id]
        apart = []
        for other_units, other_jobs in found:
            if other_units.isdisjoint(units):
                apart.append((other_units, other_jobs))
            else:
                units |= other_units
                jobs = [*other_jobs, *jobs]
        found = [*apart, (units, jobs)]
    return found
