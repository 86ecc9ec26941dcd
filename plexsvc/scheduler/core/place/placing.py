"""Placement of deployments: the planner's board of live places, kept in step with processes.

Theory of operation. A *unit* of planning is one device; devices of a kind have a planner of their
own (`core/planning`). A training deployment is a resident of the board from the moment it is placed
until no process and no state of it is left; a rollout deployment holds its devices for itself. A
job's cycle is known from an earlier run of the same tenant, model, layout and name (*warm*), or
guessed until it was measured (*cold*). What waits is looked at again whenever something changed for
it.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Self

from plexsvc.ids import DeploymentId, ResidentId, TenantId, UnitId
from plexsvc.scheduler.core.cluster import Placement
from plexsvc.scheduler.core.events import ProfilesLoaded
from plexsvc.scheduler.core.place import demands, hosts, sharing
from plexsvc.scheduler.core.place.demands import (
    demand,
    is_placed,
    planner_of,
    profile_key,
    rollouts_waiting,
)
from plexsvc.scheduler.core.planning.profile import Demand
from plexsvc.scheduler.core.planning.rooms import Gang
from plexsvc.scheduler.core.planning.waiting import RETURN_US, Aged, may_reserve
from plexsvc.scheduler.core.state import DeploymentEntry, Wpg
from plexsvc.scheduler.core.timers import Timer
from plexsvc.scheduler.core.vocabulary import Place

Placed = tuple[DeploymentEntry, tuple[Place, ...]]
"""A deployment and its devices in rank order."""


def recall(placement: Placement, event: ProfilesLoaded) -> None:
    """Know the cycles that earlier runs were measured to have."""
    for kept in event.profiles:
        placement.book.keep(kept)


def lose(placement: Placement, wpg: Wpg) -> None:
    """Let a training deployment that lost a node come back before others, to what it leaves."""
    deployment = placement.deployments[wpg.deployment_id]
    if is_placed(placement, deployment) and placement.is_current(wpg):
        planner, key = planner_of(placement, deployment)
        group_id = planner.lose(key, now_us=placement.now_us)
        placement.lost[profile_key(placement, deployment)] = group_id
        # Somebody who waits wakes the core when those units are anybody's again.
        for waiting in itertools.islice(planner.waiting or placement.unplaced, 1):
            placement.set_timer(Timer.DRAIN, waiting, at_us=placement.now_us + RETURN_US)


def least_used(
    placement: Placement, deployment: DeploymentEntry, *, among: Collection[UnitId]
) -> tuple[UnitId, ...] | None:
    """Return the block of `among` on whose devices the fewest live; None if there is no block."""

    def used(name: UnitId) -> int:
        return len(placement.devices[Place.of(name)].ranks)

    board = placement.planner(deployment.device_kind).board
    there = board.not_held(name for name in among if name in board.rooms)
    blocks = board.rooms.gangs(deployment.num_devices, among=there, burden=used)
    return min(blocks, key=lambda block: max(map(used, block)), default=None)


def resize(
    placement: Placement, deployment: DeploymentEntry, device_bytes: tuple[int, ...]
) -> None:
    """Book what a deployment's state takes, now that it is known."""
    planner, key = planner_of(placement, deployment)
    if key in planner.board.group_of:
        planner.resize(key, max(device_bytes, default=0))


def request(placement: Placement, deployment: DeploymentEntry) -> None:
    """Have a deployment wait for devices."""
    placement.has_changed = True
    placement.unplaced.append(deployment.deployment_id)
    if deployment.is_rollout:
        placement.shares.enter(_tenant(placement, deployment), deployment.device_kind)
        _look_at_left(placement, deployment)
    elif demands.is_queued(placement, deployment):
        _enqueue(placement, deployment)


def bound_wait(placement: Placement, deployment: DeploymentEntry) -> None:
    """Have a deployment that waits fail after `placement_timeout_us`, if that is set."""
    timeout_us = placement.limits.placement_timeout_us
    if timeout_us:
        at_us = placement.now_us + timeout_us
        placement.set_timer(Timer.PLACE, deployment.deployment_id, at_us=at_us)


