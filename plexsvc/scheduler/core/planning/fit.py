"""Micro-shift of a job: how far its cycle slides to overlap the least with who is there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from plexsvc.scheduler.core.planning.board import Board
from plexsvc.scheduler.core.planning.profile import PPM, Profile
from plexsvc.scheduler.core.structures.footprint import Footprint
from plexsvc.scheduler.core.structures.interval_set import IntervalSet, overlap_by_shift


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift:
    """How far a cycle slides, and the share of its own busy slots that meet a resident's."""

    shift_slots: int
    overlap_ppm: int


def least_overlap(
    board: Board, cells: Sequence[Footprint], profile: Profile, *, anchor_slot: int
) -> Shift:
    """Return the shift of least overlap with some jobs' cells, the least shift on a tie. `O(n)`."""
    size, period = board.ring.size, board.period_slots(profile)
    free = IntervalSet.complement(size, [(one.starts, one.ends) for one in cells])
    load, segments = free.busy_by_phase(size, period=period), board.segments(profile)
    overlaps = np.roll(overlap_by_shift(load, segments), -(anchor_slot % period))
    shift = int(overlaps.argmin())
    own = sum(duration for _, duration in segments) * (size // period)
    overlap_ppm = min(PPM, int(overlaps[shift]) * PPM // max(1, own))
    return Shift(shift_slots=shift, overlap_ppm=overlap_ppm)
