"""Snapshots of a scheduler's core, taken by a process beside it.

Theory of operation. The state of a core follows from its journal. So the scheduler need not stop
for a copy: this process goes on from the last snapshot through the rows since, with a core of its
own, and writes that core down. It compares every digest on the way; a journal that does not replay
gets no snapshot, and keeps its rows.
"""

from __future__ import annotations

import os
import sys
from typing import Final

import msgspec

from plexsvc.errors import PlexError, internal
from plexsvc.scheduler.driver import encoding, journal
from plexsvc.scheduler.driver.replaying import Replay
from plexsvc.store.opening import reopen_store
from plexsvc.store.reader import read_journal
from plexsvc.store.rows import SnapshotRow

NICENESS: Final = 10
"""How much the scheduler, and the ranks beside it, go first."""


class Told(msgspec.Struct, frozen=True):
    """What a process is told on its standard input; the URL may hold a password."""

    url: str
    epoch: int


def take_snapshot(url: str, *, epoch: int) -> int:
    """Write a snapshot behind the newest row of which the digest is known; return that row.

    Raises:
        PlexError: `internal` for a journal that does not replay; what `read_journal`, `follow` and
            `Store.keep_snapshot` raise.
    """
    tail = journal.follow(read_journal(url, epoch=epoch), last=1)
    if not tail.configured.is_this_build:
        raise internal(
            "the code of the scheduler changed on disk since it started, so nothing can be said of "
            "its journal; start it again"
        )
    replay = Replay(tail)
    before = replay.idx
    for entry in tail.entries:
        if not entry.digest:
            break
        _, _, digest = replay.take(entry)
        if digest != entry.digest:
            raise internal(
                f"the journal of epoch {epoch} does not replay: row {entry.idx} led to something "
                "else; it is kept whole, see `plexctl replay`",
                row=entry.idx,
            )
    if replay.idx > before:
        body = encoding.compress(replay.snapshot())
        row = SnapshotRow(idx=replay.idx, at_us=replay.at_us, version=journal.VERSION, body=body)
        store = reopen_store(url, epoch=epoch)
        try:
            store.keep_snapshot(row)
        finally:
            store.close()
    return replay.idx


def main() -> int:
    """Take the snapshot that standard input asks for; say on standard error why there is none."""
    told = msgspec.json.decode(sys.stdin.buffer.read(), type=Told)
    os.nice(NICENESS)
    try:
        take_snapshot(told.url, epoch=told.epoch)
    except PlexError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
