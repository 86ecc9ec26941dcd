"""A journal read as it is replayed, on SQLite and PostgreSQL alike."""

from __future__ import annotations

import pytest

from plexsvc.scheduler.driver.snapshots import take_snapshot
from plexsvc.store import reader
from plexsvc.store.opening import open_store
from plexsvc.store.reader import read_journal
from tests.rigs.store_rows import entry
from tests.rigs.written_journal import WrittenJournal


def test_a_journal_is_cut_while_it_is_written_and_what_is_left_replays(url: str) -> None:
    written = WrittenJournal(url)
    written.go_on(cycles=2)
    for _ in range(3):
        take_snapshot(url, epoch=1)
        written.go_on(cycles=2)
        while written.store.cut(max_rows=9):
            pass
    verdict = written.verdict()
    assert (verdict.difference, verdict.begins) == (None, written.first_row() - 1)
    assert verdict.begins > 0
    written.store.close()


def test_rows_are_read_some_at_a_time_and_what_is_written_meanwhile_comes_too(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "ROWS_AT_ONCE", 4)
    store = open_store(url, now_us=1)
    store.append([entry(idx) for idx in range(1, 7)])
    rows = read_journal(url).after(0)
    first = [next(rows).idx for _ in range(5)]
    store.append([entry(idx) for idx in range(7, 10)])
    assert [*first, *(row.idx for row in rows)] == list(range(1, 10))
    store.close()
