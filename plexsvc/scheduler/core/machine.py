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
from plexsvc.residency import ResidencyTrigger
from plexsvc.scheduler.core import timers
from plexsvc.scheduler.core.actions import Action
from plexsvc.scheduler.core.cluster import Cluster
from plexsvc.scheduler.core.device import grants, learning, lease, switch
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
from plexsvc.scheduler.core.queues import admission, lanes
from plexsvc.scheduler.core.relocate import packing, relocation
from plexsvc.scheduler.core.state import Operation, Wpg
from plexsvc.scheduler.core.timers import (
    AfterTimer,
    DrainTimer,
    GapTimer,
    LingerTimer,
    PlaceTimer,
    ProbeTimer,
    RelocateTimer,
    RetryTimer,
    SpawnTimer,
    StageTimer,
    Timer,
    WatchTimer,
)
from plexsvc.scheduler.core.view import ClusterView
from plexsvc.scheduler.core.vocabulary import (
    Fault,
    OperationKind,
    OperationState,
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
        self.cluster = Cluster(limits=limits, epoch=epoch)
        self.view = ClusterView(self.cluster)

    def handle(self, event: Event) -> list[Action]:
        """Return the actions that follow from `event`. Event times must grow."""
        cluster = self.cluster
        turn = self.cluster.turn
        assert event.at_us > turn.now_us, (event, turn.now_us)
        turn.now_us, turn.actions = event.at_us, []
        self._apply(event)
        relocation.settle(cluster)
        packing.settle(cluster)
        grants.settle(cluster.devices)
        return turn.actions

    def _apply(self, event: Event) -> None:  # noqa: C901, PLR0912 - one line an event
        cluster = self.cluster
        match event:
            case OperationSubmitted():
                admission.submit(cluster.queues, event)
            case OperationFinished():
                _finish_operation(cluster, event)
            case PayloadStaged() | PayloadRefused():
                admission.payload(cluster.queues, event)
            case Acknowledged():
                _acknowledge(cluster, event)
            case ResidencyMoved():
                moved = switch.moved(cluster.devices, event)
                if moved is not None:
                    lifecycle.stop_when_idle(cluster, moved)
            case MoveFailed():
                _move_failed(cluster, event)
            case TimerFired():
                _fire(cluster, timers.parse(event.key))
            case JobSubmitted():
                lifecycle.open_job(cluster, event)
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
                    cluster.placement.planning.book.keep(kept)
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
    operation = cluster.queues.operations.get(event.operation_id)
    if operation is None or operation.state is not OperationState.RUNNING:
        return
    assert operation.wpg_id is not None, operation
    wpg = cluster.wpgs[operation.wpg_id]
    deployment = cluster.deployments[operation.deployment_id]
    if event.fault is not None and event.fault.code in FATAL:
        lifecycle.fail_wpg(cluster, wpg, event.fault)
        return
    del wpg.running[operation.operation_id]
    relocation.watch_window(deployment, operation, event)
    lease.ended(cluster.devices, wpg, operation, run_us=event.run_us)
    if operation.kind is OperationKind.INITIALIZE:
        _initialized(cluster, wpg, operation, event)
    elif event.fault is None:
        lanes.answer(cluster.queues, operation, run_us=event.run_us)
        if operation.kind is OperationKind.PUBLISH:
            learning.published(cluster.devices, deployment)
    else:
        lanes.end_running(cluster.queues, operation, event.fault, is_refusal=event.is_refusal)
    lanes.watch_gap(cluster.queues, deployment)
    cluster.touch(wpg.wpg_id)
    lifecycle.stop_when_idle(cluster, wpg)


def _initialized(
    cluster: Cluster, wpg: Wpg, operation: Operation, event: OperationFinished
) -> None:
    if event.fault is None:
        wpg.shift(ResidencyTrigger.BUILT)
        lanes.answer(cluster.queues, operation, run_us=event.run_us)
        if cluster.is_current(wpg):
            lifecycle.set_ready(cluster, cluster.deployments[wpg.deployment_id])
        return
    wpg.shift(ResidencyTrigger.BUILD_FAILED)
    lanes.end_running(cluster.queues, operation, event.fault)
    lifecycle.fail_wpg(cluster, wpg, event.fault)


def _acknowledge(cluster: Cluster, event: Acknowledged) -> None:
    deployment = cluster.deployments.get(event.deployment_id)
    if deployment is not None:
        lanes.acknowledge(cluster.queues, deployment, seq=event.seq)


def _move_failed(cluster: Cluster, event: MoveFailed) -> None:
    wpg = cluster.wpgs.get(event.wpg_id)
    failed = switch.move_failed(cluster.devices, event)
    if failed is not None:
        lifecycle.fail_wpg(cluster, *failed)
    if wpg is not None:
        lifecycle.stop_when_idle(cluster, wpg)


def _fire(cluster: Cluster, timer: Timer) -> None:  # noqa: C901 - one case a timer
    match timer:
        case GapTimer():
            lanes.close_gap(cluster.queues, timer.deployment_id)
        case StageTimer():
            admission.give_up_staging(cluster.queues, timer.operation_id)
        case AfterTimer():
            lanes.give_up_unseen(cluster.queues, timer.operation_id)
        case PlaceTimer():
            lifecycle.give_up_placing(cluster, timer.deployment_id)
        case SpawnTimer():
            lifecycle.give_up_spawning(cluster, timer.wpg_id)
        case WatchTimer():
            lifecycle.find_stuck(cluster, timer.wpg_id)
        case RelocateTimer():
            relocation.give_up_waiting(cluster, timer.wpg_id)
        case ProbeTimer():
            learning.end_probe(cluster.devices, timer.deployment_id)
        case RetryTimer() | LingerTimer():
            cluster.touch(timer.wpg_id)
        case DrainTimer():
            pass  # packing looks after every event
        case _:
            assert_never(timer)


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
