"""Handler of an action: how one kind is performed, and what its failure tells the core."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import grpc.aio

from plexsvc.errors import ErrorCode, PlexError
from plexsvc.log import Log
from plexsvc.rpc.errors import first_failure
from plexsvc.scheduler.core.actions import Action
from plexsvc.scheduler.core.events import Event, Post
from plexsvc.scheduler.core.vocabulary import Fault
from plexsvc.scheduler.faults import fault_of_call

log = Log(__name__)

A = TypeVar("A", bound=Action)

Work = Coroutine[Any, Any, Event | None]
"""Calls to other processes. Returns the outcome, or None where the core waits for none."""


def _tell_nobody(action: Action, fault: Fault) -> None:
    """Return no event: the core does not wait for this action's end."""
    log.warning("call failed", action=type(action).__name__, error=fault.message)


@dataclass(frozen=True, slots=True)
class Handler(Generic[A]):
    """Performs one kind of action."""

    action: type[A]
    perform: Callable[[A], Work | None]
    """Does at once what needs no other process, and returns the rest as work, if any."""
    failed: Callable[[A, Fault], Event | None] = _tell_nobody
    """Returns the outcome of work that raised."""
    is_internal: bool = False
    """Whether only this cluster's own processes and timers learn of the action. It may then be
    performed before its event is synced to disk."""

    async def finish(self, action: A, work: Work, post: Post) -> None:
        """Do the work of an action and post its outcome; raises only when cancelled."""
        try:
            outcome = await work
        except Exception as error:  # noqa: BLE001 - an action that fails comes back as an event
            outcome = self.failed(action, _fault(first_failure(error), action))
        if outcome is not None:
            post(outcome)


def close_with(task: asyncio.Task[None], work: Work) -> None:
    """Close `work` when its task ends, which may be cancelled before it begins."""
    task.add_done_callback(lambda _: work.close())


Handlers = dict[type[Any], Handler[Any]]
"""The handler of every action, by the action's type."""


def _fault(error: BaseException, action: Action) -> Fault:
    if isinstance(error, grpc.aio.AioRpcError | PlexError):
        return fault_of_call(error)
    log.error("action failed", action=type(action).__name__)  # with the trace
    detail = f"{type(error).__name__}: {error}"
    return Fault(code=ErrorCode.INTERNAL, message=f"the scheduler failed: {detail}")
