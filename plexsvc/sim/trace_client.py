"""A job of a trace as a client of the whole core: it submits one operation and waits for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final

from plexsvc.ids import DeploymentId, OperationId
from plexsvc.scheduler.core.actions import AnswerOperation, DeploymentChanged, JobChanged
from plexsvc.scheduler.core.events import (
    DeploymentRequested,
    Event,
    JobEndRequested,
    JobSubmitted,
    OperationSubmitted,
)
from plexsvc.scheduler.core.words import DeploymentState, JobState, OperationKind
from plexsvc.sim.jobs import Run, run_of
from plexsvc.sim.live_driver import Alarm, Answer, Client, Post, Posts
from plexsvc.sim.observed import ENDED
from plexsvc.sim.records import Record

DEVICE_KIND: Final = "train"
KINDS: Final = (
    OperationKind.FORWARD,
    OperationKind.FORWARD_BACKWARD,
    OperationKind.STEP,
    OperationKind.BACKWARD,
    OperationKind.LOAD,
    OperationKind.NOOP,
)
"""Kinds that stand for a trace's phases, in the order of its segments."""


@dataclass(slots=True, kw_only=True)
class TraceClient(Client):
    """Plays one job; `durations_us` tells the costs what each of its operations takes."""

    record: Record
    seed: int
    durations_us: dict[OperationId, int]
    _run: Run | None = None
    _seq: int = 0
    _is_waiting: bool = False
    _is_done: bool = False
    _kinds: dict[str, OperationKind] = field(default_factory=dict)

    @property
    def deployment_id(self) -> DeploymentId:
        """The job's one training deployment."""
        return DeploymentId(f"{self.record.job.demand.job_id}/actor")

    @property
    def is_done(self) -> bool:
        """Whether its job has ended."""
        return self._is_done

    def begin(self) -> Posts:
        """Return its arrival."""
        demand = self.record.job.demand
        phases = dict.fromkeys(segment.phase for segment in demand.profile.segments)
        self._kinds = {phase: KINDS[at % len(KINDS)] for at, phase in enumerate(phases)}
        event = JobSubmitted(at_us=demand.arrived_us, job_id=demand.job_id, tenant=demand.tenant)
        return (Post(event),)

    def happened(self, event: Event, *, tag: int) -> Posts:  # noqa: ARG002 - as every client
        """Ask for its devices once the job is known."""
        if not isinstance(event, JobSubmitted):
            return ()
        demand = self.record.job.demand
        request = DeploymentRequested(
            at_us=event.at_us,
            deployment_id=self.deployment_id,
            job_id=demand.job_id,
            initialize_id=self._operation_id(),
            role="actor",
            backend="trace",
            device_kind=DEVICE_KIND,
            num_devices=demand.num_nodes,
            is_rollout=False,
        )
        return (Post(request),)

    def told(self, answer: Answer, *, now_us: int) -> Posts:
        """Go on with the job's cycle."""
        match answer:
            case DeploymentChanged(state=DeploymentState.READY) if self._run is None:
                job = self.record.job
                self._run = run_of(job, job.rollout_us(self.seed))
                return self._go_on(self._run.start(now_us), now_us=now_us)
            case AnswerOperation(run_us=run_us):
                return self._answered(run_us, now_us=now_us)
            case JobChanged(state=state):
                self._is_done = state in ENDED
            case DeploymentChanged(state=DeploymentState.FAILED, fault=fault):
                assert fault is None, fault
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
        job_id = self.record.job.demand.job_id
        end = JobEndRequested(at_us=now_us, job_id=job_id, outcome=JobState.COMPLETED, reason="")
        return (Post(end),)

    def _go_on(self, timers: Sequence[tuple[int, int]], *, now_us: int) -> Posts:
        posts: list[Post | Alarm] = [Alarm(at_us, kind) for kind, at_us in timers]
        operation = None if self._run is None else self._run.head
        if operation is None or self._is_waiting:
            return posts
        self._is_waiting = True
        operation_id = self._operation_id()
        self.durations_us[operation_id] = operation.duration_us
        posts.append(
            Post(
                OperationSubmitted(
                    at_us=now_us,
                    operation_id=operation_id,
                    job_id=self.record.job.demand.job_id,
                    deployment_id=self.deployment_id,
                    seq=self._seq - 1,
                    kind=self._kinds[operation.phase],
                    after=(),
                    is_staged=True,
                    num_tokens=0,
                )
            )
        )
        return posts

    def _operation_id(self) -> OperationId:
        name = f"{self.record.job.demand.job_id}/{self._seq}"
        self._seq += 1
        return OperationId(blake2b(name.encode(), digest_size=16).digest())
