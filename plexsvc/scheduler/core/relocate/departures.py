"""Departures: deployments sent to other devices, because an operator asked or packing decided.

A departure is booked on the board first, then the relocation begins. If the relocation cannot begin
or fails, the deployment is booked back where it is (`book_as_it_is`), and is not asked again for a
while.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from plexsvc.errors import ErrorCode
from plexsvc.ids import NodeId, UnitId
from plexsvc.scheduler.core.cluster import Devices, Lives
from plexsvc.scheduler.core.events import JobMoveRequested, RelocationRequested
from plexsvc.scheduler.core.place import demands, hosts, node_units, placing, reasons
from plexsvc.scheduler.core.planning.rooms import Gang
from plexsvc.scheduler.core.relocate import relocation
from plexsvc.scheduler.core.state import Deployment
from plexsvc.scheduler.core.timers import DrainTimer
from plexsvc.scheduler.core.vocabulary import DeploymentState, Fault, Place

FOLLOWS: Final = "it generates where its job trains, and follows that: move the training"

DRAIN_RETRY_US: Final = 2_000_000
"""Pause before a deployment that found no place off a draining node is tried again."""


def move_job(lives: Lives, event: JobMoveRequested) -> None:
    """Send a job's training deployments elsewhere, or say why they stay."""
    job, reason = lives.jobs.get(event.job_id), "an operator moved the job"
    for deployment_id in [] if job is None else job.deployments:
        deployment = lives.deployments[deployment_id]
        if deployment.is_rollout:
            continue
        wpg = lives.wpg_of(deployment)
        if wpg is not None and {place.node_id for place in wpg.places} == {event.node_id}:
            _say_stays(lives.devices, deployment, "it lives there already", reason=reason)
        elif not send(lives, deployment, reason=reason, to=event.node_id):
            there = "elsewhere" if event.node_id is None else f"on node {event.node_id}"
            found = reasons.why_stays(lives.devices.placement, deployment)
            _say_stays(
                lives.devices, deployment, f"no place {there} takes it: {found}", reason=reason
            )


def relocate(lives: Lives, event: RelocationRequested) -> None:
    """Send a deployment to exactly these devices, bounds or not."""
    deployment = lives.deployments.get(event.deployment_id)
    if deployment is None:
        return
    units = tuple(place.unit for place in event.places)
    if deployment.where_it_trains:
        _say_stays(lives.devices, deployment, FOLLOWS, reason=event.reason)
        return
    if deployment.is_rollout:
        send_instances(lives, deployment, reason=event.reason, units=units)
        return
    fault = relocation.why_not(lives.devices, deployment, event.places)
    if fault is not None:
        relocation.tell_failed(lives.devices, deployment, reason=event.reason, fault=fault)
    else:
        send_to(lives, deployment, units, reason=event.reason)


def send(lives: Lives, deployment: Deployment, *, reason: str, to: NodeId | None = None) -> bool:
    """Send a training deployment where the planner finds a place; return whether it found one.

    With a node named, the place is there: within bounds if they allow it, else where it burdens
    least.
    """
    if deployment.relocation is not None or not demands.is_placed(
        lives.devices.placement, deployment
    ):
        return False
    planner, key = demands.planner_of(lives.devices.placement, deployment)
    onto = None if to is None else node_units.units_of(lives.devices.placement, to)
    placed = planner.rehome(key, now_us=lives.now_us, onto=onto)
    if placed is not None:
        _begin(lives, deployment, placed.units, reason=reason)
        return True
    units = None
    if onto is not None:
        units = placing.least_used(lives.devices.placement, deployment, among=onto)
    if units is not None:
        send_to(lives, deployment, units, reason=reason)
    return units is not None


def send_to(
    lives: Lives, deployment: Deployment, units: tuple[UnitId, ...], *, reason: str
) -> None:
    """Send a training deployment to exactly these devices."""
    planner, key = demands.planner_of(lives.devices.placement, deployment)
    planner.move(key, units)
    _begin(lives, deployment, units, reason=reason)


