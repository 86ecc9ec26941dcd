"""The scheduler itself: one value with one method, `handle(event) -> list[Action]`.

Theory of operation. Each event changes records and marks the WPGs it touched; then
`dispatch.settle` starts whatever can start. Three things are coupled: an operation's place in its
deployment's order (`lanes`), the right to a device set (`dispatch`), and the life of the processes
(`lifecycle`). Promised after every event: one executor a device, resident bytes within the device,
each operation answered once, order kept; `invariants.check` says so. Events about things that are
gone change nothing: outcomes may arrive after the fact they report stopped mattering.
"""

from __future__ import annotations

from typing import assert_never

from plexsvc.errors import ErrorCode
from plexsvc.scheduler.core import timers
from plexsvc.scheduler.core.actions import Action, SetTimer
from plexsvc.scheduler.core.device import grants, learning
from plexsvc.scheduler.core.events import (
    Acknowledged,
    CarryFailed,
    DeploymentRequested,
    Event,
    JobEndRequested,
    JobMoveRequested,
    JobPinned,
    JobSubmitted,
    MoveFailed,
    NodeCordoned,
    NodeJoined,
    NodeLost,
    NodeUncordoned,
    OperationFinished,
    OperationSubmitted,
    PayloadRefused,
    PayloadStaged,
    ProcExited,
    ProfilesLoaded,
    RelocationRequested,
    RepackRequested,
    ResidencyMoved,
    SpawnFailed,
    StateCarried,
    TimerFired,
    WpgForgotten,
    WpgReady,
    WpgStopped,
)
from plexsvc.scheduler.core.life import lifecycle
from plexsvc.scheduler.core.limits import Limits
from plexsvc.scheduler.core.planning.planners import Planning
from plexsvc.scheduler.core.queues import admission, lanes
from plexsvc.scheduler.core.relocate import packing, relocation
from plexsvc.scheduler.core.state import MOVING, Cluster, Operation, Wpg
from plexsvc.scheduler.core.timeline import Span, Timeline
from plexsvc.scheduler.core.transitions import ResidencyTrigger
from plexsvc.scheduler.core.vocabulary import (
    Fault,
    OperationKind,
    OperationState,
    Residency,
    WpgState,
)

FATAL = frozenset({ErrorCode.WORKER_DIED, ErrorCode.NODE_LOST, ErrorCode.OPERATION_TIMEOUT})
"""Faults of an operation after which its processes cannot be trusted."""


class Scheduler:
    """Decides when and where every operation runs. Deterministic: same events, same actions.

    >>> from plexsvc.ids import JobId, TenantId
    >>> scheduler = Scheduler(limits=Limits(), epoch=1)
    >>> scheduler.handle(JobSubmitted(at_us=1, job_id=JobId("job-1"), tenant=TenantId("t")))
    []
    """

    def __init__(self, *, limits: Limits, epoch: int) -> None:
        self.cluster = Cluster(
            epoch=epoch,
            limits=limits,
            timeline=Timeline(limits.max_spans),
            planning=Planning.of(limits),
        )

    def handle(self, event: Event) -> list[Action]:
        """Return the actions that follow from `event`. Event times must grow."""
        cluster = self.cluster
        assert event.at_us > cluster.now_us, (event, cluster.now_us)
        cluster.now_us = event.at_us
        cluster.actions = []
        self._apply(event)
        relocation.settle(cluster)
        packing.settle(cluster)
        grants.settle(cluster)
        return cluster.actions

    def _apply(self, event: Event) -> None:  # noqa: C901, PLR0912 - one line an event
        cluster = self.cluster
        match event:
            case OperationSubmitted():
                admission.submit(cluster, event)
            case OperationFinished():
                _finish_operation(cluster, event)
            case PayloadStaged() | PayloadRefused():
                admission.payload(cluster, event)
            case Acknowledged():
                _acknowledge(cluster, event)
            case ResidencyMoved():
                _moved(cluster, event)
            case MoveFailed():
                _move_failed(cluster, event)
            case TimerFired():
                timers.fire(cluster, event.key)
            case JobSubmitted():
                admission.open_job(cluster, event)
            case JobEndRequested():
                lifecycle.end_job(cluster, event)
            case DeploymentRequested():
                lifecycle.request_deployment(cluster, event)
            case WpgReady() | SpawnFailed() | ProcExited() | WpgStopped() | WpgForgotten():
                _process_event(cluster, event)
            case NodeJoined():
                lifecycle.join_node(cluster, event)
            case StateCarried() | CarryFailed():
                relocation.carried(cluster, event)
            case NodeLost():
                lifecycle.lose_node(cluster, event.node_id, reason=event.reason)
            case ProfilesLoaded():
                for kept in event.profiles:
                    cluster.planning.book.keep(kept)
            case (
                NodeCordoned()
                | NodeUncordoned()
                | JobMoveRequested()
                | JobPinned()
                | RelocationRequested()
                | RepackRequested()
            ):
                packing.take_order(cluster, event)
            case _:
                assert_never(event)


