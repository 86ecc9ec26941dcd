"""Prediction of a live run's wall time by a virtual run of its jobs through the same core."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from plexsvc.ids import JobId
from plexsvc.scheduler.driver.encoding import Recording
from plexsvc.sim.clients import Outside, What
from plexsvc.sim.fitted_costs import FittedCosts
from plexsvc.sim.observed import Moment, Observed, observe
from plexsvc.sim.programs import ProgramClient, Step, program_of
from plexsvc.sim.virtual_driver import VirtualDriver

DEFAULT_SHARE: Final = 0.5
"""Share of a run that its costs are fitted to."""

DEFAULT_RUNS: Final = 5
"""Virtual runs whose mean is the prediction; each draws other noise."""

MAX_LONGER: Final = 100
"""Times as many events as the live run had, after which a virtual run has gone astray."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wall:
    """A wall time, first submission to last answer: as it was, and in each virtual run."""

    measured_s: float
    runs_s: tuple[float, ...]

    @property
    def predicted_s(self) -> float:
        """Return the mean of the virtual runs."""
        return sum(self.runs_s) / len(self.runs_s)

    @property
    def error(self) -> float:
        """Return how far off the prediction is, as a share of the measured time."""
        return self.predicted_s / self.measured_s - 1 if self.measured_s else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """A run's wall time and its jobs', by job id."""

    is_complete: bool
    """Whether every job got all its answers in every virtual run."""
    run: Wall
    jobs: dict[str, Wall]
    operations: int
    moves: int
    predicted_moves: float
    events: int


@dataclass(frozen=True, slots=True)
class _Interval:
    first_us: int
    last_us: int

    @property
    def seconds(self) -> float:
        return (self.last_us - self.first_us) / 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class _Virtual:
    """What one virtual run came to."""

    is_complete: bool
    jobs: dict[str, _Interval]
    moves: int
    events: int


def predict(
    recorded: Recording, *, share: float = DEFAULT_SHARE, runs: int = DEFAULT_RUNS
) -> Prediction:
    """Return what virtual runs of a journal's jobs take beside what the live run took."""
    seen = observe(recorded)
    programs = {job_id: program_of(moments) for job_id, moments in seen.jobs.items()}
    found = [
        _play(recorded, seen, programs, costs=FittedCosts(seen, share=share, seed=seed))
        for seed in range(runs)
    ]
    measured = {job_id: _span(moments) for job_id, moments in seen.jobs.items()}
    jobs: dict[str, Wall] = {
        job_id: Wall(
            measured_s=span.seconds, runs_s=tuple(one.jobs[job_id].seconds for one in found)
        )
        for job_id, span in measured.items()
    }
    return Prediction(
        is_complete=all(one.is_complete for one in found),
        run=Wall(
            measured_s=_cover(measured.values()).seconds,
            runs_s=tuple(_cover(one.jobs.values()).seconds for one in found),
        ),
        jobs=jobs,
        operations=len(seen.operations),
        moves=len(seen.moves),
        predicted_moves=sum(one.moves for one in found) / runs,
        events=sum(one.events for one in found),
    )


def _play(
    recorded: Recording,
    seen: Observed,
    programs: Mapping[JobId, Sequence[Step]],
    *,
    costs: FittedCosts,
) -> _Virtual:
    clients = [ProgramClient(steps=steps) for steps in programs.values()]
    driver = VirtualDriver(
        core=recorded.configured.new_core(),
        costs=costs,
        clients=[Outside(events=seen.outside), *clients],
        max_events=MAX_LONGER * len(recorded.entries),
    )
    is_complete = driver.run()
    return _Virtual(
        is_complete=is_complete,
        jobs={
            job_id: _Interval(client.begun_us or 0, client.answered_us)
            for job_id, client in zip(programs, clients, strict=True)
        },
        moves=driver.moves,
        events=driver.events,
    )


def _span(moments: Sequence[Moment]) -> _Interval:
    answered_us = [m.at_us for m in moments if m.key.what is What.ANSWERED]
    return _Interval(moments[0].at_us, max(answered_us, default=moments[0].at_us))


def _cover(spans: Iterable[_Interval]) -> _Interval:
    """Return the span from the first begin to the last end."""
    listed = list(spans)
    if not listed:
        return _Interval(0, 0)
    return _Interval(min(s.first_us for s in listed), max(s.last_us for s in listed))
