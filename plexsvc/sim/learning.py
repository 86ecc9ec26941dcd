"""Cycles of cold jobs: guessed at first, then measured as the service does."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from plexsvc.ids import ResidentId
from plexsvc.scheduler.core.planning.planners import GUESS
from plexsvc.scheduler.core.planning.profile import SECOND_US, Demand, Profile
from plexsvc.scheduler.core.planning.profiler import CycleProfiler, News

GUESSED_RUN_US: Final = 3 * 3600 * SECOND_US


def as_cold(demand: Demand) -> Demand:
    """Return what planning knows of a job it never saw: its size, its state, nothing of its cycle.

    Its mode and what a switch costs are known: the one is in its program, the other in its bytes.
    """
    guess = replace(
        GUESS,
        mode=demand.profile.mode,
        sync_at=demand.profile.sync_at,
        switch_us=demand.profile.switch_us,
    )
    return replace(demand, profile=guess, expected_us=GUESSED_RUN_US, is_cold=True)


class Learner:
    """The profilers of cold jobs, fed with what ran."""

    def __init__(self) -> None:
        self._profilers: dict[ResidentId, CycleProfiler] = {}

    def observe(
        self, job_id: ResidentId, guess: Profile, phase: str, *, start_us: int, end_us: int
    ) -> Profile | None:
        """Take a finished operation; returns the job's cycle when it became known or changed.

        Times are those of a clock that stands still while the job waits.
        """
        profiler = self._profilers.get(job_id)
        if profiler is None:
            profiler = CycleProfiler(mode=guess.mode, sync_at=guess.sync_at)
            self._profilers[job_id] = profiler
        news = profiler.observe(phase, start_us=start_us, end_us=end_us)
        if news is News.NOTHING or profiler.profile is None:
            return None
        return replace(profiler.profile, switch_us=guess.switch_us)
