"""Cutting of the journal: a snapshot every so many rows; rows before the last two are deleted.

Theory of operation. Two snapshots stay, so that a replay from the older one proves the newer. A
process beside the scheduler takes them (`snapshots`). The thread of the store deletes rows, some at
a time, with pauses for appends. A kill in the middle of it leaves a journal that replays: a
snapshot is written, and the third last dropped, in one transaction, and only rows before both are
deleted.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from functools import partial
from typing import Final

import msgspec

from plexsvc.clock import Clock
from plexsvc.errors import PlexError
from plexsvc.log import Log
from plexsvc.scheduler.driver import snapshots
from plexsvc.scheduler.driver.journal import Journal
from plexsvc.scheduler.driver.snapshots import Told
from plexsvc.scheduler.driver.storing import Storing
from plexsvc.store.store import Store

log = Log(__name__)

LOOK_US: Final = 1_000_000
"""How often it is asked how many rows there are."""

ROWS_AT_ONCE: Final = 100
"""Rows deleted in one transaction: two or three milliseconds in which nothing is appended."""

PAUSE_US: Final = 20_000
"""Time between two of those."""

SNAPSHOT_TIMEOUT_S: Final = 600
"""After which a process that takes a snapshot is ended."""


async def keep_short(
    journal: Journal, store: Store, storing: Storing, *, clock: Clock, snapshot_rows: int
) -> None:
    """Take snapshots and cut until cancelled."""
    before = 0
    while True:
        await clock.sleep(LOOK_US)
        if journal.last_idx - before < snapshot_rows:
            continue
        before = journal.last_idx
        try:
            if await _took_snapshot(store):
                await _cut(store, storing, clock=clock)
        except (PlexError, OSError) as error:  # no memory for a process, a store that is busy
            log.warning("the journal was not cut", error=error)


async def _took_snapshot(store: Store) -> bool:
    """Have a process take a snapshot; return whether it did."""
    told = msgspec.json.encode(Told(url=store.url, epoch=store.epoch))
    process = _start()
    try:
        _, said = await asyncio.to_thread(process.communicate, told, SNAPSHOT_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        said = f"it took more than {SNAPSHOT_TIMEOUT_S} s".encode()
    finally:
        process.kill()  # nothing happens when it has ended; else the thread above reaps it
    if code := await asyncio.to_thread(process.wait):
        why = said.decode(errors="replace").strip().rsplit("\n", 1)[-1]
        log.warning("no snapshot was taken; the journal is kept whole", why=why)
    return code == 0


def _start() -> subprocess.Popen[bytes]:
    """Start the process by vfork.

    uvloop's own subprocesses fork, which runs gRPC's fork handlers: in a process that serves, they
    now and then wait for ever, and the event loop with them.
    """
    pipe = subprocess.PIPE
    return subprocess.Popen((sys.executable, "-m", snapshots.__name__), stdin=pipe, stderr=pipe)


async def _cut(store: Store, storing: Storing, *, clock: Clock) -> None:
    """Delete the rows that no replay needs."""
    gone = 0
    while rows := await storing.run(partial(store.cut, max_rows=ROWS_AT_ONCE)):
        gone += rows
        await clock.sleep(PAUSE_US)
    if gone:
        log.info("journal cut", rows=gone)
