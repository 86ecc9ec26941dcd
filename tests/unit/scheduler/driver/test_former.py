"""What a scheduler that takes over reads: the state in which the one before stopped, or why not."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from plexsvc.errors import ErrorCode, PlexError
from plexsvc.scheduler.driver import encoding, journal
from plexsvc.scheduler.driver.former import read_former
from plexsvc.scheduler.driver.freezing import freeze, thaw
from plexsvc.scheduler.driver.replaying import Replay
from plexsvc.scheduler.driver.snapshots import take_snapshot
from plexsvc.store.opening import open_store
from plexsvc.store.reader import read_journal
from tests.rigs.written_journal import WrittenJournal
from tests.unit.scheduler.driver.test_recorded_journals import JOURNALS, name_of, recorded


@pytest.fixture
def written(tmp_path: Path) -> Iterator[WrittenJournal]:
    """A journal with a snapshot, and rows behind it."""
    written = WrittenJournal.at(tmp_path)
    written.go_on(cycles=5)
    take_snapshot(written.url, epoch=written.store.epoch)
    written.go_on(cycles=5)
    yield written
    written.store.close()


def test_the_core_and_its_timers_are_those_of_the_one_before(written: WrittenJournal) -> None:
    former = read_former(written.url)
    world = written.world
    assert freeze(former.core) == freeze(world.core)
    awaited = {key: at for key, at in world.timers.items() if world.core.view.awaits(key)}
    assert {key: former.timers[key] for key in awaited} == awaited
    later = former.woken(now_us=former.at_us + 5)
    assert later.timers == {key: at_us + 5 for key, at_us in former.timers.items()}


def test_the_next_epoch_s_journal_replays_by_itself(written: WrittenJournal) -> None:
    former = read_former(written.url)
    store = open_store(written.url, now_us=1)
    made = former.led_by(store.epoch)
    store.keep_snapshot(former.first_snapshot(made))
    rows = journal.Journal(made).notes(at_us=former.at_us)
    store.append(rows)
    again = read_former(written.url)
    assert again.core.cluster.turn.epoch == store.epoch == written.store.epoch + 1
    assert freeze(again.core) == freeze(former.core)
    assert again.timers == former.timers
    store.close()


def test_between_a_snapshot_and_its_journal_the_one_before_still_counts(
    written: WrittenJournal,
) -> None:
    former = read_former(written.url)
    store = open_store(written.url, now_us=1)
    store.keep_snapshot(former.first_snapshot(former.led_by(store.epoch)))
    assert read_journal(written.url).epoch == written.store.epoch
    store.close()


def test_a_journal_that_leads_to_something_else_is_not_taken_over(written: WrittenJournal) -> None:
    with sqlite3.connect(written.url.removeprefix("sqlite:///")) as connection:
        connection.execute(
            "update journal set body = json_set(body, '$.run_us', 7) where idx = "
            "(select max(idx) from journal where kind = 'OperationFinished')"
        )
    connection.close()
    with pytest.raises(PlexError, match=r"leads to something else now.*plexctl down") as refused:
        read_former(written.url)
    assert refused.value.code is ErrorCode.BAD_REQUEST


def test_another_build_takes_over_from_a_snapshot_alone(
    written: WrittenJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoding, "fingerprint", lambda: "other")
    with pytest.raises(PlexError, match="decided by another build; start the version"):
        read_former(written.url)
    monkeypatch.undo()
    take_snapshot(written.url, epoch=written.store.epoch)
    with sqlite3.connect(written.url.removeprefix("sqlite:///")) as connection:
        connection.execute("delete from journal where idx > (select max(idx) from snapshots)")
    connection.close()
    monkeypatch.setattr(encoding, "fingerprint", lambda: "other")
    assert read_former(written.url).core.view.jobs


@pytest.mark.parametrize("path", JOURNALS, ids=name_of)
def test_a_thawed_core_goes_through_the_rest_of_a_recorded_journal_alike(path: Path) -> None:
    recording = recorded(path)
    live, half = Replay(recording), len(recording.entries) // 2
    for entry in recording.entries[:half]:
        live.take(entry)
    thawed = thaw(freeze(live.core))
    for entry in recording.entries[half:]:
        live.take(entry)
        thawed.handle(entry.event)
    assert freeze(thawed) == freeze(live.core)
