"""Interference of jobs that take turns on two pools: what each loses, played out.

A synchronous job rolls out on one gang, then trains on another, and leaves each idle meanwhile.
Several such jobs interleave: while one trains, others roll out. Whoever is ready first goes first,
so jobs settle into rounds, which no formula of arrivals at random predicts. A few rounds are
played instead, of all jobs that share devices, directly or over others.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from plexsvc.ids import UnitId
from plexsvc.scheduler.core.planning.profile import PPM, Demand
from plexsvc.scheduler.core.planning.rooms import Gang

ROUNDS: Final = 8
"""Cycles of the slowest job that are played; the first of each job's count for nothing."""

SETTLED: Final = 2
"""Cycles that a job is given to find its turn."""

ROOM_PPM: Final = 750_000
"""The share of a job's bound that may be predicted to be used; the rest is for what varies. A
job that has used more meets nobody new."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """What a job does on one pool in each cycle: which units, how long, and what a switch takes."""

    units: Gang
    busy_us: int
    switch_us: int

    @classmethod
    def of(cls, demand: Demand, units: Gang) -> Stage:
        """Return the stage of a deployment on some units."""
        profile = demand.profile
        return cls(units=units, busy_us=profile.busy_us, switch_us=profile.switch_us)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """A job's cycle alone: its stages one after another, then a pause."""

    period_us: int
    stages: tuple[Stage, ...]
    most_ppm: int
    """The slowdown it accepts."""

    @property
    def units(self) -> Iterable[UnitId]:
        """Return the units of all stages."""
        return (unit_id for stage in self.stages for unit_id in stage.units)


def turns_of(parts: Sequence[tuple[Demand, Gang]]) -> Turns:
    """Return the turns of a job whose deployments are to live on some units, in order."""
    demands = [demand for demand, _ in parts]
    return Turns(
        period_us=max(demand.profile.period_us for demand in demands),
        stages=tuple(Stage.of(demand, units) for demand, units in parts),
        most_ppm=min(demand.max_slowdown_ppm for demand in demands),
    )


def together(job: Turns, others: Iterable[Turns]) -> list[Turns]:
    """Return a job with all that share units with it, directly or over others."""
    found, left = [job], list(others)
    units = set(job.units)
    while True:
        met = [one for one in left if not units.isdisjoint(one.units)]
        if not met:
            return found
        left = [one for one in left if one not in met]
        found.extend(met)
        units.update(unit_id for one in met for unit_id in one.units)


def keeps_bounds(job: Turns, players: Iterable[Turns]) -> bool:
    """Return whether a job and all it meets keep to their bounds, with room for what varies."""
    among = together(job, players)
    return all(
        ppm <= PPM + (one.most_ppm - PPM) * ROOM_PPM // PPM
        for one, ppm in zip(among, slowdowns_ppm(among), strict=True)
    )


def slowdowns_ppm(jobs: Sequence[Turns]) -> list[int]:
    """Return each job's cycle shared over alone, in ppm. `O(rounds * jobs * stages * units)`.

    >>> rolls, trains = (UnitId("r"),), (UnitId("t"),)
    >>> def job(roll_us: int, train_us: int) -> Turns:
    ...     stages = (Stage(units=rolls, busy_us=roll_us, switch_us=0),
    ...               Stage(units=trains, busy_us=train_us, switch_us=0))
    ...     return Turns(period_us=roll_us + train_us, stages=stages, most_ppm=PPM)
    >>> slowdowns_ppm([job(75, 25), job(25, 75)])
    [1000000, 1000000]
    >>> slowdowns_ppm([job(50, 50), job(50, 50), job(50, 50)])
    [1500000, 1500000, 1500000]
    """
    until_us = (ROUNDS + SETTLED) * max(job.period_us for job in jobs)
    ready = [(at, at, 0) for at in range(len(jobs))]
    free_us: dict[UnitId, int] = {}
    last: dict[UnitId, int] = {}
    starts: list[list[int]] = [[] for _ in jobs]
    pauses = [max(0, j.period_us - sum(stage.busy_us for stage in j.stages)) for j in jobs]
    while ready:
        now_us, at, number = heapq.heappop(ready)
        stages = jobs[at].stages
        if number == 0:
            starts[at].append(now_us)
            if now_us >= until_us:
                continue
        stage = stages[number]
        start_us = max(now_us, *(free_us.get(unit_id, 0) for unit_id in stage.units))
        if any(last.get(unit_id, at) != at for unit_id in stage.units):
            start_us += stage.switch_us
        end_us = start_us + stage.busy_us
        free_us.update(dict.fromkeys(stage.units, end_us))
        last.update(dict.fromkeys(stage.units, at))
        is_last = number + 1 == len(stages)
        next_us = end_us + pauses[at] if is_last else end_us
        heapq.heappush(ready, (next_us, at, 0 if is_last else number + 1))
    return [_pace_ppm(job, begun) for job, begun in zip(jobs, starts, strict=True)]


def _pace_ppm(job: Turns, begun: Sequence[int]) -> int:
    first = min(SETTLED, len(begun) - 2)
    took_us = begun[-1] - begun[first]
    return max(PPM, took_us * PPM // ((len(begun) - 1 - first) * job.period_us))
