"""What planning answers: where a job goes, and what it would do to others."""

from __future__ import annotations

from dataclasses import dataclass

from plexsvc.ids import ResidentId
from plexsvc.scheduler.core.planning.rooms import Gang


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A job that may start: where, and how far its cycle slides."""

    resident_id: ResidentId
    group_id: int
    units: Gang
    """The units it uses; its group may have others besides."""

    rollout_units: Gang = ()
    shift_slots: int = 0
    overlap_ppm: int = 0
    opened: bool = False
    """Whether it has a group of its own, on units that were idle."""

    merged: tuple[int, ...] = ()
    """Groups that became part of `group_id` for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """What a new job would cost one it meets: predicted slowdowns in ppm, before and after."""

    resident_id: ResidentId
    before_ppm: int
    after_ppm: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """Where a job would go now; nothing was changed for the answer."""

    units: Gang = ()
    """Empty when there is no place for it."""

    group_ids: tuple[int, ...] = ()
    """The groups it would join; several would become one. None: it would open one."""

    rollout_units: Gang = ()
    shift_slots: int = 0
    overlap_ppm: int = 0
    slowdown_ppm: int = 1_000_000
    """Its own predicted cycle shared over alone."""

    meets: tuple[Meeting, ...] = ()
    refusals: tuple[str, ...] = ()
    """When there is no place: why, place by place."""

    @property
    def opens(self) -> bool:
        """Whether it would have a group of its own."""
        return bool(self.units) and not self.group_ids
