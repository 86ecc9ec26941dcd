"""Jobs that wait: their order, and the units that are kept for some of them.

Units are kept for a job that has waited long enough, or that goes before others: the gang whose
residents are expected to have left first. From then on these units take only jobs that are expected
to be gone when the reservation is due (EASY backfill). Who is still there when it is due is moved
elsewhere (`relocate/movers.py`). The due time never moves, even if a resident stays longer than
expected. After it no further job is placed there, so the job waits at most until those that were
there have left.

A job that lost its place has a reservation that is due at once: a node is missing, not time. Units
of jobs that lived with it count as free, jobs of one lost group may have the same ones, and they
are chosen anew when a node comes (back).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from plexsvc.ids import ResidentId, UnitId
from plexsvc.scheduler.core.planning.board import Board
from plexsvc.scheduler.core.planning.places import lived_with
from plexsvc.scheduler.core.planning.policies import Policy
from plexsvc.scheduler.core.planning.profile import PPM, SECOND_US, Demand
from plexsvc.scheduler.core.planning.rooms import Gang
from plexsvc.scheduler.core.planning.shares import Turn

_PATIENCES: Final = 2
"""Of its patiences that a job waits before it has the highest priority somebody waits with."""

RETURN_US: Final = 10 * SECOND_US
"""How long the units that a lost place leaves are kept for jobs that come back."""


def in_order(demands: Iterable[Demand], *, policy: Policy, now_us: int) -> list[Demand]:
    """Return waiting jobs in the policy's order.

    A higher priority, as it has aged, always goes first, then a job that lost its place.
    """
    waiting = list(demands)
    aged = Aged(waiting, policy=policy, now_us=now_us)

    def key(demand: Demand) -> tuple[int, ...]:
        return (*aged.rank(demand), *_key(demand, policy, now_us))

    return sorted(waiting, key=key)


def in_turn(
    demands: Iterable[Demand], board: Board, *, policy: Policy, now_us: int
) -> Iterable[Demand]:
    """Return waiting jobs in the policy's order, under `plex` with tenants in turn."""
    ordered = in_order(demands, policy=policy, now_us=now_us)
    if not policy.is_plex:
        return ordered
    aged = Aged(ordered, policy=policy, now_us=now_us)

    def turn(demand: Demand) -> Turn:
        return demand.tenant, aged.rank(demand)

    return board.shares.in_turn(ordered, kind=board.kind, turn=turn)


class Aged:
    """Priorities of those that wait, as they have aged by `now_us`.

    A job that has waited for twice its patience, twice `patience_us` at most, has the highest
    priority that somebody waits with. So among equals nothing changes, and a stream of higher
    priorities holds nobody back for ever.
    """

    def __init__(self, waiting: Iterable[Demand], *, policy: Policy, now_us: int) -> None:
        self._policy = policy
        self._now_us = now_us
        self._top = max((demand.priority for demand in waiting), default=0)

    def priority(self, demand: Demand) -> int:
        """Return the priority that a job has by now."""
        patience_us = _patience_us(demand, self._policy)
        if demand.priority >= self._top or patience_us is None:
            return demand.priority
        has_aged = self._now_us - demand.arrived_us >= _PATIENCES * patience_us
        return self._top if has_aged else demand.priority

    def rank(self, demand: Demand) -> tuple[int, ...]:
        """Return what goes before all turns: the lowest first."""
        return (-self.priority(demand), demand.lost_place == 0)


def may_reserve(demand: Demand, *, policy: Policy, now_us: int) -> bool:
    """Return whether units are kept for a job while it is blocked.

    They are for one with a priority, one that lost its place, and one that waited long.
    """
    patience_us = _patience_us(demand, policy)
    if patience_us is None:
        return False
    has_right = demand.priority > 0 or demand.lost_place > 0
    return has_right or now_us - demand.arrived_us >= patience_us


