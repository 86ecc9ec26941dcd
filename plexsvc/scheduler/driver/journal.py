"""Rows of the journal: events, and notes on what the core decided about earlier ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from plexsvc.errors import bad_request
from plexsvc.scheduler.core.actions import Action
from plexsvc.scheduler.core.events import Event
from plexsvc.scheduler.driver import encoding
from plexsvc.scheduler.driver.encoding import (
    Configured,
    Decided,
    JournalLine,
    JournalTail,
    Recording,
)
from plexsvc.store.reader import EpochRows
from plexsvc.store.rows import JournalRow, SnapshotRow

VERSION: Final = 1
"""Version of the events' fields; raised when an old row could not be read by new code."""

NOTE_EVERY: Final = 32
"""Events that one note tells of, about; the last of a journal that was cut off stay without."""


class JournalWriter(Protocol):
    """Keeps the rows of a journal."""

    async def append(self, rows: Sequence[JournalRow], *, is_synced: bool = True) -> None:
        """Write a batch of rows; on return it survives a power cut, or this process at least.

        Raises:
            PlexError: `stale_fence` when another scheduler has taken over; `unavailable` when the
                rows cannot be written.
        """


@dataclass(slots=True)
class _Open:
    """An event of the last batch, and what followed once the core had it."""

    idx: int
    body: bytes
    actions: Sequence[Action] = ()


class Journal:
    """Numbers rows from 1: `rows(events)`, write them, then `decided(actions)` for each event."""

    def __init__(self, made: Configured) -> None:
        self._made: Configured | None = made
        self.last_idx = 0
        """The newest row."""
        self._open: list[_Open] = []
        self._handled = 0

    def rows(self, events: Sequence[Event]) -> list[JournalRow]:
        """Return a batch's rows, now and then a note on earlier ones too; write all or none."""
        is_due = self._made is not None or self._handled >= NOTE_EVERY
        rows = self.notes(at_us=events[0].at_us) if is_due else []
        for event in events:
            body = encoding.encode(event)
            rows.append(self._row(type(event).__name__, body, at_us=event.at_us))
            self._open.append(_Open(self.last_idx, body))
        return rows

    def decided(self, actions: Sequence[Action]) -> None:
        """Note what followed from the next event of the batch."""
        self._open[self._handled].actions = actions
        self._handled += 1

    def notes(self, *, at_us: int) -> list[JournalRow]:
        """Return the rows that are owed: the core's making, what followed from events since."""
        rows = []
        if self._made is not None:
            rows.append(self._row("Configured", encoding.encode(self._made), at_us=at_us))
            self._made = None
        if self._handled:
            handled, self._open = self._open[: self._handled], self._open[self._handled :]
            self._handled = 0
            for run in _runs(handled):
                note = encoding.encode(self._note(run))
                rows.append(self._row("Decided", note, at_us=at_us))
        return rows

    def _note(self, handled: list[_Open]) -> Decided:
        digests = [
            encoding.digest(event.body, encoding.encode_actions(event.actions)) for event in handled
        ]
        return Decided(first=handled[0].idx, digests=tuple(digests))

    def _row(self, kind: str, body: bytes, *, at_us: int) -> JournalRow:
        self.last_idx += 1
        return JournalRow(
            idx=self.last_idx, at_us=at_us, kind=kind, version=VERSION, body=body.decode()
        )


def _runs(handled: list[_Open]) -> Iterator[list[_Open]]:
    """Yield the stretches of `handled` whose rows follow one another."""
    begin = 0
    for end in range(1, len(handled) + 1):
        if end == len(handled) or handled[end].idx != handled[end - 1].idx + 1:
            yield handled[begin:end]
            begin = end


def read(rows: Iterable[JournalRow]) -> Recording:
    """Return what the rows of one epoch say, all of them.

    Raises:
        PlexError: as `encoding.read`; for rows of another version, too.
    """
    return encoding.read(map(_line, rows))


def follow(
    rows: EpochRows, *, last: int | None = None, more: Callable[[], bool] = lambda: False
) -> JournalTail:
    """Return what a journal tells from a snapshot on: the first there is, else its beginning.

    Args:
        rows: the journal.
        last: how many snapshots to look at, of the newest; None: all.
        more: asked where the rows end, whether more may come.

    Raises:
        PlexError: as `read`.
    """
    kept = rows.snapshots if last is None else rows.snapshots[-last:]
    for row in kept:
        _check_version(row)
    snapshots = tuple(encoding.decompress(row.body, idx=row.idx) for row in kept)
    lines = map(_line, rows.after(snapshots[0].idx if snapshots else 0, more=more))
    return encoding.follow(lines, snapshots)


def _line(row: JournalRow) -> JournalLine:
    _check_version(row)
    return JournalLine(idx=row.idx, kind=row.kind, body=row.body)


def _check_version(row: JournalRow | SnapshotRow) -> None:
    if row.version != VERSION:
        raise bad_request(
            f"row {row.idx} of the journal has version {row.version}, this build reads {VERSION}; "
            "replay it with the build that wrote it",
            row=row.idx,
        )


def replay(rows: Iterable[JournalRow]) -> Iterator[Event]:
    """Yield the events of a journal in order."""
    return iter(read(rows))
