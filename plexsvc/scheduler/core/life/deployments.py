"""Deployments: requested, placed, announced, failed, stopped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

from plexsvc.ids import DeploymentId
from plexsvc.scheduler.core.actions import DeploymentChanged, JobChanged
from plexsvc.scheduler.core.cluster import Devices, Lives, Placement
from plexsvc.scheduler.core.device import learning, switch
from plexsvc.scheduler.core.events import DeploymentRequested, DeploymentsDeclared
from plexsvc.scheduler.core.life import rebuilding, wpgs
from plexsvc.scheduler.core.place import circles, demands, placing, reasons
from plexsvc.scheduler.core.queues import endings
from plexsvc.scheduler.core.state import DeploymentEntry, JobEntry, Wpg
from plexsvc.scheduler.core.vocabulary import DeploymentState, Fault, JobState


def request(lives: Lives, event: DeploymentRequested | DeploymentsDeclared) -> None:
    """Record new deployments of a live job and place all, now or when devices free up.

    Repeating changes nothing.
    """
    asked = event.deployments if isinstance(event, DeploymentsDeclared) else (event,)
    job = lives.jobs.get(event.job_id)
    is_known = any(one.deployment_id in lives.deployments for one in asked)
    if job is None or job.ending is not None or is_known:
        return
    together = tuple(one.deployment_id for one in asked) if len(asked) > 1 else ()
    made = [_new(one, declared_with=together, at_us=event.at_us) for one in asked]
    for one in made:
        lives.roll.deployments[one.deployment_id] = one
        job.deployments.append(one.deployment_id)
    placement = lives.placement
    fault = reasons.never(placement, made)
    if fault is None:
        for one in made:
            placing.request(placement, one)
        place_waiting(lives)
        fault = circles.closed_by(placement, made[0])
    if fault is not None:
        refuse(lives, made, fault)
    for one in demands.waiting_with(placement, made[0]):
        placing.bound_wait(placement, one)


def never(placement: Placement, asked: Sequence[DeploymentRequested]) -> Fault | None:
    """Return the fault of requests that all devices, were they idle, could not hold at once."""
    at_us = placement.now_us
    return reasons.never(placement, [_new(one, declared_with=(), at_us=at_us) for one in asked])


def _new(
    event: DeploymentRequested, *, declared_with: tuple[DeploymentId, ...], at_us: int
) -> DeploymentEntry:
    asked = {one.name: getattr(event, one.name) for one in fields(event) if one.name != "at_us"}
    return DeploymentEntry(**asked, declared_with=declared_with, requested_us=at_us)


def refuse(devices: Devices, wanted: Sequence[DeploymentEntry], fault: Fault) -> None:
    """Fail deployments that get no devices, whether they wait or not yet."""
    for one in wanted:
        if one.deployment_id in devices.placement.unplaced:
            placing.withdraw(devices.placement, one)
        fail(devices, one, fault)


def place_waiting(lives: Lives) -> None:
    """Place what can be placed now and start its processes."""
    placement = lives.placement
    placed = placing.admit(placement)
    _start(lives, placed)
    # Training of a set queues behind its lead, and may have a place beside it at once.
    followed = [placing.follow(placement, deployment) for deployment, _ in placed]
    if any(followed):
        _start(lives, placing.admit(placement))


def _start(lives: Lives, placed: Sequence[placing.Placed]) -> None:
    for deployment, places in placed:
        wpg = wpgs.add(lives, deployment, places)
        deployment.wpg_id = wpg.wpg_id
        job = lives.jobs[deployment.job_id]
        if job.state is JobState.QUEUED:
            job.state = JobState.RUNNING
            announce_job(lives, job)
        announce(lives, deployment)
        if wpg.is_shared:  # an engine takes its memory as it starts
            wpgs.queue_initialize(lives, wpg, deployment.initialize_id)
        else:
            switch.spawn(lives, wpg)
        learning.start_probe(lives, deployment)


def give_up_placing(devices: Devices, deployment_id: DeploymentId) -> None:
    """Fail a deployment for which no devices came free in time."""
    deployment = devices.deployments[deployment_id]
    fault = reasons.no_placement(devices.placement, deployment)
    refuse(devices, demands.waiting_with(devices.placement, deployment), fault)


def open_circles(devices: Devices) -> None:
    """Refuse the latest requests of jobs that wait for each other, until none do."""
    while (found := circles.youngest(devices.placement)) is not None:
        one, fault = found
        refuse(devices, demands.waiting_with(devices.placement, one), fault)


def fail(devices: Devices, deployment: DeploymentEntry, fault: Fault) -> None:
    """Fail a deployment and everything it runs or has waiting; later operations are refused."""
    if deployment.state in {DeploymentState.FAILED, DeploymentState.STOPPED}:
        return
    deployment.state, deployment.fault = DeploymentState.FAILED, fault
    wpg = devices.wpg_of(deployment)
    if wpg is not None:
        wpgs.end_running(devices, wpg, fault)
    refuse_waiting(devices, deployment, fault)
    announce(devices, deployment)


def fail_wpg(devices: Devices, wpg: Wpg, fault: Fault) -> None:
    """Stop all ranks of a WPG and fail its deployment, or the relocation it was started for.

    A durable deployment is rebuilt.
    """
    deployment = devices.deployments[wpg.deployment_id]
    if rebuilding.may_begin(devices, wpg, fault):
        rebuilding.begin(devices, wpg, fault)
        return
    if devices.is_current(wpg):
        fail(devices, deployment, fault)
    else:
        if deployment.relocation is not None and not devices.is_leaving(wpg):
            deployment.relocation.fault = fault
        wpgs.end_running(devices, wpg, fault)
        wpgs.refuse_waiting(devices, wpg, fault)
    wpgs.stop(devices, wpg)


def refuse_waiting(devices: Devices, deployment: DeploymentEntry, fault: Fault) -> None:
    """Refuse all that waits in a deployment, its granted operation included."""
    wpg = devices.wpg_of(deployment)
    if wpg is not None:
        wpgs.refuse_waiting(devices, wpg, fault)
    for seq in sorted(deployment.pending):
        endings.refuse(devices.queues, deployment.pending[seq], fault)
    deployment.gap_seq = None


def end(devices: Devices, deployment: DeploymentEntry, wpg: Wpg) -> None:
    """Note that nothing is left of a deployment's current WPG."""
    learning.keep(devices, deployment, wpg)
    placing.free(devices.placement, wpg)
    deployment.wpg_id = None
    if deployment.state is not DeploymentState.FAILED:
        deployment.state = DeploymentState.STOPPED
        announce(devices, deployment)


def announce(devices: Devices, deployment: DeploymentEntry) -> None:
    """Tell a deployment's state."""
    devices.emit(
        DeploymentChanged(
            deployment_id=deployment.deployment_id,
            state=deployment.state,
            wpg_id=deployment.wpg_id,
            fault=deployment.fault,
        )
    )


def announce_job(lives: Lives, job: JobEntry) -> None:
    """Tell a job's state."""
    lives.emit(
        JobChanged(job_id=job.job_id, state=job.state, reason=job.reason, device_us=job.device_us)
    )
