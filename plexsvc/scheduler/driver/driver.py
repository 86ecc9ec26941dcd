"""The scheduler's driver: the only caller of the core; journals, handles, acts.

Theory of operation. Whoever learns a fact posts an event. One task takes what has gathered, stamps
it (`at_us = max(last + 1, wall)`), journals the batch in one transaction, hands each event to the
core and carries the actions out: answers and records at once, calls to other processes in tasks of
their own, whose outcomes come back as events. Nothing is acted upon that is not in the journal, and
nothing is told to anybody that is not synced to disk: a batch of new work that leads to orders for
our own processes alone is written, and synced with what is told next. If the journal cannot be
written, the driver stops: it may no longer decide.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple

from plexsvc.clock import Clock
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.ids import NodeId, WpgId
from plexsvc.log import Log
from plexsvc.scheduler.config import SchedulerConfig
from plexsvc.scheduler.core.actions import Action
from plexsvc.scheduler.core.events import (
    Acknowledged,
    Event,
    OperationSubmitted,
    PayloadStaged,
    Post,
    ProfilesLoaded,
)
from plexsvc.scheduler.driver.encoding import configured
from plexsvc.scheduler.driver.journal import Journal
from plexsvc.scheduler.driver.storing import Storing
from plexsvc.scheduler.handler import Work
from plexsvc.scheduler.ledger import profiles
from plexsvc.scheduler.ledger.jobs import Registry
from plexsvc.scheduler.ledger.recorder import Recorder
from plexsvc.scheduler.ledger.results import ResultBook
from plexsvc.scheduler.ledger.sessions import Sessions
from plexsvc.scheduler.ledger.tally import Tally
from plexsvc.scheduler.orders.nodes import NodeLink, Nodes
from plexsvc.scheduler.orders.reach import Reach, RolloutPort
from plexsvc.scheduler.orders.table import table
from plexsvc.scheduler.orders.timers import Timers
from plexsvc.scheduler.orders.versions import Versions
from plexsvc.store.store import Store

log = Log(__name__)

DAY_US: Final = 86_400_000_000

WORK: Final = (OperationSubmitted, PayloadStaged, Acknowledged)
"""Events that mostly lead to internal actions alone."""


Decision = asyncio.Future[list[Action]]
"""What followed from an event."""


class Posted(NamedTuple):
    """An event on its way to the core, and whoever wants to know what follows from it."""

    event: Event
    decision: Decision


class SchedulerDriver:
    """Runs one scheduler. `run()` until cancelled; everything else is called while it runs."""

    def __init__(
        self,
        config: SchedulerConfig,
        store: Store,
        clock: Clock,
        node_agents: list[str],
        rollout_manager: RolloutPort,
    ) -> None:
        self.config = config
        self.clock = clock
        self.epoch = store.epoch
        made = configured(config, epoch=store.epoch)
        self.core = made.new_core()
        self.journal = Journal(made, keeps_actions=config.journal_actions)
        self.registry = Registry(config)
        self.results = ResultBook(max_bytes=config.max_result_bytes)
        self.sessions = Sessions(config, clock=clock, registry=self.registry, post=self.post)
        self.timers = Timers(clock, post=self.post)
        self.nodes = Nodes([self._link(target) for target in node_agents])
        self.reach = Reach(
            config=config,
            clock=clock,
            epoch=store.epoch,
            registry=self.registry,
            nodes=self.nodes,
            versions=Versions(keep=config.max_versions_per_deployment),
            rollout=rollout_manager,
        )
        self.recorder = Recorder(self.registry, results=self.results, clock=clock)
        self.handlers = table(self.reach, recorder=self.recorder, timers=self.timers)
        self.tally = Tally(self.core.cluster.timeline)
        self._store = store
        self._inbox: deque[Posted] = deque()
        self._taken: list[Posted] = []
        self._dialing: dict[str, asyncio.Task[None]] = {}
        self._arrived = asyncio.Event()
        self._last_us = 0
        self._tasks: asyncio.TaskGroup | None = None
        self._is_running = False

    async def run(self) -> None:
        """Lead until cancelled.

        Raises:
            PlexError: `stale_fence` when another scheduler took over, `unavailable` when the
                journal cannot be written.
        """
        inline_us = self.config.inline_append_us
        storing = Storing(self._store, clock=self.clock, inline_us=inline_us)
        try:
            await self._fail_orphans(storing)
            await self._forget_history(storing)
            await self._load_profiles(storing)
            async with asyncio.TaskGroup() as tasks:
                self._tasks, self._is_running = tasks, True
                for link in self.nodes.links:
                    self._dial(link)
                tasks.create_task(self.timers.run())
                tasks.create_task(self.sessions.run())
                tasks.create_task(self._flush_rows(storing))
                tasks.create_task(self._decide(storing))
        finally:
            self._is_running = False
            await self._close(storing)

    async def ready(self) -> None:
        """Return once every node agent has joined."""
        for link in self.nodes.links:
            await link.joined.wait()

    def post(self, event: Event) -> Decision:
        """Tell the core a fact, stamped when it is decided; return the actions that will follow.

        The future is done once the actions are under way. It raises `PlexError` (`unavailable`)
        when the driver stops before.
        """
        decision: Decision = asyncio.get_running_loop().create_future()
        self._inbox.append(Posted(event, decision))
        self._arrived.set()
        return decision

    async def dial(self, target: str, *, timeout_us: int) -> NodeLink:
        """Take one more node agent in; return its link once it has joined.

        Raises:
            PlexError: `unavailable` when it did not join in time; it is not dialed any more then.
        """
        self.check_open()
        link = self._link(target)
        self.nodes.links.append(link)
        self._dial(link)
        try:
            async with asyncio.timeout(timeout_us / 1e6):
                await link.joined.wait()
        except TimeoutError:
            await self._hang_up(link)
            raise PlexError(
                ErrorCode.UNAVAILABLE,
                f"node agent {target} did not join within {timeout_us / 1e6:g} s; look at its log, "
                "then add it again",
            ) from None
        return link

    def check_open(self) -> None:
        """Refuse new work when the driver cannot take it.

        Raises:
            PlexError: `unavailable`.
        """
        if not self._is_running:
            raise PlexError(ErrorCode.UNAVAILABLE, "the scheduler is not running; try again later")
        if len(self._inbox) >= self.config.max_inbox:
            raise PlexError(
                ErrorCode.UNAVAILABLE,
                f"{len(self._inbox)} events wait to be decided (scheduler.max_inbox); try again",
                limit=self.config.max_inbox,
            )

    async def _fail_orphans(self, storing: Storing) -> None:
        """Record the end of jobs whose scheduler is gone; their processes died with it."""
        now_us = self.clock.wall_us()
        fail = partial(self._store.fail_orphans, reason="the scheduler restarted", ended_us=now_us)
        count = await storing.run(fail)
        if count:
            log.warning("jobs of an earlier scheduler failed", jobs=count)

    async def _forget_history(self, storing: Storing) -> None:
        """Delete what nobody asks about any more, so that the store does not grow for ever."""
        before_us = self.clock.wall_us() - self.config.history_days * DAY_US
        count = await storing.run(partial(self._store.forget, before_us=before_us))
        if count:
            log.info("history deleted", rows=count, older_than_days=self.config.history_days)

    async def _load_profiles(self, storing: Storing) -> None:
        """Tell the core what earlier runs measured, before anything is placed."""
        read = partial(self._store.profiles, limit=self.config.max_profiles)
        kept = tuple(filter(None, map(profiles.from_row, await storing.run(read))))
        if kept:
            tell: Post = self.post
            tell(ProfilesLoaded(profiles=kept))

    async def _decide(self, storing: Storing) -> None:
        while True:
            await self._arrived.wait()
            self._taken = self._take()
            events = [posted.event for posted in self._taken]
            is_synced = not all(isinstance(event, WORK) for event in events)
            await storing.append(self.journal.rows(events), is_synced=is_synced)
            for event, decision in self._taken:
                actions = self.core.handle(event)
                self.journal.decided(actions)
                if not (is_synced or all(self.handlers[type(a)].is_internal for a in actions)):
                    await storing.append(self.journal.notes(at_us=event.at_us))
                    is_synced = True
                for action in actions:
                    self._act(action)
                if not decision.done():
                    decision.set_result(actions)

    def _take(self) -> list[Posted]:
        """Return what waits, stamped, at most a batch."""
        taken: list[Posted] = []
        while self._inbox and len(taken) < self.config.max_batch:
            self._last_us = max(self._last_us + 1, self.clock.wall_us())
            event, decision = self._inbox.popleft()
            taken.append(Posted(replace(event, at_us=self._last_us), decision))
        if not self._inbox:
            self._arrived.clear()
        return taken

    def _act(self, action: Action) -> None:
        handler = self.handlers[type(action)]
        work = handler.perform(action)
        if work is not None:
            assert self._tasks is not None, action
            self._tasks.create_task(self._finish(action, work))

    async def _finish(self, action: Action, work: Work) -> None:
        """Do the work of an action and tell the core its outcome."""
        tell: Post = self.post
        outcome = await self.handlers[type(action)].outcome(action, work)
        if outcome is not None:
            tell(outcome)

    async def _flush_rows(self, storing: Storing) -> None:
        """Write changed rows now and then: an answer waits for the journal alone."""
        while True:
            await self.recorder.dirty.wait()
            await self.clock.sleep(self.config.rows_flush_us)
            self.recorder.dirty.clear()
            self.tally.take()
            self.tally.forget(set(self.registry.jobs))
            await storing.write(self.recorder.take_rows())

    def _link(self, target: str) -> NodeLink:
        return NodeLink(
            target,
            config=self.config,
            clock=self.clock,
            epoch=self.epoch,
            post=self.post,
            ranks_of=self._ranks_of,
        )

    def _dial(self, link: NodeLink) -> None:
        assert self._tasks is not None, link.target
        self._dialing[link.target] = self._tasks.create_task(link.run())

    async def _hang_up(self, link: NodeLink) -> None:
        self.nodes.links.remove(link)
        self._dialing.pop(link.target).cancel()
        await link.close()

    def _ranks_of(self, node_id: NodeId) -> list[tuple[WpgId, int, int]]:
        """Return (WPG, rank, incarnation) of the processes that should run on a node."""
        return [
            (wpg_id, index, record.incarnation)
            for wpg_id, record in self.registry.by_wpg.items()
            for index, rank in enumerate(record.ranks)
            if rank.node_id == node_id and not record.is_stopping
        ]

    async def _close(self, storing: Storing) -> None:
        stopped = PlexError(ErrorCode.UNAVAILABLE, "the scheduler stopped; ask the next one")
        for _, decision in [*self._taken, *self._inbox]:
            if not decision.done():
                decision.set_exception(stopped)
                decision.exception()  # most are awaited by nobody, who need not be warned
        storing.close()
        self._store.append(self.journal.notes(at_us=self._last_us), self.recorder.take_rows())
        for link in self.nodes.links:
            await link.close()
        for record in self.registry.by_wpg.values():
            for rank in record.ranks:
                await rank.close()
