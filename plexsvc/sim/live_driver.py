"""A virtual driver of the whole scheduler core: performs its actions in no time at stated costs.

Theory of operation. Clients post events; the core's actions become outcomes (`SpawnWpg` a
`WpgReady`, `StartOperation` an `OperationFinished`, ...) after what `Costs` says they take; timers
fire when they are due. Events of one instant happen in the order in which they were made, so the
same clients and costs give one history. The core cannot tell this driver from the live one: both
know its events and actions only.
"""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, assert_never

from plexsvc.errors import ErrorCode
from plexsvc.ids import DeploymentId, JobId, OperationId
from plexsvc.scheduler.core.actions import (
    Action,
    AnswerOperation,
    CancelOperation,
    CarryState,
    CutOver,
    DeploymentChanged,
    DropCarried,
    DropPayload,
    ForgetWpg,
    JobChanged,
    KeepProfile,
    MoveState,
    RefuseOperation,
    ReleaseOperation,
    RelocationChanged,
    SetTimer,
    SpawnWpg,
    StartOperation,
    StopWpg,
)
from plexsvc.scheduler.core.events import (
    DeploymentRequested,
    Event,
    OperationFinished,
    OperationSubmitted,
    ResidencyMoved,
    SpawnFailed,
    StateCarried,
    TimerFired,
    WpgForgotten,
    WpgReady,
    WpgStopped,
)
from plexsvc.scheduler.core.machine import Scheduler
from plexsvc.scheduler.core.vocabulary import Fault, OperationKind, Place, Residency

Answer = AnswerOperation | RefuseOperation | DeploymentChanged | JobChanged


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """An operation as its cost is asked for."""

    operation_id: OperationId
    deployment_id: DeploymentId
    kind: OperationKind
    num_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Took:
    """What an operation took: from its order to its outcome, and on the ranks."""

    elapsed_us: int
    run_us: int
    fault: Fault | None = None
    is_refusal: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """What a move took, and the bytes it moved."""

    elapsed_us: int
    nbytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Spawned:
    """When a WPG's ranks answer and what their state takes on their devices, or why they fail."""

    ready_us: int
    device_bytes: tuple[int, ...]
    fault: Fault | None = None


class Costs(Protocol):
    """What actions take."""

    def spawn(
        self, deployment_id: DeploymentId, *, places: Sequence[Place], now_us: int
    ) -> Spawned:
        """Return what comes of starting a deployment's processes now."""
        ...

    def operation(self, work: Work) -> Took:
        """Return what running an operation takes."""
        ...

    def move(self, deployment_id: DeploymentId, *, to: Residency) -> Moved:
        """Return what moving a deployment's state takes."""
        ...

    def carry(self, deployment_id: DeploymentId) -> Moved:
        """Return what copying a deployment's state for other ranks takes."""
        ...

    def stop_us(self) -> int:
        """Return what ending a WPG's processes takes."""
        ...

    def forget_us(self) -> int:
        """Return what freeing a WPG's state takes."""
        ...


@dataclass(frozen=True, slots=True)
class Post:
    """An event of a client; it happens at its own `at_us`, or at once if that is past."""

    event: Event
    tag: int = 0
    """The client's own mark, given back with the event."""

    @property
    def at_us(self) -> int:
        """Return when it happens."""
        return self.event.at_us


@dataclass(frozen=True, slots=True)
class Alarm:
    """A time at which a client wants to be woken: no event of the core."""

    at_us: int
    tag: int = 0


Posts = Iterable[Post | Alarm]


class Client(ABC):
    """Whoever submits: a job, an operator, the nodes."""

    @property
    @abstractmethod
    def is_done(self) -> bool:
        """Whether it waits for nothing and posts nothing more."""

    @abstractmethod
    def begin(self) -> Posts:
        """Return its first events."""

    @abstractmethod
    def happened(self, event: Event, *, tag: int) -> Posts:
        """Return what it posts because one of its own events was decided."""

    def told(self, answer: Answer, *, now_us: int) -> Posts:  # noqa: ARG002 - for those who care
        """Return what it posts because of an answer."""
        return ()

    def woken(self, tag: int, *, now_us: int) -> Posts:  # noqa: ARG002 - for those who care
        """Return what it posts because an alarm rang."""
        return ()


