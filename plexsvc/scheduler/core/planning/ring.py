"""The ring: when jobs that share devices have them, and what that costs each.

Every shared placement asks it, live and in the simulator, and nothing else answers. A job lies on
it from the last start of its cycle that was seen, and all are played forward from there
(`turned`). `simulate_insert` adds a new one. Each burst is spread by how much its job's cycles were
measured to vary:

- *Sharp*: a synchronous job whose cycles vary little. Its bursts come when they are expected. What
  it waits once makes all its later cycles later, so sharp jobs that share devices settle into
  rounds. The rounds are played (`play`): whoever is ready first goes first. So each burst has a
  *window*, and a new job slides (micro-shift) until its windows are free.
- *Flat*: any other job. The spread is as wide as the cycle, so a burst is as likely here as there.
  It has no window: it lies on the ring as mass at its duty, for which the mean wait has a closed
  form (`Load`).

A job loses what it waits in rounds for sharp jobs, if it is sharp itself, and the mean wait for
all others. Jobs that take turns on two pools are played the same way, over both.

The closed form takes arrivals as random and operations as what they are: a burst finds another's
operation running with the probability of its duty, and waits for the rest of it. With r the others'
duty and b the expected rest of a running operation, an entry waits w = b / (1 - r), as in a
single-server queue. Waiting that fits a job's slack costs it nothing; once in the other's cycle its
longest operation and a switch may exceed the slack:

    slowdown = 1 + entries * w / period + sum_j max(0, longest_j + switch - slack) / period_j

It is not less than the sum of everyone's device time with its switches over its period. Bursts of
one cycle share its slack.

Slack hides no wait of a run's last burst, since no rollout goes on beside it. Over many cycles that
is little; a run of few may lose the longest operations of others over all its cycles.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from plexsvc.ids import ResidentId, UnitId
from plexsvc.scheduler.core.planning.profile import PPM, Demand, Load, Lodger
from plexsvc.scheduler.core.planning.rooms import Gang

MAX_LOAD_PPM: Final = 990_000
"""The highest duty of others for which the closed form gives a wait."""

ROUNDS: Final = 8
"""Cycles of the slowest job that are played and counted."""

SETTLED: Final = 2
"""Cycles before those, in which a job finds its turn."""

ROOM_PPM: Final = 750_000
"""The share of its bound that a job on two pools may be predicted to use: the rest is for what
varies. One that has used more meets nobody new."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CycleStage:
    """A burst of a cycle: on which units, how long, its switch, and the pause behind it."""

    units: Gang
    busy_us: int
    switch_us: int
    pause_us: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """A job's cycle alone as it is played: its stages one after another."""

    period_us: int
    stages: tuple[CycleStage, ...]
    most_ppm: int
    """The slowdown it accepts."""

    since_us: int = 0
    """When its cycle was last seen to start, or is expected to; 0: it is ready when played."""

    @property
    def units(self) -> Iterable[UnitId]:
        """Return the units of all stages."""
        return (unit_id for stage in self.stages for unit_id in stage.units)


Window = tuple[int, int]
"""From when to when a burst has its devices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """What one job does on the ring."""

    slowdown_ppm: int
    """Its cycle shared over alone."""

    windows: list[Window]
    """Those of its stages, one after another."""

    window: Window
    """That of its first stage, once the rounds have settled."""

    shift_us: int
    """How far that slid from where it would lie were the job alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What a job got when it was put among others, and why there."""

    at_us: int
    why: str
    slowdown_ppm: int = 0
    """What it was predicted to have there; 0: that could not be told."""

    others_ppm: int = 0
    """The most that somebody else there was predicted to have."""

    period_us: int = 0
    duty_ppm: int = 0
    course: Course | None = None
    """What it was to do on the ring; None: it is flat."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ring:
    """What jobs that share devices are predicted to do."""

    slowdowns: dict[ResidentId, int]
    """Each job's cycle shared over alone, in ppm."""

    courses: dict[ResidentId, Course]
    """Of sharp jobs."""

    def taken(self, one: Lodger, *, why: str, at_us: int) -> Taken:
        """Return what one of them gets."""
        name = one.resident_id
        return Taken(
            at_us=at_us,
            why=why,
            slowdown_ppm=self.slowdowns[name],
            others_ppm=max((p for n, p in self.slowdowns.items() if n != name), default=0),
            period_us=one.load.period_us,
            duty_ppm=one.load.duty_ppm,
            course=self.courses.get(name),
        )


