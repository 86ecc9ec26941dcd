"""Units kept: for a job that has waited long enough, or that goes before others.

The target is the gang whose residents are expected to have left first. From then on its units take
only jobs that are expected to be gone when the reservation is due (EASY backfill). Who is still
there when it is due is moved elsewhere (`relocate/packing.py`). The due time never moves, even if a
resident stays longer than expected. After it no further job is placed on these units, so the job
waits at most until those that were there have left.

A job that lost its place has a reservation that is due at once: a node is missing, not time. Units
of jobs that lived with it count as free, jobs of one lost group may have the same ones, and they
are chosen anew when a node comes (back).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

from plexsvc.ids import ResidentId, UnitId
from plexsvc.scheduler.core.planning.board import Board
from plexsvc.scheduler.core.planning.bounds import lived_with
from plexsvc.scheduler.core.planning.groups import Resident
from plexsvc.scheduler.core.planning.paces import Paces
from plexsvc.scheduler.core.planning.policies import Policy
from plexsvc.scheduler.core.planning.profile import SECOND_US, Demand
from plexsvc.scheduler.core.planning.rooms import Gang
from plexsvc.scheduler.core.planning.waiting import Aged, may_reserve

PRESS_US: Final = 60 * SECOND_US
"""How long a reservation is due before its job may join others up to their own bounds: those that
can move elsewhere are asked to several times before."""

RETURN_US: Final = 10 * SECOND_US
"""How long the units that a lost place leaves are kept for jobs that come back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """Units kept for a waiting job."""

    resident_id: ResidentId
    units: Gang
    due_us: int
    lost_place: int = 0
    """The group that lost a node whose jobs it is for; 0: it is for its job alone."""

    def is_for(self, demand: Demand) -> bool:
        """Return whether a job may have the units: its own, or those of jobs it lived with."""
        is_back = self.lost_place > 0 and demand.lost_place == self.lost_place
        return is_back or demand.resident_id == self.resident_id

    def keeps_out(self, demand: Demand, *, now_us: int) -> bool:
        """Return whether a job would still be there when the reservation is due.

        A job that holds devices already passes: others, who have to leave first, may wait for them.
        """
        if self.is_for(demand) or demand.has_devices:
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
            left_us = 0 if lived_with(demand, resident, group) else remaining_us(resident)
            for unit_id in resident.units:
                free_us[unit_id] = max(free_us[unit_id], left_us)
    among = {unit_id: None for unit_id in free_us if unit_id not in taken}
    gangs = board.rooms.gangs(demand.num_units, among=among, burden=free_us.__getitem__)
    left = [(max(free_us[unit_id] for unit_id in gang), gang) for gang in gangs]
    if not left:
        return None
    after_us, units = min(left)
    due_us = now_us if demand.lost_place else now_us + after_us
    return Reservation(
        resident_id=demand.resident_id, units=units, due_us=due_us, lost_place=demand.lost_place
    )


def stands(board: Board, reservation: Reservation) -> bool:
    """Return whether all units of a reservation still take work."""
    known = (board.idle, board.group_at)
    return all(
        unit_id not in board.cordoned and any(unit_id in there for there in known)
        for unit_id in reservation.units
    )


class Kept:
    """What is kept for whom on one board."""

    def __init__(
        self, board: Board, *, policy: Policy, paces: Paces, waiting: dict[ResidentId, Demand]
    ) -> None:
        """Keep units of `board` by `policy` for some of `waiting`."""
        self.board = board
        self.policy = policy
        self.paces = paces
        self.waiting = waiting
        self.reservations: dict[ResidentId, Reservation] = {}
        """Units kept for blocked jobs: for one that waits, and for those that lost their places.
        Only jobs of one group that lost a node have units in common."""

        self.left: dict[UnitId, tuple[int, int]] = {}
        """Units that jobs of a group left because a node was lost: until when they are kept for
        the return of those jobs, and the group."""

        self.pressed: dict[ResidentId, None] = {}
        """Blocked jobs for whom nobody leaves the units that are kept for them: they may join
        others up to everybody's own bound."""

        self.has_reopened = False
        """Whether units that were kept, or not to be had, may be had by those who wait."""

    def units(self) -> set[UnitId]:
        """Return the units that are kept for some job."""
        kept = {unit_id for each in self.reservations.values() for unit_id in each.units}
        return kept | self.left.keys()

    def barred(self, demand: Demand, *, now_us: int) -> set[UnitId]:
        """Return the units that a waiting job may not take, since they are kept for others."""
        kept = {
            unit_id
            for each in self.reservations.values()
            if each.keeps_out(demand, now_us=now_us)
            for unit_id in each.units
        }
        return kept | self._left_by_others(demand)

    def _left_by_others(self, demand: Demand) -> set[UnitId]:
        return {u for u, (_, group_id) in self.left.items() if group_id != demand.lost_place}

    def keep_on(self, now_us: int) -> None:
        """Let go of units that cannot be kept any more, or need not be."""
        for resident_id, reservation in list(self.reservations.items()):
            if not stands(self.board, reservation):
                self.end(resident_id)
        if any(until_us <= now_us for until_us, _ in self.left.values()):
            self.left = {u: kept for u, kept in self.left.items() if kept[0] > now_us}
            self.has_reopened = True

    def reserve_for(self, demand: Demand, *, now_us: int) -> None:
        """Keep units for a blocked job that has a right to a reservation.

        It takes the place of a reservation of lower priority.
        """
        kept, resident_id = self.reservations, demand.resident_id
        if resident_id in kept or not may_reserve(demand, policy=self.policy, now_us=now_us):
            return
        aged = Aged(self.waiting.values(), policy=self.policy, now_us=now_us)
        for other in list(kept):
            if demand.lost_place or self.waiting[other].lost_place:
                continue
            if aged.priority(self.waiting[other]) >= aged.priority(demand):
                return
            self.end(other)
        made = reserve(
            self.board,
            demand,
            taken={
                *(u for each in kept.values() if not each.is_for(demand) for u in each.units),
                *self._left_by_others(demand),
            },
            remaining_us=lambda r: self.paces.remaining_us(r.demand, now_us=now_us),
            now_us=now_us,
        )
        if made is not None:
            kept[resident_id] = made

    def end(self, resident_id: ResidentId) -> None:
        """Keep nothing for a job any more; all that wait look at the units again."""
        del self.reservations[resident_id]
        self.pressed.pop(resident_id, None)
        self.has_reopened = True

    def press(self, now_us: int) -> list[ResidentId]:
        """Return for whom nobody will leave any more, since their reservation is due for so long.

        One with a granted priority does not wait until it is due.
        """
        found = []
        for resident_id, kept in self.reservations.items():
            demand = self.waiting[resident_id]
            since_us = min(kept.due_us, demand.arrived_us) if demand.priority > 0 else kept.due_us
            is_due = now_us - since_us >= PRESS_US and not kept.lost_place
            if is_due and resident_id not in self.pressed:
                self.pressed[resident_id] = None
                found.append(resident_id)
        return found

    def keep_left(self, left: Gang, *, group_id: int, now_us: int) -> None:
        """Keep the units that a job left, since a node was lost, for the return of its group."""
        units = [unit_id for unit_id in left if unit_id not in self.board.cordoned]
        self.left = {u: kept for u, kept in self.left.items() if u not in left}
        self.left.update(dict.fromkeys(units, (now_us + RETURN_US, group_id)))
