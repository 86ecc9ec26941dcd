"""Plans and questions that are computed on a thread of their own, from copies that do not change.

The event loop makes the copy and goes on: submissions, calls to other processes and the journal do
not wait for what is computed. One thread computes one at a time. It shares the interpreter with the
event loop, which gets its turn after `SWITCH_S`; another process would need a copy of the whole
board each time, made on the event loop.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from plexsvc.errors import unavailable
from plexsvc.log import Log
from plexsvc.rpc import loops
from plexsvc.scheduler.core.actions import Action, ComputePlan
from plexsvc.scheduler.core.events import PlanComputed
from plexsvc.scheduler.core.planning import plans
from plexsvc.scheduler.core.planning.plans import Goal, Plan, Question
from plexsvc.scheduler.core.vocabulary import Fault
from plexsvc.scheduler.handler import Handler, Work

log = Log(__name__)

T = TypeVar("T")


class PlanThread:
    """Computes beside the event loop."""

    def __init__(
        self,
        *,
        question: Callable[[str, Goal], Question],
        decide: Callable[[PlanComputed], Awaitable[list[Action]]],
    ) -> None:
        self._question = question
        self._decide = decide
        sys.setswitchinterval(loops.SWITCH_S)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="planning")
        self._decided: dict[ComputePlan, asyncio.Future[list[Action]]] = {}

    def handlers(self) -> list[Handler[Any]]:
        """Return the handler of plans."""
        return [Handler(ComputePlan, self.plan, failed=_no_plan, is_internal=True)]

    def plan(self, action: ComputePlan) -> Work:
        """Compute a plan from the state in which it was ordered."""
        decided = self._decided[action] = asyncio.get_running_loop().create_future()
        question = self._question(action.device_kind, action.goal)
        return self._plan(action, question, decided)

    async def followed(self, actions: Sequence[Action]) -> list[Action]:
        """Return actions that were ordered just now, and what follows from plans among them."""
        found = [*actions]
        for action in found:  # a plan whose base did not stand is followed by another
            if isinstance(action, ComputePlan):
                found.extend(await asyncio.shield(self._decided[action]))
        return found

    async def run(self, work: Callable[[], T]) -> T:
        """Return what `work` returns; it may use nothing that the event loop changes."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def close(self) -> None:
        """Compute nothing more."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _plan(
        self, action: ComputePlan, question: Question, decided: asyncio.Future[list[Action]]
    ) -> None:
        try:
            plan = await self.run(partial(plans.compute, question))
            decided.set_result(await self._decide(_told(action, plan)))
        finally:
            if self._decided.get(action) is decided:  # the same may be ordered with its outcome
                del self._decided[action]
            if not decided.done():
                decided.set_exception(unavailable("no plan was made; try again"))
                decided.exception()  # most are awaited by nobody, who need not be warned


def _no_plan(action: ComputePlan, fault: Fault) -> PlanComputed:
    """Return the plan that changes nothing."""
    log.error("plan not computed", kind=action.device_kind, goal=action.goal, error=fault.message)
    return _told(action, Plan())


def _told(action: ComputePlan, plan: Plan) -> PlanComputed:
    return PlanComputed(
        device_kind=action.device_kind, goal=action.goal, base=action.base, plan=plan
    )
