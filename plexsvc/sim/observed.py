"""Observations of a live run from its journal: the time of each action, and each job's moments.

One pass through a core. Durations run from the event that led to an order to the event that is its
outcome, so they hold all that lies between, calls and queues of the driver included.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from plexsvc.errors import RETRYABLE
from plexsvc.ids import DeploymentId, JobId, OperationId, WpgId
from plexsvc.residency import Residency
from plexsvc.scheduler.core import actions, events
from plexsvc.scheduler.core.machine import Scheduler
from plexsvc.scheduler.core.vocabulary import DeploymentState, Fault, OperationKind, Place
from plexsvc.scheduler.driver.encoding import Recording
from plexsvc.sim.clients import Answer, subject_of

ENDED: Final = frozenset({"completed", "failed", "cancelled"})


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationSample:
    """One operation that ran."""

    operation_id: OperationId
    deployment_id: DeploymentId
    backend: str
    kind: OperationKind
    num_tokens: int
    is_first: bool
    """Whether it was the first of its kind on its deployment."""
    started_us: int
    elapsed_us: int
    run_us: int
    fault: Fault | None
    is_refusal: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveSample:
    """One move of state; `to` is `None` where it was copied for other ranks."""

    deployment_id: DeploymentId
    to: Residency | None
    nbytes: int
    elapsed_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SpawnSample:
    """One start of a deployment's processes."""

    deployment_id: DeploymentId
    is_rollout: bool
    places: tuple[Place, ...]
    ordered_us: int
    elapsed_us: int
    device_bytes: tuple[int, ...]
    fault: Fault | None


class What(StrEnum):
    """What a moment of a job is."""

    SENT = "sent"
    ANSWERED = "answered"
    READY = "ready"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Key:
    """What happens once in a job's life: a post, by its row of the journal, or an id's answer."""

    what: What
    of: int | str


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """When something happened to a job; `event` is what it posted."""

    at_us: int
    key: Key
    event: events.Event | None = None


@dataclass(slots=True, kw_only=True)
class Observed:
    """A live run."""

    operations: list[OperationSample] = field(default_factory=list)
    moves: list[MoveSample] = field(default_factory=list)
    spawns: list[SpawnSample] = field(default_factory=list)
    stops_us: list[int] = field(default_factory=list)
    forgets_us: list[int] = field(default_factory=list)
    jobs: dict[JobId, list[Moment]] = field(default_factory=dict)
    outside: list[events.Event] = field(default_factory=list)
    """What neither a job nor an order brought about: nodes, operators, faults."""


def observe(recorded: Recording) -> Observed:
    """Return what a journal tells, in one replay."""
    watcher = _Watcher(recorded.configured.new_core())
    for entry in recorded.entries:
        watcher.see(entry.event, idx=entry.idx)
    return watcher.found


