"""Packing: which deployments should live elsewhere, looked at after every event.

Deployments that wait are placed if something changed for them. Deployments leave draining nodes. A
job whose measured cycle passed its bound is relieved. Devices whose reservation is due are emptied
for whom they are kept. Groups are emptied for those who wait where that pays. Relief and repacking
are planned beside the core (`planning/plans.py`). `MOVERS` is the list of all causes for which a
deployment moves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from plexsvc.ids import DeploymentId, ResidentId
from plexsvc.scheduler.core.actions import ComputePlan
from plexsvc.scheduler.core.cluster import Devices, Lives
from plexsvc.scheduler.core.events import PlanComputed, RepackRequested
from plexsvc.scheduler.core.life import deployments
from plexsvc.scheduler.core.place import placing, sharing
from plexsvc.scheduler.core.planning.planner import NEVER_US, Planner
from plexsvc.scheduler.core.planning.planners import Planning
from plexsvc.scheduler.core.planning.plans import NEW_GROUP, Goal, Question
from plexsvc.scheduler.core.relocate import departures

RELIEF_EVERY_US: Final = 10_000_000
"""Shortest time between two looks at groups in which a job is late."""

APART_EVERY_US: Final = 60_000_000
"""Shortest time between two looks at engines that share where a bound is forecast to break."""

MAX_ATTEMPTS: Final = 3
"""Times that a plan is computed anew because its base did not stand; then it waits for its turn."""

_REASONS: Final = MappingProxyType(
    {
        Goal.RELIEF: "its group is over its bounds",
        Goal.REPACK: "its group is emptied into others",
        Goal.EMPTY: "its group is emptied into others",
    }
)


def settle(lives: Lives) -> None:
    """Do what follows from the event in hand."""
    planning, now_us = lives.devices.placement.planning, lives.now_us
    if planning.moved:
        departures.book_as_it_is(lives.devices)
    if lives.devices.placement.unplaced and planning.has_news:
        deployments.place_waiting(lives)
    looked_us = planning.looked_us
    for mover in MOVERS:
        every_us = mover.every_us(planning)
        if every_us is not None and now_us - looked_us.get(mover.cause, NEVER_US) >= every_us:
            looked_us[mover.cause] = now_us
            mover.look(lives)


def repack_all(lives: Lives, _: RepackRequested) -> None:
    """Empty as many groups as the bounds allow: an operator asked."""
    for kind in lives.devices.placement.planning.planners:
        _order(lives, kind, Goal.EMPTY)


def question(devices: Devices, goal: Goal, *, planner: Planner) -> Question:
    """Return what a plan is made from, with a copy of the planner as it is now."""
    return Question(
        planner=planner,
        goal=goal,
        busy=frozenset(_busy(devices, planner)),
        link_bytes_s=devices.limits.link_bytes_s,
        now_us=devices.now_us,
    )


def carry_out(lives: Lives, event: PlanComputed) -> None:
    """Do as a plan says if its base still stands; else have another made, a few times."""
    placement, kind = lives.devices.placement, event.device_kind
    attempt = placement.plans.pop((kind, event.goal), None)
    if attempt is None:
        return
    planner = placement.planning.planners[kind]
    if not _stands(lives.devices, planner, event):
        if attempt < MAX_ATTEMPTS:
            _order(lives, kind, event.goal, attempt=attempt + 1)
        return
    for move in event.plan.moves:
        deployment = lives.deployments[DeploymentId(move.resident_id)]
        departures.send_to(lives, deployment, move.units, reason=_REASONS[event.goal])


def _drain(lives: Lives) -> None:
    """Move what lives on draining nodes to wherever there is a place within bounds."""
    placement, at = lives.devices.placement, lives.devices.at
    if not placement.cordoned:
        return
    nodes = [n for n, leaves in placement.cordoned.items() if leaves and n in placement.nodes]
    there = {w: n for n in nodes for p in placement.nodes[n].devices for w in at[p].ranks}
    for wpg_id, node_id in there.items():
        wpg = lives.wpgs[wpg_id]
        deployment = lives.deployments[wpg.deployment_id]
        if deployment.where_it_trains:
            continue  # it follows its job's training
        if lives.is_current(wpg) and departures.may_leave(lives.devices, deployment):
            reason = f"node {node_id} is drained"
            if deployment.is_rollout:
                departures.send_instances(lives, deployment, reason=reason)
            elif not departures.send(lives, deployment, reason=reason):
                departures.try_later(lives.devices, deployment)


def _keep_apart(lives: Lives) -> None:
    """Send instances from devices where rounds break a bound to idle ones, one look at a time."""
    placement = lives.devices.placement
    for one in sharing.crowded(placement):
        is_pinned = lives.jobs[one.job_id].is_pinned
        may_leave = not is_pinned and departures.may_leave(lives.devices, one)
        if may_leave and placing.idle_for(placement, one) is not None:
            departures.send_instances(lives, one, reason=_REASONS[Goal.RELIEF])
            return


def _relieve(lives: Lives) -> None:
    """Have moves planned out of groups that are over their bounds."""
    for kind, planner in lives.devices.placement.planning.planners.items():
        if planner.needs_relief:
            _order(lives, kind, Goal.RELIEF)


def _make_room(lives: Lives) -> None:
    """Send away who lives where a reservation is due, one after another until its job fits in."""
    for planner in lives.devices.placement.planning.planners.values():
        busy = None
        for resident_id in planner.in_the_way(now_us=lives.now_us):
            busy = _busy(lives.devices, planner) if busy is None else busy
            if resident_id in busy or resident_id not in planner.in_the_way(now_us=lives.now_us):
                continue
            deployment = lives.deployments[DeploymentId(resident_id)]
            departures.send(lives, deployment, reason="its devices are reserved for another job")
        planner.press(now_us=lives.now_us)


def _repack(lives: Lives) -> None:
    """Have moves planned that empty groups for those who wait."""
    for kind, planner in lives.devices.placement.planning.planners.items():
        if planner.waiting:
            _order(lives, kind, Goal.REPACK)


def _order(lives: Lives, kind: str, goal: Goal, *, attempt: int = 1) -> None:
    """Have a plan computed, unless one of its kind is."""
    placement = lives.devices.placement
    if (kind, goal) not in placement.plans:
        base = placement.planning.planners[kind].board.version
        placement.plans[kind, goal] = attempt
        lives.emit(ComputePlan(device_kind=kind, goal=goal, base=base, attempt=attempt))


def _stands(devices: Devices, planner: Planner, event: PlanComputed) -> bool:
    """Return whether nothing that a plan concerns has changed since its base."""
    board, plan = planner.board, event.plan
    if any(move.resident_id not in board.group_of for move in plan.moves):
        return False
    if any(_is_busy(devices, move.resident_id) for move in plan.moves):
        return False
    kept = {unit_id for made in planner.kept.reservations.values() for unit_id in made.units}
    groups = {board.group_of[move.resident_id] for move in plan.moves}
    groups.update(move.to_group for move in plan.moves if move.to_group != NEW_GROUP)
    new = [unit for move in plan.moves if move.to_group == NEW_GROUP for unit in move.units]
    if any(unit_id not in board.idle for unit_id in new):
        return False
    return not any(unit_id in kept for move in plan.moves for unit_id in move.units) and all(
        group_id in board.groups and board.groups[group_id].version <= event.base
        for group_id in groups
    )


def _busy(devices: Devices, planner: Planner) -> set[ResidentId]:
    """Return the residents that stay where they are for now."""
    return {key for key in planner.board.group_of if _is_busy(devices, key)}


def _is_busy(devices: Devices, key: ResidentId) -> bool:
    deployment = devices.deployments[DeploymentId(key)]
    return (
        not departures.may_leave(devices, deployment) or devices.jobs[deployment.job_id].is_pinned
    )


def _keeping_apart(planning: Planning) -> int | None:
    return APART_EVERY_US if planning.policy.is_bounded else None


def _repacking(planning: Planning) -> int | None:
    waits = any(planner.waiting for planner in planning.planners.values())
    return planning.policy.repack_every_us or None if waits else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Mover:
    """A cause for which deployments move; whoever is on the way, or was asked lately, stays.

    Whom it moves, where to, and what it yields to is told in `docs/scheduling.md`, Movers.
    """

    cause: str
    look: Callable[[Lives], None]
    every_us: Callable[[Planning], int | None]
    """The shortest time between two looks; 0: after every event, None: not now."""


MOVERS: Final = (
    Mover(cause="drain", look=_drain, every_us=lambda _: 0),
    Mover(cause="following", look=departures.follow, every_us=lambda _: 0),
    Mover(cause="keeping apart", look=_keep_apart, every_us=_keeping_apart),
    Mover(cause="relief", look=_relieve, every_us=lambda _: RELIEF_EVERY_US),
    Mover(cause="making room", look=_make_room, every_us=lambda _: RELIEF_EVERY_US),
    Mover(cause="repacking", look=_repack, every_us=_repacking),
)
"""All causes but an operator's order (`departures`), in the order in which they are looked at."""
