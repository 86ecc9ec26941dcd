"""The ring: slots of time on which pictures show when the bursts of each cycle are due.

It decides nothing. Every period is rounded to a divisor of the ring, so a cycle lies on the same
slots in each round.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from plexsvc.scheduler.core.planning.profile import PPM, Profile

RING_SLOTS: Final = 28_800
"""Eight hours of one-second slots."""

_DIVISORS: Final = [d for d in range(1, RING_SLOTS + 1) if RING_SLOTS % d == 0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cycle:
    """A job's cycle on the ring, in slots."""

    period: int
    start: int
    """A slot at which a cycle starts."""

    segments: tuple[tuple[int, int], ...]
    """Offset and duration of each."""

    @classmethod
    def of(cls, profile: Profile, *, at_us: int, slot_us: int) -> Self:
        """Return a profile that was seen to start at a time.

        Its period becomes the nearest divisor of the ring by ratio, the longer on a tie. Durations
        are rounded up.
        """
        asked = max(1, round(profile.period_us / slot_us))
        period = min(_DIVISORS, key=lambda d: (max(d / asked, asked / d), -d))
        segments = (
            (s.offset_us * period // profile.period_us, max(1, -(-s.duration_us // slot_us)))
            for s in profile.segments
        )
        return cls(period=period, start=at_us // slot_us, segments=tuple(segments))

    def busy(self) -> npt.NDArray[np.bool_]:
        """Return in which slots of its period it has its devices."""
        found = np.zeros(self.period, dtype=np.bool_)
        for offset, duration in self.segments:
            slots = np.arange(min(duration, self.period))
            found[(self.start + offset + slots) % self.period] = True
        return found

    def spans(self) -> list[tuple[int, int]]:
        """Return these slots as half-open ranges.

        >>> Cycle(period=6, start=1, segments=((0, 2), (4, 2))).spans()
        [(0, 3), (5, 6)]
        """
        edges = np.flatnonzero(np.diff(self.busy().astype(np.int8), prepend=0, append=0)).tolist()
        return list(zip(edges[::2], edges[1::2], strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift:
    """How far a cycle slides (micro-shift), and the share of its busy slots that meet others'."""

    slots: int
    overlap_ppm: int


def least_overlap(new: Cycle, others: Iterable[Cycle]) -> Shift:
    """Return the shift at which a cycle meets least of others', the least one on a tie.

    >>> there = Cycle(period=60, start=0, segments=((0, 20),))
    >>> least_overlap(Cycle(period=60, start=5, segments=((0, 10),)), [there])
    Shift(slots=15, overlap_ppm=0)
    """
    taken = np.zeros(RING_SLOTS, dtype=np.bool_)
    for other in others:
        taken |= np.tile(other.busy(), RING_SLOTS // other.period)
    load, own = taken.reshape(-1, new.period).sum(axis=0), new.busy()
    # All shifts at once: the circular correlation of the two, by their Fourier transforms.
    both = np.fft.rfft(load) * np.conj(np.fft.rfft(own))
    overlaps = np.rint(np.fft.irfft(both, n=new.period)).astype(np.int64)
    slots, num_busy = int(overlaps.argmin()), int(own.sum()) * (RING_SLOTS // new.period)
    return Shift(slots=slots, overlap_ppm=int(overlaps[slots]) * PPM // max(1, num_busy))


def laid(cycles: Sequence[tuple[Cycle, bool]]) -> list[tuple[Cycle, int]]:
    """Return cycles as they are expected to lie, each with how far it slides.

    One whose start was seen (True) lies there. One that was just placed is expected to settle where
    it meets as little as possible of those before it and of those that were seen.
    """
    there = [cycle for cycle, was_seen in cycles if was_seen]
    found = []
    for cycle, was_seen in cycles:
        shift = 0 if was_seen else least_overlap(cycle, there).slots
        lies = replace(cycle, start=cycle.start + shift)
        if not was_seen:
            there.append(lies)
        found.append((lies, shift))
    return found
