"""Rebuilding of a durable deployment whose processes died: others take its state from a copy.

Theory of operation. After each operation that writes weights the driver keeps a copy of the state
(`KeepState`). When a process of the current WPG dies, the deployment is *lost*: what ran gives its
number back, and comes again from its client; the rest keeps its place and waits (`begin`), but for
what was staged on a lost node. The WPG is stopped and forgotten. Then a new one comes up at the
same places, or waits for others where a node is lost (`go_on`). Its `Initialize` reads the copy,
that of another node if need be, and runs again what was applied since (`orders/durable.py`); with
that the deployment goes on. Where it is now on the node of its only copy, another one copies that,
or the next that joins or is opened (`keep_beside`).

One that is starting is started again when its processes are killed: its copy is the model.

It ends with a cause when that fails, and when its processes die `MAX_LOSSES` times with nothing
applied in between.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from plexsvc.errors import ErrorCode
from plexsvc.ids import NodeId
from plexsvc.scheduler.core.actions import DeploymentLost, KeepState
from plexsvc.scheduler.core.cluster import Devices, Lives, Placement
from plexsvc.scheduler.core.device import switch
from plexsvc.scheduler.core.life import wpgs
from plexsvc.scheduler.core.place import circles, hosts, placing
from plexsvc.scheduler.core.queues import endings, lanes
from plexsvc.scheduler.core.state import DeploymentEntry, Operation, Wpg
from plexsvc.scheduler.core.vocabulary import WRITING_KINDS, DeploymentState, Fault

MAX_LOSSES: Final = 3

ADVICE: Final = "; deploy again to go on"
"""What is said of a death that ends a deployment."""


def may_begin(devices: Devices, wpg: Wpg, fault: Fault) -> bool:
    """Whether a deployment goes on although this WPG of it cannot."""
    deployment = devices.deployments[wpg.deployment_id]
    is_death = fault.code in {ErrorCode.WORKER_DIED, ErrorCode.NODE_LOST}
    is_ready = deployment.state is DeploymentState.READY
    is_starting = deployment.state is DeploymentState.STARTING
    return (
        deployment.is_durable
        and devices.is_current(wpg)
        and (is_ready or (is_starting and is_death and not _ended_itself(fault)))
        and devices.jobs[wpg.job_id].ending is None
        and (is_death or deployment.lost is None)
        and (deployment.losses < MAX_LOSSES or wpg.is_lost)
    )


def _ended_itself(fault: Fault) -> bool:
    """Whether a process gave up: another one would, too."""
    return int(dict(fault.facts).get("exit_code", "0")) > 0


def begin(devices: Devices, wpg: Wpg, fault: Fault) -> None:
    """Take a WPG down whose state is gone, and have its operations wait for the next one."""
    fault = replace(fault, message=fault.message.removesuffix(ADVICE))
    deployment = devices.deployments[wpg.deployment_id]
    again = send_again(wpg, fault)
    if wpg.is_lost:
        _refuse_staged(devices, wpg, again)
        return
    wpg.is_lost = True
    deployment.lost, deployment.losses = fault, deployment.losses + 1
    # Lost again before it was rebuilt, it has one pause, not two.
    deployment.lost_us = deployment.lost_us or devices.now_us
    deployment.incarnations += 1
    running = list(wpg.running.values())
    wpg.running.clear()
    for operation in running:
        endings.end_running(devices.queues, operation, again, is_refusal=True)
    wpgs.refuse_waiting(devices, wpg, again)
    _refuse_staged(devices, wpg, again)
    lanes.watch_gap(devices.queues, deployment)
    initialize_id = deployment.initialize_id_of(deployment.incarnations)
    devices.emit(
        DeploymentLost(
            deployment_id=deployment.deployment_id, initialize_id=initialize_id, fault=fault
        )
    )
    # Else its end comes with that of the last copy (`wpgs.stop_when_idle`).
    if not wpg.writing:
        wpgs.stop(devices, wpg)


def send_again(wpg: Wpg, fault: Fault) -> Fault:
    """Return what clients are told of operations that a lost WPG did not get to the end of."""
    return Fault(
        code=ErrorCode.UNAVAILABLE,
        message=f"{wpg.deployment_id} is rebuilt from its last durable step ({fault.message}); "
        "send it again",
    )


def _refuse_staged(devices: Devices, wpg: Wpg, again: Fault) -> None:
    """Have what waits with inputs that a lost node had come again with them."""
    deployment = devices.deployments[wpg.deployment_id]
    if not _is_there(devices, wpg):
        for operation in sorted(deployment.pending.values(), key=lambda one: -one.seq):
            if not operation.is_inline:
                endings.refuse(devices.queues, operation, again, is_final=False)
        lanes.watch_gap(devices.queues, deployment)


def applied(devices: Devices, wpg: Wpg, operation: Operation) -> None:
    """Have the state kept that an operation of a durable deployment left, if it wrote weights."""
    deployment = devices.deployments[wpg.deployment_id]
    deployment.losses = 0
    if deployment.is_durable and operation.kind in WRITING_KINDS:
        deployment.kept_on = _second_home(devices.placement, deployment, wpg)
        devices.emit(
            KeepState(
                wpg_id=wpg.wpg_id,
                seq=operation.seq,
                lease_no=wpg.lease_no,
                beside=deployment.kept_on,
            )
        )


def rebuilt(devices: Devices, deployment: DeploymentEntry) -> None:
    """Note that a deployment's processes have its state again."""
    was_lost, deployment.lost, deployment.lost_us = deployment.lost is not None, None, 0
    if was_lost:
        keep_beside(devices, deployment)


