"""Virtual driver of the scheduler core: performs actions in virtual time at stated costs.

Theory of operation. Clients post events. `PERFORM` turns an action into its outcome (`SpawnWpg`
into `WpgReady`, `StartOperation` into `OperationFinished`), which happens after the time that
`Costs` states; an action that costs nothing has no entry. Timers fire when they are due. Events of
one instant happen in the order in which they were made, so the same clients and costs give the same
history. The core cannot tell this driver from the live one: it sees events and returns actions.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final

from plexsvc.errors import ErrorCode
from plexsvc.ids import OperationId
from plexsvc.scheduler.core import actions
from plexsvc.scheduler.core.events import (
    DeploymentRequested,
    DeploymentsDeclared,
    Event,
    InstanceReady,
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
from plexsvc.scheduler.core.vocabulary import Fault
from plexsvc.sim.clients import Alarm, Client, Post, Posts, Subject, answer_of
from plexsvc.sim.costs import Costs, Took, Work


@dataclass(slots=True, kw_only=True)
class VirtualDriver:
    """One run of a core; `run()` once."""

    core: Scheduler
    costs: Costs
    clients: Sequence[Client]
    watch: Callable[[Event, Sequence[actions.Action]], None] | None = None
    """Told every event and what followed, before it is done."""
    max_events: int = 100_000_000
    """A run that takes more has gone astray and ends."""
    end_us: int = 1 << 62
    """What is due then or later does not happen any more."""

    now_us: int = 0
    events: int = 0
    moves: int = 0
    client_of: dict[Subject, Client] = field(default_factory=dict)
    """Whom answers about a subject go to."""
    timers: dict[str, int] = field(default_factory=dict)
    _made: int = 0
    _awaited: int = 0
    _heap: list[tuple[int, int, bool, Post | Alarm, Client | None]] = field(default_factory=list)
    """What happens when, which of those that were made it is, and whether the run awaits it."""

    def run(self) -> bool:
        """Return whether every client got what it waited for before nothing was left to happen."""
        for one in self.clients:
            self._post(one.begin(), one)
        while self._heap and self.events < self.max_events:
            if self._awaited == 0 and all(client.is_done for client in self.clients):
                break
            at_us, _, is_awaited, post, client = heapq.heappop(self._heap)
            if at_us >= self.end_us:
                break
            self._awaited -= is_awaited
            if isinstance(post, Alarm):
                self._wake(post, client)
            elif not isinstance(post.event, TimerFired):
                self._decide(post, client)
            elif self.timers.get(post.event.key) == at_us:
                del self.timers[post.event.key]
                self._decide(post, client)
        return all(client.is_done for client in self.clients)

    def expect(self, outcome: Event, *, at_us: int) -> None:
        """Have the outcome of an action happen at a time."""
        self.push(Post(at_us, outcome))

    def push(self, post: Post | Alarm, *, client: Client | None = None) -> None:
        """Have something happen at its time."""
        self._made += 1
        is_awaited = _is_awaited(post, client)
        self._awaited += is_awaited
        heapq.heappush(self._heap, (post.at_us, self._made, is_awaited, post, client))

    def tell(self, action: actions.Action) -> None:
        """Give an answer to its client, if it has one; an operation has one answer."""
        answer = answer_of(action)
        if answer is None:
            return
        client = self.client_of.get(answer.subject)
        if client is not None:
            self._post(client.told(answer, now_us=self.now_us), client)
        if isinstance(answer.subject, bytes):
            self.client_of.pop(answer.subject, None)

    def _wake(self, alarm: Alarm, client: Client | None) -> None:
        self.now_us = max(self.now_us, alarm.at_us)
        if client is not None:
            self._post(client.woken(alarm.tag, now_us=self.now_us), client)

    def _decide(self, post: Post, client: Client | None) -> None:
        self.now_us = max(self.now_us + 1, post.at_us)
        self.events += 1
        event = _stamped(post.event, at_us=self.now_us)
        if isinstance(event, OperationSubmitted) and client is not None:
            self.client_of[event.operation_id] = client
        elif client is not None:
            self._know(event, client)
        actions = self.core.handle(event)
        if self.watch is not None:
            self.watch(event, actions)
        if client is not None:
            self._post(client.happened(event, tag=post.tag), client)
        for action in actions:
            PERFORM.get(type(action), VirtualDriver.tell)(self, action)

    def _know(self, event: Event, client: Client) -> None:
        """Note whom answers about a job and its deployments go to."""
        job_id = getattr(event, "job_id", None)
        if job_id is not None:
            self.client_of.setdefault(job_id, client)
        if isinstance(event, DeploymentsDeclared):
            self.client_of.update((one.deployment_id, client) for one in event.deployments)
        elif isinstance(event, DeploymentRequested):
            self.client_of[event.deployment_id] = client

    def _post(self, posts: Posts, client: Client) -> None:
        for post in posts:
            wakes = post.wakes if isinstance(post, Alarm) else None
            self.push(post, client=wakes or client)


def _stamped(event: Event, *, at_us: int) -> Event:
    """Return an event at its time.

    One that has none yet was made for this post alone and is stamped itself: a copy of each would
    be a twentieth of a run.
    """
    if event.at_us:
        return replace(event, at_us=at_us)
    object.__setattr__(event, "at_us", at_us)
    return event


def _is_awaited(post: Post | Alarm, client: Client | None) -> bool:
    """Return whether a run is not over before this has happened."""
    if client is not None:
        return not client.is_background
    return isinstance(post, Post) and not isinstance(post.event, TimerFired)


def _spawn(driver: VirtualDriver, action: actions.SpawnWpg) -> None:
    made = driver.costs.spawn(action.deployment_id, places=action.places, now_us=driver.now_us)
    outcome: Event = WpgReady(wpg_id=action.wpg_id, device_bytes=made.device_bytes)
    if made.fault is not None:
        outcome = SpawnFailed(wpg_id=action.wpg_id, fault=made.fault)
    driver.expect(outcome, at_us=made.ready_us)


def _spawn_instance(driver: VirtualDriver, action: actions.SpawnInstance) -> None:
    wpg = driver.core.view.wpgs[action.wpg_id]
    places = (wpg.places[action.rank],)
    made = driver.costs.spawn(wpg.deployment_id, places=places, now_us=driver.now_us)
    back = InstanceReady(wpg_id=action.wpg_id, rank=action.rank, incarnation=action.incarnation)
    driver.expect(back, at_us=made.ready_us)


def _stop(driver: VirtualDriver, action: actions.StopWpg) -> None:
    at_us = driver.now_us + driver.costs.stop_us()
    driver.expect(WpgStopped(wpg_id=action.wpg_id), at_us=at_us)


def _forget(driver: VirtualDriver, action: actions.ForgetWpg) -> None:
    at_us = driver.now_us + driver.costs.forget_us()
    driver.expect(WpgForgotten(wpg_id=action.wpg_id), at_us=at_us)


def _start(driver: VirtualDriver, action: actions.StartOperation) -> None:
    operation = driver.core.view.operations[action.operation_id]
    work = Work(
        operation_id=operation.operation_id,
        deployment_id=operation.deployment_id,
        kind=operation.kind,
        num_tokens=operation.num_tokens,
    )
    _finish(driver, action.operation_id, driver.costs.operation(work))


def _cancel(driver: VirtualDriver, action: actions.CancelOperation) -> None:
    _finish(driver, action.operation_id, Took(elapsed_us=1, run_us=1, fault=_CANCELLED))


def _finish(driver: VirtualDriver, operation_id: OperationId, took: Took) -> None:
    finished = OperationFinished(
        operation_id=operation_id,
        fault=took.fault,
        is_refusal=took.is_refusal,
        run_us=took.run_us,
        digest="",
    )
    driver.expect(finished, at_us=driver.now_us + took.elapsed_us)


def _move(driver: VirtualDriver, action: actions.MoveState) -> None:
    driver.moves += 1
    wpg = driver.core.view.wpgs[action.wpg_id]
    moved = driver.costs.move(wpg.deployment_id, to=action.to)
    outcome = ResidencyMoved(
        wpg_id=action.wpg_id,
        move_id=action.move_id,
        nbytes=moved.nbytes,
        total_us=moved.elapsed_us,
    )
    driver.expect(outcome, at_us=driver.now_us + moved.elapsed_us)


def _carry(driver: VirtualDriver, action: actions.CarryState) -> None:
    driver.moves += 1
    carried = driver.costs.move(action.deployment_id, to=None)
    outcome = StateCarried(
        deployment_id=action.deployment_id, move_id=action.move_id, nbytes=carried.nbytes
    )
    driver.expect(outcome, at_us=driver.now_us + carried.elapsed_us)


def _set_timer(driver: VirtualDriver, action: actions.SetTimer) -> None:
    driver.timers[action.key] = action.at_us
    driver.push(Post(action.at_us, TimerFired(key=action.key)))


PERFORM: Final[Mapping[type[actions.Action], Callable[[VirtualDriver, Any], None]]] = (
    MappingProxyType(
        {
            actions.SpawnWpg: _spawn,
            actions.SpawnInstance: _spawn_instance,
            actions.StopWpg: _stop,
            actions.ForgetWpg: _forget,
            actions.StartOperation: _start,
            actions.CancelOperation: _cancel,
            actions.MoveState: _move,
            actions.CarryState: _carry,
            actions.SetTimer: _set_timer,
        }
    )
)
"""How an action is performed. One that has no entry takes no time: at most it tells a client."""

_CANCELLED: Final = Fault(code=ErrorCode.CANCELLED, message="cancelled")
