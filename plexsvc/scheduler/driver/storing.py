"""Calls to the store: on the event loop while that is quick, else on a thread.

Theory of operation. An operation waits for two appends, one after the other. Where a sync takes
a tenth of a millisecond, waking a thread and waiting for the interpreter's lock to come back costs
more than the append itself. Such an append is made on the loop, and must not wait for anybody. A
store is written on the thread when another connection has locked it, when it is not on this
machine, when it was slow lately, or when the thread has work. Where syncs are slow, what needs none
is still written on the loop. Appends stay in order because their caller awaits each.

A store that takes nothing (its disk is full, its server does not answer) is tried again until it
does. Meanwhile nothing is decided and new work is refused; what runs goes on, and its outcomes
wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, TypeVar

from plexsvc.clock import Clock
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.log import Log
from plexsvc.store.rows import JournalRow, Row
from plexsvc.store.store import Store, needs_sync

Result = TypeVar("Result")

log = Log(__name__)

RETRY_US: Final = 1_000_000
"""Pause before a store that took nothing is tried again."""

PASSES: Final = frozenset({ErrorCode.DISK_FULL, ErrorCode.UNAVAILABLE})
"""What may pass; anything else says that this scheduler must stop."""


class Storing:
    """A store, the thread for calls that may wait, and how long appends took lately."""

    def __init__(self, store: Store, *, clock: Clock, inline_us: int) -> None:
        self._store = store
        self._clock = clock
        self._inline_us = inline_us
        self._lately_us = {True: 0, False: 0}
        """How long writes took lately, with a sync and without."""
        self._waiting = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="store")
        self.failure: PlexError | None = None
        """Why nothing can be written now."""

    async def append(self, rows: Sequence[JournalRow], *, is_synced: bool = True) -> None:
        """Write a batch of the journal's rows, as `JournalWriter` promises.

        Raises:
            PlexError: `stale_fence`, `internal`.
        """
        write = partial(self._store.append_now, rows, is_synced=is_synced)
        if not (self._is_quick(is_synced) and self._timed(write, is_synced)):
            append = partial(self._store.append, rows)
            await self._insist(partial(self._timed, append, is_synced))

    async def write(self, rows: Sequence[Row]) -> None:
        """Write changed rows of the tables.

        Raises:
            PlexError: as `Store.append`.
        """
        write, is_synced = partial(self._store.write_now, rows), needs_sync(rows)
        if not (self._is_quick(is_synced) and self._timed(write, is_synced)):
            append = partial(self._store.append, (), rows)
            await self._insist(partial(self._timed, append, is_synced))

    async def _insist(self, write: Callable[[], None]) -> None:
        """Have the thread write until the store takes it."""
        while True:
            try:
                await self.run(write)
            except PlexError as error:
                if error.code not in PASSES:
                    raise
                if self.failure is None:
                    log.warning("the store takes nothing; new work is refused", error=error)
                self.failure = error
                await self._clock.sleep(RETRY_US)
                continue
            if self.failure is not None:
                log.info("the store takes events again")
            self.failure = None
            return

    async def run(self, work: Callable[[], Result]) -> Result:
        """Return what `work()` returns on the thread, or raise what it raises.

        A call that is cancelled runs all the same.
        """
        answer = asyncio.get_running_loop().run_in_executor(self._thread, work)
        self._waiting += 1
        answer.add_done_callback(self._done)
        return await asyncio.shield(answer)

    def close(self) -> None:
        """Return when every call has run. No call may follow."""
        self._thread.shutdown()

    def _is_quick(self, is_synced: bool) -> bool:
        return not self._waiting and self._lately_us[is_synced] < self._inline_us

    def _timed(self, work: Callable[[], Result], is_synced: bool) -> Result:
        """Return what `work` returns; one that took long is remembered for some tens of calls."""
        started_us = self._clock.monotonic_us()
        result = work()
        took_us = self._clock.monotonic_us() - started_us
        self._lately_us[is_synced] += (took_us - self._lately_us[is_synced]) // 8
        return result

    def _done(self, _: asyncio.Future[Any]) -> None:
        self._waiting -= 1