def keep_beside(devices: Devices, deployment: DeploymentEntry) -> None:
    """Have another node copy the last copy, where none does and one has room."""
    wpg = devices.wpg_of(deployment)
    is_whole = deployment.state is DeploymentState.READY and deployment.lost is None
    if wpg is None or not deployment.is_durable or not is_whole:
        return
    home = _second_home(devices.placement, deployment, wpg)
    # A copy that is there, or on its way, is not made again.
    if home not in {None, deployment.kept_on}:
        deployment.kept_on = home
        devices.emit(KeepState(wpg_id=wpg.wpg_id, seq=0, lease_no=wpg.lease_no, beside=home))


def _second_home(placement: Placement, deployment: DeploymentEntry, wpg: Wpg) -> NodeId | None:
    """Return which node keeps a second copy: the one that did, or the one with the most room.

    It holds the copy before and the next, which comes there before it is copied.
    """
    mine = {place.node_id for place in wpg.places}
    others = [n for n in placement.nodes if n not in mine and n not in placement.cordoned]
    if deployment.kept_on in others:
        return deployment.kept_on
    free = {node_id: hosts.free_bytes(placement, node_id) for node_id in others}
    found = max(others, key=lambda node_id: free[node_id], default=None)
    return found if found is not None and free[found] >= 3 * sum(wpg.device_bytes) else None


def _is_there(devices: Devices, wpg: Wpg) -> bool:
    """Whether no node of a WPG is lost."""
    return all(place.node_id in devices.placement.nodes for place in wpg.places)


def may_go_on(devices: Devices, gone: Wpg) -> bool:
    """Whether the deployment of a WPG of which nothing is left gets another one."""
    deployment = devices.deployments[gone.deployment_id]
    is_wanted = devices.jobs[gone.job_id].ending is None
    has_failed = deployment.state is DeploymentState.FAILED
    return gone.is_lost and devices.is_current(gone) and is_wanted and not has_failed


def go_on(lives: Lives, gone: Wpg) -> None:
    """Start a deployment's processes anew where those were of which nothing is left.

    Where a node is lost it waits for devices as one that is new, and alone.
    """
    deployment, placement = lives.deployments[gone.deployment_id], lives.placement
    if not _is_there(lives, gone):
        placing.free(placement, gone)
        deployment.wpg_id, deployment.declared_with = None, ()
        placing.request(placement, deployment)
        placing.bound_wait(placement, deployment)
        for node_id in dict.fromkeys(place.node_id for place in gone.places):
            if node_id not in placement.nodes:
                circles.look_later(placement, node_id)
        return
    hosts.leave(placement, gone)
    wpg = wpgs.add(lives, deployment, gone.places)
    deployment.wpg_id = wpg.wpg_id
    switch.spawn(lives, wpg)