def _process_event(
    cluster: Cluster, event: WpgReady | SpawnFailed | ProcExited | WpgStopped | WpgForgotten
) -> None:
    wpg = cluster.wpgs.get(event.wpg_id)
    if wpg is None:
        return
    match event:
        case WpgReady():
            lifecycle.come_up(cluster, wpg, device_bytes=event.device_bytes)
        case SpawnFailed():
            lifecycle.fail_wpg(cluster, wpg, event.fault)
        case ProcExited():
            was_told_to = wpg.state in {WpgState.STOPPING, WpgState.FORGETTING}
            if event.incarnation == wpg.incarnation and not was_told_to:
                lifecycle.fail_wpg(cluster, wpg, _worker_died(event))
        case WpgStopped():
            if wpg.state is WpgState.STOPPING:
                lifecycle.forget_wpg(cluster, wpg)
        case WpgForgotten():
            if wpg.state is WpgState.FORGETTING:
                lifecycle.remove_wpg(cluster, wpg)
        case _:
            assert_never(event)


def _finish_operation(cluster: Cluster, event: OperationFinished) -> None:
    operation = cluster.operations.get(event.operation_id)
    if operation is None or operation.state is not OperationState.RUNNING:
        return
    deployment = cluster.deployments[operation.deployment_id]
    wpg = cluster.wpg_of(deployment)
    assert wpg is not None, operation
    if event.fault is not None and event.fault.code in FATAL:
        lifecycle.fail_wpg(cluster, wpg, event.fault)
        return
    del deployment.running[operation.operation_id]
    relocation.watch_window(deployment, operation, event)
    _account(cluster, wpg, operation, run_us=event.run_us)
    if operation.kind is OperationKind.INITIALIZE:
        _initialized(cluster, wpg, operation, event)
    elif event.fault is None:
        lanes.answer(cluster, operation, run_us=event.run_us)
        if operation.kind is OperationKind.PUBLISH:
            learning.published(cluster, deployment)
    else:
        lanes.end_running(cluster, operation, event.fault, is_refusal=event.is_refusal)
    lanes.watch_gap(cluster, deployment)
    cluster.touch(wpg.wpg_id)
    lifecycle.stop_when_idle(cluster, wpg)


def _initialized(
    cluster: Cluster, wpg: Wpg, operation: Operation, event: OperationFinished
) -> None:
    if event.fault is None:
        wpg.shift(ResidencyTrigger.BUILT)
        lanes.answer(cluster, operation, run_us=event.run_us)
        lifecycle.set_ready(cluster, cluster.deployments[wpg.deployment_id])
        return
    wpg.shift(ResidencyTrigger.BUILD_FAILED)
    lanes.end_running(cluster, operation, event.fault)
    lifecycle.fail_wpg(cluster, wpg, event.fault)


def _account(cluster: Cluster, wpg: Wpg, operation: Operation, *, run_us: int) -> None:
    """Record how long it took, and give the device up when nothing else of it runs."""
    deployment = cluster.deployments[wpg.deployment_id]
    learning.measured(
        cluster, wpg, operation, run_us=run_us or cluster.now_us - operation.started_us
    )
    if not operation.needs_device:
        return
    for place in wpg.places:
        cluster.timeline.add(
            Span(
                index=cluster.timeline.next_index,
                place=place,
                kind=operation.kind,
                job_id=wpg.job_id,
                deployment_id=deployment.shown_id,
                operation_id=operation.operation_id,
                start_us=operation.started_us,
                end_us=cluster.now_us,
                nbytes=0,
            )
        )
    if not deployment.running:
        grants.release_devices(cluster, wpg)


def _acknowledge(cluster: Cluster, event: Acknowledged) -> None:
    deployment = cluster.deployments.get(event.deployment_id)
    if deployment is not None:
        lanes.acknowledge(cluster, deployment, seq=event.seq)


