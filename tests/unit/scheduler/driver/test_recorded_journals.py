"""Journals of real runs, recorded before: the core still decides as it did then, event by event."""

from __future__ import annotations

import json
import lzma
from pathlib import Path

import pytest

from plexsvc.scheduler.core import invariants
from plexsvc.scheduler.driver import encoding
from plexsvc.scheduler.driver.encoding import Line, Recording
from plexsvc.sim.replay import verify
from tests.journals.record import RUNS

JOURNALS = sorted((Path(__file__).parents[3] / "journals").glob("*.jsonl.xz"))


def recorded(path: Path) -> Recording:
    """Return a recorded journal: each line is a row's number, kind and body."""
    lines = lzma.decompress(path.read_bytes()).decode().splitlines()
    return encoding.read(
        [Line(idx=idx, kind=kind, body=body) for idx, kind, body in map(json.loads, lines)]
    )


def name_of(path: Path) -> str:
    """Return what the recorded run was about."""
    return path.name.removesuffix(".jsonl.xz")


@pytest.mark.parametrize("path", JOURNALS, ids=name_of)
def test_a_recorded_journal_replays_with_equal_digests(path: Path) -> None:
    verdict = verify(recorded(path))
    assert verdict.difference is None
    assert verdict.compared == verdict.events > 0


@pytest.mark.parametrize("path", JOURNALS, ids=name_of)
def test_the_invariants_hold_after_every_recorded_event(path: Path) -> None:
    recording = recorded(path)
    core = recording.configured.new_core()
    for event in recording:
        core.handle(event)
        invariants.check(core.cluster)


def test_every_recording_can_be_made_anew() -> None:
    assert list(map(name_of, JOURNALS)) == sorted(RUNS)
