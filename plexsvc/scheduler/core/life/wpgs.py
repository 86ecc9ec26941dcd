"""WPGs: put on their devices, spawned, initialized, stopped.

Every function here concerns one WPG, whichever place it has in its deployment: current, coming or
leaving. `deployments` and `outcomes` say what follows from it for others.
"""

from __future__ import annotations

from plexsvc.ids import OperationId, WpgId
from plexsvc.scheduler.core.actions import CancelOperation, SpawnWpg, StopWpg
from plexsvc.scheduler.core.cluster import Cluster
from plexsvc.scheduler.core.device import space, switch
from plexsvc.scheduler.core.queues import endings
from plexsvc.scheduler.core.state import Deployment, Operation, Wpg
from plexsvc.scheduler.core.timers import SpawnTimer
from plexsvc.scheduler.core.transitions import OperationTrigger, WpgTrigger
from plexsvc.scheduler.core.vocabulary import Fault, OperationKind, Place, WpgState


def add(cluster: Cluster, deployment: Deployment, places: tuple[Place, ...]) -> Wpg:
    """Return a new WPG of a deployment, on its devices, of which no process runs yet."""
    cluster.roll.last_wpg_no += 1
    wpg = Wpg(
        wpg_id=WpgId(f"wpg-{cluster.turn.epoch}-{cluster.roll.last_wpg_no}"),
        number=cluster.roll.last_wpg_no,
        deployment_id=deployment.deployment_id,
        job_id=deployment.job_id,
        incarnation=deployment.incarnations,
        places=places,
        is_rollout=deployment.is_rollout,
    )
    cluster.roll.wpgs[wpg.wpg_id] = wpg
    space.enter(cluster.devices, wpg)
    return wpg


def spawn(cluster: Cluster, wpg: Wpg, *, replaces: WpgId | None = None) -> None:
    """Order a WPG's processes."""
    cluster.emit(
        SpawnWpg(
            wpg_id=wpg.wpg_id,
            deployment_id=wpg.deployment_id,
            incarnation=wpg.incarnation,
            places=wpg.places,
            replaces=replaces,
        )
    )
    at_us = cluster.now_us + cluster.limits.spawn_timeout_us
    cluster.set_timer(SpawnTimer(wpg.wpg_id), at_us=at_us)


def queue_initialize(cluster: Cluster, wpg: Wpg, operation_id: OperationId) -> None:
    """Let a WPG's first operation wait for its devices."""
    initialize = Operation(
        operation_id=operation_id,
        deployment_id=wpg.deployment_id,
        job_id=wpg.job_id,
        seq=0,
        kind=OperationKind.INITIALIZE,
        after=(),
        submitted_us=cluster.now_us,
        eligible_us=cluster.now_us,
        wpg_id=wpg.wpg_id,
    )
    initialize.apply(OperationTrigger.ACCEPTED)
    initialize.apply(OperationTrigger.PAYLOAD_ARRIVED)
    cluster.queues.operations[operation_id] = wpg.initialize = initialize
    cluster.touch(wpg.wpg_id)


def end_running(cluster: Cluster, wpg: Wpg, fault: Fault) -> None:
    """End what a WPG runs: its processes are gone. Of what is written nothing is to appear."""
    cancel_writing(cluster, wpg)
    ended = [*wpg.running.values(), *wpg.writing.values()]
    wpg.running.clear()
    wpg.writing.clear()
    for operation in ended:
        endings.end_running(cluster.queues, operation, fault)


def cancel_writing(cluster: Cluster, wpg: Wpg) -> None:
    """Order the work on copies of a WPG's state to end."""
    for operation_id in wpg.writing:
        cluster.emit(CancelOperation(operation_id=operation_id, wpg_id=wpg.wpg_id))


def refuse_waiting(cluster: Cluster, wpg: Wpg, fault: Fault) -> None:
    """Take a WPG's grant back and refuse its `Initialize` if that still waits."""
    if wpg.switch is not None:
        switch.withdraw(cluster.devices, wpg)
    if wpg.initialize is not None:
        endings.refuse(cluster.queues, wpg.initialize, fault)


def stop(cluster: Cluster, wpg: Wpg) -> None:
    """Order a WPG's processes to end; its lease is free once they are gone, its memory later."""
    if wpg.state in {WpgState.SPAWNING, WpgState.READY}:
        wpg.apply(WpgTrigger.STOP_ORDERED)
        cluster.emit(StopWpg(wpg_id=wpg.wpg_id))


def stop_when_idle(cluster: Cluster, wpg: Wpg) -> None:
    """Stop a WPG of an ending job, or one that was replaced, once nothing of it runs or moves."""
    is_ending = cluster.jobs[wpg.job_id].ending is not None or cluster.is_leaving(wpg)
    is_idle = wpg.move_id is None and not wpg.running and not wpg.writing
    if is_ending and is_idle:
        stop(cluster, wpg)
