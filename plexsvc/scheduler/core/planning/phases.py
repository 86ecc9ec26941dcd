"""Interference of jobs whose phases stay: what their cells on the ring have in common.

A synchronous job that waits once for another's burst begins its next cycles that much later. So
jobs of low jitter settle side by side where their cells can lie apart, and lose only what
must overlap at every shift. The queueing formula takes the same arrivals as random: it lets jobs
share that meet in every cycle, and refuses some that never would. Jobs with slack, and those whose
phases drift, stay with the formula: there it predicts as well, and shares more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from plexsvc.ids import ResidentId
from plexsvc.scheduler.core.planning.board import Board
from plexsvc.scheduler.core.planning.groups import Resident
from plexsvc.scheduler.core.planning.profile import PPM, Demand, Mode, Profile
from plexsvc.scheduler.core.structures.interval_set import IntervalSet, Ints, overlap_by_shift

STABLE_PPM: Final = 50_000
"""Jitter up to which phases count as staying, and the most that a slot may be of a cycle."""


def is_stable(profile: Profile, *, slot_us: int) -> bool:
    """Return whether a job's phases stay: synchronous, of low jitter, not too short for slots.

    A jitter of zero was never measured.
    """
    is_resolved = slot_us * PPM <= STABLE_PPM * profile.period_us
    return profile.mode is Mode.SYNC and is_resolved and 0 < profile.jitter_ppm <= STABLE_PPM


class Phases:
    """What one job would lose on a board by phases, place by place."""

    def __init__(self, board: Board, demand: Demand) -> None:
        self._board = board
        self._segments = board.segments(demand.profile)
        self._period = board.period_slots(demand.profile)
        self._least_ppm = self._least_anywhere(demand.num_units)

    @classmethod
    def of(cls, board: Board, demand: Demand) -> Phases | None:
        """Return the question for a job; None for one whose phases do not stay."""
        return cls(board, demand) if is_stable(demand.profile, slot_us=board.slot_us) else None

    def lost_ppm(self, residents: Sequence[Resident], *, most_ppm: int) -> int | None:
        """Return the share of all time that it and others would want at once, at its best shift.

        None if the phases of one of them do not stay. The global profile is asked first: where it
        leaves no place with `most_ppm` or less, no resident is looked at.
        """
        slot_us = self._board.slot_us
        if not all(is_stable(r.demand.profile, slot_us=slot_us) for r in residents):
            return None
        if self._least_ppm > most_ppm:
            return self._least_ppm
        size = self._board.ring.size
        free = IntervalSet.complement(size, [(r.cells.starts, r.cells.ends) for r in residents])
        return self._least(free.busy_by_phase(size, period=self._period))

    def _least_anywhere(self, num_units: int) -> int:
        """Return what is lost at least wherever it goes: too few units are free at any shift."""
        tree = self._board.free_units
        if tree.minimum(0, self._board.ring.size) >= num_units:
            return 0
        short = (tree.values() < num_units).reshape(-1, self._period)
        return self._least(short.sum(axis=0, dtype=np.int64))

    def _least(self, load: Ints) -> int:
        slots = int(overlap_by_shift(load, self._segments).min())
        return slots * PPM // self._board.ring.size


def settled_ppm(residents: Sequence[Resident], *, slot_us: int) -> dict[ResidentId, int] | None:
    """Return the predicted slowdown of each job of a group, in ppm; None unless all phases stay.

    A job's cells that others want too cost it at most as much time as they take.
    """
    if not all(is_stable(r.demand.profile, slot_us=slot_us) for r in residents):
        return None
    size = residents[0].cells.ring_size if residents else 0
    wanted = np.zeros(size, dtype=np.int16)
    for resident in residents:
        cycles = wanted.reshape(-1, resident.cells.period)
        for start, end in resident.cells.folded:
            cycles[:, start:end] += 1
    return {r.demand.resident_id: PPM + _shared_ppm(r, wanted > 1) for r in residents}


def _shared_ppm(resident: Resident, is_shared: np.typing.NDArray[np.bool_]) -> int:
    cycles = is_shared.reshape(-1, resident.cells.period)
    shared = sum(int(cycles[:, start:end].sum()) for start, end in resident.cells.folded)
    return shared * PPM // is_shared.size
