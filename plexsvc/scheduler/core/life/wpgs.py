"""WPGs: put on their devices, spawned, initialized, stopped.

Every function here concerns one WPG, whichever place it has in its deployment: current, coming or
leaving. `deployments` and `outcomes` say what follows from it for others.
"""

from __future__ import annotations

from plexsvc.ids import OperationId, WpgId
from plexsvc.scheduler.core.actions import CancelOperation, StopWpg
from plexsvc.scheduler.core.cluster import Devices, Lives
from plexsvc.scheduler.core.device import space, switch
from plexsvc.scheduler.core.queues import endings
from plexsvc.scheduler.core.state import DeploymentEntry, Operation, Wpg
from plexsvc.scheduler.core.vocabulary import (
    Fault,
    OperationKind,
    OperationTrigger,
    Place,
    WpgState,
    WpgTrigger,
)


def add(lives: Lives, deployment: DeploymentEntry, places: tuple[Place, ...]) -> Wpg:
    """Return a new WPG of a deployment, on its devices, of which no process runs yet."""
    lives.roll.last_wpg_no += 1
    wpg = Wpg(
        wpg_id=WpgId(f"wpg-{lives.turn.epoch}-{lives.roll.last_wpg_no}"),
        number=lives.roll.last_wpg_no,
        deployment_id=deployment.deployment_id,
        job_id=deployment.job_id,
        incarnation=deployment.incarnations,
        places=places,
        is_rollout=deployment.is_rollout,
        is_shared=deployment.is_shared,
    )
    lives.roll.wpgs[wpg.wpg_id] = wpg
    space.enter(lives, wpg)
    if wpg.is_shared:  # known before its processes are up, which others must make room for
        each = deployment.instance_bytes
        wpg.device_bytes = tuple(each or device.bytes_total for device in wpg.devices)
    return wpg


def queue_initialize(devices: Devices, wpg: Wpg, operation_id: OperationId) -> None:
    """Let a WPG's first operation wait for its devices."""
    initialize = Operation(
        operation_id=operation_id,
        deployment_id=wpg.deployment_id,
        job_id=wpg.job_id,
        seq=0,
        kind=OperationKind.INITIALIZE,
        after=(),
        submitted_us=devices.now_us,
        eligible_us=devices.now_us,
        wpg_id=wpg.wpg_id,
    )
    initialize.apply(OperationTrigger.ACCEPTED)
    initialize.apply(OperationTrigger.PAYLOAD_ARRIVED)
    devices.queues.operations[operation_id] = wpg.initialize = initialize
    devices.touch(wpg.wpg_id)


def end_running(devices: Devices, wpg: Wpg, fault: Fault) -> None:
    """End what a WPG runs: its processes are gone. Of what is written nothing is to appear."""
    cancel_writing(devices, wpg)
    ended = [*wpg.running.values(), *wpg.writing.values()]
    wpg.running.clear()
    wpg.writing.clear()
    for operation in ended:
        endings.end_running(devices.queues, operation, fault)


def cancel_writing(devices: Devices, wpg: Wpg) -> None:
    """Order the work on copies of a WPG's state to end."""
    for operation_id in wpg.writing:
        cancel(devices, operation_id, wpg.wpg_id)


def cancel(devices: Devices, operation_id: OperationId, wpg_id: WpgId) -> None:
    """Order an operation that runs to end early."""
    devices.emit(CancelOperation(operation_id=operation_id, wpg_id=wpg_id))


def refuse_waiting(devices: Devices, wpg: Wpg, fault: Fault) -> None:
    """Take a WPG's grant back and refuse its `Initialize` if that still waits."""
    if wpg.switch is not None:
        switch.withdraw(devices, wpg)
    if wpg.initialize is not None:
        endings.refuse(devices.queues, wpg.initialize, fault)


def stop(devices: Devices, wpg: Wpg) -> None:
    """Order a WPG's processes to end; its lease is free once they are gone, its memory later."""
    if wpg.state in {WpgState.SPAWNING, WpgState.READY}:
        wpg.apply(WpgTrigger.STOP_ORDERED)
        devices.emit(StopWpg(wpg_id=wpg.wpg_id))


def stop_when_idle(devices: Devices, wpg: Wpg) -> None:
    """Stop a WPG of an ending job, or one that was replaced, once nothing of it runs or moves.

    One that is lost goes as soon as nothing works from copies of its state.
    """
    if wpg.writing:
        return
    is_idle = wpg.move_id is None and not wpg.running
    is_ending = is_idle and (devices.jobs[wpg.job_id].ending is not None or devices.is_leaving(wpg))
    if is_ending or wpg.is_lost:
        stop(devices, wpg)
