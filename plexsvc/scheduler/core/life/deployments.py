"""Deployments: requested, placed, announced, failed, stopped."""

from __future__ import annotations

from plexsvc.ids import DeploymentId
from plexsvc.scheduler.core.actions import DeploymentChanged, JobChanged
from plexsvc.scheduler.core.cluster import Cluster
from plexsvc.scheduler.core.device import learning
from plexsvc.scheduler.core.events import DeploymentRequested
from plexsvc.scheduler.core.life import wpgs
from plexsvc.scheduler.core.place import placing
from plexsvc.scheduler.core.queues import endings
from plexsvc.scheduler.core.state import Deployment, Wpg
from plexsvc.scheduler.core.timers import PlaceTimer
from plexsvc.scheduler.core.transitions import JOB_TRANSITIONS, JobTrigger, step
from plexsvc.scheduler.core.vocabulary import DeploymentState, Fault


def request(cluster: Cluster, event: DeploymentRequested) -> None:
    """Record a new deployment of a live job and place it, now or when devices free up.

    Repeating changes nothing.
    """
    job = cluster.jobs.get(event.job_id)
    if job is None or job.ending is not None or event.deployment_id in cluster.deployments:
        return
    deployment = Deployment(
        deployment_id=event.deployment_id,
        job_id=event.job_id,
        initialize_id=event.initialize_id,
        role=event.role,
        backend=event.backend,
        device_kind=event.device_kind,
        num_devices=event.num_devices,
        is_rollout=event.is_rollout,
        name=event.name,
        model=event.model,
        layout=event.layout,
        requested_us=event.at_us,
    )
    cluster.roll.deployments[event.deployment_id] = deployment
    job.deployments.append(event.deployment_id)
    if not placing.can_ever_hold(cluster.placement, deployment):
        fail(cluster, deployment, placing.no_placement(cluster.placement, deployment))
        return
    placing.request(cluster.placement, deployment)
    place_waiting(cluster)
    if event.deployment_id in cluster.placement.unplaced:
        at_us = event.at_us + cluster.limits.placement_timeout_us
        cluster.set_timer(PlaceTimer(event.deployment_id), at_us=at_us)


def place_waiting(cluster: Cluster) -> None:
    """Place what can be placed now and start its processes."""
    for deployment, places in placing.admit(cluster.placement):
        wpg = wpgs.add(cluster, deployment, places)
        deployment.wpg_id = wpg.wpg_id
        job = cluster.jobs[deployment.job_id]
        was, job.state = job.state, step(JOB_TRANSITIONS, job.state, JobTrigger.PLACED)
        if was is not job.state:
            cluster.emit(JobChanged(job_id=job.job_id, state=job.state, reason=""))
        announce(cluster, deployment)
        wpgs.spawn(cluster, wpg)
        learning.start_probe(cluster.devices, deployment)


def give_up_placing(cluster: Cluster, deployment_id: DeploymentId) -> None:
    """Fail a deployment for which no devices came free in time."""
    if deployment_id in cluster.placement.unplaced:
        deployment = cluster.deployments[deployment_id]
        placing.withdraw(cluster.placement, deployment)
        fail(cluster, deployment, placing.no_placement(cluster.placement, deployment))


def fail(cluster: Cluster, deployment: Deployment, fault: Fault) -> None:
    """Fail a deployment and everything it runs or has waiting; later operations are refused."""
    if deployment.state in {DeploymentState.FAILED, DeploymentState.STOPPED}:
        return
    deployment.state, deployment.fault = DeploymentState.FAILED, fault
    wpg = cluster.wpg_of(deployment)
    if wpg is not None:
        wpgs.end_running(cluster, wpg, fault)
    refuse_waiting(cluster, deployment, fault)
    announce(cluster, deployment)


def fail_wpg(cluster: Cluster, wpg: Wpg, fault: Fault) -> None:
    """Stop all ranks of a WPG and fail its deployment, or the relocation it was started for."""
    deployment = cluster.deployments[wpg.deployment_id]
    if cluster.is_current(wpg):
        fail(cluster, deployment, fault)
    else:
        if deployment.relocation is not None and not cluster.is_leaving(wpg):
            deployment.relocation.fault = fault
        wpgs.end_running(cluster, wpg, fault)
        wpgs.refuse_waiting(cluster, wpg, fault)
    wpgs.stop(cluster, wpg)


def refuse_waiting(cluster: Cluster, deployment: Deployment, fault: Fault) -> None:
    """Refuse all that waits in a deployment, its granted operation included."""
    wpg = cluster.wpg_of(deployment)
    if wpg is not None:
        wpgs.refuse_waiting(cluster, wpg, fault)
    for seq in sorted(deployment.pending):
        endings.refuse(cluster.queues, deployment.pending[seq], fault)
    deployment.gap_seq = None


def end(cluster: Cluster, deployment: Deployment, wpg: Wpg) -> None:
    """Note that nothing is left of a deployment's current WPG."""
    learning.keep(cluster.devices, deployment)
    placing.free(cluster.placement, wpg)
    deployment.wpg_id = None
    if deployment.state is not DeploymentState.FAILED:
        deployment.state = DeploymentState.STOPPED
        announce(cluster, deployment)


def announce(cluster: Cluster, deployment: Deployment) -> None:
    """Tell a deployment's state."""
    cluster.emit(
        DeploymentChanged(
            deployment_id=deployment.deployment_id,
            state=deployment.state,
            wpg_id=deployment.wpg_id,
            fault=deployment.fault,
        )
    )
