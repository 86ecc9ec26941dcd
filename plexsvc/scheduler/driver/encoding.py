"""Encoding of a journal: how the core was made, each event, a digest of what it led to.

Theory of operation. A row is an event, or one of two notes between events. `Configured` comes
first and holds all that the core is made of, so a replay needs nothing else. `Decided` holds one
digest for each event since the note before: of the event's own body and of the actions that
followed. It is written with a later batch and says nothing about that batch, so nobody waits for
it. The core reads no clock, random source or database: times, durations, new ids and stored
profiles are fields of events.

A snapshot stands for the rows up to its own: it holds the core's state behind that row, and the
*chain*, a digest of all digests so far. Who replays an uncut copy comes to the same chain.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Final

import msgspec
import xxhash

from plexsvc.errors import PlexError, bad_request
from plexsvc.scheduler import core
from plexsvc.scheduler.core.actions import Action
from plexsvc.scheduler.core.events import KINDS, Event
from plexsvc.scheduler.core.limits import Limits
from plexsvc.scheduler.core.machine import Scheduler

_ENCODER: Final = msgspec.json.Encoder()
_DECODERS: Final[dict[str, msgspec.json.Decoder[Event]]] = {
    name: msgspec.json.Decoder(kind) for name, kind in KINDS.items()
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Configured:
    """All that a core is made of."""

    epoch: int
    limits: Limits
    core: str = ""
    """Fingerprint of the core's code: another build may decide otherwise."""

    @property
    def is_this_build(self) -> bool:
        """Whether the journal was written by the core that would replay it."""
        return self.core == fingerprint()

    def new_core(self) -> Scheduler:
        """Return the core before its first event."""
        return Scheduler(limits=self.limits, epoch=self.epoch)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """What followed from the events from row `first` on, in their order."""

    first: int
    digests: tuple[str, ...]


