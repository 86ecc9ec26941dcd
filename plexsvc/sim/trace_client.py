"""A trace's job as a client of the core: training deployments, and a rollout deployment beside.

The job submits one training operation at a time and waits for it, as a controller does. A rollout,
or the gap it stands for, is a `generate` on the rollout deployment, so the core sees what runs
beside what, as live. A job that loses a node, or asks while too few are there, ends and is
submitted again under the next number; it goes on from its last trained cycle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Final

from plexsvc.errors import ErrorCode, PlexError
from plexsvc.ids import DeploymentId, JobId, NodeId, OperationId
from plexsvc.scheduler.core.events import (
    DeploymentRequested,
    DeploymentsDeclared,
    Event,
    JobEndRequested,
    JobSubmitted,
    OperationSubmitted,
)
from plexsvc.scheduler.core.planning.profile import SECOND_US
from plexsvc.scheduler.core.vocabulary import Fault, JobState, OperationKind
from plexsvc.sim.books import Books
from plexsvc.sim.clients import Alarm, Client, Post, Posts, Reply, Subject, What
from plexsvc.sim.jobs import ROLLOUT, ROLLOUT_PHASES, Losses, PlannedOperation, Run, SimJob, run_of
from plexsvc.sim.nodes import ROLLOUT_KIND, Nodes, kind_of
from plexsvc.sim.records import Record, Restart
from plexsvc.sim.trace_costs import TraceCosts

KINDS: Final = (
    OperationKind.FORWARD,
    OperationKind.FORWARD_BACKWARD,
    OperationKind.BACKWARD,
    OperationKind.LOAD,
    OperationKind.NOOP,
)
"""Kinds that stand for the phases of a deployment, in order. The last one is its `step`: without
one, gradients would stay accumulated and the deployment could not move."""

RETRY_US: Final = 60 * SECOND_US
"""Pause before a job asks again that found too few nodes."""


def deal(job: SimJob) -> dict[str, dict[str, OperationKind]]:
    """Return a job's training deployments by name: the phases each runs, in order, by their kind.

    >>> from plexsvc.sim.presets import preset_named
    >>> {name: list(kinds) for name, kinds in deal(preset_named("order-3", seed=1).jobs[0]).items()}
    {'actor': ['log_prob', 'update', 'sync']}
    """
    phases = list(dict.fromkeys(segment.phase for segment in job.demand.profile.segments))
    if job.rollout_node_devices is None:
        shares = {
            f"actor-{at + 1}" if at else "actor": phases[at :: job.deployments]
            for at in range(job.deployments)
        }
    else:
        rolls = [phase for phase in phases if phase in ROLLOUT_PHASES]
        training = _kinds([p for p in phases if p not in rolls])
        return {"rollout": dict.fromkeys(rolls, OperationKind.GENERATE), "actor": training}
    return {name: _kinds(own) for name, own in shares.items()}


def _kinds(phases: list[str]) -> dict[str, OperationKind]:
    kinds = {phase: KINDS[number % len(KINDS)] for number, phase in enumerate(phases)}
    return kinds | {phases[-1]: OperationKind.STEP}


@dataclass(slots=True, kw_only=True)
class _Attempt:
    """A job under one id, from its submission to its end."""

    number: int = 1
    is_here: bool = False
    wanted: tuple[DeploymentId, ...] = ()
    placed: set[Subject] = field(default_factory=set)
    ready: set[Subject] = field(default_factory=set)
    seqs: dict[DeploymentId, int] = field(default_factory=dict)
    training: OperationId | None = None
    rolling: set[Subject] = field(default_factory=set)
    is_playing: bool = False
    pause_us: int | None = None
    """When it is given up: how long after its end the next one begins."""

    @property
    def has_places(self) -> bool:
        """Whether all its deployments have their places."""
        return bool(self.wanted) and len(self.placed) == len(self.wanted)


@dataclass(slots=True, kw_only=True)
class TraceClient(Client):
    """Plays one job."""

    record: Record
    seed: int
    nodes: Nodes
    costs: TraceCosts
    """Told what each of its operations takes."""
    books: Books
    """Told which deployments are its own."""

    _run: Run = field(init=False)
    _dealt: dict[str, dict[str, OperationKind]] = field(init=False)
    _runs: dict[str, tuple[str, OperationKind]] = field(init=False)
    """Which deployment runs a phase, and as what kind of operation."""
    _losses: Losses = field(default_factory=Losses)
    _attempt: _Attempt = field(default_factory=_Attempt)
    _is_done: bool = False

    def __post_init__(self) -> None:
        job = self.record.job
        self._run = run_of(job, job.rollout_us(self.seed))
        self._dealt = deal(job)
        self._runs = {
            phase: (name, kind)
            for name, kinds in self._dealt.items()
            for phase, kind in kinds.items()
        }

    @property
    def is_done(self) -> bool:
        """Whether its job has ended with all cycles trained."""
        return self._is_done

    @property
    def has_hope(self) -> bool:
        """Whether it is still to come, or has all its places."""
        return not self._is_done and (not self._attempt.is_here or self._attempt.has_places)

    @property
    def job_id(self) -> JobId:
        """The job's id in this attempt."""
        name = self.record.job.demand.resident_id
        return JobId(name if self._attempt.number == 1 else f"{name}/{self._attempt.number}")

    def begin(self) -> Posts:
        """Return its arrival."""
        return (self._submission(self.record.job.demand.arrived_us),)

    def happened(self, event: Event, *, tag: int) -> Posts:
        """Ask for its devices once the job is known."""
        if not isinstance(event, JobSubmitted):
            return ()
        self._attempt.is_here = True
        demand = self.record.job.demand
        if self._takes_turns:
            return self._request_both(event.at_us)
        requests = [self._deployment(name, num_devices=demand.num_units) for name in self._dealt]
        for request in requests:
            self.books.record_of[request.deployment_id] = self.record
        rollout = self._deployment("rollout", num_devices=demand.rollout_units or 1)
        if demand.rollout_units:
            self.books.rollout_record_of[rollout.deployment_id] = self.record
        requests.append(rollout)
        self._attempt.wanted = tuple(request.deployment_id for request in requests)
        if demand.rollout_units:
            together = DeploymentsDeclared(job_id=self.job_id, deployments=tuple(requests))
            return [Post(event.at_us, together)]
        return [Post(event.at_us, request) for request in requests]

    def told(self, answer: Reply, *, now_us: int) -> Posts:
        """Go on with the job's cycle."""
        if answer.what is What.ANSWERED:
            return () if answer.fault is not None else self._answered(answer, now_us=now_us)
        match answer:
            case Reply(what=What.READY, fault=Fault() as fault):
                return self._failed(fault, now_us=now_us)
            case Reply(what=What.PLACED | What.READY, is_placed=True):
                return self._deployed(answer, now_us=now_us)
            case Reply(what=What.ENDED):
                if self._attempt.pause_us is None:
                    self._is_done = True
                    return ()
                again_us = now_us + self._attempt.pause_us
                self._attempt = _Attempt(number=self._attempt.number + 1)
                return (self._submission(again_us),)
            case _:
                return ()

    def woken(self, tag: int, *, now_us: int) -> Posts:
        """A gap is over."""
        number, kind = divmod(tag, 2)
        if number != self._attempt.number or not self._attempt.is_playing:
            return ()
        return self._go_on(self._run.timer(kind, now_us), now_us=now_us)

    def _submission(self, at_us: int) -> Post:
        demand = self.record.job.demand
        job = self.record.job
        says = job.cycles if job.expected_cycles is None else job.expected_cycles
        event = JobSubmitted(
            job_id=self.job_id,
            tenant=demand.tenant,
            name=demand.resident_id,
            priority=demand.priority,
            max_slowdown_ppm=demand.max_slowdown_ppm,
            expected_steps=(max(1, says - self._run.trained) if says else 0),
        )
        return Post(at_us, event)

    @property
    def _takes_turns(self) -> bool:
        return self.record.job.rollout_node_devices is not None

    def _request_both(self, now_us: int) -> Posts:
        """Ask for nodes to roll out and to train on, to take turns on both."""
        job, cluster = self.record.job, self.nodes.cluster
        size = job.rollout_node_devices or cluster.devices_per_node
        rollout = replace(
            self._deployment("rollout", num_devices=job.demand.rollout_units),
            device_kind=kind_of(size, cluster=cluster),
            is_shared=True,
        )
        actor = self._deployment("actor", num_devices=job.demand.num_units)
        self._attempt.wanted = (rollout.deployment_id, actor.deployment_id)
        for request in (rollout, actor):
            self.books.record_of[request.deployment_id] = self.record
        declared = DeploymentsDeclared(job_id=self.job_id, deployments=(rollout, actor))
        return [Post(now_us, declared)]

    def _deployment(self, name: str, *, num_devices: int) -> DeploymentRequested:
        is_rollout = name == "rollout"
        is_beside = is_rollout and not self.record.job.demand.rollout_units
        return DeploymentRequested(
            deployment_id=self._named(name),
            job_id=self.job_id,
            initialize_id=_id_of(self._named(name), 0),
            role="rollout" if is_rollout else "actor",
            backend="trace",
            device_kind=ROLLOUT_KIND if is_beside else self._kind,
            num_devices=num_devices,
            is_rollout=is_rollout,
            name=name,
        )

    @property
    def _kind(self) -> str:
        cluster = self.nodes.cluster
        devices = self.record.job.node_devices or cluster.devices_per_node
        return kind_of(devices, cluster=cluster)

    def _named(self, name: str) -> DeploymentId:
        return DeploymentId(f"{self.job_id}/{name}")

    def _deployed(self, answer: Reply, *, now_us: int) -> Posts:
        """Begin, or begin again, when everything is there."""
        attempt = self._attempt
        if attempt.pause_us is not None:
            return ()
        attempt.placed.add(answer.subject)
        posts: list[Post | Alarm] = []
        if answer.what is What.READY:
            attempt.ready.add(answer.subject)
        if len(attempt.ready) == len(attempt.wanted) and not attempt.is_playing:
            attempt.is_playing = True
            posts.extend(self._go_on(self._run.start(now_us), now_us=now_us))
        return posts

    def _failed(self, fault: Fault, *, now_us: int) -> Posts:
        """Give this attempt up: its nodes are lost, or too few are there for now."""
        if self._attempt.pause_us is not None or self._run.is_done:
            return ()
        is_lost = fault.code is ErrorCode.NODE_LOST
        if not is_lost and not (fault.code is ErrorCode.NO_PLACEMENT and self.nodes.may_improve):
            raise PlexError(fault.code, fault.message)
        self._attempt.pause_us = 0 if is_lost else RETRY_US
        if self._attempt.has_places:
            node_id = NodeId(dict(fault.facts).get("node", ""))
            self.record.restarts.append(Restart(at_us=now_us, node_id=node_id))
            mtbf_h = self.nodes.cluster.faults.node_mtbf_h
            self._losses.note(self.record.job, self._run, mtbf_h=mtbf_h)
        self._attempt.is_playing, self._attempt.training = False, None
        self._attempt.rolling.clear()
        return [self._end(now_us, JobState.FAILED, reason=fault.message)]

    def _end(self, now_us: int, outcome: JobState, *, reason: str = "") -> Post:
        return Post(now_us, JobEndRequested(job_id=self.job_id, outcome=outcome, reason=reason))

    def _answered(self, answer: Reply, *, now_us: int) -> Posts:
        if answer.subject in self._attempt.rolling:
            self._attempt.rolling.remove(answer.subject)
            return self._go_on(self._run.timer(ROLLOUT, now_us), now_us=now_us)
        if answer.subject == self._attempt.training:
            return self._trained(answer.run_us, now_us=now_us)
        self.record.lost.append((now_us - answer.run_us, now_us))  # the attempt is given up
        return ()

    def _trained(self, run_us: int, *, now_us: int) -> Posts:
        operation = self._run.head
        assert operation is not None, self.record.job
        self._attempt.training = None
        self.record.busy.append((now_us - run_us, now_us))
        self.record.phases.append(operation.phase)
        timers = self._run.finished(now_us)
        if not self._run.is_done:
            return self._go_on(timers, now_us=now_us)
        self.record.finish_us = now_us
        return (self._end(now_us, JobState.COMPLETED),)

    def _go_on(self, timers: Sequence[tuple[int, int]], *, now_us: int) -> Posts:
        posts: list[Post | Alarm] = []
        for kind, at_us in timers:
            if kind == ROLLOUT and at_us > now_us:
                post = self._submit("rollout", OperationKind.GENERATE, duration_us=at_us - now_us)
                self._attempt.rolling.add(post.operation_id)
                posts.append(Post(now_us, post))
            else:
                # By its number an alarm of an attempt that was given up is known.
                posts.append(Alarm(at_us, 2 * self._attempt.number + kind))
        operation = self._run.head
        if operation is not None and self._attempt.training is None:
            post = self._train(operation)
            self._attempt.training = post.operation_id
            posts.append(Post(now_us, post))
        return posts

    def _train(self, operation: PlannedOperation) -> OperationSubmitted:
        name, kind = self._runs[operation.phase]
        return self._submit(name, kind, duration_us=operation.duration_us)

    def _submit(self, name: str, kind: OperationKind, *, duration_us: int) -> OperationSubmitted:
        deployment_id = self._named(name)
        seq = self._attempt.seqs[deployment_id] = self._attempt.seqs.get(deployment_id, 0) + 1
        operation_id = _id_of(deployment_id, seq)
        self.costs.durations_us[operation_id] = duration_us
        return OperationSubmitted(
            operation_id=operation_id,
            job_id=self.job_id,
            deployment_id=deployment_id,
            seq=seq,
            kind=kind,
            after=(),
            is_staged=True,
            num_tokens=0,
        )


def _id_of(deployment_id: DeploymentId, seq: int) -> OperationId:
    return OperationId(blake2b(f"{deployment_id}/{seq}".encode(), digest_size=16).digest())
