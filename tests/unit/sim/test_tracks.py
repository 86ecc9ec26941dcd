"""Perfetto tracks: a moved job is followed, and nothing is left out without a word."""

from __future__ import annotations

from plexsvc.perfetto import TraceEvent
from plexsvc.scheduler.core.planning.profile import SECOND_US
from plexsvc.sim.tracks import MAX_JOBS, lived, tracks, waits
from tests.rigs.records import moved_record, outcome_of


def processes(events: list[TraceEvent]) -> dict[object, str]:
    named = [event for event in events if event["name"] == "process_name"]
    return {event["pid"]: str(dict(event["args"])["name"]) for event in named}  # type: ignore[call-overload]  # args of a label


def spans_of(events: list[TraceEvent], kind: str) -> list[tuple[str, float, float]]:
    """Return the process and the seconds of each span of a kind."""
    names = processes(events)
    return [
        (names[e["pid"]], int(str(e["ts"])) / SECOND_US, int(str(e["dur"])) / SECOND_US)
        for e in events
        if e["ph"] == "X" and e["name"] == kind
    ]


def test_a_moved_job_is_shown_in_the_group_it_ran_in() -> None:
    events = list(tracks(outcome_of(moved_record())))
    ran = [(name, at_s) for name, at_s, _ in spans_of(events, "sync")]
    assert ran == [("group of n0", 20), ("group of n1", 110), ("group of n2", 300)]
    assert spans_of(events, "moves") == [("group of n0", 90, 10)]
    assert spans_of(events, "paused") == [("group of n0", 12, 6)]


def test_queueing_and_losses_have_tracks_of_their_own() -> None:
    events = list(tracks(outcome_of(moved_record())))
    assert [(at_s, for_s) for _, at_s, for_s in spans_of(events, "waits")] == [(0, 10), (140, 150)]
    assert spans_of(events, "lost") == [("nodes lost or drained", 140, 60)]


def test_a_trace_says_how_many_jobs_it_leaves_out() -> None:
    records = [moved_record(f"j{at}") for at in range(MAX_JOBS + 3)]
    told = processes(list(tracks(outcome_of(*records))))
    assert any("3 jobs that start later are left out" in name for name in told.values())
    told = processes(list(tracks(outcome_of(*records[:5]))))
    assert not any("left out" in name for name in told.values())


def test_a_stay_ends_with_the_loss_of_a_node() -> None:
    record = moved_record()
    ends = [until_us // SECOND_US for _, (_, until_us) in lived(record.stays, record)]
    assert ends == [100, 140, 310]
    assert [(s // SECOND_US, e // SECOND_US) for s, e in waits(record)] == [(0, 10), (140, 290)]
