"""The journal's rows: every event in order, and notes that tell of each event once."""

from __future__ import annotations

import random
from dataclasses import fields

import pytest

from plexsvc.ids import JobId, TenantId
from plexsvc.scheduler.core.events import KINDS, Event, JobSubmitted
from plexsvc.scheduler.core.limits import Limits
from plexsvc.scheduler.driver import encoding, journal
from plexsvc.scheduler.driver.journal import NOTE_EVERY, Journal
from plexsvc.store.rows import JournalRow


def event(number: int) -> Event:
    return JobSubmitted(at_us=number, job_id=JobId(f"job-{number}"), tenant=TenantId("t"))


def test_notes_tell_of_every_event_whenever_they_are_asked_for() -> None:
    rng = random.Random(7)
    made = encoding.configured(Limits(), epoch=1)
    core, book = made.new_core(), Journal(made)
    rows: list[JournalRow] = []
    count = 0
    for _ in range(40):
        batch = [event(count + offset) for offset in range(1, rng.randint(1, 6) + 1)]
        count += len(batch)
        rows += book.rows(batch)
        for told in batch:
            book.decided(core.handle(told))
            if rng.random() < 0.1:
                rows += book.notes(at_us=told.at_us)
    rows += book.notes(at_us=count)
    read = journal.read(rows)
    assert [entry.event.at_us for entry in read.entries] == list(range(1, count + 1))
    assert all(entry.digest for entry in read.entries)


def test_a_journal_that_was_cut_off_lacks_a_few_digests_at_its_end() -> None:
    made = encoding.configured(Limits(), epoch=1)
    core, book = made.new_core(), Journal(made)
    rows: list[JournalRow] = []
    for number in range(1, 3 * NOTE_EVERY):
        rows += book.rows([event(number)])
        book.decided(core.handle(event(number)))
    known = [bool(entry.digest) for entry in journal.read(rows).entries]
    assert known == [True] * (2 * NOTE_EVERY) + [False] * (NOTE_EVERY - 1)
    assert sum(row.kind == "Decided" for row in rows) == 2


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_the_time_is_the_first_field_of_every_event(kind: type) -> None:
    assert fields(kind)[0].name == "at_us"
