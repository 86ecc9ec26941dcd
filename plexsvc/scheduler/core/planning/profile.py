"""A job's cycle as planning knows it, and what a waiting job asks for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from plexsvc.ids import ResidentId, TenantId

PPM: Final = 1_000_000
"""Shares and ratios are integers in parts per million."""

SECOND_US: Final = 1_000_000


NOBODY: Final = TenantId("")


class Mode(StrEnum):
    """How rollout and training of one job depend on each other."""

    SYNC = "sync"
    """Strictly serial: the next rollout waits for the weights of this one's training."""

    ASYNC1 = "async1"
    """One step of staleness: training of one batch runs beside the rollout of the next."""


class SyncAt(StrEnum):
    """When an asynchronous job publishes its weights."""

    UPDATE = "update"
    """Right after the update, beside the running rollout."""

    BOUNDARY = "boundary"
    """At the end of the iteration, between two rollouts: on the critical path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A stretch of device use: `offset_us` from the start of the cycle."""

    phase: str
    offset_us: int
    duration_us: int

    @property
    def end_us(self) -> int:
        """Return where it ends in the cycle."""
        return self.offset_us + self.duration_us


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """The measured cycle of a job running alone; `segments` are sorted and disjoint."""

    period_us: int
    segments: tuple[Segment, ...]
    mode: Mode = Mode.SYNC
    sync_at: SyncAt = SyncAt.UPDATE
    switch_us: int = 0
    jitter_ppm: int = 0

    @property
    def busy_us(self) -> int:
        """Return the device time of one cycle."""
        return sum(segment.duration_us for segment in self.segments)

    @property
    def duty_ppm(self) -> int:
        """Return the share of its cycle the job keeps a group busy."""
        return self.busy_us * PPM // self.period_us

    @property
    def longest_us(self) -> int:
        """Return its longest operation: what it can make another wait at a stretch."""
        return max((segment.duration_us for segment in self.segments), default=0)

    @property
    def slack_us(self) -> int:
        """Return how long a cycle's training may be late before the job's cycle gets longer."""
        if self.mode is Mode.SYNC or not self.segments:
            return 0
        return self.period_us - (self.segments[-1].end_us - self.segments[0].offset_us)

    @property
    def num_bursts(self) -> int:
        """Return how many stretches of device use a cycle has, with pauses between them."""
        joins = zip(self.segments, self.segments[1:], strict=False)
        return min(1, len(self.segments)) + sum(a.end_us < b.offset_us for a, b in joins)

    def padded(self, error_ppm: int) -> Profile:
        """Return the cycle with longer device times, or shorter ones where it is negative.

        Without slack, the cycle gets as much longer or shorter itself.
        """
        if not error_ppm:
            return self
        segments, longer_us = [], 0
        for segment in self.segments:
            duration_us = segment.duration_us * (PPM + error_ppm) // PPM
            offset_us = segment.offset_us + longer_us
            segments.append(replace(segment, offset_us=offset_us, duration_us=duration_us))
            longer_us += duration_us - segment.duration_us
        least_us = self.period_us + (longer_us if self.mode is Mode.SYNC else 0)
        period_us = max(least_us, segments[-1].end_us)
        return replace(self, segments=tuple(segments), period_us=period_us)


SYNC_PHASE: Final = "sync"
"""The phase that publishes weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What a job asks of placement."""

    resident_id: ResidentId
    num_units: int
    profile: Profile
    arrived_us: int = 0
    expected_us: int = 0
    """How long it would run alone."""

    expected_steps: int = 0
    """The cycles that is, where the job said so; its length follows its measured cycle then."""

    state_bytes: int = 0
    """Parked state on each of its units."""

    version_bytes: int = 0
    """Its published versions on each of its units: as many as are kept, and the next."""

    max_slowdown_ppm: int = 1_500_000
    rollout_units: int = 0
    """Rollout units that a simulated job asks for besides, as deployments of their own."""

    is_cold: bool = False
    """Its profile is a guess: it runs on a dedicated group until one full cycle is known."""

    priority: int = 0
    tenant: TenantId = NOBODY
    has_devices: bool = False
    """Its job holds devices already; others may be waiting for those."""

    lost_place: int = 0
    """The group in which it was placed before it lost a node; 0: it was not. It goes before others
    of its priority."""

    @property
    def host_bytes(self) -> int:
        """Return what it takes of host memory for each of its units."""
        return self.state_bytes + self.version_bytes
