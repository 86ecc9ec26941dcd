"""Replaying of a journal: a core that takes once more what it took, and the chain of digests."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import xxhash

from plexsvc.scheduler.core.actions import Action, SetTimer
from plexsvc.scheduler.core.events import TimerFired
from plexsvc.scheduler.driver import encoding
from plexsvc.scheduler.driver.encoding import JournalEntry, JournalTail, Recording, Snapshot
from plexsvc.scheduler.driver.freezing import freeze, thaw


class Replay:
    """Begins where a journal begins: with a snapshot, or with a new core."""

    def __init__(self, told: Recording | JournalTail) -> None:
        self.configured = told.configured
        snapshot = told.snapshots[0] if isinstance(told, JournalTail) and told.snapshots else None
        self.core = told.configured.new_core() if snapshot is None else thaw(snapshot.state)
        self.idx = 0 if snapshot is None else snapshot.idx
        """The row it is behind."""
        self.at_us = 0 if snapshot is None else snapshot.at_us
        self.chain = "" if snapshot is None else snapshot.chain
        """32 hex digits of all digests so far, those before a snapshot included."""
        self.actions: Sequence[Action] = ()
        """What followed from the event that it took last."""
        self._timers = {} if snapshot is None else snapshot.timers

    def take(self, entry: JournalEntry) -> tuple[int, bytes, str]:
        """Tell the core an event; return how many actions follow, their JSON, and the digest."""
        self.actions = actions = self.core.handle(entry.event)
        if isinstance(entry.event, TimerFired):
            self._timers.pop(entry.event.key, None)
        for action in actions:
            if isinstance(action, SetTimer):
                self._timers[action.key] = action.at_us
        encoded = encoding.encode_actions(actions)
        digest = encoding.digest(entry.body.encode(), encoded)
        self.idx, self.at_us = entry.idx, entry.event.at_us
        self.chain = xxhash.xxh3_128_hexdigest(f"{self.chain}{digest}".encode())
        return len(actions), encoded, digest

    @property
    def timers(self) -> dict[str, int]:
        """When the timers fire that the core awaits, by key."""
        awaits = self.core.view.awaits
        self._timers = {key: at_us for key, at_us in self._timers.items() if awaits(key)}
        return self._timers

    def snapshot(self) -> Snapshot:
        """Return what a journal may begin with behind the row it is at."""
        return Snapshot(
            configured=self.configured,
            idx=self.idx,
            at_us=self.at_us,
            chain=self.chain,
            state=msgspec.Raw(freeze(self.core)),
            timers=self.timers,
        )
