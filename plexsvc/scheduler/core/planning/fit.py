"""Fit of a job into a group's cycle: micro-shift, clean if there is one, else priced overlap.

Minimal shift first is our reading of the paper's Eq. 1. Strict non-overlap is rarely possible, so a
soft fit takes the shift with the least overlap, of equals the least shift.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from plexsvc.scheduler.core.planning.board import Board
from plexsvc.scheduler.core.planning.groups import Group
from plexsvc.scheduler.core.planning.profile import PPM, Profile
from plexsvc.scheduler.core.structures.bit_slices import BitSlice, Ints, overlap_by_shift
from plexsvc.scheduler.core.structures.footprint import Footprint

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """A way to place a job: in which group, how far its cycle slides, what it would overlap."""

    group: Group
    shift_slots: int
    overlap_ppm: int
    """Share of the job's own busy slots that meet a resident's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift:
    """How far a cycle slides, and the share of its own busy slots that meet a resident's."""

    shift_slots: int
    overlap_ppm: int


@dataclass(slots=True, kw_only=True)
class Pruned:
    """How many (group, shift) pairs there were, and how many fell before an interval set."""

    pairs: int = 0
    by_free_units: int = 0
    by_slices: int = 0

    @property
    def share(self) -> float:
        """Return the pruned share of all pairs."""
        return (self.by_free_units + self.by_slices) / self.pairs if self.pairs else 0.0


@dataclass(slots=True, kw_only=True)
class Fitter:
    """Searches shifts on one board and counts what it pruned."""

    board: Board
    max_soft: int = 4
    """Groups whose overlap is priced when no group has a clean shift."""

    pruned: Pruned = field(default_factory=Pruned)

    def best(self, groups: Sequence[Group], profile: Profile, *, anchor_slot: int) -> Fit | None:
        """Return the best fit among `groups`, which come in order of preference; None without any.

        A clean fit with the least shift wins, the first group on a tie; else the least overlap.
        `O(slices * n)` for the prefilter, then one interval set.
        """
        if not groups:
            return None
        clean = self._clean(groups, profile, anchor_slot=anchor_slot)
        if clean is not None:
            return clean
        fits = [self.soft(g, profile, anchor_slot=anchor_slot) for g in groups[: self.max_soft]]
        return min(fits, key=lambda fit: fit.overlap_ppm)

    def soft(self, group: Group, profile: Profile, *, anchor_slot: int) -> Fit:
        """Return the shift of least overlap in one group, the least shift on a tie. `O(n)`."""
        period = self.board.period_slots(profile)
        load = group.slices.load(group.lane, period=period)
        least = self._least(load, profile, anchor_slot=anchor_slot)
        return Fit(group=group, shift_slots=least.shift_slots, overlap_ppm=least.overlap_ppm)

    def among(self, cells: Sequence[Footprint], profile: Profile, *, anchor_slot: int) -> Shift:
        """Return the shift of least overlap with some jobs' cells, the least on a tie. `O(n)`."""
        slices = BitSlice(self.board.ring.size)
        for one in cells:
            slices.paint(0, one)
        load = slices.load(0, period=self.board.period_slots(profile))
        return self._least(load, profile, anchor_slot=anchor_slot)

    def _least(self, load: Ints, profile: Profile, *, anchor_slot: int) -> Shift:
        period, segments = load.size, self.board.segments(profile)
        overlaps = np.roll(overlap_by_shift(load, segments), -(anchor_slot % period))
        shift = int(overlaps.argmin())
        own = sum(duration for _, duration in segments) * (self.board.ring.size // period)
        overlap_ppm = min(PPM, int(overlaps[shift]) * PPM // max(1, own))
        return Shift(shift_slots=shift, overlap_ppm=overlap_ppm)

    def _clean(self, groups: Sequence[Group], profile: Profile, *, anchor_slot: int) -> Fit | None:
        period = self.board.period_slots(profile)
        segments = self.board.segments(profile)
        self.pruned.pairs += period * len(groups)
        feasible = self._shifts_with_free_units(groups, period=period, segments=segments)
        self.pruned.by_free_units += (period - int(feasible.sum())) * len(groups)
        best: Fit | None = None
        for slices, members in _by_slice(groups):
            blocked = slices.blocked(period=period, segments=segments)
            for group in members:
                is_open = (blocked >> np.uint64(group.lane)) & np.uint64(1) == 0
                self.pruned.by_slices += int((feasible & ~is_open).sum())
                is_open = np.roll(is_open & feasible, -(anchor_slot % period))
                shift = int(is_open.argmax())
                if is_open[shift] and (best is None or shift < best.shift_slots):
                    best = Fit(group=group, shift_slots=shift, overlap_ppm=0)
        if best is not None:
            cells = self.board.cells(profile, anchor_slot=anchor_slot + best.shift_slots)
            met = best.group.free.simulate_insert(cells.starts, cells.ends)
            assert met.is_clean, (best.group.group_id, best.shift_slots, met)
        return best

    def _shifts_with_free_units(
        self, groups: Sequence[Group], *, period: int, segments: Sequence[tuple[int, int]]
    ) -> Bools:
        """Return the shifts at which enough units are free somewhere, from the global profile."""
        need = min(group.size for group in groups)
        if self.board.free_units.minimum(0, self.board.ring.size) >= need:
            return np.ones(period, dtype=np.bool_)
        short = (self.board.free_units.values() < need).reshape(-1, period).sum(axis=0)
        is_enough: Bools = overlap_by_shift(short.astype(np.int64), segments) == 0
        return is_enough


def _by_slice(groups: Sequence[Group]) -> list[tuple[BitSlice, list[Group]]]:
    found: dict[int, tuple[BitSlice, list[Group]]] = {}
    for group in groups:
        found.setdefault(id(group.slices), (group.slices, []))[1].append(group)
    return list(found.values())
