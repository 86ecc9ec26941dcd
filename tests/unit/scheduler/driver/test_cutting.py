"""Cutting of a live journal: its oldest rows go while it is written, and what is left replays."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from plexsvc.scheduler.config import SchedulerConfig
from plexsvc.scheduler.driver import cutting, journal
from plexsvc.sim.replay import verify
from plexsvc.store.reader import read_journal
from tests.rigs import stored
from tests.rigs.scheduler_rig import Rig, start_rig

ROWS = 60


async def work(rig: Rig) -> None:
    """Run operations for as long as the test wants."""
    while True:
        await rig.run("a", "forward_backward")
        await rig.run("a", "step")


async def first_row(rig: Rig) -> int:
    return next(iter(await asyncio.to_thread(lambda: list(stored.journal(rig.store))))).idx


async def test_a_running_scheduler_keeps_its_journal_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cutting, "LOOK_US", 10_000)
    config = SchedulerConfig(snapshot_rows=ROWS)
    async with start_rig(tmp_path, nodes=[{"train": 1}], config=config) as rig:
        await rig.job("a")
        await rig.deploy("a")
        async with asyncio.TaskGroup() as group:
            working = group.create_task(work(rig))
            async with asyncio.timeout(120):
                while await first_row(rig) == 1:  # noqa: ASYNC110 - another process cuts
                    await asyncio.sleep(0.05)
            working.cancel()
        await rig.end("a")
    tail = journal.follow(read_journal(str(tmp_path / "plex.db")))
    verdict = verify(tail)
    assert verdict.is_identical
    assert verdict.begins > ROWS
    assert len(tail.snapshots) == 2


async def test_a_journal_without_a_snapshot_is_kept_whole_and_the_reason_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cutting, "LOOK_US", 10_000)
    monkeypatch.setattr("plexsvc.scheduler.driver.encoding.fingerprint", lambda: "another build")
    config = SchedulerConfig(snapshot_rows=4)
    async with start_rig(tmp_path, nodes=[{"train": 1}], config=config) as rig:
        await rig.job("a")
        await rig.deploy("a")
        async with asyncio.timeout(120):
            while "no snapshot was taken" not in caplog.text:  # noqa: ASYNC110 - by another process
                await asyncio.sleep(0.05)
        assert await first_row(rig) == 1
    assert "changed on disk" in caplog.text


async def test_a_process_that_cannot_be_started_ends_no_scheduler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cutting, "LOOK_US", 10_000)
    monkeypatch.setattr("sys.executable", str(tmp_path / "no-python"))
    config = SchedulerConfig(snapshot_rows=4)
    async with start_rig(tmp_path, nodes=[{"train": 1}], config=config) as rig:
        await rig.job("a")
        await rig.deploy("a")
        async with asyncio.timeout(120):
            while "the journal was not cut" not in caplog.text:  # noqa: ASYNC110 - real time
                await asyncio.sleep(0.05)
        assert (await rig.run("a", "step")).state
