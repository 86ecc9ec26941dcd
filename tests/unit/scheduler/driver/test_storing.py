"""The driver's way to the store: where an append runs, and what it promises there."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest

from plexsvc.clock import SystemClock
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.scheduler.driver.storing import Storing
from plexsvc.store.opening import open_store
from plexsvc.store.rows import JournalRow
from plexsvc.store.store import Store
from tests.rigs import stored
from tests.rigs.store_rows import entry, job


class SteppingClock(SystemClock):
    """A monotonic clock that moves by `step_us` each time it is read."""

    def __init__(self) -> None:
        self.step_us = 1
        self._now_us = 0

    def monotonic_us(self) -> int:
        self._now_us += self.step_us
        return self._now_us


class ThreadNoting:
    """A store that notes the thread of each append."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.threads: list[str] = []

    def append_now(self, events: Sequence[JournalRow], *, is_synced: bool) -> bool:
        is_written = self.store.append_now(events, is_synced=is_synced)
        if is_written:
            self._note()
        return is_written

    def append(self, events: Sequence[JournalRow]) -> None:
        self._note()
        self.store.append(events)

    def _note(self) -> None:
        is_main = threading.current_thread() is threading.main_thread()
        self.threads.append("loop" if is_main else "thread")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """An open SQLite store."""
    opened = open_store(f"sqlite:///{tmp_path}/plex.db", now_us=1)
    yield opened
    opened.close()


async def test_quick_appends_are_made_on_the_loop(store: Store) -> None:
    noting = ThreadNoting(store)
    storing = Storing(noting, clock=SteppingClock(), inline_us=500)  # type: ignore[arg-type] # what it uses of a store
    await storing.append([entry(1), entry(2)])
    await storing.append([entry(3)])
    storing.close()
    assert noting.threads == ["loop", "loop"]
    assert list(stored.journal(store)) == [entry(1), entry(2), entry(3)]


async def test_after_a_slow_append_the_thread_makes_them_until_they_are_quick(store: Store) -> None:
    noting, clock = ThreadNoting(store), SteppingClock()
    storing = Storing(noting, clock=clock, inline_us=500)  # type: ignore[arg-type] # what it uses of a store
    clock.step_us = 8 * 600
    await storing.append([entry(1)])
    clock.step_us = 1
    for idx in range(2, 7):
        await storing.append([entry(idx)])
    storing.close()
    assert noting.threads == ["loop", "thread", "thread", "loop", "loop", "loop"]
    assert [row.idx for row in stored.journal(store)] == [1, 2, 3, 4, 5, 6]


async def test_what_needs_no_sync_is_written_on_the_loop_where_syncs_are_slow(store: Store) -> None:
    noting, clock = ThreadNoting(store), SteppingClock()
    storing = Storing(noting, clock=clock, inline_us=500)  # type: ignore[arg-type] # what it uses of a store
    clock.step_us = 8 * 600
    await storing.append([entry(1)])
    await storing.append([entry(2)])
    clock.step_us = 1
    await storing.append([entry(3)], is_synced=False)
    storing.close()
    assert noting.threads == ["loop", "thread", "loop"]


async def test_a_limit_of_zero_keeps_every_append_off_the_loop(store: Store) -> None:
    noting = ThreadNoting(store)
    storing = Storing(noting, clock=SteppingClock(), inline_us=0)  # type: ignore[arg-type] # what it uses of a store
    await storing.append([entry(1)])
    storing.close()
    assert noting.threads == ["thread"]


async def test_an_append_waits_on_the_thread_while_another_connection_writes(
    store: Store, tmp_path: Path
) -> None:
    other = sqlite3.connect(tmp_path / "plex.db", isolation_level=None)
    other.execute("begin immediate")
    storing = Storing(store, clock=SystemClock(), inline_us=500)
    async with asyncio.TaskGroup() as group:
        call = group.create_task(storing.append([entry(1)]))
        await asyncio.sleep(0)
        assert not call.done()
        other.execute("rollback")
    storing.close()
    other.close()
    assert list(stored.journal(store)) == [entry(1)]


async def test_appends_wait_behind_the_work_of_the_thread(store: Store) -> None:
    noting, go = ThreadNoting(store), threading.Event()
    storing = Storing(noting, clock=SteppingClock(), inline_us=500)  # type: ignore[arg-type] # what it uses of a store
    async with asyncio.TaskGroup() as group:
        work = group.create_task(storing.run(partial(go.wait, 120)))
        await asyncio.sleep(0)
        group.create_task(storing.append([entry(1)]))
        await asyncio.sleep(0)
        assert noting.threads == []
        go.set()
    storing.close()
    assert work.result()
    assert noting.threads == ["thread"]


async def test_an_append_of_a_scheduler_that_was_replaced_is_refused(
    store: Store, tmp_path: Path
) -> None:
    open_store(f"sqlite:///{tmp_path}/plex.db", now_us=2).close()
    storing = Storing(store, clock=SystemClock(), inline_us=500)
    with pytest.raises(PlexError) as refused:
        await storing.append([entry(1)])
    storing.close()
    assert refused.value.code == ErrorCode.STALE_FENCE
    assert list(stored.journal(store)) == []


async def test_rows_are_written_at_once_or_behind_who_has_the_store(
    store: Store, tmp_path: Path
) -> None:
    storing = Storing(store, clock=SystemClock(), inline_us=10_000_000)
    await storing.write([job("running")])
    assert [row.state for row in stored.jobs(store)] == ["running"]
    other = sqlite3.connect(tmp_path / "plex.db", isolation_level=None)
    other.execute("begin immediate")
    async with asyncio.TaskGroup() as group:
        call = group.create_task(storing.write([job("completed")]))
        await asyncio.sleep(0)
        assert not call.done()
        other.execute("rollback")
    storing.close()
    other.close()
    assert [row.state for row in stored.jobs(store)] == ["completed"]
