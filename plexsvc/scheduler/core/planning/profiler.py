"""Profiler: a job's cycle from its finished operations: period, segments, jitter.

Consecutive operations of one phase are one segment. A cycle ends where its first phase comes again.
Cycles of the known shape are averaged exponentially. A shape that is not the known one, or a period
or device time far from it, that is seen `_PATIENCE` times in a row is a changed cycle: it replaces
the profile, and planning is told.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from plexsvc.ids import TenantId
from plexsvc.newest import Newest
from plexsvc.scheduler.core.planning.profile import PPM, Mode, Profile, Segment

_WEIGHT: Final = 8
"""A new cycle weighs one over this, or over the number of those measured while they are fewer.

A record counts as one cycle for device times, which repeat, and as many for the period, which does
not: rollouts vary.
"""

_PATIENCE: Final = 2
"""Odd cycles in a row that make a changed one; against a record of another run, one does."""

_MAX_SEGMENTS: Final = 512
"""A cycle of more is cut there: whatever it is, it is not a cycle."""

_FAR_PPM: Final = 400_000
"""A period, or a device time, this far from the known one is odd."""

_FELT_PPM: Final = 2_500
"""Device time of less than this share of the cycle, more or less, moves nobody."""


_MOST_WRONG: Final = 4
"""A record that is wrong by more than this factor is of other work, and counts as if by this."""

_SHIFT: Final = 8
"""Beliefs that are off by one over this are formed anew."""


class News(StrEnum):
    """What one operation taught."""

    NOTHING = "nothing"
    PROFILED = "profiled"
    """The first full cycle is known: the job may be packed."""

    CHANGED = "changed"
    """The cycle is another one now: the job must be planned again."""


class CycleProfiler:
    """Measures one job; give it every operation that finished on its devices, in order.

    >>> cycles = CycleProfiler()
    >>> spans = [("fwd", 0, 10), ("step", 10, 15), ("fwd", 100, 110), ("step", 110, 115)]
    >>> [str(cycles.observe(p, start_us=s, end_us=e)) for p, s, e in [*spans, ("fwd", 200, 210)]]
    ['nothing', 'nothing', 'profiled', 'nothing', 'nothing']
    >>> cycles.profile.period_us, [s.offset_us for s in cycles.profile.segments]
    (100, [0, 10])
    >>> cycles.next_gap_us()
    0
    """

    def __init__(self, *, known: Profile | None = None) -> None:
        """Start cold, or warm from the profile of an earlier run."""
        self.profile = known
        self.is_first_of_cycle = False
        """Whether the last operation observed began a cycle."""

        self.num_cycles = 0
        """Whole cycles measured."""

        self.last_busy_us = 0
        """Device time of the last of them."""

        self._is_on_record = known is not None
        self._num_alike = 1
        self._mode = known.mode if known else Mode.SYNC
        self._open: list[Segment] = []
        self._began_us = 0
        self._last_run_us = 0
        self._odd: list[tuple[int, tuple[Segment, ...]]] = []

    def observe(
        self,
        phase: str,
        *,
        start_us: int,
        end_us: int,
        starts_cycle: bool | None = None,
        is_beside_rollout: bool | None = None,
    ) -> News:
        """Take one finished operation. `O(segments)`.

        Args:
            phase: what it did.
            start_us: when it started, on a clock that stands still while the job waits.
            end_us: when it ended.
            starts_cycle: whether it is known to begin a cycle; None: a cycle begins where its first
                phase comes again.
            is_beside_rollout: whether the job generates meanwhile; what is so for the first
                operation of a cycle says its mode. None: that stays.
        """
        assert start_us <= end_us, (phase, start_us, end_us)
        news = News.NOTHING
        if self._open and self._is_boundary(phase, start_us, starts_cycle=starts_cycle):
            news = self._close(start_us)
        self.is_first_of_cycle = not self._open
        if not self._open:
            self._began_us = start_us
            if is_beside_rollout is not None:
                self._mode = Mode.ASYNC1 if is_beside_rollout else Mode.SYNC
        if self._open and self._open[-1].phase == phase and self._is_joined(start_us):
            first = self._open[-1]
            length_us = end_us - self._began_us - first.offset_us
            self._open[-1] = replace(first, duration_us=length_us)
        else:
            offset_us = start_us - self._began_us
            self._open.append(
                Segment(phase=phase, offset_us=offset_us, duration_us=end_us - start_us)
            )
        self._last_run_us = end_us - start_us
        return news

    def begins_cycle(self, phase: str, *, start_us: int, starts_cycle: bool | None = None) -> bool:
        """Return whether an operation would begin a cycle; the arguments are those of `observe`."""
        return not self._open or self._is_boundary(phase, start_us, starts_cycle=starts_cycle)

    def next_gap_us(self) -> int | None:
        """Return how long after the last operation the next one is expected; None if unknown."""
        known = self.profile
        if known is None or not self._open:
            return None
        if self._goes_on(known):
            return 0
        at = len(self._open)
        if at < len(known.segments):
            return max(0, known.segments[at].offset_us - known.segments[at - 1].end_us)
        return max(0, known.period_us - self._open[-1].end_us)

    def _goes_on(self, known: Profile) -> bool:
        """Return whether more operations of the segment in hand are to come."""
        if not 0 < len(self._open) <= len(known.segments):
            return False
        last, planned = self._open[-1], known.segments[len(self._open) - 1]
        # It is shorter by a quarter than it was before.
        return planned.phase == last.phase and last.duration_us < planned.duration_us * 3 // 4

    @property
    def last_phase(self) -> str | None:
        """What the last operation of the open cycle did."""
        return self._open[-1].phase if self._open else None

    @property
    def is_last_of_cycle(self) -> bool:
        """Whether what comes after the last operation begins another cycle."""
        known = self.profile
        if known is None or not self._open:
            return False
        if len(self._open) != len(known.segments):
            return len(self._open) > len(known.segments)
        return not self._goes_on(known)

    def burst_us(self, *, max_gap_us: int) -> int:
        """Return the device time from the next operation on until a longer gap; 0 if unknown.

        A burst may go on into the next cycle: who publishes at the boundary trains right after.
        """
        known, open_ = self.profile, self._open
        if known is None:
            return 0
        segments, at, done_us = known.segments, len(open_), 0
        if self._goes_on(known):
            at, done_us = at - 1, open_[-1].duration_us
        at = 0 if at >= len(segments) else at
        found_us, end_us = segments[at].duration_us - done_us, segments[at].end_us
        following = [(s, 0) for s in segments[at + 1 :]]
        following += [(s, known.period_us) for s in segments[:at]]
        for segment, later_us in following:
            if segment.offset_us + later_us - end_us > max_gap_us:
                break
            found_us, end_us = found_us + segment.duration_us, segment.end_us + later_us
        return found_us

    def _is_boundary(self, phase: str, start_us: int, *, starts_cycle: bool | None) -> bool:
        if len(self._open) >= _MAX_SEGMENTS:
            return True
        if starts_cycle is not None:
            return starts_cycle
        if phase != self._open[0].phase:
            return False
        return len(self._open) > 1 or not self._is_joined(start_us)

    def _is_joined(self, start_us: int) -> bool:
        """Return whether an operation that starts now goes on with the last one's segment."""
        gap_us = start_us - self._began_us - self._open[-1].end_us
        # A pause shorter than half an operation is the way to the next one.
        return 2 * gap_us <= self._last_run_us

    def _close(self, now_us: int) -> News:
        period_us = max(1, now_us - self._began_us)
        segments, self._open = tuple(self._open), []
        self.num_cycles += 1
        self.last_busy_us = sum(segment.duration_us for segment in segments)
        known = self.profile
        if known is None:
            self._take(period_us, segments)
            return News.PROFILED
        is_busier = _is_far(known.busy_us, self.last_busy_us) and is_felt(known, self.last_busy_us)
        is_far = is_busier or _is_far(known.period_us, period_us)
        if _same_phases(known.segments, segments) and not is_far:
            self._odd.clear()
            self._take_in(known, period_us, segments)
            return News.NOTHING
        if self._odd and not _same_phases(self._odd[-1][1], segments):
            self._odd.clear()
        self._odd.append((period_us, segments))
        if len(self._odd) < _PATIENCE and not (self._is_on_record and self.num_cycles == 1):
            return News.NOTHING
        self._odd.clear()
        self._take(period_us, segments)
        return News.CHANGED

    def _take_in(self, known: Profile, period_us: int, segments: tuple[Segment, ...]) -> None:
        """Average a cycle of the known shape in."""
        weight = min(_WEIGHT, self._num_alike + 1)
        self._num_alike += 1
        if [s.phase for s in known.segments] == [s.phase for s in segments]:
            segments = _averaged(known.segments, segments, weight=weight)
        deviation_ppm = abs(period_us - known.period_us) * PPM // known.period_us
        weight = _WEIGHT if self._is_on_record else weight
        self.profile = Profile(
            period_us=max(_toward(known.period_us, period_us, weight), segments[-1].end_us),
            segments=segments,
            mode=self._mode,
            switch_us=known.switch_us,
            jitter_ppm=_toward(known.jitter_ppm, deviation_ppm, _WEIGHT),
        )

    def _take(self, period_us: int, segments: tuple[Segment, ...]) -> None:
        self._num_alike, self._is_on_record = 1, False
        self.profile = Profile(
            period_us=period_us,
            segments=segments,
            mode=self._mode,
            switch_us=self.profile.switch_us if self.profile else 0,
            jitter_ppm=self.profile.jitter_ppm if self.profile else 0,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileKey:
    """What makes two runs the same for planning."""

    tenant: TenantId
    model: str
    layout: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptProfile:
    """A profile of an earlier run, and when it was measured."""

    key: ProfileKey
    profile: Profile
    at_us: int
    device_bytes: int = 0
    """What the state of its largest rank took on a device."""

    run_us: int = 0
    """How long completed runs took without their waits, averaged; 0: none was completed."""

    error_ppm: int | None = None
    """By how much the run's first cycle passed the device time then on record; None: no record."""


class ProfileBook:
    """Profiles of earlier runs, the least recently used dropped past `limit`."""

    def __init__(self, *, limit: int = 1000, max_age_us: int = 30 * 86_400_000_000) -> None:
        self.max_age_us = max_age_us
        self.ratio_ppm = PPM
        """Device time of first cycles over that on record, averaged over those measured lately."""

        self._applied_ppm = 0
        self._kept = Newest[ProfileKey, KeptProfile](limit)

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, kept: KeptProfile) -> None:
        """Remember a profile. `O(1)`."""
        self._kept[kept.key] = kept

    @property
    def error_ppm(self) -> int:
        """By how much device times pass those on record: below 0, where records say too much."""
        return self.ratio_ppm - PPM

    def judge(self, kept: KeptProfile, *, busy_us: int) -> int:
        """Learn how wrong a record was: return by how much `busy_us` passes it, in ppm. `O(1)`."""
        ratio_ppm = busy_us * PPM // max(1, kept.profile.busy_us)
        counted_ppm = min(max(ratio_ppm, PPM // _MOST_WRONG), PPM * _MOST_WRONG)
        self.ratio_ppm = _toward(self.ratio_ppm, counted_ppm, _WEIGHT)
        return max(0, ratio_ppm - PPM)

    def has_shifted(self) -> bool:
        """Return whether `error_ppm` is clearly another one than when this was last so."""
        off_ppm = abs(self.error_ppm - self._applied_ppm)
        if off_ppm * _SHIFT < PPM + self._applied_ppm:
            return False
        self._applied_ppm = self.error_ppm
        return True

    def believed(self, kept: KeptProfile) -> Profile:
        """Return the cycle to plan a record's next run by: padded by how wrong records were.

        One that followed another record is newer than what it proved wrong: it is padded if that
        said too little. Any other is taken to be as wrong as records are.
        """
        error_ppm = self.error_ppm if kept.error_ppm is None else kept.error_ppm
        return kept.profile.padded(error_ppm)

    def warm(self, key: ProfileKey, *, now_us: int) -> KeptProfile | None:
        """Return the profile of an earlier run; None without one, or if too old. `O(1)`."""
        found = self._kept.get(key)
        if found is None:
            return None
        if now_us - found.at_us > self.max_age_us:
            del self._kept[key]
            return None
        self._kept.move_to_end(key)
        return found


def _same_phases(one: tuple[Segment, ...], two: tuple[Segment, ...]) -> bool:
    """Return whether two cycles do the same things, however often each."""
    return {s.phase for s in one} == {s.phase for s in two}


def is_felt(known: Profile, busy_us: int) -> bool:
    """Return whether another device time than the known one matters to who shares the device.

    That of operations of a millisecond in a cycle of a second varies by its half, to no effect.
    """
    return abs(busy_us - known.busy_us) * PPM > known.period_us * _FELT_PPM


def _is_far(known_us: int, period_us: int) -> bool:
    return abs(period_us - known_us) * PPM > known_us * _FAR_PPM


def _averaged(
    known: tuple[Segment, ...], segments: tuple[Segment, ...], *, weight: int
) -> tuple[Segment, ...]:
    mixed = []
    at_us = 0
    for old, new in zip(known, segments, strict=True):
        offset_us = max(at_us, _toward(old.offset_us, new.offset_us, weight))
        duration_us = _toward(old.duration_us, new.duration_us, weight)
        mixed.append(Segment(phase=old.phase, offset_us=offset_us, duration_us=duration_us))
        at_us = offset_us + duration_us
    return tuple(mixed)


def _toward(old: int, new: int, weight: int) -> int:
    return old + (new - old) // weight
