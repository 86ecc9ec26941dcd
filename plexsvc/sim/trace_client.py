"""A job of a trace as a client of the whole core: an actor, and a rollout deployment beside it.

It submits one training operation at a time and waits for it, as a controller does. A rollout, or
the gap it stands for, is a `generate` on the rollout deployment, so the core sees what runs beside
what, as live.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Final

from plexsvc.errors import PlexError
from plexsvc.ids import DeploymentId, JobId, OperationId
from plexsvc.scheduler.core.actions import AnswerOperation, DeploymentChanged, JobChanged
from plexsvc.scheduler.core.events import (
    DeploymentRequested,
    Event,
    JobEndRequested,
    JobSubmitted,
    OperationSubmitted,
)
from plexsvc.scheduler.core.planning.profile import Profile
from plexsvc.scheduler.core.vocabulary import DeploymentState, JobState, OperationKind
from plexsvc.sim.clients import Alarm, Answer, Client, Post, Posts
from plexsvc.sim.jobs import ROLLOUT, Run, run_of
from plexsvc.sim.observed import ENDED
from plexsvc.sim.records import Record

DEVICE_KIND: Final = "train"
ROLLOUT_KIND: Final = "rollout"
KINDS: Final = (
    OperationKind.FORWARD,
    OperationKind.FORWARD_BACKWARD,
    OperationKind.STEP,
    OperationKind.BACKWARD,
    OperationKind.LOAD,
    OperationKind.NOOP,
)
"""Kinds that stand for a trace's phases, in the order of its segments."""


def kinds_of(profile: Profile) -> dict[str, OperationKind]:
    """Return the kind of operation that stands for each phase."""
    phases = dict.fromkeys(segment.phase for segment in profile.segments)
    return {phase: KINDS[at % len(KINDS)] for at, phase in enumerate(phases)}


