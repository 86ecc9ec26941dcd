"""Line from the proxy to the planner: tells it what is under way and what ended, brings plans back.

A plan is asked for when a batch begins or ends, and every `plan_every_us` while there are
any. Without a planner the last plan holds until it is old; then the pools follow their queues.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

import grpc.aio
import msgspec

from plexclient.wire.v1 import reward_pb2 as pb
from plexsvc.clock import Clock, wait_at_most
from plexsvc.errors import PlexError
from plexsvc.log import Log
from plexsvc.reward.config import RewardServiceConfig
from plexsvc.reward.core.planner import HistoryKey, PlanFacts
from plexsvc.reward.core.planning import History
from plexsvc.reward.core.vocabulary import (
    BatchesExpected,
    PlanMade,
    PoolPlan,
    RememberBatch,
    Resource,
    RewardEvent,
)
from plexsvc.rpc import services

log = Log(__name__)

SERVICE: Final = pb.DESCRIPTOR.services_by_name["RewardPlanner"]

CALL_S: Final = 10.0
PAUSE_US: Final = 200_000
"""Between two plans at least."""

PLANS_HOLD: Final = 3
"""Intervals for which a plan holds when none follows."""

MAX_ENDED: Final = 64
"""Batches that wait for a planner; of more, the oldest are not remembered."""


class EndedBatch(msgspec.Struct, frozen=True):
    """A batch that ended, and how."""

    key: HistoryKey
    history: History


class PlanQuery(msgspec.Struct, frozen=True):
    """What the planner is told with each question."""

    ended: list[EndedBatch]
    facts: PlanFacts
    is_first: bool = False
    """The proxy knows nothing yet of what jobs are like."""


class PlanAnswer(msgspec.Struct, frozen=True):
    """A plan; and for a proxy that is new, how long each job's batches take."""

    pools: list[tuple[Resource, PoolPlan]]
    lasts_us: list[tuple[HistoryKey, int]] = []


class PlannerLine:
    """Asks the planner at `reward.planner`, and posts what it answers as facts."""

    def __init__(
        self,
        config: RewardServiceConfig,
        clock: Clock,
        *,
        channel: grpc.aio.Channel,
        facts: Callable[[int], PlanFacts],
        post: Callable[[RewardEvent], None],
    ) -> None:
        self._config = config
        self._clock = clock
        self._channel = channel
        self._facts = facts
        self._post = post
        self._ended: deque[EndedBatch] = deque(maxlen=MAX_ENDED)
        self._changed = asyncio.Event()
        self._is_first = True
        self._is_silent = False
        self._unmet: set[Resource] = set()

    def remember(self, ended: RememberBatch) -> None:
        """Tell the planner of a batch that ended, and have the pools planned anew."""
        key = (ended.batch.tenant, ended.batch.job_id, ended.program)
        self._ended.append(EndedBatch(key, History(samples=ended.samples)))
        self._changed.set()

    def wake(self) -> None:
        """Have the pools planned anew."""
        self._changed.set()

    async def run(self) -> None:
        """Ask until cancelled."""
        while True:
            await wait_at_most(self._changed, self._config.plan_every_us, clock=self._clock)
            self._changed.clear()
            now_us = self._clock.monotonic_us()
            facts = self._facts(now_us)
            if facts.batches or self._ended or self._is_first:
                await self._ask(facts)
            await self._clock.sleep(PAUSE_US)

    async def _ask(self, facts: PlanFacts) -> None:
        told = list(self._ended)
        query = PlanQuery(told, facts, self._is_first)
        try:
            reply = await services.call(
                self._channel,
                SERVICE.methods_by_name["Plan"],
                pb.PlanRequest(query=msgspec.msgpack.encode(query)),
                pb.PlanReply,
                timeout_s=CALL_S,
            )
        except PlexError as error:
            if not self._is_silent:
                log.warning("no plan; the last one holds, then pools follow queues", error=error)
            self._is_silent = True
            return
        self._is_silent = False
        for ended in told:
            if self._ended and self._ended[0] is ended:
                self._ended.popleft()
        self._take(msgspec.msgpack.decode(reply.answer, type=PlanAnswer), now_us=facts.now_us)

    def _take(self, answer: PlanAnswer, *, now_us: int) -> None:
        at_us = self._clock.monotonic_us()
        if self._is_first:
            self._is_first = False
            self._post(BatchesExpected(at_us=at_us, lasts_us=dict(answer.lasts_us)))
        until_us = now_us + PLANS_HOLD * self._config.plan_every_us
        pools = dict(answer.pools)
        self._post(PlanMade(at_us=at_us, pools=pools, until_us=until_us))
        unmet = {resource for resource, plan in pools.items() if not plan.is_met}
        for resource in sorted(unmet - self._unmet):
            log.warning(
                "the plan cannot be met: batches will end late",
                workers_of=str(resource),
                at_most=pools[resource].workers,
            )
        self._unmet = unmet
