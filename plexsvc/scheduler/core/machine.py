"""The scheduler itself: one value with one method, `handle(event) -> list[Action]`.

Theory of operation. Each event has one handler, which changes records and marks the WPGs it
touched. Then relocations and movers go on as far as they can, and `grants` starts whatever can
start. Three things are coupled: an operation's place in its deployment's order (`queues`), the
right to a device set (`device`), and the life of the processes (`life`). Promised after every
event: one executor a device, resident bytes within the device, each operation answered once, order
kept; tests assert it (`tests/rigs/core_invariants.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeVar, assert_never, cast

from plexsvc.ids import DeploymentId, OperationId, WpgId
from plexsvc.scheduler.core import awaited, events, timers
from plexsvc.scheduler.core.actions import Action
from plexsvc.scheduler.core.cluster import ClusterState, Slice
from plexsvc.scheduler.core.device import grants, learning
from plexsvc.scheduler.core.life import deployments, instances, jobs, nodes, outcomes
from plexsvc.scheduler.core.limits import Limits
from plexsvc.scheduler.core.place import hosts, placing
from plexsvc.scheduler.core.queues import admission, endings, lanes
from plexsvc.scheduler.core.relocate import movers, relocation
from plexsvc.scheduler.core.timers import Timer
from plexsvc.scheduler.core.view import ClusterView

E = TypeVar("E", bound=events.Event)
S = TypeVar("S", bound=Slice)


class Scheduler:
    """Decides when and where every operation runs. Deterministic: same events, same actions.

    >>> from plexsvc.ids import JobId, TenantId
    >>> from plexsvc.scheduler.core.events import JobSubmitted
    >>> scheduler = Scheduler(limits=Limits(), epoch=1)
    >>> scheduler.handle(JobSubmitted(at_us=1, job_id=JobId("job-1"), tenant=TenantId("t")))
    []
    """

    def __init__(self, *, limits: Limits, epoch: int, cluster: ClusterState | None = None) -> None:
        """Begin with nothing, or go on from what an earlier core of that epoch knew."""
        self.cluster = cluster or ClusterState(limits=limits, epoch=epoch)
        self.view = ClusterView(self.cluster)
        self._handlers = _handlers(self.cluster)

    def lead(self, epoch: int) -> None:
        """Go on under another epoch: another scheduler has taken over."""
        self.cluster.turn.epoch = epoch

    def handle(self, event: events.Event) -> list[Action]:
        """Return the actions that follow from `event`. Event times must grow."""
        cluster, turn = self.cluster, self.cluster.turn
        assert event.at_us > turn.now_us, (event, turn.now_us)
        turn.now_us = cluster.placement.shares.now_us = event.at_us
        turn.actions = []
        self._handlers[type(event)](event)
        # Grants come last: what is placed, stopped or held before them changes who may run.
        if cluster.placement.homeless:
            instances.settle(cluster.devices)
        if cluster.relocating:
            relocation.settle(cluster.lives)
        movers.settle(cluster.lives)
        if turn.dirty:
            grants.settle(cluster.devices)
        return turn.actions


def _handlers(cluster: ClusterState) -> Mapping[type[events.Event], Callable[[events.Event], None]]:
    """Return what handles each kind of event, with the slice of the cluster that it may change."""
    queues, devices, lives = cluster.queues, cluster.devices, cluster.lives
    rows = [
        _on(events.OperationSubmitted, admission.submit, queues),
        _on(events.PayloadUnderWay, admission.payload, queues),
        _on(events.PayloadStaged, admission.payload, queues),
        _on(events.PayloadRefused, admission.payload, queues),
        _on(events.Acknowledged, endings.acknowledge, queues),
        _on(events.CancelRequested, jobs.cancel, devices),
        _on(events.ControllerReplaced, jobs.cancel_all, devices),
        _on(events.OperationFinished, outcomes.finished, devices),
        _on(events.StateCopied, outcomes.copied, devices),
        _on(events.VersionsHeld, hosts.hold, cluster.placement),
        _on(events.VersionRead, hosts.read, cluster.placement),
        _on(events.ResidencyMoved, outcomes.moved, devices),
        _on(events.MoveFailed, outcomes.did_not_move, devices),
        _on(events.TimerFired, _due, cluster),
        _on(events.JobSubmitted, jobs.open_job, lives),
        _on(events.JobPinned, jobs.pin, devices),
        _on(events.JobEndRequested, jobs.end, lives),
        _on(events.JobMoveRequested, movers.move_job, lives),
        _on(events.DeploymentRequested, deployments.request, lives),
        _on(events.DeploymentsDeclared, deployments.request, lives),
        _on(events.RelocationRequested, movers.relocate, lives),
        _on(events.RepackRequested, movers.repack_all, lives),
        _on(events.StateCarried, relocation.carried, lives),
        _on(events.CarryFailed, relocation.carried, lives),
        _on(events.WpgReady, outcomes.came_up, devices),
        _on(events.SpawnFailed, outcomes.did_not_spawn, devices),
        _on(events.ProcExited, outcomes.died, devices),
        _on(events.InstanceLost, instances.lost, devices),
        _on(events.InstanceLeft, instances.left, devices),
        _on(events.InstanceReady, instances.is_back, devices),
        _on(events.TurnsTaken, instances.turned, devices),
        _on(events.WpgStopped, outcomes.stopped, devices),
        _on(events.WpgForgotten, outcomes.forgotten, lives),
        _on(events.NodeJoined, nodes.join, devices),
        _on(events.NodeLost, nodes.lose, devices),
        _on(events.NodeForgotten, nodes.forget, devices),
        _on(events.NodeCordoned, nodes.cordon, devices),
        _on(events.NodeUncordoned, nodes.uncordon, devices),
        _on(events.ProfilesLoaded, placing.recall, cluster.placement),
    ]
    made = dict(rows)
    assert made.keys() == set(events.KINDS.values()), "each kind of event has one handler"
    return made


def _on(
    kind: type[E], handle: Callable[[S, E], None], part: S
) -> tuple[type[events.Event], Callable[[events.Event], None]]:
    handler: object = partial(handle, part)
    return kind, cast("Callable[[events.Event], None]", handler)


def _due(cluster: ClusterState, event: events.TimerFired) -> None:
    if awaited.is_awaited(cluster, event.key):
        _fire(cluster, *timers.parse(event.key))


def _fire(cluster: ClusterState, timer: Timer, name: str) -> None:
    match timer:
        case Timer.GAP:
            lanes.close_gap(cluster.queues, DeploymentId(name))
        case Timer.STAGE:
            admission.give_up_staging(cluster.queues, OperationId(bytes.fromhex(name)))
        case Timer.AFTER:
            lanes.give_up_unseen(cluster.queues, OperationId(bytes.fromhex(name)))
        case Timer.PLACE:
            deployments.give_up_placing(cluster.devices, DeploymentId(name))
        case Timer.SPAWN:
            outcomes.did_not_come_up(cluster.devices, WpgId(name))
        case Timer.HOMELESS:
            instances.give_up_waiting(cluster.devices, WpgId(name))
        case Timer.RELOCATE:
            relocation.give_up_waiting(cluster.lives, WpgId(name))
        case Timer.PROBE:
            learning.end_probe(cluster.devices, DeploymentId(name))
        case Timer.RETRY | Timer.LINGER:
            cluster.touch(WpgId(name))
        case Timer.CIRCLE:
            deployments.open_circles(cluster.devices)
        case Timer.DRAIN:
            pass  # the movers look after every event
        case _:
            assert_never(timer)
