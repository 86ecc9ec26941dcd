"""The search for a place: which groups and idle units take a job within everyone's bounds."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from plexsvc.ids import ResidentId, UnitId
from plexsvc.scheduler.core.planning.board import Board
from plexsvc.scheduler.core.planning.bounds import (
    NOBODY,
    Spot,
    is_full,
    predicted,
    refusal,
)
from plexsvc.scheduler.core.planning.forecast import Load
from plexsvc.scheduler.core.planning.groups import Group
from plexsvc.scheduler.core.planning.paces import Endings, Paces
from plexsvc.scheduler.core.planning.policies import Policy, Preference
from plexsvc.scheduler.core.planning.profile import PPM, Demand
from plexsvc.scheduler.core.planning.rooms import Gang
from plexsvc.scheduler.core.planning.spots import (
    Barred,
    best,
    has_whole,
    joining,
    larger_groups,
    merging,
)


class Search:
    """A board, a policy, the measured paces of who is placed, and who waits."""

    def __init__(self, board: Board, *, policy: Policy) -> None:
        """Search `board` by `policy`."""
        self.board = board
        self.policy = policy
        self.paces = Paces(board)
        self.waiting: dict[ResidentId, Demand] = {}
        self._loads: dict[ResidentId, Load] = {}

    def spot_for(
        self,
        demand: Demand,
        groups: Iterable[Group],
        *,
        barred: Barred = (),
        without: ResidentId = NOBODY,
        must_leave: bool = False,
        now_us: int,
    ) -> Spot | None:
        """Return the place the policy gives a job now, in `groups` of its size or elsewhere.

        It takes a part of a larger group, or has several made one, only where there is no group of
        its size and no idle gang, or where it `must_leave`. When two jobs overlap only in part, one
        that waits outside the overlap makes the other wait for it inside. Changes nothing.
        """
        policy, board = self.policy, self.board
        gang = self._gang(demand, barred)
        if gang and (demand.is_cold or policy.preference is Preference.SPREAD):
            return Spot(units=gang)
        if demand.is_cold and not policy.cold_shares:
            return None
        find = partial(self._that_take, demand, barred=barred, without=without, now_us=now_us)
        spots = find(groups)
        if not spots and gang:
            return Spot(units=gang)
        may_part = must_leave or not has_whole(board, demand, barred=barred)
        if not spots and policy.takes_parts and may_part:
            spots = find(larger_groups(board, demand))
            if not spots and policy.merges:
                there = merging(board, demand, barred=barred)
                spots = self._within_bounds(demand, there, without=without, now_us=now_us)
        return best(board, demand, spots, policy=policy)

    def _that_take(
        self,
        demand: Demand,
        groups: Iterable[Group],
        *,
        barred: Barred = (),
        without: ResidentId = NOBODY,
        now_us: int,
    ) -> list[Spot]:
        load = self._load_of(demand)
        open_ones = [g for g in groups if not is_full(g, demand, load, policy=self.policy)]
        if not open_ones:
            return []
        there = joining(self.board, demand, open_ones, barred=barred)
        return self._within_bounds(demand, there, without=without, now_us=now_us)

    def _within_bounds(
        self,
        demand: Demand,
        spots: Iterable[Spot],
        *,
        without: ResidentId = NOBODY,
        policy: Policy | None = None,
        now_us: int,
    ) -> list[Spot]:
        ask = partial(
            refusal,
            demand=demand,
            load=self._load_of(demand),
            policy=policy or self.policy,
            memory=self.board.memory,
            endings=Endings(self.paces, demand, now_us=now_us),
        )
        return [spot for spot in spots if ask(spot, without=without) is None]

    def being_left(self, demand: Demand) -> set[UnitId]:
        """Return the units where a job would pass the duty cap while others move out of them."""
        cap_ppm = PPM if demand.lost_place else self.policy.duty_cap_ppm
        return self.board.being_left(demand, cap_ppm=cap_ppm)

    def _load_of(self, demand: Demand) -> Load:
        """Return the load of a job's cycle, worked out once while it waits."""
        if self.waiting.get(demand.resident_id) is not demand:
            return Load.of(demand)
        load = self._loads.get(demand.resident_id)
        if load is None:
            load = self._loads[demand.resident_id] = Load.of(demand)
        return load

    def _gang(self, demand: Demand, barred: Barred) -> Gang | None:
        if len(self.board.idle) < demand.num_units:
            return None
        return self.idle_gang(demand, barred)

    def idle_gang(self, demand: Demand, barred: Barred) -> Gang | None:
        """Return idle units whose hosts have room for a job's state; None without such."""
        board, nbytes = self.board, demand.host_bytes
        gang = board.idle_gang(demand.num_units, barred=barred)
        while gang is not None and (full := board.memory.without_room(gang, nbytes)):
            barred = {*barred, *full}
            gang = board.idle_gang(demand.num_units, barred=barred)
        return gang

    def _groups_at(self, units: Iterable[UnitId]) -> list[Group]:
        met = sorted({self.board.group_at[n] for n in units if n in self.board.group_at})
        return [self.board.groups[group_id] for group_id in met]

    def group_of(self, resident_id: ResidentId) -> Group:
        """Return the group a placed job lives in."""
        return self.board.groups[self.board.group_of[resident_id]]

    def predicted(self, group: Group) -> dict[ResidentId, int]:
        """Return the predicted slowdown of each job of a group, in ppm."""
        return predicted(list(group.residents.values()))