@dataclass(slots=True, kw_only=True)
class TraceClient(Client):
    """Plays one job; `durations_us` tells the costs what each of its operations takes."""

    record: Record
    seed: int
    durations_us: dict[OperationId, int]
    _run: Run | None = None
    _seq: int = 0
    _rollout_seq: int = 0
    _rolling: set[OperationId] = field(default_factory=set)
    _ready: set[DeploymentId] = field(default_factory=set)
    _is_waiting: bool = False
    _is_done: bool = False
    _kinds: dict[str, OperationKind] = field(default_factory=dict)

    @property
    def job_id(self) -> JobId:
        """The job's id in the live core."""
        return JobId(self.record.job.demand.resident_id)

    @property
    def deployment_id(self) -> DeploymentId:
        """The job's one training deployment."""
        return DeploymentId(f"{self.job_id}/actor")

    @property
    def rollout_id(self) -> DeploymentId:
        """The deployment that its rollouts run on."""
        return DeploymentId(f"{self.job_id}/rollout")

    @property
    def is_done(self) -> bool:
        """Whether its job has ended."""
        return self._is_done

    def begin(self) -> Posts:
        """Return its arrival."""
        demand = self.record.job.demand
        self._kinds = kinds_of(demand.profile)
        event = JobSubmitted(
            at_us=demand.arrived_us,
            job_id=self.job_id,
            tenant=demand.tenant,
            name=self.job_id,
            priority=demand.priority,
            max_slowdown_ppm=demand.max_slowdown_ppm,
        )
        return (Post(event),)

    def happened(self, event: Event, *, tag: int) -> Posts:  # noqa: ARG002 - as every client
        """Ask for its devices once the job is known."""
        if not isinstance(event, JobSubmitted):
            return ()
        actor = DeploymentRequested(
            at_us=event.at_us,
            deployment_id=self.deployment_id,
            job_id=event.job_id,
            initialize_id=_id_of(self.deployment_id, 0),
            role="actor",
            backend="trace",
            device_kind=DEVICE_KIND,
            num_devices=self.record.job.demand.num_units,
            is_rollout=False,
            name="actor",
        )
        rollout = replace(
            actor,
            deployment_id=self.rollout_id,
            initialize_id=_id_of(self.rollout_id, 0),
            role="rollout",
            device_kind=ROLLOUT_KIND,
            num_devices=1,
            is_rollout=True,
            name="rollout",
        )
        return (Post(actor), Post(rollout))

    def told(self, answer: Answer, *, now_us: int) -> Posts:
        """Go on with the job's cycle."""
        match answer:
            case DeploymentChanged(state=DeploymentState.READY, deployment_id=deployment_id):
                self._ready.add(deployment_id)
                if len(self._ready) == 2 and self._run is None:
                    self._run = run_of(self.record.job, self.record.job.rollout_us(self.seed))
                    return self._go_on(self._run.start(now_us), now_us=now_us)
            case AnswerOperation(operation_id=operation_id) if operation_id in self._rolling:
                self._rolling.remove(operation_id)
                assert self._run is not None
                return self._go_on(self._run.timer(ROLLOUT, now_us), now_us=now_us)
            case AnswerOperation(run_us=run_us):
                return self._answered(run_us, now_us=now_us)
            case JobChanged(state=state):
                self._is_done = state in ENDED
            case DeploymentChanged(state=DeploymentState.FAILED, fault=fault):
                assert fault is not None, answer
                raise PlexError(fault.code, fault.message)
            case _:
                pass
        return ()

    def woken(self, tag: int, *, now_us: int) -> Posts:
        """A gap is over."""
        assert self._run is not None
        return self._go_on(self._run.timer(tag, now_us), now_us=now_us)

    def _answered(self, run_us: int, *, now_us: int) -> Posts:
        assert self._run is not None
        operation = self._run.head
        assert operation is not None, self.record.job
        self._is_waiting = False
        self.record.busy.append((now_us - run_us, now_us))
        self.record.phases.append(operation.phase)
        timers = self._run.finished(now_us)
        if not self._run.is_done:
            return self._go_on(timers, now_us=now_us)
        self.record.finish_us = now_us
        end = JobEndRequested(
            at_us=now_us, job_id=self.job_id, outcome=JobState.COMPLETED, reason=""
        )
        return (Post(end),)

    def _go_on(self, timers: Sequence[tuple[int, int]], *, now_us: int) -> Posts:
        posts: list[Post | Alarm] = []
        for kind, at_us in timers:
            if kind == ROLLOUT and at_us > now_us:
                posts.append(self._roll(at_us - now_us, now_us=now_us))
            else:
                posts.append(Alarm(at_us, kind))
        operation = None if self._run is None else self._run.head
        if operation is not None and not self._is_waiting:
            self._is_waiting = True
            self._seq += 1
            posts.append(
                self._submit(
                    self.deployment_id,
                    seq=self._seq,
                    kind=self._kinds[operation.phase],
                    duration_us=operation.duration_us,
                    now_us=now_us,
                )
            )
        return posts

    def _roll(self, duration_us: int, *, now_us: int) -> Post:
        self._rollout_seq += 1
        self._rolling.add(_id_of(self.rollout_id, self._rollout_seq))
        return self._submit(
            self.rollout_id,
            seq=self._rollout_seq,
            kind=OperationKind.GENERATE,
            duration_us=duration_us,
            now_us=now_us,
        )

    def _submit(
        self,
        deployment_id: DeploymentId,
        *,
        seq: int,
        kind: OperationKind,
        duration_us: int,
        now_us: int,
    ) -> Post:
        operation_id = _id_of(deployment_id, seq)
        self.durations_us[operation_id] = duration_us
        event = OperationSubmitted(
            at_us=now_us,
            operation_id=operation_id,
            job_id=self.job_id,
            deployment_id=deployment_id,
            seq=seq,
            kind=kind,
            after=(),
            is_staged=True,
            num_tokens=0,
        )
        return Post(event)


def _id_of(deployment_id: DeploymentId, seq: int) -> OperationId:
    return OperationId(blake2b(f"{deployment_id}/{seq}".encode(), digest_size=16).digest())
