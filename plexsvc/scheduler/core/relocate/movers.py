"""Movers: all causes for which a deployment moves to other devices, looked at after every event.

`MOVERS` lists them. Deployments leave draining nodes. Groups in which a cycle passed its bound are
relieved. Devices whose reservation is due are emptied for whom they are kept. Groups are emptied
for those who wait where that pays (`planning/plans.py`). An operator's order comes as an event.

A departure is booked on the board first, then the relocation begins. If the relocation cannot begin
or fails, the deployment is booked back where it is (`_book_as_it_is`), and is not asked again for a
while.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from plexsvc.errors import ErrorCode
from plexsvc.ids import DeploymentId, NodeId, ResidentId, UnitId
from plexsvc.scheduler.core.cluster import Devices, Lives
from plexsvc.scheduler.core.events import (
    JobMoveRequested,
    RelocationRequested,
    RepackRequested,
)
from plexsvc.scheduler.core.life import deployments
from plexsvc.scheduler.core.place import demands, hosts, placing, reasons, sharing
from plexsvc.scheduler.core.planning import plans
from plexsvc.scheduler.core.planning.places import Spot
from plexsvc.scheduler.core.planning.planner import NEVER_US, Planner
from plexsvc.scheduler.core.planning.rooms import Gang
from plexsvc.scheduler.core.relocate import relocation
from plexsvc.scheduler.core.state import DeploymentEntry
from plexsvc.scheduler.core.timers import Timer
from plexsvc.scheduler.core.vocabulary import DeploymentState, Fault, Place

FOLLOWS: Final = "it generates where its job trains, and follows that: move the training"

DRAIN_RETRY_US: Final = 2_000_000
"""Pause before a deployment that found no place off a draining node is tried again."""

RELIEF_EVERY_US: Final = 10_000_000
"""Shortest time between two looks at groups in which a job is late."""

REPACK_EVERY_US: Final = 60_000_000
"""Shortest time between two repackings."""

APART_EVERY_US: Final = 60_000_000
"""Shortest time between two looks at engines that share where a bound is predicted to break."""

OVER_BOUNDS: Final = "its group is over its bounds"


def settle(lives: Lives) -> None:
    """Do what follows from the event in hand."""
    placement, now_us = lives.placement, lives.now_us
    if placement.moved:
        _book_as_it_is(lives)
    if placement.unplaced and placement.has_news:
        deployments.place_waiting(lives)
    if now_us >= placement.look_us or placement.cordoned or lives.roll.following:
        _look(lives, placement.looked_us)


def _look(lives: Lives, looked_us: dict[str, int]) -> None:
    """Have each mover that is due look, and note when the next one is."""
    now_us, next_us = lives.now_us, []
    for mover in MOVERS:
        due_us = looked_us.get(mover.cause, NEVER_US) + mover.every_us
        if due_us <= now_us and mover.is_wanted(lives):
            due_us, looked_us[mover.cause] = now_us + mover.every_us, now_us
            mover.look(lives)
        # One that is due and not wanted is asked again when another is due.
        if mover.every_us and due_us > now_us:
            next_us.append(due_us)
    lives.placement.look_us = min(next_us)


def repack_all(lives: Lives, _: RepackRequested) -> None:
    """Empty as many groups as the bounds allow: an operator asked."""
    for planner in lives.placement.planners.values():
        _empty_groups(lives, planner, wanted=len(planner.board.rooms))


def _drain(lives: Lives) -> None:
    """Move what lives on draining nodes to wherever there is a place within bounds."""
    placement, at = lives.placement, lives.at
    nodes = [n for n, leaves in placement.cordoned.items() if leaves and n in placement.nodes]
    draining = {place.unit for n in nodes for place in placement.nodes[n]}
    there = {w: n for n in nodes for p in placement.nodes[n] for w in at[p].ranks}
    for wpg_id, node_id in there.items():
        wpg = lives.wpgs[wpg_id]
        deployment = lives.deployments[wpg.deployment_id]
        if deployment.where_it_trains:
            continue  # it follows its job's training
        if lives.is_current(wpg) and _may_leave(lives, deployment):
            reason = f"node {node_id} is drained"
            if deployment.is_rollout:
                _send_instances(lives, deployment, reason=reason)
            elif not _send(lives, deployment, reason=reason, off=draining):
                _try_later(lives, deployment)


def _keep_apart(lives: Lives) -> None:
    """Send instances from devices where rounds break a bound to idle ones, one look at a time."""
    placement = lives.placement
    for one in sharing.crowded(placement):
        is_pinned = lives.jobs[one.job_id].is_pinned
        may_leave = not is_pinned and _may_leave(lives, one)
        if may_leave and placing.idle_for(placement, one) is not None:
            _send_instances(lives, one, reason=OVER_BOUNDS)
            return


def _relieve(lives: Lives) -> None:
    """Move jobs out of groups that are over their bounds."""
    for planner in lives.placement.planners.values():
        send = partial(_ask_to_leave, lives, reason=OVER_BOUNDS, must_leave=False)
        plans.relieve(planner, send=send, now_us=lives.now_us)


def _make_room(lives: Lives) -> None:
    """Send away who lives where a reservation is due, one after another until its job fits in."""
    for planner in lives.placement.planners.values():
        for resident_id in planner.in_the_way(now_us=lives.now_us):
            # Asked anew: whoever was sent away just now may have been enough.
            if resident_id in planner.in_the_way(now_us=lives.now_us):
                _ask_to_leave(lives, resident_id, reason="its devices are reserved for another job")


def _repack(lives: Lives) -> None:
    """Empty groups for those who wait: as many units as somebody lacks, or as can be."""
    for planner in lives.placement.planners.values():
        _empty_groups(lives, planner, wanted=plans.lacking(planner))


def _empty_groups(lives: Lives, planner: Planner, *, wanted: int) -> None:
    moves = plans.empty(
        planner,
        wanted=wanted,
        is_busy=partial(_is_busy, lives),
        link_bytes_s=lives.limits.link_bytes_s,
        now_us=lives.now_us,
    )
    _carry_out(lives, moves, reason="its group is emptied into others")


def _carry_out(lives: Lives, moves: Mapping[ResidentId, Spot], *, reason: str) -> None:
    for resident_id, spot in moves.items():
        deployment = lives.deployments[DeploymentId(resident_id)]
        _send_to(lives, deployment, spot.units, reason=reason)


def _ask_to_leave(lives: Lives, key: ResidentId, *, reason: str, must_leave: bool = True) -> bool:
    """Send a deployment elsewhere, if it may be asked; return whether it goes."""
    deployment = lives.deployments[DeploymentId(key)]
    may_go = not _is_busy(lives, key)
    return may_go and _send(lives, deployment, reason=reason, must_leave=must_leave)


def _is_busy(devices: Devices, key: ResidentId) -> bool:
    deployment = devices.deployments[DeploymentId(key)]
    return not _may_leave(devices, deployment) or devices.jobs[deployment.job_id].is_pinned


def move_job(lives: Lives, event: JobMoveRequested) -> None:
    """Send a job's training deployments elsewhere, or say why they stay."""
    job, reason = lives.jobs.get(event.job_id), "an operator moved the job"
    for deployment_id in [] if job is None else job.deployments:
        deployment = lives.deployments[deployment_id]
        if deployment.is_rollout:
            continue
        wpg = lives.wpg_of(deployment)
        if wpg is not None and {place.node_id for place in wpg.places} == {event.node_id}:
            _say_stays(lives, deployment, "it lives there already", reason=reason)
        elif not _send(lives, deployment, reason=reason, to=event.node_id):
            there = "elsewhere" if event.node_id is None else f"on node {event.node_id}"
            found = reasons.why_stays(lives.placement, deployment)
            _say_stays(lives, deployment, f"no place {there} takes it: {found}", reason=reason)