class _Watcher:
    """Sees every event before the core does, and every action after."""

    def __init__(self, core: Scheduler) -> None:
        self.found = Observed()
        self._core = core
        self._ordered: dict[object, tuple[actions.Action, int]] = {}
        self._job_of: dict[object, JobId] = {}
        self._known: set[tuple[DeploymentId, OperationKind]] = set()

    def see(self, event: events.Event, *, idx: int) -> None:
        """Take one event in."""
        self._event(event, idx=idx)
        for action in self._core.handle(event):
            name = getattr(action, "ends_by", None)
            if name is not None:
                self._ordered[getattr(action, name)] = (action, event.at_us)
            self._answer(action, at_us=event.at_us)

    def _event(self, event: events.Event, *, idx: int) -> None:  # noqa: C901, PLR0912 - one line an event
        match event:
            case events.OperationFinished():
                self._finished(event)
            case events.ResidencyMoved() | events.StateCarried():
                self._moved(event)
            case events.WpgReady() | events.SpawnFailed():
                self._spawn_ended(event)
            case events.WpgStopped():
                self._took(event.wpg_id, event.at_us, into=self.found.stops_us)
            case events.WpgForgotten():
                self._took(event.wpg_id, event.at_us, into=self.found.forgets_us)
            case events.MoveFailed() | events.CarryFailed():
                pass
            case events.TimerFired() | events.PlanComputed():
                pass  # whoever plays the run makes their own
            case events.ProcExited():
                order, _ = self._order(event.wpg_id)
                if order is None or isinstance(
                    order, actions.SpawnWpg
                ):  # nobody had ordered its end
                    self.found.outside.append(event)
            case events.OperationSubmitted():
                if event.operation_id not in self._job_of:
                    self._job_of[event.operation_id] = event.job_id
                    self._post(event.job_id, event, idx=idx)
            case events.DeploymentRequested():
                self._job_of[event.deployment_id] = event.job_id
                self._post(event.job_id, event, idx=idx)
            case events.JobSubmitted() | events.JobEndRequested():
                self._job_of[event.job_id] = event.job_id
                self._post(event.job_id, event, idx=idx)
            case events.PayloadUnderWay() | events.PayloadStaged() | events.PayloadRefused():
                self._post(self._job_of.get(event.operation_id), event, idx=idx)
            case events.Acknowledged():
                self._post(self._job_of.get(event.deployment_id), event, idx=idx)
            case _:
                self.found.outside.append(event)

    def _answer(self, action: actions.Action, *, at_us: int) -> None:
        key = answer_key(action) if isinstance(action, Answer) else None
        if key is not None and isinstance(action, Answer):
            job_id = self._job_of.get(subject_of(action))
            if job_id is not None:
                self.found.jobs[job_id].append(Moment(at_us=at_us, key=key))

    def _post(self, job_id: JobId | None, event: events.Event, *, idx: int) -> None:
        if job_id is not None:
            moment = Moment(at_us=event.at_us, key=Key(What.SENT, idx), event=event)
            self.found.jobs.setdefault(job_id, []).append(moment)

    def _order(self, subject: object) -> tuple[actions.Action | None, int]:
        """Return the last order about a subject and when it was given."""
        return self._ordered.get(subject, (None, 0))

    def _took(self, wpg_id: WpgId, at_us: int, *, into: list[int]) -> None:
        order, ordered_us = self._order(wpg_id)
        if order is not None:
            into.append(at_us - ordered_us)

    def _finished(self, event: events.OperationFinished) -> None:
        operation = self._core.view.operations.get(event.operation_id)
        order, started_us = self._order(event.operation_id)
        if operation is None or order is None:
            return
        deployment = self._core.view.deployments[operation.deployment_id]
        known = (deployment.deployment_id, operation.kind)
        self.found.operations.append(
            OperationSample(
                operation_id=event.operation_id,
                deployment_id=deployment.deployment_id,
                backend=deployment.backend,
                kind=operation.kind,
                num_tokens=operation.num_tokens,
                is_first=known not in self._known,
                started_us=started_us,
                elapsed_us=event.at_us - started_us,
                run_us=event.run_us,
                fault=event.fault,
                is_refusal=event.is_refusal,
            )
        )
        self._known.add(known)

    def _moved(self, event: events.ResidencyMoved | events.StateCarried) -> None:
        order, ordered_us = self._order(event.move_id)
        deployment_id = None
        if isinstance(order, actions.CarryState):
            deployment_id = order.deployment_id
        elif isinstance(order, actions.MoveState) and order.wpg_id in self._core.view.wpgs:
            deployment_id = self._core.view.wpgs[order.wpg_id].deployment_id
        if deployment_id is not None:
            self.found.moves.append(
                MoveSample(
                    deployment_id=deployment_id,
                    to=order.to if isinstance(order, actions.MoveState) else None,
                    nbytes=event.nbytes,
                    elapsed_us=event.at_us - ordered_us,
                )
            )

    def _spawn_ended(self, event: events.WpgReady | events.SpawnFailed) -> None:
        order, ordered_us = self._order(event.wpg_id)
        if not isinstance(order, actions.SpawnWpg):
            return
        del self._ordered[event.wpg_id]
        deployment = self._core.view.deployments.get(order.deployment_id)
        self.found.spawns.append(
            SpawnSample(
                deployment_id=order.deployment_id,
                is_rollout=deployment is not None and deployment.is_rollout,
                places=order.places,
                ordered_us=ordered_us,
                elapsed_us=event.at_us - ordered_us,
                device_bytes=() if isinstance(event, events.SpawnFailed) else event.device_bytes,
                fault=event.fault if isinstance(event, events.SpawnFailed) else None,
            )
        )


def answer_key(action: Answer) -> Key | None:
    """Return what an answer settles for its job, if it settles anything."""
    match action:
        case actions.AnswerOperation():
            return Key(What.ANSWERED, action.operation_id.hex())
        case actions.RefuseOperation():
            is_over = action.is_final or not is_tried_again(action)
            return Key(What.ANSWERED, action.operation_id.hex()) if is_over else None
        case actions.DeploymentChanged():
            is_starting = action.state is DeploymentState.STARTING
            return None if is_starting else Key(What.READY, action.deployment_id)
        case actions.JobChanged():
            return Key(What.ENDED, action.job_id) if action.state in ENDED else None


def is_tried_again(action: actions.RefuseOperation) -> bool:
    """Whether a client submits the same operation again."""
    return not action.is_final and action.fault.code in RETRYABLE
