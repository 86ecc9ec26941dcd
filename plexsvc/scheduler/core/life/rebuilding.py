"""Rebuilding of a durable deployment whose processes died: others take its state from a copy.

Theory of operation. After each operation that writes weights the driver keeps a copy of the state
(`KeepState`). When a process of the current WPG dies, the deployment is *lost*: what ran gives its
number back, and comes again from its client; the rest keeps its place and waits (`begin`). The WPG
is stopped and forgotten. Then a new one comes up at the same places (`go_on`). Its `Initialize`
reads the copy and runs again what was applied since (`orders/durable.py`); with that the
deployment goes on.

It ends with a cause when that fails, when its processes die `MAX_LOSSES` times with nothing applied
in between, and when one of its nodes is lost, whose memory had a part of the copy.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from plexsvc.errors import ErrorCode
from plexsvc.scheduler.core.actions import DeploymentLost, KeepState
from plexsvc.scheduler.core.cluster import Devices, Lives
from plexsvc.scheduler.core.device import switch
from plexsvc.scheduler.core.life import wpgs
from plexsvc.scheduler.core.place import hosts
from plexsvc.scheduler.core.queues import endings, lanes
from plexsvc.scheduler.core.state import Operation, Wpg
from plexsvc.scheduler.core.vocabulary import WRITING_KINDS, DeploymentState, Fault

MAX_LOSSES: Final = 3

ADVICE: Final = "; deploy again to go on"
"""What is said of a death that ends a deployment."""


def may_begin(devices: Devices, wpg: Wpg, fault: Fault) -> bool:
    """Whether a deployment goes on although this WPG of it cannot."""
    deployment = devices.deployments[wpg.deployment_id]
    is_death = fault.code in {ErrorCode.WORKER_DIED, ErrorCode.NODE_LOST}
    return (
        deployment.is_durable
        and devices.is_current(wpg)
        and deployment.state is DeploymentState.READY
        and devices.jobs[wpg.job_id].ending is None
        and (is_death or deployment.lost is None)
        and (deployment.losses < MAX_LOSSES or wpg.is_lost)
        and all(place.node_id in devices.placement.nodes for place in wpg.places)
    )


def begin(devices: Devices, wpg: Wpg, fault: Fault) -> None:
    """Take a WPG down whose state is gone, and have its operations wait for the next one."""
    if wpg.is_lost:
        return
    fault = replace(fault, message=fault.message.removesuffix(ADVICE))
    deployment = devices.deployments[wpg.deployment_id]
    wpg.is_lost = True
    deployment.lost, deployment.losses = fault, deployment.losses + 1
    deployment.lost_us = deployment.lost_us or devices.now_us
    deployment.incarnations += 1
    again = Fault(
        code=ErrorCode.UNAVAILABLE,
        message=f"{deployment.deployment_id} is rebuilt from its last durable step "
        f"({fault.message}); send it again",
    )
    running = list(wpg.running.values())
    wpg.running.clear()
    for operation in running:
        endings.end_running(devices.queues, operation, again, is_refusal=True)
    lanes.watch_gap(devices.queues, deployment)
    wpgs.refuse_waiting(devices, wpg, again)
    initialize_id = deployment.initialize_id_of(deployment.incarnations)
    devices.emit(
        DeploymentLost(
            deployment_id=deployment.deployment_id, initialize_id=initialize_id, fault=fault
        )
    )
    if not wpg.writing:
        wpgs.stop(devices, wpg)


def applied(devices: Devices, wpg: Wpg, operation: Operation) -> None:
    """Have the state kept that an operation of a durable deployment left, if it wrote weights."""
    deployment = devices.deployments[wpg.deployment_id]
    deployment.losses = 0
    if deployment.is_durable and operation.kind in WRITING_KINDS:
        devices.emit(KeepState(wpg_id=wpg.wpg_id, seq=operation.seq, lease_no=wpg.lease_no))


def may_go_on(devices: Devices, gone: Wpg) -> bool:
    """Whether the deployment of a WPG of which nothing is left gets another one."""
    deployment = devices.deployments[gone.deployment_id]
    is_wanted = devices.jobs[gone.job_id].ending is None
    is_ready = deployment.state is DeploymentState.READY
    return gone.is_lost and devices.is_current(gone) and is_ready and is_wanted


def go_on(lives: Lives, gone: Wpg) -> None:
    """Start a deployment's processes anew where those were of which nothing is left."""
    deployment = lives.deployments[gone.deployment_id]
    hosts.leave(lives.devices.placement, gone)
    wpg = wpgs.add(lives, deployment, gone.places)
    deployment.wpg_id = wpg.wpg_id
    switch.spawn(lives.devices, wpg)
