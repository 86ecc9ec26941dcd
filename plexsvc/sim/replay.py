"""Replay of a live journal through a fresh core: the same events must give the same actions."""

from __future__ import annotations

import json
from dataclasses import dataclass

from plexsvc.scheduler.driver.encoding import JournalEntry, JournalTail, Recording, Snapshot
from plexsvc.scheduler.driver.replaying import Replay


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The first event from which the replay decided otherwise than the journal says."""

    idx: int
    """Row of the journal."""
    kind: str
    at_us: int
    event: str
    why: str
    replayed: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayResult:
    """What a replay found."""

    begins: int
    """Row behind which it began, with a snapshot; 0: at the beginning."""
    events: int
    compared: int
    """Events whose actions the journal knows: all but those of a scheduler's last moment."""
    actions: int
    difference: Difference | None
    chain: str
    """Digest of all digests, those before its beginning included."""

    @property
    def is_identical(self) -> bool:
        """Whether every event led to what it led to when it was live."""
        return self.difference is None


def verify(told: Recording | JournalTail) -> ReplayResult:
    """Replay a journal until the end or the first difference, as it is read.

    It goes on from the first of several snapshots; where a later one was taken, its state must be
    the same.
    """
    replay = Replay(told)
    count = _Count(begins=replay.idx)
    later = {s.idx: s for s in told.snapshots[1:]} if isinstance(told, JournalTail) else {}
    for entry in told.entries:
        count.events += 1
        found = _step(replay, entry, count)
        if found is None and entry.idx in later:
            found = _same_state(replay, later[entry.idx], entry)
        if found is not None:
            return count.verdict(found, chain=replay.chain)
    return count.verdict(None, chain=replay.chain)


@dataclass(slots=True, kw_only=True)
class _Count:
    begins: int
    events: int = 0
    compared: int = 0
    actions: int = 0

    def verdict(self, difference: Difference | None, *, chain: str) -> ReplayResult:
        return ReplayResult(
            begins=self.begins,
            events=self.events,
            compared=self.compared,
            actions=self.actions,
            difference=difference,
            chain=chain,
        )


def _step(replay: Replay, entry: JournalEntry, count: _Count) -> Difference | None:
    try:
        actions, encoded, digest = replay.take(entry)
    except Exception as error:  # noqa: BLE001 - the core met what it never met live
        why = f"the core failed: {type(error).__name__}: {error}"
        return _difference(entry, replayed=b"[]", why=why)
    count.actions += actions
    if not entry.digest:
        return None
    count.compared += 1
    if digest == entry.digest:
        return None
    why = "other actions followed, or the row is not what was journaled"
    return _difference(entry, replayed=encoded, why=why)


def _same_state(replay: Replay, snapshot: Snapshot, entry: JournalEntry) -> Difference | None:
    found = replay.snapshot()
    if (found.chain, bytes(found.state)) == (snapshot.chain, bytes(snapshot.state)):
        return None
    what = "chain" if found.chain != snapshot.chain else "state"
    return _difference(entry, replayed=b"[]", why=f"the snapshot behind it has another {what}")


def _difference(entry: JournalEntry, *, replayed: bytes, why: str) -> Difference:
    return Difference(
        idx=entry.idx,
        kind=type(entry.event).__name__,
        at_us=entry.event.at_us,
        event=entry.body,
        why=why,
        replayed=_lines(replayed),
    )


def _lines(encoded: bytes | str) -> tuple[str, ...]:
    return tuple(f"{name} {json.dumps(fields)}" for name, fields in json.loads(encoded))
