"""Replay of a live journal through a fresh core: the same events must give the same actions."""

from __future__ import annotations

import json
from dataclasses import dataclass

from plexsvc.scheduler.driver import encoding
from plexsvc.scheduler.driver.encoding import Entry, Recording


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
    recorded: tuple[str, ...] | None
    """What followed when it was live; `None` where the journal keeps digests only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a replay found."""

    events: int
    compared: int
    """Events whose actions the journal knows: all but those of a scheduler's last moment."""
    actions: int
    difference: Difference | None

    @property
    def is_identical(self) -> bool:
        """Whether every event led to what it led to when it was live."""
        return self.difference is None


def verify(recorded: Recording) -> Verdict:
    """Replay a journal until the end or the first difference."""
    core = recorded.configured.new_core()
    compared = actions = 0
    for count, entry in enumerate(recorded.entries, start=1):
        try:
            followed = core.handle(entry.event)
        except Exception as error:  # noqa: BLE001 - the core met what it never met live
            why = f"the core failed: {type(error).__name__}: {error}"
            found = _difference(entry, replayed=b"[]", why=why)
            return Verdict(events=count, compared=compared, actions=actions, difference=found)
        encoded = encoding.encode_actions(followed)
        actions += len(followed)
        if not entry.digest:
            continue
        compared += 1
        if encoding.digest(entry.body.encode(), encoded) != entry.digest:
            found = _difference(entry, replayed=encoded, why=_why(entry, encoded))
            return Verdict(events=count, compared=compared, actions=actions, difference=found)
    return Verdict(
        events=len(recorded.entries), compared=compared, actions=actions, difference=None
    )


def _why(entry: Entry, encoded: bytes) -> str:
    if entry.actions is None:
        return "other actions followed, or the row is not what was journaled"
    if entry.actions.encode() == encoded:
        return "the same actions followed, but the row is not what was journaled"
    return "other actions followed"


def _difference(entry: Entry, *, replayed: bytes, why: str) -> Difference:
    return Difference(
        idx=entry.idx,
        kind=type(entry.event).__name__,
        at_us=entry.event.at_us,
        event=entry.body,
        why=why,
        replayed=_lines(replayed),
        recorded=None if entry.actions is None else _lines(entry.actions),
    )


def _lines(encoded: bytes | str) -> tuple[str, ...]:
    return tuple(f"{name} {json.dumps(fields)}" for name, fields in json.loads(encoded))