def relocate(lives: Lives, event: RelocationRequested) -> None:
    """Send a deployment to exactly these devices, bounds or not."""
    deployment = lives.deployments.get(event.deployment_id)
    if deployment is None:
        return
    units = tuple(place.unit for place in event.places)
    if deployment.where_it_trains:
        _say_stays(lives, deployment, FOLLOWS, reason=event.reason)
        return
    if deployment.is_rollout:
        _send_instances(lives, deployment, reason=event.reason, units=units)
        return
    fault = relocation.why_not(lives, deployment, event.places)
    if fault is not None:
        relocation.tell_failed(lives, deployment, reason=event.reason, fault=fault)
    else:
        _send_to(lives, deployment, units, reason=event.reason)


def _send(
    lives: Lives,
    deployment: DeploymentEntry,
    *,
    reason: str,
    to: NodeId | None = None,
    off: Collection[UnitId] = (),
    must_leave: bool = True,
) -> bool:
    """Send a training deployment where the planner finds a place; return whether it found one.

    With a node named, the place is there: within bounds if they allow it, else where it burdens
    least. Where there is no other place, it leaves at least the units in `off`.
    """
    if deployment.relocation is not None or not demands.is_placed(lives.placement, deployment):
        return False
    planner, key = demands.planner_of(lives.placement, deployment)
    onto = None if to is None else planner.board.rooms.of_host(to)
    units = planner.rehome(key, now_us=lives.now_us, onto=onto, off=off, must_leave=must_leave)
    if units is not None:
        _begin(lives, deployment, units, reason=reason)
        return True
    if onto is not None:
        units = placing.least_used(lives.placement, deployment, among=onto)
    if units is not None:
        _send_to(lives, deployment, units, reason=reason)
    return units is not None


