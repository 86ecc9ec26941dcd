"""The driver: journals, has the core decide, acts; in this order, and not without the journal."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import cast

import pytest

from plexsvc.clock import SystemClock
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.ids import JobId, NodeId, OperationId, WpgId
from plexsvc.scheduler.core.actions import Action, JobChanged, SetTimer, StopWpg
from plexsvc.scheduler.core.events import Event, NodeCordoned, PayloadStaged, WpgStopped
from plexsvc.scheduler.core.limits import Limits
from plexsvc.scheduler.core.machine import Scheduler
from plexsvc.scheduler.core.vocabulary import JobState
from plexsvc.scheduler.driver import journal
from plexsvc.scheduler.driver.driver import Driver
from plexsvc.scheduler.driver.encoding import configured
from plexsvc.scheduler.driver.inbox import Inbox
from plexsvc.scheduler.driver.journal import Journal
from plexsvc.scheduler.handler import Handler, Handlers
from tests.fakes.fake_journal import FakeJournalWriter

CORDONED = NodeCordoned(node_id=NodeId("n0"))
STAGED = PayloadStaged(operation_id=OperationId(bytes(16)))
STOP = StopWpg(wpg_id=WpgId("wpg-1"))
TIMER = SetTimer(key="gap/1", at_us=9)
TELL = JobChanged(job_id=JobId("a"), state=JobState.RUNNING, reason="")


@dataclass(slots=True)
class FakeCore:
    """Answers every event with the same actions."""

    actions: Sequence[Action] = ()
    handled: list[Event] = field(default_factory=list)

    def handle(self, event: Event) -> list[Action]:
        self.handled.append(event)
        return [] if isinstance(event, WpgStopped) else list(self.actions)


@dataclass(slots=True)
class Rig:
    """A driver, what surrounds it, and what it did."""

    inbox: Inbox
    core: FakeCore
    writer: FakeJournalWriter
    acted: list[Action] = field(default_factory=list)

    def handlers(self) -> Handlers:
        async def stop(action: StopWpg) -> Event:
            self.acted.append(action)
            return WpgStopped(wpg_id=action.wpg_id)

        return {
            SetTimer: Handler(SetTimer, self.acted.append, is_internal=True),
            JobChanged: Handler(JobChanged, self.acted.append),
            StopWpg: Handler(StopWpg, stop),
        }


@asynccontextmanager
async def running(*actions: Action) -> AsyncIterator[Rig]:
    """Run a driver whose core orders `actions` for every event."""
    inbox = Inbox(SystemClock(), max_waiting=2, max_batch=8)
    rig = Rig(inbox, FakeCore(actions), FakeJournalWriter())
    book = Journal(configured(Limits(), epoch=1))
    core = cast("Scheduler", rig.core)
    driver = Driver(core, inbox=inbox, journal=book, handlers=rig.handlers())
    async with asyncio.TaskGroup() as tasks:
        deciding = tasks.create_task(driver.run(rig.writer, tasks))
        yield rig
        deciding.cancel()


async def test_nothing_is_decided_before_it_is_written() -> None:
    async with running(TELL) as rig:
        decision = rig.inbox.post(CORDONED).decision
        await asyncio.sleep(0)
        assert (rig.core.handled, rig.acted) == ([], [])
        rig.writer.is_open.set()
        assert await decision == [TELL]
        assert rig.acted == [TELL]
    assert list(journal.replay(rig.writer.rows)) == rig.core.handled


async def test_an_action_that_ends_elsewhere_tells_its_outcome() -> None:
    async with running(STOP) as rig:
        rig.writer.is_open.set()
        await rig.inbox.post(CORDONED).decision
        for _ in range(9):  # turns of the loop
            await asyncio.sleep(0)
    assert [type(event) for event in rig.core.handled] == [NodeCordoned, WpgStopped]


@pytest.mark.parametrize(
    ("event", "action", "synced"),
    [
        (CORDONED, TIMER, [True]),
        (STAGED, TIMER, [False]),
        (STAGED, TELL, [False, True]),
    ],
    ids=["a change", "work that leads to internal actions", "work that somebody is told of"],
)
async def test_what_anybody_learns_of_is_synced_before(
    event: Event, action: Action, synced: list[bool]
) -> None:
    async with running(action) as rig:
        rig.writer.is_open.set()
        await rig.inbox.post(event).decision
    assert [is_synced for _, is_synced in rig.writer.batches] == synced


async def test_a_driver_that_cannot_write_stops() -> None:
    with pytest.RaisesGroup(PlexError):
        async with running(TELL) as rig:
            rig.writer.failure = PlexError(ErrorCode.STALE_FENCE, "another one leads")
            rig.writer.is_open.set()
            await rig.inbox.post(CORDONED).decision
    assert (rig.core.handled, rig.acted) == ([], [])
