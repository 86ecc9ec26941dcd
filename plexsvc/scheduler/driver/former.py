"""The core of an earlier scheduler, for one that takes over from it.

Theory of operation. The last snapshot of the newest journal is thawed and told the rows behind it;
every digest on the way is compared. What can be read is taken over, or nothing: whoever finds that
it cannot be says so before an epoch is taken, so that the earlier service may come back instead.
The new epoch's journal begins with a snapshot of that core, so it replays by itself. The limits of
the core stay what they were.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import msgspec

from plexsvc.errors import PlexError, bad_request
from plexsvc.scheduler.core.machine import Scheduler
from plexsvc.scheduler.driver import encoding, journal
from plexsvc.scheduler.driver.encoding import Configured, Snapshot
from plexsvc.scheduler.driver.freezing import freeze
from plexsvc.scheduler.driver.replaying import Replay
from plexsvc.store.reader import read_journal
from plexsvc.store.rows import SnapshotRow

FIRST_ROW = 1
"""Of a journal: how its core was made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Former:
    """What an earlier scheduler knew when it stopped."""

    core: Scheduler
    at_us: int
    """The time of the last event."""
    timers: dict[str, int]
    """When the timers fire that the core awaits, by key."""

    def led_by(self, epoch: int) -> Configured:
        """Have the core lead under a new epoch; return the note that begins its journal."""
        self.core.lead(epoch)
        return encoding.configured(self.core.cluster.limits, epoch=epoch)

    def first_snapshot(self, made: Configured) -> SnapshotRow:
        """Return the snapshot that the new epoch's journal begins with."""
        snapshot = Snapshot(
            configured=made,
            idx=FIRST_ROW,
            at_us=self.at_us,
            chain="",
            state=msgspec.Raw(freeze(self.core)),
            timers=self.timers,
        )
        body = encoding.compress(snapshot)
        return SnapshotRow(idx=FIRST_ROW, at_us=self.at_us, version=journal.VERSION, body=body)

    def woken(self, *, now_us: int) -> Former:
        """Return it with as much time left for each timer as when the last event came."""
        slept_us = max(0, now_us - self.at_us)
        return replace(self, timers={key: at + slept_us for key, at in self.timers.items()})


def read_former(source: str) -> Former:
    """Return what the newest journal of a database leads to.

    Raises:
        PlexError: `not_found` without a journal; `bad_request` for one that this build cannot read
            or decides otherwise about; `unavailable` for a database that does not answer.
    """
    tail = journal.follow(read_journal(source), last=1)
    replay = Replay(tail)
    for entry in tail.entries:
        if not tail.configured.is_this_build:
            raise _cannot(f"row {entry.idx} of its journal was decided by another build")
        _, _, digest = replay.take(entry)
        if entry.digest not in {"", digest}:
            raise _cannot(f"row {entry.idx} of its journal leads to something else now")
    return Former(core=replay.core, at_us=replay.at_us, timers=replay.timers)


def _cannot(why: str) -> PlexError:
    return bad_request(
        f"what runs cannot be taken over: {why}; start the version that wrote it, or end what runs "
        "with `plexctl down`"
    )
