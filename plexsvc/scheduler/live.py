"""Scheduler of a live cluster: one core, its driver, the nodes that it leads, and its records."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

from plexclient.wire.v1 import service_pb2
from plexsvc.clock import Clock, ServiceClock
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.ids import JobId, NodeId, TenantId, WpgId
from plexsvc.log import Log
from plexsvc.rpc.keys import ClusterKeys
from plexsvc.scheduler.config import SchedulerConfig
from plexsvc.scheduler.core.events import Event, InstanceLost, TurnsTaken
from plexsvc.scheduler.core.view import ClusterView
from plexsvc.scheduler.core.vocabulary import Fault
from plexsvc.scheduler.driver.cutting import keep_short
from plexsvc.scheduler.driver.driver import Driver
from plexsvc.scheduler.driver.encoding import configured
from plexsvc.scheduler.driver.former import Former
from plexsvc.scheduler.driver.inbox import Decision, Inbox
from plexsvc.scheduler.driver.journal import Journal
from plexsvc.scheduler.driver.storing import Storing
from plexsvc.scheduler.ledger import rows
from plexsvc.scheduler.ledger.bill import HOUR_US, Bill, since
from plexsvc.scheduler.ledger.caps import Caps
from plexsvc.scheduler.ledger.jobs import Registry
from plexsvc.scheduler.ledger.members import Members
from plexsvc.scheduler.ledger.recorder import Recorder
from plexsvc.scheduler.ledger.restoring import restore
from plexsvc.scheduler.ledger.results import ResultBook
from plexsvc.scheduler.ledger.sessions import Sessions
from plexsvc.scheduler.ledger.takeover import take_over
from plexsvc.scheduler.orders import adopt, leaving
from plexsvc.scheduler.orders.managers import NOTES, ManagerHosts
from plexsvc.scheduler.orders.nodes import NodeLinks
from plexsvc.scheduler.orders.ranks import Ranks
from plexsvc.scheduler.orders.reach import Reach, RolloutPort
from plexsvc.scheduler.orders.rewards import RewardHosts
from plexsvc.scheduler.orders.spot import SpotHosts
from plexsvc.scheduler.orders.table import table
from plexsvc.scheduler.orders.timers import Timers
from plexsvc.scheduler.orders.versions import Versions
from plexsvc.scheduler.orders.watch import Watch
from plexsvc.store.rows import (
    ChargesRow,
    JobUsage,
    JournalRow,
    MemberRow,
    NodeRow,
    QuotaRow,
    RecordGone,
    RecordRow,
    TokenRow,
    UsageRow,
)
from plexsvc.store.store import Store

log = Log(__name__)

ROWS_FLUSH_US: Final = 200_000
"""Longest time the tables of jobs and operations lag behind the journal."""

BILL_US: Final = 2_000_000
"""How often what jobs have used is read, and written where it changed."""


class LiveScheduler:
    """Leads a cluster: `run()` until cancelled; everything else is called while it runs."""

    def __init__(
        self,
        config: SchedulerConfig,
        store: Store,
        clock: Clock,
        node_agents: Sequence[str],
        rollout_manager: RolloutPort,
        keys: ClusterKeys,
        former: Former | None = None,
        *,
        added: Sequence[NodeRow] = (),
    ) -> None:
        """Lead a new cluster, or go on with what a former scheduler left running.

        `added` are the nodes that operators added while earlier ones led.
        """
        self.clock = clock = ServiceClock(clock, on_gap=_say_gap)
        self.config, self.epoch = config, store.epoch
        inbox = Inbox(clock, max_waiting=config.max_inbox, max_batch=config.max_batch)
        self.post = inbox.post
        self.registry = Registry(config, quotas=store.quotas())
        self.results = ResultBook(max_bytes=config.max_result_bytes)
        self.recorder = Recorder(self.registry, results=self.results, clock=clock)
        self.sessions = Sessions(config, clock=clock, registry=self.registry, post=inbox.post)
        self.members = Members(
            store.members(),
            keys=keys,
            clock=clock,
            remember=self.remember,
            valid_us=config.node_certificate_us,
        )
        self.rollout = rollout_manager
        ranks = Ranks(self.registry)
        self.nodes = self._links(node_agents, added, ranks=ranks, keys=keys)
        self.reach = self._reach(ranks)
        self._former = None if former is None else former.woken(now_us=clock.wall_us())
        if former is None:
            self._made = configured(config, epoch=store.epoch)
            core = self._made.new_core()
        else:
            self._made, core = former.led_by(store.epoch), former.core
            inbox.last_us = former.at_us
            adopt.remember(self.nodes, core.view)
        self._adopted, self._made_us = asyncio.Event(), clock.monotonic_us()
        self._journal = Journal(self._made)
        self.cluster: ClusterView = core.view
        self.spot_hosts = SpotHosts(self.reach, is_open=self._is_open)
        self.manager_hosts = ManagerHosts(self.reach, is_open=self._is_open, remember=self.remember)
        self.reward_hosts = RewardHosts(self.reach, clock, is_open=self._is_open)
        self._timers = Timers(clock, post=inbox.post, is_awaited=core.view.awaits)
        self.handlers = table(self.reach, self._timers)
        self.bill = Bill(core.view, clock=clock, pooled=self._pooled)
        self.caps = Caps(self.registry, self.bill, view=core.view, post=inbox.post)
        self._driver = Driver(core, inbox=inbox, journal=self._journal, handlers=self.handlers)
        self._inbox, self._store = inbox, store
        self._storing: Storing | None = None
        self._is_running = False
        self._has_begun = former is None

    def _links(
        self, agents: Sequence[str], added: Sequence[NodeRow], *, ranks: Ranks, keys: ClusterKeys
    ) -> NodeLinks:
        return NodeLinks(
            agents,
            config=self.config,
            clock=self.clock,
            epoch=self.epoch,
            post=self.post,
            ranks_on=ranks.on_node,
            keys=keys,
            added=added,
        )

    def _reach(self, ranks: Ranks) -> Reach:
        """Return what handlers of orders reach, to which the rollout managers report."""
        reach = Reach(
            config=self.config,
            clock=self.clock,
            epoch=self.epoch,
            registry=self.registry,
            recorder=self.recorder,
            nodes=self.nodes,
            ranks=ranks,
            versions=Versions(keep=self.config.max_versions_per_deployment),
            rollout=self.rollout,
            post=self.post,
            watch=Watch(self.clock, progress_timeout_us=self.config.progress_timeout_us),
        )
        self.rollout.report_to(self._given_up)
        self.rollout.report_left_to(partial(leaving.report, reach))
        self.rollout.report_turns_to(self._turned)
        return reach

    def _is_open(self, node_id: NodeId) -> bool:
        return node_id not in self.cluster.cordoned

    async def run(self) -> None:
        """Lead until cancelled.

        Raises:
            PlexError: `stale_fence` when another scheduler took over.
        """
        inline_us = self.config.inline_append_us
        storing = Storing(self._store, clock=self.clock, inline_us=inline_us)
        self._storing = storing
        self.nodes.on_forgotten = self.recorder.node_changed
        try:
            if self._former is not None:
                await storing.run(partial(self._begin, self._former))
            else:
                await storing.run(self._forget_notes)
            post = self.post if self._former is None else None
            await take_over(self._store, self.config, clock=self.clock, run=storing.run, post=post)
            async with asyncio.TaskGroup() as tasks:
                self._is_running = True
                tasks.create_task(self.clock.run())
                tasks.create_task(self.nodes.run())
                tasks.create_task(self._timers.run())
                tasks.create_task(self.sessions.run())
                tasks.create_task(self.reach.watch.run())
                tasks.create_task(self._flush_rows(storing))
                tasks.create_task(self._keep_bill(storing))
                tasks.create_task(self._driver.run(_WithRecords(storing, self.recorder), tasks))
                tasks.create_task(self._adopt(tasks))
                if self.config.snapshot_rows:
                    cutting = keep_short(
                        self._journal,
                        self._store,
                        storing,
                        clock=self.clock,
                        snapshot_rows=self.config.snapshot_rows,
                    )
                    tasks.create_task(cutting)
        finally:
            self._is_running = False
            self._inbox.close()
            storing.close()
            if self._has_begun:  # else the former's journal stays the newest
                notes = self._journal.notes(at_us=self._inbox.last_us)
                self._store.append(notes, [*self.recorder.take_rows(), *self.bill.rows()])
            await self.nodes.close()
            await self.reach.ranks.close()

    async def ready(self) -> None:
        """Return once every node has joined, and what a former scheduler left is adopted."""
        await self._adopted.wait()

    @property
    def took_over_lately(self) -> bool:
        """Whether clients of a former scheduler may not have come back yet."""
        is_lately = self.clock.monotonic_us() - self._made_us < self.config.session_ttl_us
        return self._former is not None and is_lately

    def _begin(self, former: Former) -> None:
        """Have the new epoch's journal begin with the former's core; restore the ledger."""
        jobs = self._store.jobs(limit=self.config.max_jobs + self.config.max_ended_jobs)
        deployments = self._store.deployments([row.job_id for row in jobs])
        kept = restore(
            self.registry,
            self.recorder,
            self.cluster,
            jobs=jobs,
            deployments=deployments,
            answers=self._store.answers(),
        )
        for record in self.registry.deployments.values():
            self.reach.versions.restore(record.deployment_id, record.versions)
            if record.durable is not None:
                self.reach.versions.recall(record.deployment_id, record.durable)
                ran = self._store.kept_operations([record.deployment_id])
                record.durable.recall(map(rows.done_of, ran))
        self.manager_hosts.recall(self._store.records(tenant="", prefix=NOTES))
        self._store.keep_snapshot(former.first_snapshot(self._made))
        self._store.append(self._journal.notes(at_us=former.at_us), kept)
        self._has_begun = True

    def _forget_notes(self) -> None:
        """Drop the notes about rollouts that ended with their cluster."""
        notes = self._store.records(tenant="", prefix=NOTES)
        self._store.append((), [RecordGone(tenant="", key=row.key) for row in notes])

    async def _adopt(self, tasks: asyncio.TaskGroup) -> None:
        await self.nodes.ready()
        if self._former is not None:
            self._timers.set_all(self._former.timers)
            await adopt.adopt(self.reach, self.cluster, self.handlers, tell=self._tell, tasks=tasks)
        self._adopted.set()

    def _pooled(self) -> Iterator[tuple[JobId, TenantId, int]]:
        """Yield for how long jobs have had spot devices and lent engines, under this service."""
        for job in self.registry.jobs.values():
            use = service_pb2.JobUse()
            for deployment_id in job.deployment_ids:
                self.rollout.bill(deployment_id, use)
            if use.pooled_us:
                yield job.job_id, job.tenant, use.pooled_us

    def _tell(self, fact: Event) -> Decision:
        return self.post(fact).decision

    def check_open(self) -> None:
        """Refuse new work when it cannot be taken.

        Raises:
            PlexError: `unavailable`, `disk_full`.
        """
        if not self._is_running or self._storing is None:
            raise PlexError(ErrorCode.UNAVAILABLE, "the scheduler is not running; try again later")
        if self._storing.failure is not None:
            raise self._storing.failure
        self._inbox.check_room()

    def notice(self, tenant: TenantId) -> str:
        """Return what a tenant's jobs are told beside their state: why nothing goes on, or ""."""
        return self.stalled() or self.caps.notice(tenant)

    def stalled(self) -> str:
        """Return why nothing is decided now, or ""."""
        failure = self._storing and self._storing.failure
        return failure.message if failure else ""

    def tokens(self) -> list[TokenRow]:
        """Return the tokens that operators made, oldest first, from the store."""
        return self._store.tokens()

    async def remember(
        self, *rows: NodeRow | TokenRow | MemberRow | QuotaRow | RecordRow | RecordGone
    ) -> None:
        """Record what an operator or a router did for the next scheduler; durable on return."""
        assert self._storing is not None, rows
        await self._storing.write(rows)

    async def records(self, *, tenant: str, prefix: str, after: str, limit: int) -> list[RecordRow]:
        """Return what routers remember for a tenant under keys that begin so, behind a key."""
        assert self._storing is not None, prefix
        find = partial(self._store.records, tenant=tenant, prefix=prefix, after=after, limit=limit)
        return await self._storing.run(find)

    def _given_up(self, wpg_id: str, address: str, because: str) -> None:
        """Tell the core that an instance does not come back by itself."""
        ranks = self.reach.ranks.of(WpgId(wpg_id))
        for index, rank in enumerate(ranks):
            if rank.address == address:
                fault = Fault(
                    code=ErrorCode.WORKER_DIED,
                    message=f"instance {rank.proc_id} at {address} is lost: {because}",
                    facts=(("worker", rank.proc_id),),
                )
                self.post(
                    InstanceLost(
                        wpg_id=WpgId(wpg_id),
                        rank=index,
                        incarnation=rank.incarnation,
                        fault=fault,
                    )
                )

    def _turned(self, wpg_id: str, device_us: int) -> None:
        """Tell the core for how long instances sampled what is no operation."""
        self.post(TurnsTaken(wpg_id=WpgId(wpg_id), device_us=device_us))

    async def _flush_rows(self, storing: Storing) -> None:
        """Write changed rows now and then: an answer waits for the journal alone."""
        while True:
            await self.recorder.dirty.wait()
            await self.clock.sleep(ROWS_FLUSH_US)
            self.recorder.dirty.clear()
            await self.recorder.flush(storing.write)

    async def _keep_bill(self, storing: Storing) -> None:
        """Have the store know what jobs have used, and end those that may use no more."""
        stored, charged = await storing.run(lambda: (self._store.usage(), self._store.charged()))
        self.bill.begin(stored, charged)
        while True:
            await self._write_bill(storing)
            self.bill.forget(set(self.registry.jobs))
            await self.clock.sleep(BILL_US)

    async def usage(self, *, tenant: str, job_id: str, since_us: int) -> list[JobUsage]:
        """Return what jobs have used since the hour in which a time lies, by job and kind of work.

        Args:
            tenant: whose; all tenants' if empty.
            job_id: of which; of all jobs if empty.
            since_us: the time; 0: the beginning.

        Raises:
            PlexError: as `check_open`.
        """
        self.check_open()
        assert self._storing is not None, tenant
        await self._write_bill(self._storing)
        since_us -= since_us % HOUR_US
        ask = partial(self._store.usage, tenant=tenant, job_id=job_id)
        found = await self._storing.run(ask)
        before = await self._storing.run(partial(ask, before_us=since_us)) if since_us else ()
        return since(found, before)

    async def operations(
        self, *, tenant: str, job_id: str, limit: int
    ) -> tuple[list[JobUsage], list[ChargesRow]]:
        """Return what a job has used, and its newest charges, as of the same moment.

        Args:
            tenant: whose job it must be; any tenant's if empty.
            job_id: which.
            limit: how many charges.

        Raises:
            PlexError: as `check_open`.
        """
        self.check_open()
        assert self._storing is not None, tenant
        await self._write_bill(self._storing)

        def read() -> tuple[list[JobUsage], list[ChargesRow]]:
            used = self._store.usage(tenant=tenant, job_id=job_id)
            return used, self._store.charges(job_id=job_id, limit=limit) if used else []

        return await self._storing.run(read)

    def read_bill(self) -> list[UsageRow | ChargesRow]:
        """Read what jobs have used until now, and end those that may use no more."""
        rows = self.bill.rows()
        self.caps.heed()  # what is refused from now on comes behind the end of its job
        return rows

    async def _write_bill(self, storing: Storing) -> None:
        if rows := self.read_bill():
            await storing.write(rows)
            self.bill.written(rows)


class _WithRecords:
    """Writes a journal, and before it what only the tables tell a scheduler that takes over."""

    def __init__(self, storing: Storing, recorder: Recorder) -> None:
        self._storing = storing
        self._recorder = recorder

    async def append(self, rows: Sequence[JournalRow], *, is_synced: bool = True) -> None:
        """Write a batch of rows, as `JournalWriter` promises."""
        if self._recorder.is_owed:
            await self._recorder.flush(self._storing.write)
        await self._storing.append(rows, is_synced=is_synced)


def _say_gap(late_us: int) -> None:
    log.warning("the scheduler stood still; its timers wait as long again", late_us=late_us)