def follow(placement: Placement, placed: DeploymentEntry) -> bool:
    """Have the rest of a set queue when its lead was placed; return whether there is any."""
    if demands.lead_of(placement, placed) is not placed:
        return False
    others = demands.waiting_with(placement, placed)
    for one in others:
        if not one.is_rollout:
            _enqueue(placement, one)
    return bool(others)


def _enqueue(placement: Placement, deployment: DeploymentEntry) -> None:
    planner = placement.planner(deployment.device_kind)
    planner.submit(demand(placement, deployment))
    placement.look_us = 0  # it may wait: somebody may have to make room
    _look_at_left(placement, deployment)


def _look_at_left(placement: Placement, deployment: DeploymentEntry) -> None:
    """Have the core look again when units that were left are kept for nobody any more."""
    left = placement.planner(deployment.device_kind).kept.left
    for until_us in {until_us for until_us, _ in left.values()}:
        placement.set_timer(Timer.DRAIN, deployment.deployment_id, at_us=until_us)


def renew(placement: Placement) -> None:
    """Have those that wait ask anew: their records are more, or less, wrong than it seemed."""
    for planner in placement.planners.values():
        for name in planner.waiting:
            planner.renew(demand(placement, placement.deployments[DeploymentId(name)]))


def withdraw(placement: Placement, deployment: DeploymentEntry) -> None:
    """Take a deployment out of those that wait."""
    _no_longer_waits(placement, deployment)
    planner = placement.planner(deployment.device_kind)
    if deployment.resident_id in planner.waiting:
        planner.withdraw(deployment.resident_id)


def admit(placement: Placement) -> list[Placed]:
    """Place what can be placed now; returns each with its devices in rank order."""
    placement.has_changed = False
    done: list[Placed] = []
    claims = _Claims(placement)
    for planner in placement.planners.values():
        if planner.has_news:
            kept = set(planner.kept.reservations.values())
            for placed in planner.admit(placement.now_us, claim=claims.take):
                deployment = placement.deployments[DeploymentId(placed.resident_id)]
                placement.lost.pop(profile_key(placement, deployment), None)
                done.append((deployment, tuple(map(Place.of, placed.units))))
            # Whoever is in the way of a new one is moved when it is due: the core wakes for that.
            for made in planner.kept.reservations.values():
                if made in kept:
                    continue
                at_us = max(placement.now_us + 1, made.due_us)
                placement.set_timer(Timer.DRAIN, made.resident_id, at_us=at_us)
    queued = {deployment.deployment_id for deployment, _ in done}
    for one in [placement.deployments[d] for d in placement.unplaced if d not in queued]:
        if not one.is_rollout and len(placement.jobs[one.job_id].deployments) > 1:
            places = _beside_own(placement, one, claims)
            done.extend([] if places is None else [(one, places)])
    for deployment, _ in done:
        _no_longer_waits(placement, deployment)
    done.extend(claims.placed)
    done.extend(_instances(placement, kept=claims.kept))
    trains = {deployment.job_id for deployment, _ in done if not deployment.is_rollout}
    waiting = (placement.deployments[d] for d in placement.unplaced)
    if any(one.where_it_trains and one.job_id in trains for one in waiting):
        placement.has_changed = True  # looked at again once that training has its WPG
    return done