def _send_to(
    lives: Lives, deployment: DeploymentEntry, units: tuple[UnitId, ...], *, reason: str
) -> None:
    """Send a training deployment to exactly these devices."""
    planner, key = demands.planner_of(lives.placement, deployment)
    planner.move(key, units, why=reason, now_us=lives.now_us)
    _begin(lives, deployment, units, reason=reason)


def _send_instances(
    lives: Lives, deployment: DeploymentEntry, *, reason: str, units: Gang | None = None
) -> None:
    """Send all instances of a rollout deployment to idle devices, or say why not."""
    idle = placing.idle_for(lives.placement, deployment, among=units)
    places = tuple(map(Place.of, idle or units or ()))
    fault = relocation.why_not(lives, deployment, places)
    if fault is None and idle is not None:
        relocation.begin(lives, deployment, places, reason=reason)
        return
    if fault is None or not places:
        fault = Fault(
            code=ErrorCode.NO_PLACEMENT,
            message=f"{deployment.deployment_id} stays where it is: its "
            f"{deployment.num_devices} instance(s) move together, each to an idle "
            f"{deployment.device_kind} device of a node that takes work; add a node or end what "
            "holds them",
        )
    # Told once, though it is tried again every two seconds.
    if deployment.relocation_fault != fault:
        relocation.tell_failed(lives, deployment, reason=reason, fault=fault)
    deployment.relocation_fault = fault
    _try_later(lives, deployment)


def _follow(lives: Lives) -> None:
    """Send rollouts that generate where their job trains to where it trains now."""
    for deployment_id in list(lives.roll.following):
        deployment = lives.deployments.get(deployment_id)
        wpg = None if deployment is None else lives.wpg_of(deployment)
        if deployment is None or wpg is None or deployment.state is DeploymentState.FAILED:
            del lives.roll.following[deployment_id]
            continue
        there = placing.trained_on(lives.placement, deployment)
        if set(there).issuperset(wpg.places):
            del lives.roll.following[deployment_id]
        elif len(there) >= deployment.num_devices and _may_leave(lives, deployment):
            places = tuple(there[: deployment.num_devices])
            relocation.begin(lives, deployment, places, reason="its job trains there now")
            _try_later(lives, deployment)


