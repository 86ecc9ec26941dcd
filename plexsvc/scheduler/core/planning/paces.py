"""Measured phases and paces of residents: when their cycles begin, and how long they take."""

from __future__ import annotations

from typing import Final

from plexsvc.ids import ResidentId
from plexsvc.scheduler.core.planning.groups import Resident
from plexsvc.scheduler.core.planning.profile import PPM, Demand, Lodger
from plexsvc.scheduler.core.planning.ring import first_us

SMOOTHING: Final = 8
"""A measured cycle weighs one over this in a job's pace."""


class Paces:
    """What was measured of the residents of one board."""

    def __init__(self) -> None:
        self._phases: dict[ResidentId, int] = {}
        self._started: dict[ResidentId, int] = {}
        self._paces: dict[ResidentId, int] = {}

    def begin(self, resident_id: ResidentId, *, now_us: int) -> None:
        """Note that a job was placed."""
        self._started[resident_id] = now_us

    def forget(self, resident_id: ResidentId) -> None:
        """Forget a job that left the board."""
        self._phases.pop(resident_id, None)
        self._started.pop(resident_id, None)
        self._paces.pop(resident_id, None)

    def restart(self, resident_id: ResidentId) -> None:
        """Measure a job's pace anew: its cycle or its company is another one."""
        self._paces.pop(resident_id, None)

    def note(self, demand: Demand, at_us: int, *, alone_us: int) -> int | None:
        """Remember that a cycle started; return the job's pace in ppm, None after its first start.

        `alone_us` is what the time since the last start would have been without waits, a period if
        that is not known: a job that pauses by itself is not late.
        """
        before_us = self._phases.get(demand.resident_id)
        self._phases[demand.resident_id] = at_us
        if before_us is None:
            return None
        alone_us = alone_us or demand.profile.period_us
        measured_ppm = (at_us - before_us) * PPM // alone_us
        pace = self._paces.get(demand.resident_id, PPM)
        pace += (measured_ppm - pace) // SMOOTHING
        self._paces[demand.resident_id] = pace
        return pace

    def measured(self, resident_id: ResidentId) -> int | None:
        """Return a job's averaged cycle over its cycle alone, in ppm; None before two cycles."""
        return self._paces.get(resident_id)

    def lodger(self, resident: Resident) -> Lodger:
        """Return a resident as it lies on the ring: from when its cycle was last seen to start.

        One that was just placed lies where it was put.
        """
        name, load = resident.demand.resident_id, resident.load
        seen_us = self._phases.get(name)
        since_us = first_us(load, self.began_us(name, default_us=0)) if seen_us is None else seen_us
        return Lodger(resident_id=name, load=load, units=resident.units, since_us=since_us)

    def began_us(self, resident_id: ResidentId, *, default_us: int) -> int:
        """Return when a job was placed."""
        return self._started.get(resident_id, default_us)

    def last_burst(self, demand: Demand, *, now_us: int) -> tuple[int, int] | None:
        """Return when a run of one cycle is expected to train, its switch included.

        None of a run without slack or of more cycles. No slack hides a wait of a run's last burst,
        and such a run has no other. It begins with its rollout, when it was placed or now, and ends
        with its burst.
        """
        profile = demand.profile
        if demand.expected_steps != 1 or not profile.slack_us:
            return None
        end_us = self.began_us(demand.resident_id, default_us=now_us) + profile.period_us
        return end_us - profile.busy_us - profile.switch_us, end_us

    def remaining_us(self, demand: Demand, *, now_us: int) -> int:
        """Return how long a placed job is still expected to run, at least one period."""
        since_us = self.began_us(demand.resident_id, default_us=now_us)
        return max(demand.profile.period_us, demand.expected_us - (now_us - since_us))