def _moved(cluster: Cluster, event: ResidencyMoved) -> None:
    wpg = cluster.wpgs.get(event.wpg_id)
    if wpg is None or wpg.move_id != event.move_id:
        return
    is_load = wpg.residency is Residency.LOADING
    wpg.shift(ResidencyTrigger.LOADED if is_load else ResidencyTrigger.OFFLOADED)
    wpg.move_id = None
    _record_move(cluster, wpg, event, is_load=is_load)
    cluster.touch(wpg.wpg_id)
    if is_load and wpg.switch is not None:
        grants.finish_switch(cluster, wpg)
    _wake_switch_over(cluster, wpg)
    lifecycle.stop_when_idle(cluster, wpg)


def _record_move(cluster: Cluster, wpg: Wpg, event: ResidencyMoved, *, is_load: bool) -> None:
    for place in wpg.places:
        device = cluster.devices[place]
        device.switch_us += cluster.now_us - wpg.move_started_us
        device.switches += is_load
        cluster.timeline.add(
            Span(
                index=cluster.timeline.next_index,
                place=place,
                kind="load" if is_load else "offload",
                job_id=wpg.job_id,
                deployment_id=cluster.deployments[wpg.deployment_id].shown_id,
                operation_id=None,
                start_us=wpg.move_started_us,
                end_us=cluster.now_us,
                nbytes=event.nbytes // len(wpg.places),
            )
        )


def _move_failed(cluster: Cluster, event: MoveFailed) -> None:
    """Try again later when there was no room; distrust the WPG after any other failure."""
    wpg = cluster.wpgs.get(event.wpg_id)
    if wpg is None or wpg.move_id != event.move_id:
        return
    assert wpg.residency in MOVING, wpg
    wpg.shift(ResidencyTrigger.MOVE_FAILED)
    wpg.move_id = None
    cluster.touch(wpg.wpg_id)
    if event.fault.code is not ErrorCode.NO_ROOM:
        lifecycle.fail_wpg(cluster, wpg, event.fault)
        return
    for waiter in [wpg, *_switching_over(cluster, wpg)]:
        if waiter.switch is not None:
            _put_off(cluster, waiter, event.fault)
    lifecycle.stop_when_idle(cluster, wpg)


def _put_off(cluster: Cluster, wpg: Wpg, fault: Fault) -> None:
    operation = grants.withdraw(cluster, wpg)
    if operation is None:
        cluster.prefetches.wasted += 1
        _retry_later(cluster, wpg)
        return
    operation.move_failures += 1
    if operation.move_failures < cluster.limits.max_move_tries:
        _retry_later(cluster, wpg)
        return
    lanes.refuse(cluster, operation, fault, is_final=operation.kind is OperationKind.INITIALIZE)
    if operation.kind is OperationKind.INITIALIZE:
        lifecycle.fail_wpg(cluster, wpg, fault)
    lanes.watch_gap(cluster, cluster.deployments[wpg.deployment_id])


def _retry_later(cluster: Cluster, wpg: Wpg) -> None:
    wpg.retry_us = cluster.now_us + cluster.limits.move_retry_us
    cluster.emit(SetTimer(key=f"retry/{wpg.wpg_id}", at_us=wpg.retry_us))


def _switching_over(cluster: Cluster, victim: Wpg) -> list[Wpg]:
    """Return the WPGs whose switch waits for `victim` to leave the device."""
    members = [cluster.wpgs[w] for w in cluster.groups[victim.wpg_id]]
    return [w for w in members if w.switch is not None and victim.wpg_id in w.switch.victims]


def _wake_switch_over(cluster: Cluster, victim: Wpg) -> None:
    for wpg in _switching_over(cluster, victim):
        if wpg.move_id is None:
            grants.advance_switch(cluster, wpg)


def _worker_died(event: ProcExited) -> Fault:
    how = f"signal {event.signal}" if event.signal else f"exit code {event.exit_code}"
    last = event.log_tail.strip().rsplit("\n", 1)[-1]
    return Fault(
        code=ErrorCode.WORKER_DIED,
        message=f"rank {event.rank} of {event.wpg_id} died with {how}"
        + (f"; its log ends: {last}" if last else "")
        + "; deploy again to go on",
        facts=(
            ("worker", f"{event.wpg_id}/{event.rank}"),
            ("exit_code", str(event.exit_code)),
            ("signal", str(event.signal)),
            ("log_tail", event.log_tail),
        ),
    )
