"""A live journal replayed: identical, or the first event that is not."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from pathlib import Path

import pytest
from typer.testing import CliRunner

from plexclient.wire.v1 import service_pb2
from plexsvc.cli.main import app
from plexsvc.errors import ErrorCode, PlexError
from plexsvc.scheduler.config import SchedulerConfig
from plexsvc.scheduler.driver import journal
from plexsvc.scheduler.driver.encoding import Recording
from plexsvc.scheduler.driver.snapshots import take_snapshot
from plexsvc.sim.replay import ReplayResult, verify
from plexsvc.store.reader import read_journal
from tests.fakes.fake_cluster import no_room
from tests.rigs.scheduler_rig import TENANT, Rig, start_rig
from tests.rigs.written_journal import WrittenJournal

run = CliRunner().invoke


async def live(directory: Path) -> Path:
    """Run two jobs on one device, a cancelled one and a full host; return the journal."""
    config = SchedulerConfig(move_retry_us=1000, max_jobs=9)
    async with start_rig(directory, nodes=[{"train": 1, "rollout": 1}], config=config) as rig:
        for job in ("a", "b"):
            await rig.job(job)
            await rig.deploy(job)
        rig.behaviour.move_errors = [no_room()]
        for _ in range(3):
            await asyncio.gather(_cycle(rig, "a"), _cycle(rig, "b"))
        acks = service_pb2.KeepAliveRequest(job_id="a", tenant=TENANT, acks={"a/actor": 3})
        await rig.scheduler.call("KeepAlive", acks, service_pb2.KeepAliveReply)
        await rig.end("a")
        await rig.end("b", service_pb2.JOB_STATE_CANCELLED)
    return directory / "plex.db"


async def _cycle(rig: Rig, job: str) -> None:
    await rig.run(job, "forward_backward")
    await rig.run(job, "step")


def recorded(path: Path) -> Recording:
    return journal.read(read_journal(str(path)).rows)


def judge(path: Path) -> ReplayResult:
    return verify(recorded(path))


def tamper(path: Path, statement: str) -> int:
    """Change the journal; return the row that changed."""
    with sqlite3.connect(path) as connection:
        (idx,) = connection.execute(statement + " returning idx").fetchone()
    connection.close()
    return int(idx)


LAST_STEP = "(select max(idx) from journal where kind = 'OperationFinished')"


async def test_a_replay_decides_as_the_live_scheduler_did(tmp_path: Path) -> None:
    verdict = judge(await live(tmp_path))
    assert verdict.difference is None
    assert verdict.is_identical
    assert verdict.compared == verdict.events > 40
    assert verdict.actions > verdict.events


async def test_the_journal_says_how_its_core_was_made(tmp_path: Path) -> None:
    made = recorded(await live(tmp_path)).configured
    assert (made.epoch, made.limits.max_jobs, made.limits.move_retry_us) == (1, 9, 1000)


async def test_a_changed_event_is_found_by_its_row(tmp_path: Path) -> None:
    path = await live(tmp_path)
    changed = tamper(
        path,
        "update journal set body = json_set(body, '$.run_us', 77) where idx = " + LAST_STEP,
    )
    found = judge(path).difference
    assert found is not None
    assert (found.idx, found.kind) == (changed, "OperationFinished")
    assert any("77" in line for line in found.replayed)


async def test_a_change_that_alters_no_action_is_found_too(tmp_path: Path) -> None:
    path = await live(tmp_path)
    changed = tamper(
        path,
        "update journal set body = json_set(body, '$.digest', 'x') where idx = " + LAST_STEP,
    )
    found = judge(path).difference
    assert found is not None
    assert found.idx == changed


async def test_an_event_the_core_cannot_take_is_a_difference(tmp_path: Path) -> None:
    path = await live(tmp_path)
    changed = tamper(
        path, "update journal set body = json_set(body, '$.at_us', 1) where idx = " + LAST_STEP
    )
    found = judge(path).difference
    assert found is not None
    assert found.idx == changed
    assert "AssertionError" in found.why


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        (f"delete from journal where idx = {LAST_STEP}", "missing"),
        ("update journal set kind = 'Guessed' where idx = 3", "no kind of event"),
        ("update journal set body = '{' where idx = 3", "truncated"),
        ("update journal set version = 9 where idx = 3", "version 9, this build reads 1"),
    ],
)
async def test_a_journal_with_a_bad_row_is_refused_by_its_number(
    tmp_path: Path, statement: str, why: str
) -> None:
    path = await live(tmp_path)
    changed = tamper(path, statement)
    with pytest.raises(PlexError, match=why) as refused:
        recorded(path)
    assert refused.value.code == ErrorCode.BAD_REQUEST
    assert refused.value.facts["row"] == str(changed)


async def test_a_scheduler_that_was_cut_off_leaves_a_journal_that_replays(tmp_path: Path) -> None:
    path = await live(tmp_path)
    tamper(path, "delete from journal where idx = (select max(idx) from journal)")
    verdict = judge(path)
    assert verdict.is_identical
    assert 0 < verdict.events - verdict.compared < verdict.events


async def test_the_command_says_identical_or_shows_the_difference(tmp_path: Path) -> None:
    path = await live(tmp_path)
    same = run(app, ["replay", str(path)])
    assert (same.exit_code, "identical" in same.stdout) == (0, True)
    changed = tamper(
        path,
        "update journal set body = json_set(body, '$.run_us', 77) where idx = " + LAST_STEP,
    )
    other = run(app, ["replay", str(path), "--json"])
    assert other.exit_code == 1
    told = json.loads(other.stdout)
    assert (told["is_identical"], told["difference"]["idx"]) == (False, changed)
    assert told["is_this_build"]
    tamper(path, "update journal set body = json_set(body, '$.core', 'old') where idx = 1")
    text = run(app, ["replay", str(path)]).stdout
    assert "another build of the scheduler wrote it" in text
    assert f"different from row {changed}" in text


def test_what_is_no_journal_is_refused(tmp_path: Path) -> None:
    missing = run(app, ["replay", str(tmp_path / "no.db")])
    assert (missing.exit_code, "there is no journal" in missing.stderr) == (1, True)
    (tmp_path / "text.db").write_text("hello, this is no database, but it is long enough")
    other = run(app, ["replay", str(tmp_path / "text.db")])
    assert (other.exit_code, "no journal can be read" in other.stderr) == (1, True)


async def test_an_epoch_that_never_was_is_refused(tmp_path: Path) -> None:
    path = await live(tmp_path)
    refused = run(app, ["replay", str(path), "--epoch", "7"])
    assert refused.exit_code == 1
    assert "no events of scheduler epoch 7; the newest with events is 1" in refused.stderr


async def test_no_prediction_is_made_of_a_run_that_the_core_did_not_do(tmp_path: Path) -> None:
    path = await live(tmp_path)
    tamper(path, "update journal set body = json_set(body, '$.at_us', 1) where idx = " + LAST_STEP)
    told = run(app, ["replay", str(path), "--predict", "--json"])
    assert told.exit_code == 1
    assert "not predicted" in told.stderr
    assert "predicted" not in json.loads(told.stdout)


async def test_a_file_may_have_any_name_and_an_output_must_be_possible(tmp_path: Path) -> None:
    path = await live(tmp_path)
    odd = path.rename(tmp_path / "a#b?c %20.db")
    assert run(app, ["replay", str(odd)]).exit_code == 0
    refused = run(app, ["replay", str(odd), "--out", str(odd / "out")])
    assert refused.exit_code == 2
    assert "cannot be a directory for outputs" in refused.stderr


@pytest.mark.parametrize(
    "url", ["mysql://u:secret@h/db", "postgresql+psycopg://u:secret@[::1]:1/x"]
)
def test_a_database_that_cannot_be_reached_is_named_without_its_password(url: str) -> None:
    refused = run(app, ["replay", url])
    assert refused.exit_code == 1
    assert "no journal can be read from" in refused.stderr
    assert "secret" not in refused.stderr


def test_a_cut_journal_is_replayed_from_its_snapshot_and_not_predicted(tmp_path: Path) -> None:
    written = WrittenJournal.at(tmp_path)
    written.go_on(cycles=3)
    whole = json.loads(run(app, ["replay", written.path, "--json"]).stdout)
    for _ in range(2):
        take_snapshot(written.url, epoch=1)
        written.go_on(cycles=3)
    while written.store.cut(max_rows=50):
        pass
    cut = json.loads(run(app, ["replay", written.path, "--json"]).stdout)
    assert (whole["begins"], whole["is_identical"], cut["is_identical"]) == (0, True, True)
    assert cut["begins"] == written.tail().snapshots[0].idx
    text = run(app, ["replay", written.path]).stdout
    assert f"from the snapshot behind row {cut['begins']} on" in text
    assert f"chain     {cut['chain']}" in text
    refused = run(app, ["replay", written.path, "--predict"])
    assert refused.exit_code == 2
    assert "row 1 of the journal cannot be replayed: it is missing" in refused.stderr
    written.store.close()
