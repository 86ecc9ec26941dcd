"""Units kept for blocked jobs: reserved for one that waits, or left for those that lost a node."""

from __future__ import annotations

from collections.abc import Iterable

from plexsvc.ids import ResidentId, UnitId
from plexsvc.scheduler.core.planning.board import Board
from plexsvc.scheduler.core.planning.bounds import (
    Spot,
    lived_with,
)
from plexsvc.scheduler.core.planning.policies import Policy
from plexsvc.scheduler.core.planning.profile import Demand
from plexsvc.scheduler.core.planning.reservations import Reservation, reserve, stands
from plexsvc.scheduler.core.planning.search import Search
from plexsvc.scheduler.core.planning.spots import (
    Barred,
    best,
    joining,
    larger_groups,
    merging,
    whole_groups,
)
from plexsvc.scheduler.core.planning.waiting import Aged, may_reserve


class Keeping(Search):
    """What is kept for whom."""

    def __init__(self, board: Board, *, policy: Policy) -> None:
        """Keep units of `board` by `policy`."""
        super().__init__(board, policy=policy)
        self.reservations: dict[ResidentId, Reservation] = {}
        """Units kept for blocked jobs: for one that waits, and for those that lost their places.
        Only jobs of one group that lost a node have units in common."""

        self.left: dict[UnitId, tuple[int, int]] = {}
        """Units that jobs of a group left because a node was lost: until when they are kept for
        the return of those jobs, and the group."""

        self.pressed: dict[ResidentId, None] = {}
        """Blocked jobs for whom nobody leaves the units that are kept for them: they may join
        others up to everybody's own bound."""

        self._has_reopened = False
        """Whether units that were kept, or not to be had, may be had by those who wait."""

    def kept_units(self) -> set[UnitId]:
        """Return the units that are kept for some job."""
        kept = {unit_id for each in self.reservations.values() for unit_id in each.units}
        return kept | self.left.keys()

    def kept_from(self, demand: Demand, *, now_us: int) -> set[UnitId]:
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

    def in_the_way(self, *, now_us: int) -> list[ResidentId]:
        """Return who lives where a reservation is due whose job does not fit in beside them."""
        return [
            resident.demand.resident_id
            for resident_id, kept in self.reservations.items()
            if kept.due_us <= now_us
            and self._kept_spot(self.waiting[resident_id], now_us=now_us) is None
            for group in self._groups_at(kept.units)
            for resident in group.on(kept.units)
            if not lived_with(self.waiting[resident_id], resident, group)
        ]

    def _kept_spot(self, demand: Demand, *, now_us: int) -> Spot | None:
        """Return the place that is kept for a job, if it can have it by now."""
        kept = self.reservations.get(demand.resident_id)
        if kept is None:
            return None
        groups = self._groups_at(kept.units)
        is_whole = [set(group.units) for group in groups] == [set(kept.units)]
        spot = Spot(units=kept.units, groups=groups)
        if groups and not (is_whole or self.policy.merges):
            return None
        return spot if not groups or self._within_bounds(demand, [spot], now_us=now_us) else None

    def _pressed_spot(self, demand: Demand, barred: Barred, *, now_us: int) -> Spot | None:
        """Return a place beside jobs of no higher priority, near everybody's own bound.

        Others are placed within targets that are well below it (`Policy.target_slowdown_ppm`). Who
        is late there has others of no higher priority paused (`repack.relieve`).
        """
        if demand.resident_id not in self.pressed:
            return None
        board, policy = self.board, self.policy.within_bounds()
        pool = whole_groups(board, demand)
        if policy.takes_parts:
            pool += larger_groups(board, demand)
        spots = joining(board, demand, pool, barred=barred)
        if policy.merges:
            spots += merging(board, demand, barred=barred)
        spots = [s for s in spots if all(r.demand.priority <= demand.priority for r in s.met())]
        found = self._within_bounds(demand, spots, policy=policy, now_us=now_us)
        return best(board, demand, found, policy=policy)

    def _keep_on(self, now_us: int) -> None:
        """Let go of units that cannot be kept any more, or need not be."""
        for resident_id, reservation in list(self.reservations.items()):
            if not stands(self.board, reservation):
                self._end_reservation(resident_id)
        if any(until_us <= now_us for until_us, _ in self.left.values()):
            self.left = {u: kept for u, kept in self.left.items() if kept[0] > now_us}
            self._has_reopened = True

    def _reserve(self, demand: Demand, *, now_us: int) -> None:
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
            self._end_reservation(other)
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

    def _reserve_first(self, blocked: Iterable[Demand], *, now_us: int) -> None:
        """Keep units for the first of several blocked jobs that has a right to them."""
        for demand in blocked:
            self._reserve(demand, now_us=now_us)
            if demand.resident_id in self.reservations:
                return

    def _choose_anew(self, demand: Demand, *, now_us: int) -> None:
        """Choose again what is kept for a job: with the units that came, less may be missing."""
        if demand.resident_id in self.reservations:
            self._end_reservation(demand.resident_id)
            self._reserve(demand, now_us=now_us)

    def _end_reservation(self, resident_id: ResidentId) -> None:
        """Keep nothing for a job any more; all that wait look at the units again."""
        del self.reservations[resident_id]
        self.pressed.pop(resident_id, None)
        self._has_reopened = True