class _Claims:
    """Devices for the instances of sets whose lead is placed in one pass."""

    def __init__(self, placement: Placement) -> None:
        self._placement = placement
        self.placed: list[Placed] = []
        self.kept: dict[str, _IdleKept] = {}
        """For which set that has a right to them the idle devices of a kind are kept."""

        for name in placement.short:
            lead = placement.deployments.get(name)
            if lead is not None and name in placement.unplaced:
                planner, key = planner_of(placement, lead)
                planner.ask_again(key)
        placement.short.clear()

    def take(self, lead: Demand, units: Gang) -> bool:
        """Give the instances of a lead's set their devices; False, with nothing given, if short.

        `units` are those that the lead itself is about to get.
        """
        placement = self._placement
        deployment = placement.deployments[DeploymentId(lead.resident_id)]
        # It comes alone, or its lead has taken what its set needs.
        if demands.lead_of(placement, deployment) is not deployment:
            return True
        needed: dict[str, list[DeploymentEntry]] = {}
        for one in demands.waiting_with(placement, deployment):
            if one.is_rollout and not one.where_it_trains:
                needed.setdefault(one.device_kind, []).append(one)
        found = {
            kind: _for_instances(placement, those, beside={deployment.deployment_id: units})
            for kind, those in needed.items()
        }
        passes = all(
            self.kept[k].passed_by(lead, holds=lead.has_devices) for k in needed if k in self.kept
        )
        if not passes or None in found.values():
            placement.short[deployment.deployment_id] = None
            policy = placement.policy
            if may_reserve(lead, policy=policy, now_us=placement.now_us):
                for kind, those in needed.items():
                    if kind not in self.kept:
                        self.kept[kind] = _IdleKept.of(placement, lead, those)
            return False
        placement.short.pop(deployment.deployment_id, None)
        self.kept = {kind: one for kind, one in self.kept.items() if one.wanted is not lead}
        for kind, held in found.items():
            self.placed.extend(_hold_all(placement, needed[kind], held or ()))
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class _IdleKept:
    """Idle devices of a kind are kept for instances of a job, which are too many for now."""

    wanted: Demand
    is_certain: bool
    """Whether they find devices once those who wait for nothing have ended."""

    @classmethod
    def of(cls, placement: Placement, wanted: Demand, together: Sequence[DeploymentEntry]) -> Self:
        """Keep devices for a job's instances of one kind."""
        kind, count = together[0].device_kind, sum(one.num_devices for one in together)
        waiting = {placement.deployments[d].job_id for d in placement.unplaced}
        come_free = [
            place
            for place, device in placement.devices.items()
            if device.kind == kind
            and place.node_id in placement.nodes
            and place.node_id not in placement.cordoned
            and not any(placement.wpgs[w].job_id in waiting for w in device.ranks)
        ]
        return cls(wanted=wanted, is_certain=len(come_free) >= count)

    def passed_by(self, demand: Demand, *, holds: bool) -> bool:
        """Return whether another job gets devices first.

        One that `holds` devices does, since those may be waited for: but not if it asked later, and
        devices come free without it. So nobody waits for a stream of such jobs, and no circle
        closes.
        """
        is_later = demand.arrived_us > self.wanted.arrived_us
        is_behind = is_later and demand.priority <= self.wanted.priority
        return holds and not (is_behind and self.is_certain)


def _hold_all(
    placement: Placement, together: Collection[DeploymentEntry], units: Gang
) -> list[Placed]:
    """Give devices to deployments one after another."""
    done: list[Placed] = []
    for one in together:
        own, units = units[: one.num_devices], units[one.num_devices :]
        hold(placement, one, own)
        _no_longer_waits(placement, one)
        done.append((one, tuple(map(Place.of, own))))
    return done


