"""Export of spans: what a journal holds, and what is written to it later, by whoever leads."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from plexsvc.errors import ErrorCode, PlexError
from plexsvc.scheduler.core.actions import AnswerOperation
from plexsvc.scheduler.core.events import OperationSubmitted
from plexsvc.scheduler.driver.snapshots import take_snapshot
from plexsvc.traces.export import Collector, Lines, export
from plexsvc.traces.spans import TraceSpan
from tests.rigs.written_journal import WrittenJournal


class Kept:
    """A sink that remembers."""

    def __init__(self) -> None:
        self.spans: list[TraceSpan] = []

    def send(self, spans: Sequence[TraceSpan]) -> None:
        self.spans += spans

    @property
    def steps(self) -> int:
        return sum(span.name == "step" for span in self.spans)


def steps_of(written: WrittenJournal) -> int:
    """Return how many steps were answered: the last one may wait for its devices."""
    history = written.world.history
    submitted = [event for event, _ in history if isinstance(event, OperationSubmitted)]
    steps = {event.operation_id for event in submitted if event.kind == "step"}
    answers = [a for _, actions in history for a in actions if isinstance(a, AnswerOperation)]
    return sum(answer.operation_id in steps for answer in answers)


class StoppedError(Exception):
    """The operator's Ctrl-C."""


def following(*then: Callable[[], object]) -> Callable[[], None]:
    """Return a pause in which the next of `then` happens; when there is none, it ends."""
    left = iter(then)

    def pause() -> None:
        work = next(left, None)
        if work is None:
            raise StoppedError
        work()

    return pause


@pytest.fixture
def written(tmp_path: Path) -> Iterator[WrittenJournal]:
    written = WrittenJournal.at(tmp_path)
    written.go_on(cycles=5)
    yield written
    written.store.close()


def test_every_operation_of_a_journal_is_sent_once(written: WrittenJournal) -> None:
    kept = Kept()
    assert export(written.url, kept) == len(kept.spans)
    assert kept.steps == steps_of(written) >= 9, "five cycles of two jobs"
    assert len({span.span_id for span in kept.spans}) == len(kept.spans)


def test_what_is_written_later_is_sent_and_what_ended_before_is_not(
    written: WrittenJournal,
) -> None:
    kept, since_us, before = Kept(), written.world.now_us + 1, steps_of(written)
    pause = following(lambda: written.go_on(cycles=2), lambda: None)
    with pytest.raises(StoppedError):
        export(written.url, kept, pause=pause, since_us=since_us)
    assert kept.steps == steps_of(written) - before >= 3


def test_following_begins_at_the_last_snapshot(written: WrittenJournal) -> None:
    take_snapshot(written.url, epoch=written.store.epoch)
    kept, before = Kept(), steps_of(written)
    with pytest.raises(StoppedError):
        export(written.url, kept, pause=following(lambda: written.go_on(cycles=1)))
    assert kept.steps == steps_of(written) - before >= 1


def test_a_scheduler_that_takes_over_is_followed(written: WrittenJournal) -> None:
    kept, later = Kept(), list[WrittenJournal]()

    def take_over() -> None:
        later.append(WrittenJournal(written.url))
        later[0].go_on(cycles=3)

    with pytest.raises(StoppedError):
        export(written.url, kept, pause=following(take_over))
    later[0].store.close()
    assert kept.steps == steps_of(written) + steps_of(later[0]) >= 9 + 5


def test_lines_are_requests_of_otlp(written: WrittenJournal) -> None:
    file = io.StringIO()
    sent = export(written.url, Lines(file))
    requests = [json.loads(line) for line in file.getvalue().splitlines()]
    scopes = [s for r in requests for s in r["resourceSpans"][0]["scopeSpans"]]
    assert sum(len(scope["spans"]) for scope in scopes) == sent > 0


def test_a_collector_that_is_not_there_is_named(
    written: WrittenJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    with pytest.raises(PlexError) as caught:
        export(written.url, Collector("http://127.0.0.1:9"))
    assert caught.value.code is ErrorCode.UNAVAILABLE
    assert "http://127.0.0.1:9" in caught.value.message