_NOTES: Final[dict[str, msgspec.json.Decoder[Configured] | msgspec.json.Decoder[Decided]]] = {
    "Configured": msgspec.json.Decoder(Configured),
    "Decided": msgspec.json.Decoder(Decided),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalEntry:
    """One event as it was journaled; `digest` is empty where the journal ends before its note."""

    idx: int
    event: Event
    body: str
    digest: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """A journal of one epoch: how its core was made, and its events in order."""

    configured: Configured
    entries: tuple[JournalEntry, ...]

    def __iter__(self) -> Iterator[Event]:
        """Yield the events."""
        return (entry.event for entry in self.entries)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The core behind row `idx`; `state` is of `freezing`."""

    configured: Configured
    idx: int
    at_us: int
    chain: str
    state: msgspec.Raw
    timers: dict[str, int] = field(default_factory=dict)
    """When the timers fire that the core awaits, by key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalTail:
    """What a journal still tells: from its beginning, or from a snapshot, on."""

    configured: Configured
    entries: Iterator[JournalEntry]
    """Read once, as far as they are wanted."""
    snapshots: tuple[Snapshot, ...] = ()
    """Oldest first; the entries begin behind the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalLine:
    """One row of a journal, whatever table or file it comes from."""

    idx: int
    kind: str
    body: str


_SNAPSHOT: Final = msgspec.json.Decoder(Snapshot)


def configured(limits: Limits, *, epoch: int) -> Configured:
    """Return the note of a core with the fields of `limits` that a core reads."""
    values = {field.name: getattr(limits, field.name) for field in fields(Limits)}
    return Configured(epoch=epoch, limits=Limits(**values), core=fingerprint())


@cache
def fingerprint() -> str:
    """Return 16 hex digits of the source of the core."""
    root = Path(core.__file__).parent
    hasher = xxhash.xxh3_64()
    for path in sorted(root.rglob("*.py")):
        hasher.update(path.relative_to(root).as_posix().encode())
        hasher.update(path.read_bytes())
    return hasher.hexdigest()


def encode(value: Event | Configured | Decided) -> bytes:
    """Return the JSON of an event or a note."""
    return _ENCODER.encode(value)


def encode_actions(actions: Sequence[Action]) -> bytes:
    """Return the JSON of an action list: pairs of name and fields."""
    return _ENCODER.encode([(type(action).__name__, action) for action in actions])


def digest(body: bytes, actions: bytes) -> str:
    """Return 16 hex digits of an event and of what followed from it."""
    return xxhash.xxh3_64_hexdigest(body + actions)


def compress(snapshot: Snapshot) -> bytes:
    """Return a snapshot as the store keeps it."""
    return zlib.compress(_ENCODER.encode(snapshot), level=1)


def decompress(body: bytes, *, idx: int) -> Snapshot:
    """Return a stored snapshot.

    Raises:
        PlexError: `bad_request` when it cannot be read.
    """
    try:
        return _SNAPSHOT.decode(zlib.decompress(body))
    except (zlib.error, msgspec.DecodeError) as error:
        raise _unreadable(idx, f"its snapshot: {error}") from error


def read(lines: Iterable[JournalLine]) -> Recording:
    """Return what the rows of one epoch say, all of them.

    Raises:
        PlexError: `bad_request`, with the row's number, when the journal has no beginning, a row
            is missing or cannot be read.
    """
    tail = follow(lines)
    return Recording(configured=tail.configured, entries=tuple(tail.entries))


def follow(lines: Iterable[JournalLine], snapshots: tuple[Snapshot, ...] = ()) -> JournalTail:
    """Return what rows say, which begin behind the first of `snapshots`, or with the journal.

    Raises:
        PlexError: as `read`; what is wrong with later rows, when they are come to.
    """
    lines = iter(lines)
    if snapshots:
        first = snapshots[0]
        entries = _entries(lines, after=first.idx)
        return JournalTail(configured=first.configured, entries=entries, snapshots=snapshots)
    line = next(lines, None)
    if line is None or line.idx != 1:
        follows = "nothing follows" if line is None else f"row {line.idx} follows"
        raise _unreadable(1, f"it is missing; {follows}")
    made = _decode(line)
    if not isinstance(made, Configured):
        raise _unreadable(1, "it does not say how the core was made (an older version's?)")
    return JournalTail(configured=made, entries=_entries(lines, after=1))


def _entries(lines: Iterable[JournalLine], *, after: int) -> Iterator[JournalEntry]:
    """Yield events in order, each when its note has come, the last ones without."""
    waiting: deque[JournalEntry] = deque()
    for expected, line in enumerate(lines, start=after + 1):
        if line.idx != expected:
            raise _unreadable(expected, f"it is missing; row {line.idx} follows")
        value = _decode(line)
        match value:
            case Configured():
                raise _unreadable(line.idx, "it says again how the core was made")
            case Decided():
                yield from _told(waiting, value, after=after, line=line)
            case _:
                waiting.append(JournalEntry(idx=line.idx, event=value, body=line.body))
    yield from waiting


def _decode(line: JournalLine) -> Event | Configured | Decided:
    try:
        if line.kind in _NOTES:
            return _NOTES[line.kind].decode(line.body)
        return _DECODERS[line.kind].decode(line.body)
    except KeyError as error:
        raise _unreadable(line.idx, f"{line.kind!r} is no kind of event") from error
    except msgspec.DecodeError as error:
        raise _unreadable(line.idx, f"{line.kind}: {error}") from error


def _told(
    waiting: deque[JournalEntry], note: Decided, *, after: int, line: JournalLine
) -> Iterator[JournalEntry]:
    """Yield the events that a note tells of, with their digests."""
    for offset, known in enumerate(note.digests):
        idx = note.first + offset
        if idx <= after:
            continue
        if not waiting or waiting[0].idx != idx:
            raise _unreadable(line.idx, f"it tells of row {idx}, which is no event before it")
        yield replace(waiting.popleft(), digest=known)


def _unreadable(idx: int, why: str) -> PlexError:
    return bad_request(
        f"row {idx} of the journal cannot be replayed: {why}; give a whole journal", row=idx
    )
