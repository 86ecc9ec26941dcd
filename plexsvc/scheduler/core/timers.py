"""Timers of the core: what happens when each kind fires."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from plexsvc.errors import ErrorCode
from plexsvc.ids import DeploymentId, OperationId, WpgId, show
from plexsvc.scheduler.core.device import grants, learning
from plexsvc.scheduler.core.life import lifecycle
from plexsvc.scheduler.core.queues import lanes
from plexsvc.scheduler.core.relocate import relocation
from plexsvc.scheduler.core.state import Cluster
from plexsvc.scheduler.core.vocabulary import Fault, OperationState, WpgState


def fire(cluster: Cluster, key: str) -> None:
    """Do what a timer is for."""
    kind, _, name = key.partition("/")
    _HANDLERS[kind](cluster, name)


def _gap_timer(cluster: Cluster, name: str) -> None:
    deployment = cluster.deployments.get(DeploymentId(name))
    if deployment is not None:
        lanes.close_gap(cluster, deployment)
        cluster.touch(deployment.wpg_id)


def _stage_timer(cluster: Cluster, name: str) -> None:
    operation = cluster.operations.get(OperationId(bytes.fromhex(name)))
    if operation is None or operation.state is not OperationState.QUEUED:
        return
    fault = Fault(
        code=ErrorCode.STAGING_TIMEOUT,
        message=f"{show(operation.operation_id)}: its payload did not arrive within "
        f"{cluster.limits.staging_timeout_us // 1_000_000} s (scheduler.staging_timeout_us); "
        "submit it again with the next number",
    )
    lanes.refuse(cluster, operation, fault)
    deployment = cluster.deployments[operation.deployment_id]
    lanes.watch_gap(cluster, deployment)
    cluster.touch(deployment.wpg_id)


def _after_timer(cluster: Cluster, name: str) -> None:
    operation = cluster.operations.get(OperationId(bytes.fromhex(name)))
    if operation is None or operation.state is not OperationState.STAGED:
        return
    unseen = [
        o for o in operation.after if o not in cluster.operations and o not in cluster.released
    ]
    if not unseen:
        return
    fault = Fault(
        code=ErrorCode.DEPENDENCY_FAILED,
        message=f"{show(operation.operation_id)} not run: it comes after {show(unseen[0])}, which "
        f"nobody submitted within {cluster.limits.gap_timeout_us // 1_000_000} s "
        "(scheduler.gap_timeout_us)",
        facts=(("operation", unseen[0].hex()),),
    )
    lanes.refuse(cluster, operation, fault)
    deployment = cluster.deployments[operation.deployment_id]
    lanes.watch_gap(cluster, deployment)
    cluster.touch(deployment.wpg_id)


def _watch_timer(cluster: Cluster, name: str) -> None:
    """Fail a WPG whose oldest running operation is stuck; else watch on."""
    wpg = cluster.wpgs.get(WpgId(name))
    if wpg is None or wpg.state is not WpgState.READY:
        return
    wpg.watch_us = None
    running = cluster.deployments[wpg.deployment_id].running.values()
    if not running:
        return
    oldest = min(running, key=lambda operation: operation.started_us)
    if cluster.now_us - oldest.started_us < cluster.limits.operation_timeout_us:
        grants.watch(cluster, wpg, since_us=oldest.started_us)
        return
    fault = Fault(
        code=ErrorCode.OPERATION_TIMEOUT,
        message=f"{show(oldest.operation_id)} ({oldest.kind}) ran for more than "
        f"{cluster.limits.operation_timeout_us // 1_000_000} s (scheduler.operation_timeout_us); "
        f"{wpg.wpg_id} was stopped",
        facts=(("operation", oldest.operation_id.hex()), ("worker", wpg.wpg_id)),
    )
    lifecycle.fail_wpg(cluster, wpg, fault)


def _spawn_timer(cluster: Cluster, name: str) -> None:
    wpg = cluster.wpgs.get(WpgId(name))
    if wpg is None or wpg.state is not WpgState.SPAWNING:
        return
    fault = Fault(
        code=ErrorCode.OPERATION_TIMEOUT,
        message=f"{wpg.wpg_id} did not come up within "
        f"{cluster.limits.spawn_timeout_us // 1_000_000} s (scheduler.spawn_timeout_us); see "
        "the ranks' logs",
        facts=(("worker", wpg.wpg_id),),
    )
    lifecycle.fail_wpg(cluster, wpg, fault)


def _place_timer(cluster: Cluster, name: str) -> None:
    lifecycle.give_up_placing(cluster, DeploymentId(name))


def _look_again(cluster: Cluster, name: str) -> None:
    if WpgId(name) in cluster.wpgs:
        cluster.touch(WpgId(name))


def _probe_timer(cluster: Cluster, name: str) -> None:
    learning.end_probe(cluster, DeploymentId(name))


def _nothing(_cluster: Cluster, _name: str) -> None:
    """What follows after every event follows after this one too."""


_HANDLERS: Final[Mapping[str, Callable[[Cluster, str], None]]] = {
    "gap": _gap_timer,
    "stage": _stage_timer,
    "after": _after_timer,
    "watch": _watch_timer,
    "spawn": _spawn_timer,
    "place": _place_timer,
    "relocate": relocation.give_up_waiting,
    "retry": _look_again,
    "linger": _look_again,
    "probe": _probe_timer,
    "drain": _nothing,
}
"""Who handles `TimerFired(kind/name)`."""
