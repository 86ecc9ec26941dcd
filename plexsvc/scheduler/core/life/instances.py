"""Rollout instances that are lost, and spawned again while their deployment stays.

An instance has no state that its deployment cannot give it again, so its loss costs the job time
alone: the rollout manager keeps the samples, and the new process gets the weights in use. It may be
lost `max_respawns` times in `respawn_window_us`; then whatever ends it would end the next one, too,
and the deployment ends with that cause. It comes back on its own device, or, where its node was
lost, on an idle one of that kind: it waits for one, or for its node, `placement_timeout_us` at
most if that is set.
One that was lost asleep is spawned when its deployment has its devices again.

Of a shared deployment, an instance that a generate does without sleeps, and leaves its device to
others while the generate goes on. As that ends all its WPG sleeps, and wakes with its next work.
"""

from __future__ import annotations

from plexsvc.ids import WpgId
from plexsvc.residency import Residency
from plexsvc.scheduler.core.actions import SpawnInstance
from plexsvc.scheduler.core.cluster import Devices
from plexsvc.scheduler.core.device import lease, space
from plexsvc.scheduler.core.events import InstanceLeft, InstanceLost, InstanceReady, TurnsTaken
from plexsvc.scheduler.core.life import deployments
from plexsvc.scheduler.core.place import placing
from plexsvc.scheduler.core.state import Wpg
from plexsvc.scheduler.core.timers import Timer
from plexsvc.scheduler.core.vocabulary import DeploymentState, Fault, Place, WpgState


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
    wpg.absent[rank] = fault
    place = None
    if wpg.places[rank].node_id not in devices.placement.nodes:
        place = placing.rehome(devices.placement, wpg, rank)
        if place is None:
            _wait(devices, wpg, rank)
            return
        _settle_at(devices, wpg, rank, place)
    devices.placement.homeless.pop((wpg.wpg_id, rank), None)
    if wpg.residency is not Residency.DEVICE or rank in wpg.left:  # others have its device
        wpg.asleep[rank] = place or wpg.asleep.get(rank)
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
    kept = wpg.asleep.pop(rank, None)
    deployment.incarnations += 1
    wpg.respawned[rank] = deployment.incarnations
    wpg.respawned_us[rank] = [*recent, devices.now_us]
    devices.emit(
        SpawnInstance(
            wpg_id=wpg.wpg_id,
            rank=rank,
            incarnation=deployment.incarnations,
            place=place or kept,
        )
    )


def wake(devices: Devices, wpg: Wpg) -> None:
    """Spawn the instances that were lost while others had their devices."""
    if wpg.residency is Residency.DEVICE:
        for rank in list(wpg.asleep):
            lose(devices, wpg, rank, wpg.absent[rank])


def settle(devices: Devices) -> None:
    """Spawn those that wait for a device and find one now, or whose node is back."""
    for (wpg_id, rank), fault in list(devices.placement.homeless.items()):
        wpg = devices.wpgs.get(wpg_id)
        if wpg is None or not may_respawn(devices, wpg):
            del devices.placement.homeless[wpg_id, rank]
        else:
            lose(devices, wpg, rank, fault)


def give_up_waiting(devices: Devices, wpg_id: WpgId) -> None:
    """Fail a WPG for whose lost instances no device came free in time."""
    homeless = devices.placement.homeless
    cause = next(fault for (owner, _), fault in homeless.items() if owner == wpg_id)
    waited_s = devices.limits.placement_timeout_us // 1_000_000
    message = (
        f"{cause.message}; no other device of its kind came free in {waited_s} s "
        "(scheduler.placement_timeout_us)"
    )
    fault = Fault(code=cause.code, message=message, facts=cause.facts)
    deployments.fail_wpg(devices, devices.wpgs[wpg_id], fault)


def _wait(devices: Devices, wpg: Wpg, rank: int) -> None:
    """Have an instance wait for a device, its deployment going on without it."""
    if (wpg.wpg_id, rank) not in devices.placement.homeless:
        devices.placement.homeless[wpg.wpg_id, rank] = wpg.absent[rank]
        timeout_us = devices.limits.placement_timeout_us
        if timeout_us:
            devices.set_timer(Timer.HOMELESS, wpg.wpg_id, at_us=devices.now_us + timeout_us)


def _settle_at(devices: Devices, wpg: Wpg, rank: int, place: Place) -> None:
    """Let an instance live on another device."""
    is_holder = any(device.holder == wpg.wpg_id for device in wpg.devices)
    if is_holder:
        # Until now it has used the device that it is taken off.
        lease.spend(devices, wpg, lease.held_by(wpg))
        wpg.devices[rank].holder = None
    space.leave(devices, wpg)
    wpg.places = (*wpg.places[:rank], place, *wpg.places[rank + 1 :])
    own = devices.deployments[wpg.deployment_id].instance_bytes
    takes = own or devices.at[place].bytes_total
    wpg.device_bytes = (*wpg.device_bytes[:rank], takes, *wpg.device_bytes[rank + 1 :])
    space.enter(devices, wpg)
    if is_holder:
        lease.take(devices, wpg)


def lost(devices: Devices, event: InstanceLost) -> None:
    """Try again with an instance that did not come up, or that its manager has given up."""
    wpg = devices.wpgs.get(event.wpg_id)
    if wpg is None or event.incarnation != wpg.incarnation_of(event.rank):
        return
    if wpg.state is WpgState.READY:
        lose(devices, wpg, event.rank, event.fault)


def left(devices: Devices, event: InstanceLeft) -> None:
    """Let others have the device of an instance that a generate does without."""
    wpg = devices.wpgs.get(event.wpg_id)
    if wpg is None or event.incarnation != wpg.incarnation_of(event.rank):
        return
    operation = wpg.running.get(event.operation_id)
    # The generate goes on somewhere: who has left all devices has no lease for it.
    stays = len(wpg.left | {event.rank}) < len(wpg.places)
    if wpg.is_shared and event.rank not in wpg.left and operation is not None and stays:
        lease.leave(devices, wpg, event.rank, operation)


def turned(devices: Devices, event: TurnsTaken) -> None:
    """Charge a job for what its instances sampled beside the order of operations."""
    wpg = devices.wpgs.get(event.wpg_id)
    if wpg is not None:
        devices.jobs[wpg.job_id].used("turns").device_us += event.device_us
        each_us, rest_us = divmod(event.device_us, len(wpg.devices))
        for device in wpg.devices:
            device.busy_us += each_us
        # What was told is the sum over all of them.
        wpg.devices[0].busy_us += rest_us


def is_back(devices: Devices, event: InstanceReady) -> None:
    """Note that an instance gets samples again."""
    wpg = devices.wpgs.get(event.wpg_id)
    if wpg is not None and event.incarnation == wpg.incarnation_of(event.rank):
        wpg.absent.pop(event.rank, None)
        if wpg.is_shared:  # it may sleep now
            devices.touch(wpg.wpg_id)
