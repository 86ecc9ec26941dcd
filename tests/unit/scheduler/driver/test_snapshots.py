"""Snapshots: taken from the journal alone, proved by the next replay, refused where it lies."""

from __future__ import annotations

import io
import json
import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from plexsvc.errors import ErrorCode, PlexError
from plexsvc.scheduler.driver import encoding, journal, snapshots
from plexsvc.scheduler.driver.freezing import freeze
from plexsvc.scheduler.driver.replaying import Replay
from plexsvc.scheduler.driver.snapshots import take_snapshot
from plexsvc.store.opening import open_store
from plexsvc.store.reader import read_journal
from tests.rigs.written_journal import WrittenJournal


@pytest.fixture
def written(tmp_path: Path) -> Iterator[WrittenJournal]:
    """A journal of some hundred rows."""
    written = WrittenJournal.at(tmp_path)
    written.go_on(cycles=10)
    yield written
    written.store.close()


def grow(written: WrittenJournal) -> int:
    """Take a snapshot, and let the jobs go on behind it; return its row."""
    idx = take_snapshot(written.url, epoch=written.store.epoch)
    written.go_on(cycles=10)
    return idx


def cut_all(written: WrittenJournal) -> None:
    while written.store.cut(max_rows=7):
        assert written.verdict().is_identical, "whenever it is killed, the journal replays"


def test_a_core_goes_on_from_the_last_snapshot_to_where_the_live_one_is(
    written: WrittenJournal,
) -> None:
    idx = grow(written)
    tail = journal.follow(read_journal(written.url), last=1)
    replay = Replay(tail)
    assert replay.idx == idx
    for entry in tail.entries:
        replay.take(entry)
    assert freeze(replay.core) == freeze(written.world.core)


def test_rows_before_the_last_two_snapshots_are_cut_and_the_rest_replays(
    written: WrittenJournal,
) -> None:
    assert written.store.cut(max_rows=1000) == 0
    first = grow(written)
    assert written.store.cut(max_rows=1000) == 0, "the one snapshot is not proved yet"
    assert written.verdict().is_identical
    second = grow(written)
    cut_all(written)
    assert written.first_row() == first + 1
    third = grow(written)
    cut_all(written)
    assert written.first_row() == second + 1
    verdict = written.verdict()
    assert (verdict.is_identical, verdict.begins) == (True, second)
    assert [snapshot.idx for snapshot in written.tail().snapshots] == [second, third]


def test_the_chain_of_digests_goes_over_cuts(written: WrittenJournal, tmp_path: Path) -> None:
    uncut = tmp_path / "uncut"
    uncut.mkdir()
    other = WrittenJournal.at(uncut)
    other.go_on(cycles=40)
    for _ in range(3):
        grow(written)
    cut_all(written)
    found = written.verdict()
    assert found.begins > 0
    assert found.chain == other.verdict().chain != ""
    other.store.close()


def test_a_snapshot_that_says_something_else_is_found_by_the_next_replay(
    written: WrittenJournal,
) -> None:
    grow(written)
    second = grow(written)
    snapshot = written.tail().snapshots[1]
    state = bytes(snapshot.state).replace(b'"num_tokens":0', b'"num_tokens":1', 1)
    assert state != bytes(snapshot.state)
    body = encoding.compress(replace(snapshot, state=msgspec.Raw(state)))
    with sqlite3.connect(written.url.removeprefix("sqlite:///")) as connection:
        connection.execute("update snapshots set body = ? where idx = ?", (body, second))
    connection.close()
    found = written.verdict().difference
    assert found is not None
    assert (found.idx, found.why) == (second, "the snapshot behind it has another state")


def test_a_journal_that_does_not_replay_gets_no_snapshot(written: WrittenJournal) -> None:
    with sqlite3.connect(written.url.removeprefix("sqlite:///")) as connection:
        (idx,) = connection.execute(
            "update journal set body = json_set(body, '$.run_us', 7) where idx = "
            "(select max(idx) from journal where kind = 'OperationFinished') returning idx"
        ).fetchone()
    connection.close()
    with pytest.raises(PlexError, match="does not replay") as refused:
        take_snapshot(written.url, epoch=1)
    assert refused.value.facts["row"] == str(idx)
    assert read_journal(written.url).snapshots == ()


def test_code_that_changed_on_disk_says_nothing_of_a_journal(
    written: WrittenJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plexsvc.scheduler.driver.encoding.fingerprint", lambda: "other")
    with pytest.raises(PlexError, match="changed on disk"):
        take_snapshot(written.url, epoch=1)


def test_a_scheduler_that_was_replaced_writes_no_snapshot(written: WrittenJournal) -> None:
    open_store(written.url, now_us=2).close()
    with pytest.raises(PlexError) as refused:
        take_snapshot(written.url, epoch=1)
    assert refused.value.code == ErrorCode.STALE_FENCE


def test_the_process_takes_what_it_needs_from_its_input_and_says_why_it_failed(
    written: WrittenJournal, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("os.nice", lambda by: by)

    def run(**told: object) -> int:
        told_bytes = io.BytesIO(json.dumps(told).encode())
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(told_bytes))
        return snapshots.main()

    assert run(url=written.url, epoch=1) == 0
    assert [s.idx for s in read_journal(written.url).snapshots] == [written.journal.last_idx - 1]
    assert run(url=written.url, epoch=7) == 1
    assert "no events of scheduler epoch 7" in capsys.readouterr().err
