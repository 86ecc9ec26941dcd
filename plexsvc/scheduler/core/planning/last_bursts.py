"""Last bursts of runs of one cycle: when each is expected to train for the last time.

No slack hides a wait of a run's last burst, and a run of one cycle has no other. Where several such
runs share devices, what they lose is decided by whether these bursts meet, and both ends are known
from the start: a run begins with its rollout and ends with its burst.
"""

from __future__ import annotations

from dataclasses import dataclass

from plexsvc.scheduler.core.planning.groups import Resident
from plexsvc.scheduler.core.planning.paces import Paces
from plexsvc.scheduler.core.planning.profile import Demand


@dataclass(frozen=True, slots=True, kw_only=True)
class LastBurst:
    """When a run is expected to train for the last time, its switch included."""

    start_us: int
    end_us: int

    @classmethod
    def of(cls, demand: Demand, *, began_us: int) -> LastBurst | None:
        """Return the burst of a run that began then; None of one without slack or of more cycles.

        >>> from plexsvc.ids import ResidentId
        >>> from plexsvc.scheduler.core.planning.profile import Mode, Profile, Segment
        >>> burst = Segment(phase="step", offset_us=0, duration_us=30)
        >>> profile = Profile(period_us=100, segments=(burst,), mode=Mode.ASYNC1, switch_us=5)
        >>> job = ResidentId("a")
        >>> run = Demand(resident_id=job, num_units=1, profile=profile, expected_steps=1)
        >>> LastBurst.of(run, began_us=1000)
        LastBurst(start_us=1065, end_us=1100)
        """
        profile = demand.profile
        if demand.expected_steps != 1 or not profile.slack_us:
            return None
        end_us = began_us + profile.period_us
        return cls(start_us=end_us - profile.busy_us - profile.switch_us, end_us=end_us)

    def meets(self, other: LastBurst) -> bool:
        """Return whether two bursts are expected to overlap."""
        return self.start_us < other.end_us and other.start_us < self.end_us


class Endings:
    """Whether one job's last burst meets those of residents."""

    def __init__(self, paces: Paces, demand: Demand, *, now_us: int) -> None:
        """Ask for a job that began when it was placed, or begins now."""
        self._paces = paces
        self._now_us = now_us
        self._own = self._burst(demand)

    def meets(self, resident: Resident) -> bool | None:
        """Return whether it meets a resident's; None where one of the two has other bursts too."""
        other = self._own and self._burst(resident.demand)
        return None if self._own is None or other is None else self._own.meets(other)

    def _burst(self, demand: Demand) -> LastBurst | None:
        began_us = self._paces.began_us(demand.resident_id, default_us=self._now_us)
        return LastBurst.of(demand, began_us=began_us)
