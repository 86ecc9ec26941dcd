"""Reservations: units kept for a job that has waited long enough, or that goes before others.

The target is the gang whose residents are expected to have left first. From then on its units take
only jobs that are expected to be gone when the reservation is due (EASY backfill). Who is still
there when it is due is moved elsewhere (`relocate/packing.py`). The due time stays as it was made,
so whoever overstays keeps no door open for others: after it nobody comes, and the job waits at most
until the last of those that were there has left.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from plexsvc.ids import ResidentId, UnitId
from plexsvc.scheduler.core.planning.board import Board
from plexsvc.scheduler.core.planning.groups import Resident
from plexsvc.scheduler.core.planning.profile import Demand
from plexsvc.scheduler.core.planning.rooms import Gang


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """Units kept for a waiting job."""

    resident_id: ResidentId
    units: Gang
    due_us: int

    def keeps_out(self, demand: Demand, *, now_us: int) -> bool:
        """Return whether a job would still be there when the reservation is due.

        A job that holds devices already passes: others, who have to leave first, may wait for them.
        """
        if demand.resident_id == self.resident_id or demand.has_devices:
            return False
        return now_us + demand.expected_us > self.due_us


def reserve(
    board: Board,
    demand: Demand,
    *,
    taken: Collection[UnitId],
    remaining_us: Callable[[Resident], int],
    now_us: int,
) -> Reservation | None:
    """Return the reservation of a job, outside of `taken`; None if no gang is there for it.

    Units that instances hold for themselves are not asked for: nobody knows for how long.
    `O(units + residents * gang)`.
    """
    free_us = dict.fromkeys(board.idle, 0)
    for group in board.groups.values():
        if group.is_closed:
            continue
        free_us.update(dict.fromkeys(group.units, 0))
        for resident in group.residents.values():
            left_us = remaining_us(resident)
            for unit_id in resident.units:
                free_us[unit_id] = max(free_us[unit_id], left_us)
    among = {unit_id: None for unit_id in free_us if unit_id not in taken}
    gangs = board.rooms.gangs(demand.num_units, among=among, burden=free_us.__getitem__)
    left = [(max(free_us[unit_id] for unit_id in gang), gang) for gang in gangs]
    if not left:
        return None
    after_us, units = min(left)
    return Reservation(resident_id=demand.resident_id, units=units, due_us=now_us + after_us)


def stands(board: Board, reservation: Reservation) -> bool:
    """Return whether all units of a reservation still take work."""
    known = (board.idle, board.group_at)
    return all(
        unit_id not in board.cordoned and any(unit_id in there for there in known)
        for unit_id in reservation.units
    )