def _instances(placement: Placement, *, kept: Mapping[str, _IdleKept]) -> list[Placed]:
    """Place rollout deployments: of each job and kind all that wait, or none.

    They get idle devices, or in time share those of others that share, too.

    A job's training comes first, so that nobody holds instances while it waits for that. Devices
    that come free are kept for a job that has a right to them (`may_reserve`). A job that holds
    devices of the kind may pass it, since it may be waiting for those, and a set, whose devices are
    in `kept`, any job that holds something (`_IdleKept.passed_by`).
    """
    done: list[Placed] = []
    for_sets, kept = kept, dict[str, _IdleKept]()
    for together in _in_turn(placement):
        job_id, kind = together[0].job_id, together[0].device_kind
        wanted = demand(placement, together[0])
        if kind in kept:
            mine = [placement.deployments[d] for d in placement.jobs[job_id].deployments]
            holds = any(one.is_rollout and one.device_kind == kind and one.wpg_id for one in mine)
            if not kept[kind].passed_by(wanted, holds=holds):
                continue
        if kind in for_sets and not for_sets[kind].passed_by(wanted, holds=wanted.has_devices):
            continue
        own = [one for one in together if one.where_it_trains]
        if own:
            for one in own:  # the board knows nothing of them: they go where training is booked
                there = trained_on(placement, one)
                if len(there) >= one.num_devices:
                    _no_longer_waits(placement, one)
                    done.append((one, tuple(there[: one.num_devices])))
            continue
        held = _for_instances(placement, together)
        if held is None:
            may_keep = may_reserve(wanted, policy=placement.policy, now_us=placement.now_us)
            if may_keep and kind not in kept:
                kept[kind] = _IdleKept.of(placement, wanted, together)
            continue
        done.extend(_hold_all(placement, together, held))
    return done


def trained_on(placement: Placement, deployment: DeploymentEntry) -> list[Place]:
    """Return the devices that a rollout's job trains on, of its kind and on nodes that are open."""
    mine = [placement.deployments[d] for d in placement.jobs[deployment.job_id].deployments]
    wpgs = [placement.wpg_of(other) for other in mine if not other.is_rollout]
    places = [place for wpg in wpgs if wpg is not None for place in wpg.places]
    return [
        place
        for place in dict.fromkeys(places)
        if placement.devices[place].kind == deployment.device_kind
        and place.node_id not in placement.cordoned
    ]


def _for_instances(
    placement: Placement,
    together: list[DeploymentEntry],
    *,
    beside: Mapping[DeploymentId, Gang] = MappingProxyType({}),
) -> Gang | None:
    """Return devices for all instances of deployments of a kind: idle ones, or those that sleep.

    `beside` is what training of their set is about to get: not for them, but a part of their job's
    turns.
    """
    kind, count = together[0].device_kind, sum(one.num_devices for one in together)
    board = placement.planner(kind).board
    barred = _barred(placement, kind).union(*beside.values())
    held = board.first_idle(count, barred=barred)
    if not all(one.is_shared for one in together):
        return held
    idle = [u for u in board.rooms.in_order(board.idle) if u not in barred]
    return sharing.place(placement, together, held=held, idle=idle, beside=beside)


def idle_for(
    placement: Placement, deployment: DeploymentEntry, *, among: Gang | None = None
) -> Gang | None:
    """Return idle devices for all instances of a rollout deployment; None if there are too few."""
    kind, board = deployment.device_kind, placement.planner(deployment.device_kind).board
    barred = _barred(placement, kind)
    if among is None:
        return board.first_idle(deployment.num_devices, barred=barred)
    return among if all(u in board.idle and u not in barred for u in among) else None


def _barred(placement: Placement, kind: str) -> set[UnitId]:
    """Return the devices of a kind that no instances get, though they are idle."""
    return _left_behind(placement) | placement.planner(kind).kept.units()


def _left_behind(placement: Placement) -> set[UnitId]:
    """Return the devices of deployments that are booked elsewhere, but have not arrived there.

    They are idle on the board. Instances, which keep their devices, must not take them: if the
    relocation fails, the deployment stays there.
    """
    moved = (placement.deployments.get(name) for name in placement.moved)
    wpgs = (placement.wpg_of(deployment) for deployment in moved if deployment is not None)
    return {place.unit for wpg in wpgs if wpg is not None for place in wpg.places}


def hold(placement: Placement, deployment: DeploymentEntry, units: Gang) -> None:
    """Give idle devices to the instances that a rollout deployment starts next."""
    board = placement.planner(deployment.device_kind).board
    holder = _holder(deployment, incarnation=deployment.incarnations)
    board.hold(holder, units, tenant=_tenant(placement, deployment))


