"""Journals of real runs, recorded before: the core still decides as it did then, event by event."""

from __future__ import annotations

import json
import lzma
from pathlib import Path

import pytest

from plexsvc.scheduler.api.views import story
from plexsvc.scheduler.driver import encoding
from plexsvc.scheduler.driver.encoding import JournalLine, Recording
from plexsvc.sim.replay import verify
from tests.journals.record import RUNS
from tests.rigs import core_invariants

JOURNALS = sorted((Path(__file__).parents[3] / "journals").glob("*.jsonl.xz"))


def recorded(path: Path) -> Recording:
    """Return a recorded journal: each line is a row's number, kind and body."""
    lines = lzma.decompress(path.read_bytes()).decode().splitlines()
    return encoding.read(
        [JournalLine(idx=idx, kind=kind, body=body) for idx, kind, body in map(json.loads, lines)]
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
        core_invariants.check(core.cluster)


def test_every_shared_placement_says_what_it_got_on_the_ring_and_why() -> None:
    """That of a live run is in its journal: whoever replays it reads it."""
    shared = told = 0
    for path in JOURNALS:
        recording = recorded(path)
        core = recording.configured.new_core()
        lived: dict[object, object] = {}
        for event in recording:
            core.handle(event)
            for planner in core.view.planners.values():
                for group in planner.board.groups.values():
                    for name, mine in group.residents.items():
                        if lived.get(name) == mine.units:
                            continue
                        lived[name] = mine.units
                        if len(group.on(mine.units)) == 1:
                            continue
                        shared += 1
                        taken = planner.taken.get(name)
                        if taken is None or taken.at_us != event.at_us:
                            continue
                        told += bool(taken.why) and taken.slowdown_ppm >= 1_000_000
                        text = story.place_of(planner, name, now_us=event.at_us)[0]
                        assert ("its window" in text) != ("it is flat" in text), text
    assert shared >= 20
    assert told >= 0.95 * shared


def test_every_recording_can_be_made_anew() -> None:
    assert list(map(name_of, JOURNALS)) == sorted(RUNS)


@pytest.mark.parametrize("path", JOURNALS, ids=name_of)
def test_what_jobs_have_used_is_what_devices_were_busy_after_every_event(path: Path) -> None:
    recording = recorded(path)
    core = recording.configured.new_core()
    devices = {}
    for event in recording:
        core.handle(event)
        devices.update({id(device): device for device in core.view.devices.values()})
        accounts = [*core.view.used(now_us=event.at_us).values()]
        accounts += [usage for _, usage in core.view.ended_usage.values()]
        used = [one for usage in accounts for one in usage.values()]
        holders = [
            (device, core.view.wpgs[device.holder])
            for device in core.view.devices.values()
            if device.holder is not None
        ]
        busy_us = sum(device.busy_us for device in devices.values())
        for _, wpg in holders:
            busy_us += 0 if wpg.busy_since_us is None else event.at_us - wpg.busy_since_us
        assert sum(one.device_us for one in used) == busy_us
        assert sum(one.switch_us for one in used) == sum(d.switch_us for d in devices.values())
        loads = sum(usage["switch_in"].count for usage in accounts if "switch_in" in usage)
        assert loads == sum(device.switches for device in devices.values())
