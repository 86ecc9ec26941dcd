"""The scheduler itself: one value with one method, `handle(event) -> list[Action]`.

Theory of operation. Each event has one handler, which changes records and marks the WPGs it
touched. Then relocations and packing go on as far as they can, and `grants` starts whatever can
start. Three things are coupled: an operation's place in its deployment's order (`queues`), the
right to a device set (`device`), and the life of the processes (`life`). Promised after every
event: one executor a device, resident bytes within the device, each operation answered once, order
kept; `invariants.check` asserts it.
"""

from __future__ import annotations

from typing import assert_never

from plexsvc.scheduler.core import timers
from plexsvc.scheduler.core.actions import Action
from plexsvc.scheduler.core.cluster import Cluster
from plexsvc.scheduler.core.device import grants, learning
from plexsvc.scheduler.core.events import (
    Acknowledged,
    CancelRequested,
    CarryFailed,
    DeploymentRequested,
    Event,
    InstanceLost,
    InstanceReady,
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
    OperatorOrder,
    Outcome,
    PayloadRefused,
    PayloadStaged,
    PayloadUnderWay,
    ProcExited,
    ProfilesLoaded,
    RelocationRequested,
    RepackRequested,
    ResidencyMoved,
    SpawnFailed,
    StateCarried,
    StateCopied,
    TimerFired,
    WpgForgotten,
    WpgReady,
    WpgStopped,
)
from plexsvc.scheduler.core.life import cancelling, deployments, instances, jobs, nodes, outcomes
from plexsvc.scheduler.core.limits import Limits
from plexsvc.scheduler.core.place import placing
from plexsvc.scheduler.core.queues import admission, endings, lanes
from plexsvc.scheduler.core.relocate import departures, packing, relocation
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
)
from plexsvc.scheduler.core.view import ClusterView


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
        cluster.placement.planning.shares.now_us = event.at_us
        self._apply(event)
        if cluster.relocating:
            relocation.settle(cluster.lives)
        packing.settle(cluster.lives)
        if turn.dirty:
            grants.settle(cluster.devices)
        return turn.actions

    def _apply(self, event: Event) -> None:  # noqa: C901, PLR0912 - one case an event
        cluster = self.cluster
        match event:
            case OperationSubmitted():
                admission.submit(cluster.queues, event)
            case PayloadUnderWay() | PayloadStaged() | PayloadRefused():
                admission.payload(cluster.queues, event)
            case CancelRequested():
                cancelling.cancel(cluster.devices, event)
            case Acknowledged():
                endings.acknowledge(cluster.queues, event)
            case TimerFired():
                _fire(cluster, timers.parse(event.key))
            case JobSubmitted():
                jobs.open_job(cluster.lives, event)
            case JobEndRequested():
                jobs.end(cluster.lives, event)
            case DeploymentRequested():
                deployments.request(cluster.lives, event)
            case NodeJoined():
                nodes.join(cluster.devices, event)
            case NodeLost():
                nodes.lose(cluster.devices, event)
            case ProfilesLoaded():
                placing.recall(cluster.placement, event)
            case _ if isinstance(event, OperatorOrder):
                _obey(cluster, event)
            case _:
                _take_outcome(cluster, event)


def _take_outcome(cluster: Cluster, event: Outcome) -> None:  # noqa: C901, PLR0912 - one case each
    match event:
        case StateCopied():
            outcomes.copied(cluster.devices, event)
        case OperationFinished():
            outcomes.finished(cluster.devices, event)
        case ResidencyMoved():
            outcomes.moved(cluster.devices, event)
        case MoveFailed():
            outcomes.did_not_move(cluster.devices, event)
        case WpgReady():
            outcomes.came_up(cluster.devices, event)
        case SpawnFailed():
            outcomes.did_not_spawn(cluster.devices, event)
        case ProcExited():
            outcomes.died(cluster.devices, event)
        case InstanceLost():
            instances.lost(cluster.devices, event)
        case InstanceReady():
            instances.is_back(cluster.devices, event)
        case WpgStopped():
            outcomes.stopped(cluster.devices, event)
        case WpgForgotten():
            outcomes.forgotten(cluster.lives, event)
        case StateCarried() | CarryFailed():
            relocation.carried(cluster.lives, event)
        case _:
            assert_never(event)


def _obey(cluster: Cluster, event: OperatorOrder) -> None:
    match event:
        case NodeCordoned():
            nodes.cordon(cluster.devices, event)
        case NodeUncordoned():
            nodes.uncordon(cluster.devices, event)
        case JobPinned():
            jobs.pin(cluster.devices, event)
        case JobMoveRequested():
            departures.move_job(cluster.lives, event)
        case RelocationRequested():
            departures.relocate(cluster.lives, event)
        case RepackRequested():
            packing.repack_all(cluster.lives)
        case _:
            assert_never(event)


def _fire(cluster: Cluster, timer: Timer) -> None:
    match timer:
        case GapTimer():
            lanes.close_gap(cluster.queues, timer.deployment_id)
        case StageTimer():
            admission.give_up_staging(cluster.queues, timer.operation_id)
        case AfterTimer():
            lanes.give_up_unseen(cluster.queues, timer.operation_id)
        case PlaceTimer():
            deployments.give_up_placing(cluster.devices, timer.deployment_id)
        case SpawnTimer():
            outcomes.did_not_come_up(cluster.devices, timer.wpg_id)
        case RelocateTimer():
            relocation.give_up_waiting(cluster.lives, timer.wpg_id)
        case ProbeTimer():
            learning.end_probe(cluster.devices, timer.deployment_id)
        case RetryTimer() | LingerTimer():
            cluster.touch(timer.wpg_id)
        case DrainTimer():
            pass  # packing looks after every event
        case _:
            assert_never(timer)