def _book_as_it_is(devices: Devices) -> None:
    """Book deployments whose relocation is over where their processes are now."""
    placement = devices.placement
    for deployment_id in list(placement.moved):
        deployment = devices.deployments.get(deployment_id)
        if deployment is not None and deployment.relocation is not None:
            continue
        del placement.moved[deployment_id]
        wpg = None if deployment is None else devices.wpg_of(deployment)
        if deployment is None or wpg is None or not demands.is_placed(placement, deployment):
            continue
        planner, key = demands.planner_of(placement, deployment)
        units = tuple(place.unit for place in wpg.places)
        if planner.board.resident(key).units != units:
            planner.move(key, units, why="it had not left yet", now_us=devices.now_us)
            hosts.spread(placement, deployment)
            _try_later(devices, deployment)


def _may_leave(devices: Devices, deployment: DeploymentEntry) -> bool:
    """Return whether a deployment can be asked to move now."""
    return (
        deployment.relocation is None
        and deployment.state is DeploymentState.READY
        and deployment.stays_until_us <= devices.now_us
        and devices.jobs[deployment.job_id].ending is None
    )


def _try_later(devices: Devices, deployment: DeploymentEntry) -> None:
    """Do not ask a deployment to move again for a while."""
    deployment.stays_until_us = devices.now_us + DRAIN_RETRY_US
    devices.set_timer(Timer.DRAIN, deployment.deployment_id, at_us=deployment.stays_until_us)


def _begin(
    lives: Lives, deployment: DeploymentEntry, units: Iterable[UnitId], *, reason: str
) -> None:
    """Relocate a deployment to where it is booked; book it back if that cannot begin."""
    places = tuple(map(Place.of, units))
    fault = relocation.begin(lives, deployment, places, reason=reason)
    if fault is not None:
        deployment.relocation_fault = fault
        relocation.tell_failed(lives, deployment, reason=reason, fault=fault)
        _try_later(lives, deployment)
    else:
        hosts.spread(lives.placement, deployment)
    lives.placement.moved[deployment.deployment_id] = None


def _say_stays(devices: Devices, deployment: DeploymentEntry, why: str, *, reason: str) -> None:
    message = f"{deployment.deployment_id} stays where it is: {why}"
    fault = Fault(code=ErrorCode.NO_PLACEMENT, message=message)
    relocation.tell_failed(devices, deployment, reason=reason, fault=fault)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mover:
    """A cause for which deployments move; whoever is on the way, or was asked lately, stays.

    Whom it moves, where to, and what it yields to is told in `docs/scheduling.md`, Movers.
    """

    cause: str
    look: Callable[[Lives], None]
    every_us: int = 0
    """The shortest time between two looks; 0: after every event."""

    is_wanted: Callable[[Lives], object] = lambda _: True
    """Whether there is anything to look at."""


def _is_plex(lives: Lives) -> bool:
    return lives.placement.policy.is_plex


def _somebody_waits(lives: Lives) -> bool:
    planners = lives.placement.planners.values()
    return _is_plex(lives) and any(planner.waiting for planner in planners)


MOVERS: Final = (
    Mover(cause="drain", look=_drain, is_wanted=lambda lives: lives.placement.cordoned),
    Mover(cause="following", look=_follow, is_wanted=lambda lives: lives.roll.following),
    Mover(
        cause="keeping apart",
        look=_keep_apart,
        every_us=APART_EVERY_US,
        is_wanted=_is_plex,
    ),
    Mover(cause="relief", look=_relieve, every_us=RELIEF_EVERY_US),
    Mover(cause="making room", look=_make_room, every_us=RELIEF_EVERY_US),
    Mover(cause="repacking", look=_repack, every_us=REPACK_EVERY_US, is_wanted=_somebody_waits),
)
"""All causes but an operator's order, in the order in which they are looked at."""