def simulate_insert(there: Iterable[Lodger], new: Lodger, *, now_us: int) -> Ring:
    """Return the ring of those that live on some units with one that would join them now."""
    return turned([*there, replace(new, since_us=first_us(new.load, now_us))])


def first_us(load: Load, now_us: int) -> int:
    """Return when a job that begins now is ready for its first burst: it rolls out before."""
    return now_us + (load.bursts[-1][1] if load.bursts else 0)


def turned(lodgers: Sequence[Lodger], *, now_us: int = 0) -> Ring:
    """Return the ring of some jobs, from the latest start that was seen on, or from later.

    `O(lodgers^2)`, and the rounds played.
    """
    sharp = [one for one in lodgers if one.load.bursts]
    played = play([_alone(one) for one in sharp], now_us=now_us)
    courses = {one.resident_id: course for one, course in zip(sharp, played, strict=True)}
    is_uniform = all(one.units == lodgers[0].units for one in lodgers)
    total_ppm = sum(one.load.total_ppm for one in lodgers)
    found = {}
    for one in lodgers:
        others, most_ppm = [other.load for other in lodgers if other is not one], total_ppm
        if not is_uniform:
            others, most_ppm = _apart(one, lodgers)
        course = courses.get(one.resident_id)
        played_ppm = PPM if course is None else course.slowdown_ppm
        found[one.resident_id] = _slowdown_ppm(
            one.load, others, played_ppm=played_ppm, total_ppm=most_ppm
        )
    return Ring(slowdowns=found, courses=courses)


def play(jobs: Sequence[Turns], *, now_us: int = 0) -> list[Course]:
    """Return what each of some sharp jobs does, with rounds played.

    They are played from `now_us` or the latest start on: each first starts at most a cycle before.
    `O(rounds * jobs * stages * units)`.

    >>> rolls, trains = (UnitId("r"),), (UnitId("t"),)
    >>> def job(roll_us: int, train_us: int) -> Turns:
    ...     stages = (CycleStage(units=rolls, busy_us=roll_us, switch_us=0),
    ...               CycleStage(units=trains, busy_us=train_us, switch_us=0))
    ...     return Turns(period_us=roll_us + train_us, stages=stages, most_ppm=PPM)
    >>> [course.slowdown_ppm for course in play([job(75, 25), job(25, 75)])]
    [1000000, 1000000]
    >>> one, two = play([job(50, 50), job(50, 50)])
    >>> one.windows[:4], two.shift_us
    ([(0, 50), (50, 100), (100, 150), (150, 200)], 50)
    """
    if not jobs:
        return []
    at_us = max(now_us, *(job.since_us for job in jobs))
    since_us = [
        job.since_us + (at_us - job.since_us) // job.period_us * job.period_us
        if job.since_us
        else at_us
        for job in jobs
    ]
    until_us = at_us + (ROUNDS + SETTLED) * max(job.period_us for job in jobs)
    ready = [(start_us, at, 0) for at, start_us in enumerate(since_us)]
    heapq.heapify(ready)
    free_us: dict[UnitId, int] = {}
    last: dict[UnitId, int] = {}
    starts: list[list[int]] = [[] for _ in jobs]
    windows: list[list[Window]] = [[] for _ in jobs]
    while ready:
        ready_us, at, number = heapq.heappop(ready)
        stages = jobs[at].stages
        if number == 0:
            starts[at].append(ready_us)
            # It has played enough. Others, whose cycles are longer, may not have.
            if ready_us >= until_us:
                continue
        stage = stages[number]
        left_us = max(free_us.get(unit_id, 0) for unit_id in stage.units)
        if any(last.get(unit_id, at) != at for unit_id in stage.units):
            left_us += stage.switch_us  # its state is brought in ahead, as soon as they are free
        start_us = max(ready_us, left_us)
        end_us = start_us + stage.busy_us
        windows[at].append((start_us, end_us))
        free_us.update(dict.fromkeys(stage.units, end_us))
        last.update(dict.fromkeys(stage.units, at))
        next_number = (number + 1) % len(stages)
        heapq.heappush(ready, (end_us + stage.pause_us, at, next_number))
    return [_course(*each) for each in zip(jobs, starts, windows, strict=True)]