def send_instances(
    lives: Lives, deployment: Deployment, *, reason: str, units: Gang | None = None
) -> None:
    """Send all instances of a rollout deployment to idle devices, or say why not."""
    idle = placing.idle_for(lives.devices.placement, deployment, among=units)
    places = tuple(map(Place.of, idle or units or ()))
    fault = relocation.why_not(lives.devices, deployment, places)
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
    if deployment.relocation_fault != fault:
        relocation.tell_failed(lives.devices, deployment, reason=reason, fault=fault)
    deployment.relocation_fault = fault
    try_later(lives.devices, deployment)


def follow(lives: Lives) -> None:
    """Send rollouts that generate where their job trains to where it trains now."""
    for deployment_id in list(lives.roll.following):
        deployment = lives.deployments.get(deployment_id)
        wpg = None if deployment is None else lives.wpg_of(deployment)
        if deployment is None or wpg is None or deployment.state is DeploymentState.FAILED:
            del lives.roll.following[deployment_id]
            continue
        there = placing.trained_on(lives.devices.placement, deployment)
        if set(there).issuperset(wpg.places):
            del lives.roll.following[deployment_id]
        elif len(there) >= deployment.num_devices and may_leave(lives.devices, deployment):
            places = tuple(there[: deployment.num_devices])
            relocation.begin(lives, deployment, places, reason="its job trains there now")
            try_later(lives.devices, deployment)


def book_as_it_is(devices: Devices) -> None:
    """Book deployments whose relocation is over where their processes are now."""
    placement = devices.placement
    for deployment_id in list(placement.planning.moved):
        deployment = devices.deployments.get(deployment_id)
        if deployment is not None and deployment.relocation is not None:
            continue
        del placement.planning.moved[deployment_id]
        wpg = None if deployment is None else devices.wpg_of(deployment)
        if deployment is None or wpg is None or not demands.is_placed(placement, deployment):
            continue
        planner, key = demands.planner_of(placement, deployment)
        units = tuple(place.unit for place in wpg.places)
        if planner.group_of(key).residents[key].units != units:
            planner.move(key, units)
            hosts.spread(placement, deployment)
            try_later(devices, deployment)
        planner.arrived(key)


def may_leave(devices: Devices, deployment: Deployment) -> bool:
    """Return whether a deployment can be asked to move now."""
    return (
        deployment.relocation is None
        and deployment.state is DeploymentState.READY
        and deployment.stays_until_us <= devices.now_us
        and devices.jobs[deployment.job_id].ending is None
    )


def try_later(devices: Devices, deployment: Deployment) -> None:
    """Do not ask a deployment to move again for a while."""
    deployment.stays_until_us = devices.now_us + DRAIN_RETRY_US
    devices.set_timer(DrainTimer(deployment.deployment_id), at_us=deployment.stays_until_us)


def _begin(lives: Lives, deployment: Deployment, units: Iterable[UnitId], *, reason: str) -> None:
    """Relocate a deployment to where it is booked; book it back if that cannot begin."""
    places = tuple(map(Place.of, units))
    fault = relocation.begin(lives, deployment, places, reason=reason)
    if fault is not None:
        deployment.relocation_fault = fault
        relocation.tell_failed(lives.devices, deployment, reason=reason, fault=fault)
        try_later(lives.devices, deployment)
    else:
        hosts.spread(lives.devices.placement, deployment)
    lives.devices.placement.planning.moved[deployment.deployment_id] = None


def _say_stays(devices: Devices, deployment: Deployment, why: str, *, reason: str) -> None:
    message = f"{deployment.deployment_id} stays where it is: {why}"
    fault = Fault(code=ErrorCode.NO_PLACEMENT, message=message)
    relocation.tell_failed(devices, deployment, reason=reason, fault=fault)
