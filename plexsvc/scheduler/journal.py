"""The journal's codec: events to JSON rows and back; all the core ever saw can be replayed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, get_args

import msgspec

from plexsvc.scheduler.core.events import Event
from plexsvc.store.rows import JournalRow

VERSION: Final = 1
"""Version of the events' fields; raised when an old row could not be read by new code."""

KINDS: Final[dict[str, type]] = {kind.__name__: kind for kind in get_args(Event)}

_ENCODER: Final = msgspec.json.Encoder()
_DECODERS: Final[dict[str, msgspec.json.Decoder[Event]]] = {
    name: msgspec.json.Decoder(kind) for name, kind in KINDS.items()
}


def encode(event: Event, *, idx: int) -> JournalRow:
    """Return the row of one event."""
    return JournalRow(
        idx=idx,
        at_us=event.at_us,
        kind=type(event).__name__,
        version=VERSION,
        body=_ENCODER.encode(event).decode(),
    )


def decode(row: JournalRow) -> Event:
    """Return the event of one row."""
    return _DECODERS[row.kind].decode(row.body)


def replay(rows: Iterable[JournalRow]) -> Iterator[Event]:
    """Yield the events of a journal in order."""
    return map(decode, rows)
