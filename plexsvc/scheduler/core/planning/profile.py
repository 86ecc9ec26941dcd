"""A job's cycle as planning knows it, its load on devices, and what a waiting job asks for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from typing import Final

from plexsvc.ids import ResidentId, TenantId, UnitId

PPM: Final = 1_000_000
"""Shares and ratios are integers in parts per million."""

SECOND_US: Final = 1_000_000


SHARP_PPM: Final = 50_000
"""Jitter up to which a synchronous job is sharp."""

NOBODY: Final = TenantId("")


class Mode(StrEnum):
    """How rollout and training of one job depend on each other."""

    SYNC = "sync"
    """Strictly serial: the next rollout waits for the weights of this one's training."""

    ASYNC1 = "async1"
    """One step of staleness: training of one batch runs beside the rollout of the next."""


class SyncAt(StrEnum):
    """When an asynchronous job of a trace publishes its weights; what is measured does not tell."""

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
    def spread_us(self) -> int:
        """Return how far off an expectation by it usually is."""
        return self.period_us * self.jitter_ppm // PPM

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


GUESS: Final = Profile(
    period_us=60 * SECOND_US,
    segments=(Segment(phase="training", offset_us=0, duration_us=18 * SECOND_US),),
)
"""The cycle assumed of a deployment never measured. Only its duty matters: so large that three such
fill a group until it is known what they leave free."""

PRIOR_JOB_US: Final = 3_600_000_000
"""Run time assumed of a job that did not say it and of whose name no run was completed."""

SYNC_PHASE: Final = "sync"
"""The phase that publishes weights."""


@dataclass(frozen=True, kw_only=True)
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

    optimizer_bytes: int = 0
    """What of its optimizer is in host memory alone, for each of its units."""

    version_bytes: int = 0
    """Its published versions on each of its units: as many as are kept, and the next."""

    model: str = ""
    """The frozen model that it reads beside its state; there once for all who read it."""

    model_bytes: int = 0
    """That model on each of its units."""

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

    @cached_property
    def load(self) -> Load:
        """Return the load of its cycle, worked out once."""
        return Load.of(self)

    def last_burst(self, *, began_us: int) -> tuple[int, int] | None:
        """Return when a run of one cycle is expected to train, its switch included.

        None of a run without slack or of more cycles. No slack hides a wait of a run's last burst,
        and such a run has no other. It begins with its rollout and ends with its burst.
        """
        profile = self.profile
        if self.expected_steps != 1 or not profile.slack_us:
            return None
        end_us = began_us + profile.period_us
        return end_us - profile.busy_us - profile.switch_us, end_us

    @property
    def host_bytes(self) -> int:
        """Return what it alone takes of host memory for each of its units."""
        return self.parked_bytes + self.version_bytes

    @property
    def parked_bytes(self) -> int:
        """Return what its state takes of host memory for each of its units."""
        return self.state_bytes + self.optimizer_bytes

    def models_on(self, units: Sequence[UnitId]) -> dict[str, UnitId]:
        """Return the parts of its frozen model: where each lies, by a name that is its own."""
        if not self.model:
            return {}
        return {f"{self.model}/{rank}@{unit_id}": unit_id for rank, unit_id in enumerate(units)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What of a cycle the ring needs, worked out once a job."""

    period_us: int
    held_us: int
    """How long it can keep the devices from another: its longest operation and a switch."""

    switch_us: int
    slack_us: int
    """How late each of a cycle's bursts may be."""

    bound_ppm: int
    """The slowdown the job accepts."""

    entries: int
    """Times a cycle the job enters the queue with no slack."""

    duty_ppm: int
    rest_us: int
    """Expected rest of whatever operation an arrival at random finds running."""

    total_ppm: int
    """Device time with its switch, over the period."""

    run_us: int = 0
    """All its cycles, of a job with slack that says how many they are; else 0."""

    bursts: tuple[tuple[int, int], ...] = ()
    """Of a sharp job: how long each burst is, and the pause behind it. Empty: it is flat."""

    @classmethod
    def of(cls, demand: Demand) -> Load:
        """Return the load of a job's cycle. `O(segments)`."""
        profile = demand.profile
        squares = sum(s.duration_us * s.duration_us for s in profile.segments)
        busy_us = profile.busy_us
        return cls(
            period_us=profile.period_us,
            held_us=profile.longest_us + profile.switch_us,
            switch_us=profile.switch_us,
            slack_us=profile.slack_us // max(1, profile.num_bursts),
            bound_ppm=demand.max_slowdown_ppm,
            entries=0 if profile.mode is Mode.ASYNC1 else profile.num_bursts,
            duty_ppm=profile.duty_ppm,
            # An arrival meets an operation of length d in d / period of all cases, and waits d / 2.
            rest_us=squares // (2 * profile.period_us),
            total_ppm=(busy_us + profile.switch_us) * PPM // profile.period_us,
            run_us=demand.expected_steps * profile.period_us if profile.slack_us else 0,
            bursts=_bursts(profile) if is_sharp(profile) else (),
        )

    def last_ppm(self, other: Load) -> int:
        """Return by how much another may delay the end of the run, over the run, in ppm."""
        return other.held_us * PPM // self.run_us if self.run_us else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Lodger:
    """A job and the units that it shares, or would share."""

    resident_id: ResidentId
    load: Load
    units: tuple[UnitId, ...]
    since_us: int = 0
    """When its cycle was last seen to start, or is expected to."""


def is_sharp(profile: Profile) -> bool:
    """Return whether a job's bursts come when expected. A jitter of zero was never measured."""
    return profile.mode is Mode.SYNC and 0 < profile.jitter_ppm <= SHARP_PPM


def _bursts(profile: Profile) -> tuple[tuple[int, int], ...]:
    """Return how long each burst of a cycle is, and the pause behind it."""
    spans: list[tuple[int, int]] = []
    for segment in profile.segments:
        if spans and spans[-1][1] >= segment.offset_us:
            spans[-1] = (spans[-1][0], segment.end_us)
        else:
            spans.append((segment.offset_us, segment.end_us))
    # Behind the last burst comes the first one of the next cycle.
    nexts = [start_us for start_us, _ in spans[1:]] + [spans[0][0] + profile.period_us]
    return tuple(
        (end_us - start_us, max(0, next_us - end_us))
        for (start_us, end_us), next_us in zip(spans, nexts, strict=True)
    )