def rehome(placement: Placement, wpg: Wpg, rank: int) -> Place | None:
    """Give an instance an idle device of its kind for the one that it had; None if none is idle."""
    deployment = placement.deployments[wpg.deployment_id]
    board = placement.planner(deployment.device_kind).board
    key = _holder(deployment, incarnation=wpg.incarnation)
    if key not in board.exclusive:  # it is where its job trains
        return None
    found = board.first_idle(1, barred=_left_behind(placement))
    if found is None:
        return None
    board.exchange(key, gone=wpg.places[rank].unit, unit=found[0])
    return Place.of(found[0])


def free(placement: Placement, wpg: Wpg) -> None:
    """Give back what a WPG had on the board."""
    placement.has_changed = True
    deployment = placement.deployments[wpg.deployment_id]
    planner, key = planner_of(placement, deployment)
    hosts.leave(placement, wpg)
    if wpg.is_rollout:
        planner.taken.pop(key, None)
        planner.board.release(_holder(deployment, incarnation=wpg.incarnation))
        return
    if placement.is_current(wpg) and key in planner.board.group_of:
        planner.remove(key)
    hosts.spread(placement, deployment)


def _no_longer_waits(placement: Placement, deployment: DeploymentEntry) -> None:
    placement.unplaced.remove(deployment.deployment_id)
    if deployment.is_rollout:
        placement.shares.leave(_tenant(placement, deployment), deployment.device_kind)


def _in_turn(placement: Placement) -> Iterator[list[DeploymentEntry]]:
    """Yield the rollout deployments of each job and kind together.

    Of a kind they come by priority, then with tenants in turn under `plex`.
    """
    by_kind: dict[str, list[list[DeploymentEntry]]] = {}
    for (_, kind), together in rollouts_waiting(placement).items():
        by_kind.setdefault(kind, []).append(together)

    for kind, rollouts in by_kind.items():
        asked = [demand(placement, together[0]) for together in rollouts]
        aged = Aged(asked, policy=placement.policy, now_us=placement.now_us)
        turns = [(one.tenant, aged.rank(one)) for one in asked]
        wanted = sorted(zip(turns, rollouts, strict=True), key=lambda waiting: waiting[0][1])
        in_turn = placement.shares.in_turn(wanted, kind=kind, turn=lambda waiting: waiting[0])
        for _, together in in_turn if placement.policy.is_plex else wanted:
            yield together


def _tenant(placement: Placement, deployment: DeploymentEntry) -> TenantId:
    return placement.jobs[deployment.job_id].tenant


def _beside_own(
    placement: Placement, deployment: DeploymentEntry, claims: _Claims
) -> tuple[Place, ...] | None:
    """Place training beside its own job's: their operations take turns anyway.

    A job that holds some of its deployments must not wait for others that wait likewise.
    """
    planner = placement.planner(deployment.device_kind)
    job = placement.jobs[deployment.job_id]
    others = [placement.deployments[d] for d in job.deployments if d != deployment.deployment_id]
    if all(other.is_rollout for other in others):
        return None
    current = [placement.wpg_of(other) for other in others]
    for other in [*current, *placement.coming(job.job_id)]:
        if other is None or other.is_rollout or len(other.places) < deployment.num_devices:
            continue
        # The first of an aligned block are one, too.
        places = other.places[: deployment.num_devices]
        if any(place.node_id in placement.cordoned for place in places):
            continue
        wanted = planner.waiting.get(deployment.resident_id)
        units = tuple(place.unit for place in places)
        if wanted is None or not claims.take(wanted, units):
            return None
        planner.place_at(demand(placement, deployment), units, now_us=placement.now_us)
        return places
    return None


def _holder(deployment: DeploymentEntry, *, incarnation: int) -> ResidentId:
    """Return the name on the board of one set of a rollout deployment's instances."""
    return ResidentId(f"{deployment.deployment_id}~{incarnation}")