def _key(demand: Demand, policy: Policy, now_us: int) -> tuple[int, ...]:
    """Sort impatient jobs ahead, by when they became so; the others longest first.

    Who comes later than a job becomes impatient is never sorted before it: a stream of short jobs
    holds a long one back no longer than its patience.
    """
    patience_us = _patience_us(demand, policy)
    if patience_us is None:
        return (demand.arrived_us,)
    ends_us = demand.arrived_us + patience_us
    return (0, ends_us, 0) if ends_us <= now_us else (1, -demand.expected_us, demand.arrived_us)


def _patience_us(demand: Demand, policy: Policy) -> int | None:
    """Return how long a job waits before it has rights: in proportion to its run, and bounded."""
    if policy.patience_ppm is None:
        return None
    return max(1, min(demand.expected_us * policy.patience_ppm // PPM, policy.patience_us))


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


class Kept:
    """What is kept for whom on one board."""

    def __init__(self, board: Board, *, policy: Policy, waiting: dict[ResidentId, Demand]) -> None:
        """Keep units of `board` by `policy` for some of `waiting`."""
        self.board = board
        self.policy = policy
        self.waiting = waiting
        self.reservations: dict[ResidentId, Reservation] = {}
        """Units kept for blocked jobs: for one that waits, and for those that lost their places.
        Only jobs of one group that lost a node have units in common."""

        self.left: dict[UnitId, tuple[int, int]] = {}
        """Units that jobs of a group left because a node was lost: until when they are kept for
        the return of those jobs, and the group."""

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
        board = self.board
        for resident_id, reservation in list(self.reservations.items()):
            there = [u for u in reservation.units if u in board.idle or u in board.group_at]
            if len(there) < len(reservation.units) or not board.cordoned.isdisjoint(there):
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
            # Others reserve beside those that lost their places: a node is missing, not a turn.
            if demand.lost_place or self.waiting[other].lost_place:
                continue
            if aged.priority(self.waiting[other]) >= aged.priority(demand):
                return
            self.end(other)
        free_us = self._free_us(demand, now_us=now_us)
        gangs = self.board.rooms.gangs(demand.num_units, among=free_us, burden=free_us.__getitem__)
        left = [(max(free_us[unit_id] for unit_id in gang), gang) for gang in gangs]
        if left:
            after_us, units = min(left)
            due_us = now_us if demand.lost_place else now_us + after_us
            kept[resident_id] = Reservation(
                resident_id=resident_id, units=units, due_us=due_us, lost_place=demand.lost_place
            )

    def _free_us(self, demand: Demand, *, now_us: int) -> dict[UnitId, int]:
        """Return after how long each unit is expected to be free that may be kept for a job.

        Units that instances hold for themselves are none: nobody knows for how long.
        `O(units + residents * gang)`.
        """
        board, free_us = self.board, dict.fromkeys(self.board.idle, 0)
        for group in board.groups.values():
            if group.is_closed:
                continue
            free_us.update(dict.fromkeys(group.units, 0))
            for resident in group.residents.values():
                left_us = resident.remaining_us(now_us)
                left_us = 0 if lived_with(demand, resident, group) else left_us
                for unit_id in resident.units:
                    free_us[unit_id] = max(free_us[unit_id], left_us)
        others = [each.units for each in self.reservations.values() if not each.is_for(demand)]
        taken = self._left_by_others(demand).union(*others)
        return {unit_id: us for unit_id, us in free_us.items() if unit_id not in taken}

    def end(self, resident_id: ResidentId) -> None:
        """Keep nothing for a job any more; all that wait look at the units again."""
        del self.reservations[resident_id]
        self.has_reopened = True

    def may_press(self, demand: Demand) -> bool:
        """Return whether a job may join others up to everybody's own bound.

        One with a granted priority may, once it is blocked: what is filled beyond the targets
        drains later.
        """
        is_kept = demand.resident_id in self.reservations
        return is_kept and demand.priority > 0 and not demand.lost_place

    def keep_left(self, left: Gang, *, group_id: int, now_us: int) -> None:
        """Keep the units that a job left, since a node was lost, for the return of its group."""
        units = [unit_id for unit_id in left if unit_id not in self.board.cordoned]
        # Units that are left twice are kept for those who left them last.
        self.left = {u: kept for u, kept in self.left.items() if u not in left}
        self.left.update(dict.fromkeys(units, (now_us + RETURN_US, group_id)))
