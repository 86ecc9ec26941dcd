"""Driver of the scheduler core: journals events, has the core decide, performs its actions.

Theory of operation. Facts are posted to the inbox where they are learned. One task takes the facts
that have gathered, journals them in one transaction, hands each to the core and performs the
actions: answers and records at once, calls to other processes in tasks of their own, whose outcomes
come back as events. Nothing is acted upon that is not in the journal, and nothing is told to
anybody that is not synced to disk. A batch of new work that leads to internal actions alone is
written, and synced with what is told next. While the journal cannot be written nothing is decided.
"""

from __future__ import annotations

import asyncio
from typing import Final

from plexsvc.scheduler.core.events import (
    Acknowledged,
    OperationSubmitted,
    PayloadStaged,
    PayloadUnderWay,
)
from plexsvc.scheduler.core.machine import Scheduler
from plexsvc.scheduler.driver.inbox import Inbox
from plexsvc.scheduler.driver.journal import Journal, JournalWriter
from plexsvc.scheduler.handler import Handlers, close_with

WORK: Final = (OperationSubmitted, PayloadStaged, PayloadUnderWay, Acknowledged)
"""Events that mostly lead to internal actions alone."""


class Driver:
    """The only caller of a core."""

    def __init__(
        self, core: Scheduler, *, inbox: Inbox, journal: Journal, handlers: Handlers
    ) -> None:
        self.core = core
        self.handlers = handlers
        self._inbox = inbox
        self._journal = journal

    async def run(self, writer: JournalWriter, tasks: asyncio.TaskGroup) -> None:
        """Decide until cancelled; the work of actions runs in `tasks`.

        Raises:
            PlexError: what `writer` raises.
        """
        while True:
            posted = await self._inbox.take()
            events = [event for event, _ in posted]
            is_synced = not all(isinstance(event, WORK) for event in events)
            await writer.append(self._journal.rows(events), is_synced=is_synced)
            for event, decision in posted:
                actions = self.core.handle(event)
                self._journal.decided(actions)
                if not (is_synced or all(self.handlers[type(a)].is_internal for a in actions)):
                    await writer.append(self._journal.notes(at_us=event.at_us))
                    is_synced = True
                for action in actions:
                    handler = self.handlers[type(action)]
                    work = handler.perform(action)
                    if work is not None:
                        finishing = handler.finish(action, work, self._inbox.post)
                        close_with(tasks.create_task(finishing), work)
                # Whoever waited may have been cancelled.
                if not decision.done():
                    decision.set_result(actions)
