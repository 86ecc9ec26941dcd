"""Observations of a live run from its journal: the time of each action, and each job's moments.

One pass through a core. Durations run from the event that led to an order to the event that is its
outcome, so they hold all that lies between, calls and queues of the driver included.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from plexsvc.ids import DeploymentId, JobId, OperationId, WpgId
from plexsvc.residency import Residency
from plexsvc.scheduler.core import events
from plexsvc.scheduler.core.machine import Scheduler
from plexsvc.scheduler.core.vocabulary import Fault, OperationKind, Place, WpgState
from plexsvc.scheduler.driver.encoding import Recording
from plexsvc.sim.clients import Key, Reply, What, answer_of


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
        self._ordered_us: dict[object, int] = {}
        """When the last order about a subject was given."""
        self._job_of: dict[object, JobId] = {}
        self._known: set[tuple[DeploymentId, OperationKind]] = set()

    def see(self, event: events.Event, *, idx: int) -> None:
        """Take one event in."""
        self._event(event, idx=idx)
        for action in self._core.handle(event):
            name = getattr(action, "ends_by", None)
            if name is not None:
                self._ordered_us[getattr(action, name)] = event.at_us
            answer = answer_of(action)
            if answer is not None:
                self._answer(answer, at_us=event.at_us)

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
            case events.TimerFired():
                pass  # whoever plays the run makes their own
            case events.ProcExited():
                if not self._is_ending(event.wpg_id):
                    self.found.outside.append(event)
            case events.OperationSubmitted():
                if event.operation_id not in self._job_of:
                    self._job_of[event.operation_id] = event.job_id
                    self._post(event.job_id, event, idx=idx)
            case events.DeploymentRequested():
                self._job_of[event.deployment_id] = event.job_id
                self._post(event.job_id, event, idx=idx)
            case events.DeploymentsDeclared():
                self._job_of.update((one.deployment_id, event.job_id) for one in event.deployments)
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

    def _answer(self, answer: Reply, *, at_us: int) -> None:
        key, job_id = answer.key, self._job_of.get(answer.subject)
        if key is not None and job_id is not None:
            self.found.jobs[job_id].append(Moment(at_us=at_us, key=key))

    def _post(self, job_id: JobId | None, event: events.Event, *, idx: int) -> None:
        if job_id is not None:
            moment = Moment(at_us=event.at_us, key=Key(What.SENT, idx), event=event)
            self.found.jobs.setdefault(job_id, []).append(moment)

    def _is_ending(self, wpg_id: WpgId) -> bool:
        """Return whether somebody ordered the end of a WPG."""
        wpg = self._core.view.wpgs.get(wpg_id)
        is_known = wpg_id in self._ordered_us
        return is_known and (wpg is None or wpg.state not in {WpgState.SPAWNING, WpgState.READY})

    def _took(self, wpg_id: WpgId, at_us: int, *, into: list[int]) -> None:
        ordered_us = self._ordered_us.get(wpg_id)
        if ordered_us is not None:
            into.append(at_us - ordered_us)

    def _finished(self, event: events.OperationFinished) -> None:
        operation = self._core.view.operations.get(event.operation_id)
        started_us = self._ordered_us.get(event.operation_id)
        if operation is None or started_us is None:
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
        ordered_us = self._ordered_us.get(event.move_id)
        if isinstance(event, events.StateCarried):
            deployment_id, to = event.deployment_id, None
        else:
            wpg = self._core.view.wpgs.get(event.wpg_id)
            if wpg is None or wpg.move_id != event.move_id:
                return
            is_loading = wpg.residency is Residency.LOADING
            deployment_id = wpg.deployment_id
            to = Residency.DEVICE if is_loading else Residency.HOST
        if ordered_us is not None:
            self.found.moves.append(
                MoveSample(
                    deployment_id=deployment_id,
                    to=to,
                    nbytes=event.nbytes,
                    elapsed_us=event.at_us - ordered_us,
                )
            )

    def _spawn_ended(self, event: events.WpgReady | events.SpawnFailed) -> None:
        wpg = self._core.view.wpgs.get(event.wpg_id)
        ordered_us = self._ordered_us.get(event.wpg_id)
        if wpg is None or wpg.state is not WpgState.SPAWNING or ordered_us is None:
            return
        del self._ordered_us[event.wpg_id]
        self.found.spawns.append(
            SpawnSample(
                deployment_id=wpg.deployment_id,
                is_rollout=wpg.is_rollout,
                places=wpg.places,
                ordered_us=ordered_us,
                elapsed_us=event.at_us - ordered_us,
                device_bytes=() if isinstance(event, events.SpawnFailed) else event.device_bytes,
                fault=event.fault if isinstance(event, events.SpawnFailed) else None,
            )
        )
