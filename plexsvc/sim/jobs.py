"""Jobs of a trace: their samples, when their operations appear, when they are done.

An asynchronous job runs two chains. Rollouts follow each other; rollout r starts when rollout r - 1
is over and the weights of batch r - 2 are published (one step of staleness). Bursts train the
batches in order. With `sync_at = boundary` the publishing operation of a batch is submitted when
the next rollout is over, and the rollout after waits for it. A synchronous job is one chain of gaps
and operations.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Final
from zlib import crc32

import numpy as np

from plexsvc.errors import ErrorCode, PlexError
from plexsvc.scheduler.core.planning.profile import (
    SECOND_US,
    SYNC_PHASE,
    Demand,
    Mode,
    Segment,
    SyncAt,
)

ROLLOUT_PHASES: Final = ("rollout", "tail")
"""Phases that run on the nodes of a job's rollouts, where it takes turns on both kinds of nodes."""

ROLLOUT: Final = 0
LAG: Final = 1
"""Kinds of a job's timers: a rollout or tool gap ends; a pause inside a burst ends."""
MAX_LOSSES: Final = 1_000
"""Losses in a row, without a cycle trained between them, that end a run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimJob:
    """One line of a trace."""

    demand: Demand
    cycles: int
    jitter_cv: float = 0.0
    state_gb: float = 0.0
    deployments: int = 1
    """Training deployments with a gang each; the phases are dealt to them in order."""

    node_devices: int | None = None
    """Devices of each node it asks for; None: the cluster's `devices_per_node`."""

    rollout_node_devices: int | None = None
    """Devices of each of its rollout nodes, on which it takes turns with others as on those it
    trains on; None: it has its rollout nodes, if any, for itself."""

    expected_cycles: int | None = None
    """How many it says it will train: 0 if it does not say, None for as many as it will."""

    believed: tuple[Segment, ...] = ()
    """Device use of a cycle as an earlier run left it on record, if that differs from the truth."""

    grown: tuple[Segment, ...] = ()
    """Device use of a cycle in the second half of its run, if that differs from the first."""

    def segments_of(self, cycle: int) -> tuple[Segment, ...]:
        """Return the device use of one of its cycles, rollouts as long as on average."""
        return self._halves[cycle >= self.cycles - self.cycles // 2]

    def sampled(self, rollout_us: list[int], cycle: int) -> tuple[Segment, ...]:
        """Return the device use of a cycle with rollouts on devices as long as sampled."""
        segments = self.segments_of(cycle)
        if self.rollout_node_devices is None:
            return segments
        own_us, at_us, found = self._own_us, 0, []
        for s in segments:
            is_rollout = s.phase in ROLLOUT_PHASES
            took_us = s.duration_us * rollout_us[cycle] // own_us if is_rollout else s.duration_us
            found.append(replace(s, offset_us=at_us, duration_us=max(1, took_us)))
            at_us = found[-1].end_us
        return tuple(found)

    @property
    def _halves(self) -> tuple[tuple[Segment, ...], tuple[Segment, ...]]:
        segments = self.demand.profile.segments
        return segments, self.grown or segments

    def rollout_us(self, seed: int) -> list[int]:
        """Return the sampled rollout time of every cycle: lognormal, mean as profiled."""
        own = self._own_us
        if self.jitter_cv == 0:
            return [own] * self.cycles
        dice = np.random.default_rng([seed, crc32(self.demand.resident_id.encode())])
        sigma = float(np.sqrt(np.log1p(self.jitter_cv**2)))
        factors = dice.lognormal(-sigma * sigma / 2, sigma, self.cycles)
        return [int(x) for x in np.rint(factors * own)]

    @property
    def _own_us(self) -> int:
        """Return the mean time of a rollout."""
        profile = self.demand.profile
        if self.rollout_node_devices is not None:
            return sum(s.duration_us for s in profile.segments if s.phase in ROLLOUT_PHASES)
        if profile.mode is Mode.SYNC:
            return profile.period_us - profile.busy_us
        syncs = sum(s.duration_us for s in profile.segments if s.phase == SYNC_PHASE)
        return profile.period_us - (syncs if profile.sync_at is SyncAt.BOUNDARY else 0)

    def alone(self, rollout_us: list[int]) -> Alone:
        """Return how it runs with no one else: the same samples, no wait, no switch."""
        run = run_of(self, rollout_us)
        timers = [(at, kind) for kind, at in run.start(0)]
        now, busy_us, rolled_us, ends_us = 0, 0, 0, None
        while not run.is_done:
            if ends_us is None and run.head is not None:
                ends_us = now + run.head.duration_us
                is_rollout = run.head.phase in ROLLOUT_PHASES
                busy_us += 0 if is_rollout else run.head.duration_us
                rolled_us += run.head.duration_us if is_rollout else 0
            timers.sort()
            if timers and (ends_us is None or timers[0][0] <= ends_us):
                now, kind = timers.pop(0)
                timers.extend((at, k) for k, at in run.timer(kind, now))
            else:
                assert ends_us is not None, "a job that is not done waits for something"
                now, ends_us = ends_us, None
                timers.extend((at, kind) for kind, at in run.finished(now))
        return Alone(took_us=now, busy_us=busy_us, rolled_us=rolled_us)


@dataclass(frozen=True, slots=True, kw_only=True)
class Alone:
    """How long a job takes by itself, and how much of that its nodes work.

    Those of rollouts do where it takes turns on them.
    """

    took_us: int
    busy_us: int
    rolled_us: int = 0


@dataclass(slots=True)
class PlannedOperation:
    """One operation of a burst, as the job will submit it."""

    phase: str
    duration_us: int
    ends_burst: bool
    cycle: int
    lag_us: int = 0
    """Pause between what came before in the burst and its submission."""


Timers = list[tuple[int, int]]
"""Pairs of (kind, absolute time)."""


@dataclass(slots=True, kw_only=True)
class Run(ABC):
    """A running job; the head of `queue` is what it has submitted."""

    cycles: int
    rollout_us: list[int]
    segments_of: Callable[[int], tuple[Segment, ...]]
    """The device use of each cycle, by its number."""

    queue: deque[PlannedOperation] = field(default_factory=deque)
    trained: int = 0
    cycle: int = 0
    is_lagging: bool = False

    @property
    def head(self) -> PlannedOperation | None:
        """Return the operation that is submitted, if one is."""
        return self.queue[0] if self.queue and not self.is_lagging else None

    @property
    def is_done(self) -> bool:
        """Whether every cycle is trained."""
        return self.trained >= self.cycles

    def start(self, now: int) -> Timers:
        """Begin, or go on from the last trained cycle: what was under way is lost."""
        self.queue.clear()
        self.cycle = self.trained
        return self._begin(now)

    @abstractmethod
    def _begin(self, now: int) -> Timers: ...

    @abstractmethod
    def timer(self, kind: int, now: int) -> Timers:
        """A timer came due."""

    @abstractmethod
    def finished(self, now: int) -> Timers:
        """The head operation ended."""


@dataclass(slots=True, kw_only=True)
class SyncRun(Run):
    """One chain: gap, operation, gap, operation, ..."""

    mean_us: int
    """The period that its profile has."""
    varies: bool = False
    """Whether segments are as long as sampled, and follow each other."""
    at: int = 0

    @property
    def period_us(self) -> int:
        """Return the length of the cycle under way, alone."""
        return self.segments[-1].end_us if self.varies else self.mean_us

    @property
    def segments(self) -> tuple[Segment, ...]:
        """Return the device use of the cycle under way."""
        return self.segments_of(min(self.cycle, self.cycles - 1))

    def _begin(self, now: int) -> Timers:
        """Begin with the gap before the first segment; again, with the rollout that was lost."""
        if self.trained:
            self.at, self.cycle = len(self.segments), self.trained - 1
            return self._gap(now, self.period_us - self.segments[-1].end_us)
        self.at = 0
        return self._gap(now, self.segments[0].offset_us)

    def timer(self, kind: int, now: int) -> Timers:
        """The gap is over: the next operation, or the next cycle."""
        assert kind == ROLLOUT, kind
        if self.at == len(self.segments):
            self.at = 0
            self.cycle += 1
            return self._gap(now, self.segments[0].offset_us)
        self._submit()
        return []

    def finished(self, now: int) -> Timers:
        """Go on to what follows the operation."""
        self.queue.popleft()
        ended = self.segments[self.at]
        self.at += 1
        if self.at < len(self.segments):
            gap = self.segments[self.at].offset_us - ended.end_us
            if gap == 0:
                self._submit()
                return []
            return self._gap(now, gap)
        self.trained += 1
        if self.is_done:
            return []
        return self._gap(now, self.period_us - ended.end_us)

    def _gap(self, now: int, planned_us: int) -> Timers:
        # A cycle without a gap has none to stretch, but is divided by.
        idle = max(1, self.period_us - sum(s.duration_us for s in self.segments))
        cycle = min(self.cycle, self.cycles - 1)
        return [(ROLLOUT, now + planned_us * self.rollout_us[cycle] // idle)]

    def _submit(self) -> None:
        segment = self.segments[self.at]
        is_last = self.at + 1 == len(self.segments)
        ends_burst = is_last or self.segments[self.at + 1].offset_us > segment.end_us
        self.queue.append(
            PlannedOperation(segment.phase, segment.duration_us, ends_burst, self.cycle)
        )


@dataclass(slots=True, kw_only=True)
class AsyncRun(Run):
    """Two chains: rollouts, and bursts that train their batches one step behind."""

    syncs_at_boundary: bool
    rolled: int = 0
    synced: int = 0
    is_rolling: bool = False

    def _begin(self, now: int) -> Timers:
        self.rolled = self.synced = self.trained
        self.is_rolling = False
        self.is_lagging = False
        return self._roll(now)

    def timer(self, kind: int, now: int) -> Timers:
        """A rollout is over, or a pause inside a burst."""
        if kind == LAG:
            self.is_lagging = False
            return []
        self.is_rolling = False
        batch, was_empty = self.rolled, not self.queue
        self.rolled += 1
        if self.syncs_at_boundary and batch > self.synced and self.rolled < self.cycles:
            before = self.segments_of(batch - 1)
            self._append([s for s in before if s.phase == SYNC_PHASE], batch - 1)
        segments = self.segments_of(batch)
        train = [s for s in segments if not self.syncs_at_boundary or s.phase != SYNC_PHASE]
        self._append(train, batch)
        return [*self._lag(now, was_empty=was_empty), *self._roll(now)]

    def finished(self, now: int) -> Timers:
        """An operation ended; publishing may let the next rollout begin."""
        operation = self.queue.popleft()
        if self.syncs_at_boundary and operation.phase == SYNC_PHASE:
            if operation.ends_burst:
                self.synced = operation.cycle + 1
        elif operation.ends_burst:
            self.trained += 1
            if not self.syncs_at_boundary:
                self.synced = self.trained
        return [*self._lag(now, was_empty=True), *self._roll(now)]

    def _lag(self, now: int, *, was_empty: bool) -> Timers:
        """Hold back the new head of the queue for the pause before it."""
        if not was_empty or not self.queue or not self.queue[0].lag_us:
            return []
        self.is_lagging = True
        return [(LAG, now + self.queue[0].lag_us)]

    def _roll(self, now: int) -> Timers:
        if self.is_rolling or self.rolled >= self.cycles or self.synced < self.rolled - 1:
            return []
        self.is_rolling = True
        return [(ROLLOUT, now + self.rollout_us[self.rolled])]

    def _append(self, segments: list[Segment], cycle: int) -> None:
        before_us = 0
        for at, segment in enumerate(segments):
            is_publish = self.syncs_at_boundary and segment.phase == SYNC_PHASE
            self.queue.append(
                PlannedOperation(
                    segment.phase,
                    segment.duration_us,
                    at == len(segments) - 1,
                    cycle,
                    0 if is_publish else segment.offset_us - before_us,
                )
            )
            before_us = segment.end_us


@dataclass(slots=True)
class Losses:
    """Times in a row that a job's nodes were lost before it had trained a cycle."""

    in_a_row: int = 0
    trained: int = 0

    def note(self, job: SimJob, run: Run, *, mtbf_h: float) -> None:
        """Count one.

        Raises:
            PlexError: `no_placement` for a job that gets nowhere between its losses.
        """
        is_stuck = run.trained == self.trained
        self.in_a_row = self.in_a_row + 1 if is_stuck else 1
        self.trained = run.trained
        if self.in_a_row >= MAX_LOSSES:
            job_id, period_us = job.demand.resident_id, job.demand.profile.period_us
            raise PlexError(
                ErrorCode.NO_PLACEMENT,
                f"{job_id} lost its nodes {self.in_a_row} times in a row before it had trained "
                f"cycle {run.trained + 1} of {run.cycles}: a cycle takes "
                f"{period_us / SECOND_US:g} s, a node is lost every {mtbf_h:g} h; raise "
                "faults.node_mtbf_h",
                job_id=job_id,
            )


def run_of(job: SimJob, rollout_us: list[int]) -> Run:
    """Return the job as it will run, with its samples."""
    profile = job.demand.profile
    if profile.mode is Mode.SYNC:
        return SyncRun(
            cycles=job.cycles,
            rollout_us=rollout_us,
            # Asked some ten times a cycle, of that cycle.
            segments_of=lru_cache(maxsize=1)(partial(job.sampled, rollout_us)),
            mean_us=profile.period_us,
            varies=job.rollout_node_devices is not None,
        )
    return AsyncRun(
        cycles=job.cycles,
        rollout_us=rollout_us,
        segments_of=job.segments_of,
        syncs_at_boundary=profile.sync_at is SyncAt.BOUNDARY,
    )