@dataclass(slots=True, kw_only=True)
class VirtualDriver:
    """One run of a core; `run()` once."""

    core: Scheduler
    costs: Costs
    clients: Sequence[Client]
    watch: Callable[[Event, Sequence[Action]], None] | None = None
    """Told every event and what followed, before it is done."""
    max_events: int = 100_000_000
    """A run that takes more has gone astray and ends."""

    now_us: int = 0
    events: int = 0
    actions: int = 0
    moves: int = 0
    _made: int = 0
    _awaited: int = 0
    _heap: list[tuple[int, int, Post | Alarm, Client | None]] = field(default_factory=list)
    _timers: dict[str, int] = field(default_factory=dict)
    _client_of: dict[JobId | DeploymentId | OperationId, Client] = field(default_factory=dict)

    def run(self) -> bool:
        """Return whether every client got what it waited for before nothing was left to happen."""
        for one in self.clients:
            self._post(one.begin(), one)
        while self._heap and not self._is_over() and self.events < self.max_events:
            at_us, _, post, client = heapq.heappop(self._heap)
            if isinstance(post, Alarm):
                self._wake(post, client)
            elif not isinstance(post.event, TimerFired):
                self._awaited -= 1
                self._decide(post, client)
            elif self._timers.get(post.event.key) == at_us:
                del self._timers[post.event.key]
                self._decide(post, client)
        return all(client.is_done for client in self.clients)

    def _is_over(self) -> bool:
        return self._awaited == 0 and all(client.is_done for client in self.clients)

    def _wake(self, alarm: Alarm, client: Client | None) -> None:
        self._awaited -= 1
        self.now_us = max(self.now_us, alarm.at_us)
        if client is not None:
            self._post(client.woken(alarm.tag, now_us=self.now_us), client)

    def _decide(self, post: Post, client: Client | None) -> None:
        self.now_us = max(self.now_us + 1, post.at_us)
        self.events += 1
        event = replace(post.event, at_us=self.now_us)
        if client is not None:
            self._know(event, client)
        actions = self.core.handle(event)
        self.actions += len(actions)
        if self.watch is not None:
            self.watch(event, actions)
        if client is not None:
            self._post(client.happened(event, tag=post.tag), client)
        for action in actions:
            self._act(action)

    def _know(self, event: Event, client: Client) -> None:
        """Remember whom answers about the event's subject go to."""
        job_id = getattr(event, "job_id", None)
        if job_id is not None:
            self._client_of.setdefault(job_id, client)
        if isinstance(event, DeploymentRequested):
            self._client_of[event.deployment_id] = client
        elif isinstance(event, OperationSubmitted):
            self._client_of[event.operation_id] = client

    def _act(self, action: Action) -> None:  # noqa: C901, PLR0912 - one line an action
        match action:
            case StartOperation():
                self._start(action)
            case SetTimer():
                self._timers[action.key] = action.at_us
                self._push(Post(TimerFired(at_us=action.at_us, key=action.key)), client=None)
            case MoveState():
                self._move(action)
            case AnswerOperation() | RefuseOperation():
                self._tell(action, self._client_of.pop(action.operation_id, None))
            case DeploymentChanged():
                self._tell(action, self._client_of.get(action.deployment_id))
            case JobChanged():
                self._tell(action, self._client_of.get(action.job_id))
            case SpawnWpg():
                self._spawn(action)
            case StopWpg():
                at_us = self.now_us + self.costs.stop_us()
                self._expect(WpgStopped(at_us=at_us, wpg_id=action.wpg_id))
            case ForgetWpg():
                at_us = self.now_us + self.costs.forget_us()
                self._expect(WpgForgotten(at_us=at_us, wpg_id=action.wpg_id))
            case CancelOperation():
                took = Took(elapsed_us=1, run_us=1, fault=_CANCELLED)
                self._finish(action.operation_id, took)
            case CarryState():
                self._carry(action)
            case DropPayload() | ReleaseOperation():
                pass
            case DropCarried() | CutOver() | RelocationChanged() | KeepProfile():
                pass
            case _:
                assert_never(action)

    def _start(self, action: StartOperation) -> None:
        operation = self.core.cluster.operations[action.operation_id]
        work = Work(
            operation_id=operation.operation_id,
            deployment_id=self._own(operation.deployment_id),
            kind=operation.kind,
            num_tokens=operation.num_tokens,
        )
        self._finish(action.operation_id, self.costs.operation(work))

    def _finish(self, operation_id: OperationId, took: Took) -> None:
        self._expect(
            OperationFinished(
                at_us=self.now_us + took.elapsed_us,
                operation_id=operation_id,
                fault=took.fault,
                is_refusal=took.is_refusal,
                run_us=took.run_us,
                digest="",
            )
        )

    def _move(self, action: MoveState) -> None:
        self.moves += 1
        wpg = self.core.cluster.wpgs[action.wpg_id]
        moved = self.costs.move(self._own(wpg.deployment_id), to=action.to)
        self._expect(
            ResidencyMoved(
                at_us=self.now_us + moved.elapsed_us,
                wpg_id=action.wpg_id,
                move_id=action.move_id,
                nbytes=moved.nbytes,
                total_us=moved.elapsed_us,
            )
        )

    def _carry(self, action: CarryState) -> None:
        self.moves += 1
        carried = self.costs.carry(action.deployment_id)
        self._expect(
            StateCarried(
                at_us=self.now_us + carried.elapsed_us,
                deployment_id=action.deployment_id,
                move_id=action.move_id,
                nbytes=carried.nbytes,
            )
        )

    def _own(self, deployment_id: DeploymentId) -> DeploymentId:
        """Return the deployment that a relocation's stand-in stands for, else itself."""
        deployment = self.core.cluster.deployments[deployment_id]
        return deployment.stands_in_for or deployment_id

    def _spawn(self, action: SpawnWpg) -> None:
        deployment_id = self._own(action.deployment_id)
        made = self.costs.spawn(deployment_id, places=action.places, now_us=self.now_us)
        if made.fault is not None:
            failed = SpawnFailed(at_us=made.ready_us, wpg_id=action.wpg_id, fault=made.fault)
            self._expect(failed)
            return
        self._expect(
            WpgReady(at_us=made.ready_us, wpg_id=action.wpg_id, device_bytes=made.device_bytes)
        )

    def _tell(self, answer: Answer, client: Client | None) -> None:
        if client is not None:
            self._post(client.told(answer, now_us=self.now_us), client)

    def _post(self, posts: Posts, client: Client) -> None:
        for post in posts:
            self._awaited += 1
            self._push(post, client=client)

    def _expect(self, outcome: Event) -> None:
        self._awaited += 1
        self._push(Post(outcome), client=None)

    def _push(self, post: Post | Alarm, *, client: Client | None) -> None:
        self._made += 1
        heapq.heappush(self._heap, (post.at_us, self._made, post, client))


_CANCELLED = Fault(code=ErrorCode.CANCELLED, message="cancelled")
