"""Rollout instances that are lost, and spawned again on their devices while their deployment stays.

An instance has no state that its deployment cannot give it again, so its loss costs the job time
alone: the rollout manager keeps the samples, and the new process gets the weights in use. It may be
lost `max_respawns` times in `respawn_window_us`; then whatever ends it would end the next one, too,
and the deployment ends with that cause.
"""

from __future__ import annotations

from plexsvc.scheduler.core.actions import SpawnInstance
from plexsvc.scheduler.core.cluster import Devices
from plexsvc.scheduler.core.events import InstanceLost, InstanceReady
from plexsvc.scheduler.core.life import deployments
from plexsvc.scheduler.core.state import Wpg
from plexsvc.scheduler.core.vocabulary import DeploymentState, Fault, WpgState


def may_respawn(devices: Devices, wpg: Wpg) -> bool:
    """Whether the WPG's processes are instances in service, of a job that goes on."""
    deployment = devices.deployments[wpg.deployment_id]
    is_in_service = wpg.state is WpgState.READY and deployment.state is DeploymentState.READY
    is_ending = devices.jobs[wpg.job_id].ending is not None
    return wpg.is_rollout and is_in_service and devices.is_current(wpg) and not is_ending


def lose(devices: Devices, wpg: Wpg, rank: int, fault: Fault) -> None:
    """Spawn a lost instance again, or fail its WPG if it cannot be, or was too often."""
    if not may_respawn(devices, wpg):
        deployments.fail_wpg(devices, wpg, fault)
        return
    limits = devices.limits
    since_us = devices.now_us - limits.respawn_window_us
    recent = [at_us for at_us in wpg.respawned_us.get(rank, ()) if at_us > since_us]
    if len(recent) >= limits.max_respawns:
        message = (
            f"{fault.message}; it was spawned again {len(recent)} times in "
            f"{limits.respawn_window_us // 1_000_000} s (scheduler.max_respawns); deploy again to "
            "go on"
        )
        fault = Fault(code=fault.code, message=message, facts=fault.facts)
        deployments.fail_wpg(devices, wpg, fault)
        return
    deployment = devices.deployments[wpg.deployment_id]
    deployment.incarnations += 1
    wpg.respawned[rank] = deployment.incarnations
    wpg.respawned_us[rank] = [*recent, devices.now_us]
    wpg.absent[rank] = fault
    devices.emit(SpawnInstance(wpg_id=wpg.wpg_id, rank=rank, incarnation=deployment.incarnations))


def lost(devices: Devices, event: InstanceLost) -> None:
    """Try again with an instance that did not come up, or that its manager has given up."""
    wpg = devices.wpgs.get(event.wpg_id)
    if wpg is None or event.incarnation != wpg.incarnation_of(event.rank):
        return
    if wpg.state is WpgState.READY:
        lose(devices, wpg, event.rank, event.fault)


def is_back(devices: Devices, event: InstanceReady) -> None:
    """Note that an instance gets samples again."""
    wpg = devices.wpgs.get(event.wpg_id)
    if wpg is not None and event.incarnation == wpg.incarnation_of(event.rank):
        wpg.absent.pop(event.rank, None)