def _course(job: Turns, starts: list[int], windows: list[Window]) -> Course:
    """Return what a job does, by the starts of its cycles and the windows of its stages."""
    # At least one whole cycle is counted, which two starts make.
    first = min(SETTLED, len(starts) - 2)
    alone_us = (len(starts) - 1 - first) * job.period_us
    window = windows[first * len(job.stages)]
    return Course(
        slowdown_ppm=max(PPM, (starts[-1] - starts[first]) * PPM // alone_us),
        windows=windows,
        window=window,
        shift_us=(window[0] - starts[0]) % job.period_us,
    )


def turns_of(parts: Sequence[tuple[Demand, Gang]]) -> Turns:
    """Return the turns of a job whose deployments are to live on some units, in order."""
    demands = [demand for demand, _ in parts]
    period_us = max(demand.profile.period_us for demand in demands)
    stages = [
        CycleStage(units=units, busy_us=one.profile.busy_us, switch_us=one.profile.switch_us)
        for one, units in parts
    ]
    pause_us = max(0, period_us - sum(stage.busy_us for stage in stages))
    stages[-1] = replace(stages[-1], pause_us=pause_us)
    return Turns(
        period_us=period_us,
        stages=tuple(stages),
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


def within_bounds(job: Turns, players: Iterable[Turns], *, now_us: int) -> list[Course]:
    """Return what a job, and all it meets, do; nothing where somebody's bound is not kept.

    Some of it is left for what varies.
    """
    among = together(job, players)
    courses = play(among, now_us=now_us)
    is_within = all(
        course.slowdown_ppm <= PPM + (one.most_ppm - PPM) * ROOM_PPM // PPM
        for one, course in zip(among, courses, strict=True)
    )
    return courses if is_within else []


def _alone(one: Lodger) -> Turns:
    """Return the cycle of a sharp job as it is played."""
    load = one.load
    stages = tuple(
        CycleStage(units=one.units, busy_us=busy_us, switch_us=load.switch_us, pause_us=pause_us)
        for busy_us, pause_us in load.bursts
    )
    return Turns(
        period_us=load.period_us,
        stages=stages,
        most_ppm=load.bound_ppm,
        since_us=one.since_us,
    )


def _apart(one: Lodger, lodgers: Sequence[Lodger]) -> tuple[list[Load], int]:
    """Return whom a job meets, and the most device time on any of its units, in ppm.

    Jobs live on some of a group's units each. One that needs several units at once has them kept
    free while it waits for the last of them: so it holds a neighbour up by what keeps it waiting
    elsewhere, too.
    """
    units = set(one.units)
    meets = {
        k.resident_id: [m for m in lodgers if m is not k and not set(m.units).isdisjoint(k.units)]
        for k in lodgers
    }
    others = []
    for other in meets[one.resident_id]:
        elsewhere = [
            k.load.held_us
            for k in meets[other.resident_id]
            if k is not one and units.isdisjoint(k.units)
        ]
        held_us = other.load.held_us + max(elsewhere, default=0)
        others.append(replace(other.load, held_us=held_us))
    total_ppm = max(
        sum(
            other.load.total_ppm
            + sum(k.load.rest_us for k in meets[other.resident_id] if unit_id not in k.units)
            * PPM
            // other.load.period_us
            for other in lodgers
            if unit_id in other.units
        )
        for unit_id in one.units
    )
    return others, total_ppm


def _slowdown_ppm(job: Load, others: Sequence[Load], *, played_ppm: int, total_ppm: int) -> int:
    """Return one job's slowdown among others: in the rounds played, and by the mean of the rest.

    `total_ppm` is the most device time with switches, over the period, on any of its units.
    """
    if not others:
        return PPM
    cost_ppm = played_ppm - PPM
    if job.bursts:
        others = [other for other in others if not other.bursts]
    if job.entries:
        foreign_ppm = sum(other.duty_ppm for other in others)
        idle_ppm = PPM - min(foreign_ppm, MAX_LOAD_PPM)
        wait_us = sum(other.rest_us for other in others) * PPM // idle_ppm
        switch_us = job.switch_us * min(foreign_ppm, PPM) // PPM
        cost_ppm += job.entries * (wait_us + switch_us) * PPM // job.period_us
    if job.slack_us:
        bound_us = job.slack_us - job.switch_us
        for other in others:
            over_us = other.held_us - bound_us
            if over_us > 0:
                cost_ppm += over_us * PPM // other.period_us
    return max(PPM + cost_ppm, total_ppm)
