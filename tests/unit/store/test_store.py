"""The store, on SQLite and PostgreSQL alike."""

from __future__ import annotations

import dataclasses
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import create_engine
from sqlalchemy.exc import OperationalError

from plexsvc.errors import ErrorCode, PlexError
from plexsvc.store.opening import _take_epoch, database_file, open_store, reopen_store
from plexsvc.store.reader import read_journal
from plexsvc.store.rows import (
    ChargesRow,
    DeploymentRow,
    JobUsage,
    JournalRow,
    KeptOperationRow,
    NodeRow,
    OperationGone,
    OperationRow,
    ProfileRow,
    QuotaRow,
    RecordGone,
    RecordRow,
    SnapshotRow,
    TokenRow,
    UsageRow,
)
from plexsvc.store.tables import CHARGES, EPOCHS, KEPT_OPERATIONS, MEMBERS, METADATA, RECORDS
from tests.rigs import stored
from tests.rigs.store_rows import entry, job


def operation(state: str = "answered") -> OperationRow:
    return OperationRow(
        operation_id=b"0123456789abcdef",
        tenant="lab",
        job_id="job-1",
        deployment_id="job-1/actor",
        lease_no=3,
        incarnation=1,
        seq=1 << 40,
        kind="step",
        state=state,
        digest="ab",
        error_code="",
        submitted_us=1,
        answered_us=2,
    )


def test_events_come_back_in_order_and_rows_as_they_are_now(url: str) -> None:
    store = open_store(url, now_us=1)
    store.append([entry(1), entry(2)], [job(), operation()])
    store.append([entry(3)], [job("completed")])
    assert list(stored.journal(store)) == [entry(1), entry(2), entry(3)]
    assert stored.jobs(store) == [job("completed")]
    assert stored.operation(store, b"0123456789abcdef") == operation()
    assert stored.operation(store, b"x" * 16) is None
    store.close()


def test_the_row_of_an_operation_goes_when_nobody_asks_about_it_any_more(url: str) -> None:
    store = open_store(url, now_us=1)
    gone = OperationGone(operation_id=b"0123456789abcdef")
    for write in (partial(store.append, []), store.write_now):
        store.append([], [operation()])
        if write([gone]) is False:
            continue  # PostgreSQL is never written at once
        assert stored.operation(store, b"0123456789abcdef") is None
    store.close()


def test_a_kept_operation_takes_the_slot_of_an_older_one(url: str) -> None:
    def kept(seq: int, *, slot: int) -> KeptOperationRow:
        return KeptOperationRow(
            deployment_id="job/actor",
            slot=slot,
            seq=seq,
            operation=bytes([seq]),
            staged_on="[]",
            digest="d",
            error_code="",
        )

    store = open_store(url, now_us=1)
    store.append([], [kept(2, slot=1), kept(1, slot=0)])
    assert store.kept_operations(["job/actor"]) == [kept(1, slot=0), kept(2, slot=1)]
    store.append([], [kept(3, slot=0)])
    assert store.kept_operations(["job/actor"]) == [kept(2, slot=1), kept(3, slot=0)]
    assert store.kept_operations(["job/other"]) == []
    store.close()


def deployment(job_id: str) -> DeploymentRow:
    return DeploymentRow(
        deployment_id=f"{job_id}/actor",
        tenant="lab",
        job_id=job_id,
        lease_no=1,
        incarnation=1,
        applied_seq=2,
        role="actor",
        backend="megatron",
        model="/models/m",
        wpg_id="wpg-1-1",
        state="ready",
        error="",
    )


def test_deployments_are_listed_by_job(url: str) -> None:
    store = open_store(url, now_us=1)
    row = deployment("job-1")
    store.append([], [row])
    assert stored.deployments(store, job_id="job-1") == [row]
    assert stored.deployments(store, job_id="job-2") == []
    store.close()


def test_each_opening_takes_the_next_epoch_and_fences_the_one_before(url: str) -> None:
    old = open_store(url, now_us=1)
    old.append([entry(1)])
    new = open_store(url, now_us=2)
    assert (old.epoch, new.epoch) == (1, 2)
    with pytest.raises(PlexError) as refused:
        old.append([entry(2)])
    assert refused.value.code == ErrorCode.STALE_FENCE
    new.append([entry(1)])
    assert [row.idx for row in stored.journal(new, epoch=1)] == [1]
    old.close()
    new.close()


def test_no_epoch_is_allocated_between_the_check_of_a_write_and_its_commit(url: str) -> None:
    old = open_store(url, now_us=1)

    class Interrupted(list[JournalRow]):
        """Rows that are read after the check; meanwhile another scheduler wants to lead."""

        def __iter__(self) -> Iterator[JournalRow]:
            with pytest.raises(OperationalError):
                take_epoch_at_once(url)
            return super().__iter__()

    old.append(Interrupted([entry(1)]), [job()])
    assert list(stored.journal(old)) == [entry(1)]
    new = open_store(url, now_us=2)
    assert new.epoch == 2
    old.close()
    new.close()


def take_epoch_at_once(url: str) -> None:
    """Take the next epoch, or raise if that would have to wait."""
    is_sqlite = url.startswith("sqlite")
    engine = create_engine(f"{url}?timeout=0" if is_sqlite else f"{url}&options=-clock_timeout=9")
    try:
        with engine.begin() as connection:
            _take_epoch(connection, now_us=2)
    finally:
        engine.dispose()


def test_jobs_an_earlier_scheduler_left_open_are_failed(url: str) -> None:
    old = open_store(url, now_us=1)
    old.append([], [job()])
    old.close()
    new = open_store(url, now_us=2)
    assert new.fail_orphans(reason="the scheduler restarted", ended_us=9) == 1
    found = stored.jobs(new)[0]
    assert (found.state, found.reason, found.ended_us) == ("failed", "the scheduler restarted", 9)
    new.close()


def test_history_of_schedulers_replaced_long_ago_is_deleted_and_no_other(url: str) -> None:
    stores = []
    for number, now_us in enumerate((10, 20, 30), start=1):
        store = open_store(url, now_us=now_us)
        stores.append(store)
        name = f"cycle-{number}"
        profile = ProfileRow(tenant="lab", model="", layout="", name=name, at_us=now_us, body="{}")
        operation_id = bytes([number] * 16)
        done = dataclasses.replace(operation(), operation_id=operation_id)
        store.append([entry(1)], [job(), done, profile])
        if number < 3:
            store.close()
    store = stores[-1]
    assert store.forget(before_us=10) == 0
    assert store.forget(before_us=25) == 4
    assert [len(list(stored.journal(store, epoch=epoch))) for epoch in (1, 2, 3)] == [0, 1, 1]
    assert [stored.operation(store, bytes([n] * 16)) is None for n in (1, 2, 3)] == [
        True,
        False,
        False,
    ]
    assert [row.name for row in store.profiles(limit=9)] == ["cycle-3"]
    assert len(stored.jobs(store)) == 1
    store.close()


def test_the_nodes_that_were_added_are_known_until_they_are_forgotten(url: str) -> None:
    store = open_store(url, now_us=1)
    here, gone = (NodeRow(agent=f"{n}:1", node_id=n, is_member=True) for n in ("here", "gone"))
    store.append((), [here, gone])
    store.append((), [dataclasses.replace(gone, is_member=False)])
    store.close()
    after = open_store(url, now_us=2)
    assert after.nodes() == [here]
    after.close()


def token(token_id: str, **ends: int) -> TokenRow:
    fields = {"created_us": 1, "expires_us": 0, "revoked_us": 0} | ends
    return TokenRow(
        token_id=token_id, tenant="lab", scope="read", name="", hash=b"h" * 32, **fields
    )


def test_tokens_are_known_to_the_next_until_they_ended_long_ago(url: str) -> None:
    store = open_store(url, now_us=1)
    lasting, late = token("tok-a"), token("tok-b", expires_us=20)
    store.append((), [lasting, late, token("tok-c", expires_us=20), token("tok-d", expires_us=5)])
    store.append((), [token("tok-c", revoked_us=4)])
    store.close()
    after = open_store(url, now_us=2)
    assert [one.token_id for one in after.tokens()] == ["tok-a", "tok-b", "tok-c", "tok-d"]
    assert [one.ended_us(10) for one in after.tokens()] == [0, 0, 4, 5]
    assert after.forget(before_us=10) == 2
    assert after.tokens() == [lasting, late]
    after.close()


def test_quotas_bind_under_the_next_until_they_are_lifted(url: str) -> None:
    store = open_store(url, now_us=1)
    kept, other = (QuotaRow(tenant=t, what="jobs", most=2) for t in ("lab", "other"))
    store.append((), [kept, other])
    store.append((), [dataclasses.replace(other, most=0)])
    store.close()
    after = open_store(url, now_us=2)
    assert after.quotas() == [kept]
    after.close()


def test_records_are_found_by_how_their_keys_begin_until_they_are_gone(url: str) -> None:
    def record(key: str, *, tenant: str = "mine") -> RecordRow:
        return RecordRow(tenant=tenant, key=key, body=key.encode())

    store = open_store(url, now_us=1)
    kept = [record(key) for key in ("a/2", "a/1", "ab/1", "b/1")]
    store.append((), [*kept, record("a/1", tenant="other")])
    store.append((), [RecordGone(tenant="mine", key="a/2")])
    store.close()
    after = open_store(url, now_us=2)
    assert after.records(tenant="mine", prefix="a/") == [record("a/1")]
    assert after.records(tenant="mine", prefix="a/", after="a/1") == []
    assert after.records(tenant="mine", prefix="a", limit=1) == [record("a/1")]
    assert after.records(tenant="mine", prefix="a", after="a/1") == [record("ab/1")]
    if after.write_now([record("a/3"), RecordGone(tenant="mine", key="a/1")]):  # on SQLite
        assert after.records(tenant="mine", prefix="a/") == [record("a/3")]
    many = [record(f"many/{number:05}") for number in range(2_000)]
    after.append((), many)
    assert after.records(tenant="mine", prefix="many/") == many, "all, unless some are asked for"
    after.close()


def test_a_database_has_the_tables_and_keeps_them_when_it_is_opened_again(url: str) -> None:
    for now_us in (1, 2):
        open_store(url, now_us=now_us).close()
    engine = create_engine(url)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection)
        assert compare_metadata(context, METADATA) == []
    engine.dispose()


def test_an_older_database_gets_the_tables_that_came_since(url: str) -> None:
    open_store(url, now_us=1).close()
    engine = create_engine(url)
    with engine.begin() as connection:
        for table in (KEPT_OPERATIONS, RECORDS, MEMBERS, CHARGES):
            table.drop(connection)
        connection.exec_driver_sql("update alembic_version set version_num = '0011'")
    open_store(url, now_us=2).close()
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), METADATA) == []
    engine.dispose()


def test_a_database_of_this_version_is_opened_without_the_migrations(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/plex.db"
    open_store(url, now_us=1).close()
    code = (
        "import sys; from plexsvc.store.opening import open_store; "
        f"open_store({url!r}, now_us=2).close(); print('alembic' in sys.modules)"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert told.stdout == "False\n"


def test_a_database_of_an_unknown_schema_is_refused_and_not_touched(url: str) -> None:
    open_store(url, now_us=1).close()
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql("update alembic_version set version_num = '0004'")
    with pytest.raises(PlexError, match=r"another build's: .*'0004'") as refused:
        open_store(url, now_us=2)
    assert refused.value.code == ErrorCode.BAD_REQUEST
    with engine.connect() as connection:
        assert connection.execute(sa.select(sa.func.count()).select_from(EPOCHS)).scalar_one() == 1
    engine.dispose()


def test_a_repeated_index_is_refused_and_nothing_of_the_batch_is_kept(url: str) -> None:
    store = open_store(url, now_us=1)
    store.append([entry(1)])
    with pytest.raises(PlexError) as refused:
        store.append([entry(2), entry(1)])
    assert refused.value.code == ErrorCode.INTERNAL
    assert list(stored.journal(store)) == [entry(1)]
    store.close()


def test_a_batch_that_was_committed_without_a_word_is_written_once_when_it_is_repeated(
    url: str,
) -> None:
    store = open_store(url, now_us=1)

    def commit_and_die(connection: sa.Connection) -> None:
        driver: Any = connection.connection
        driver.commit()
        raise OperationalError("commit", None, Exception("the server closed the connection"))

    sa.event.listen(store._engine, "commit", commit_and_die)
    with pytest.raises(PlexError) as unheard:
        store.append([entry(1), entry(2)], [job()])
    assert unheard.value.code == ErrorCode.UNAVAILABLE
    sa.event.remove(store._engine, "commit", commit_and_die)
    store.append([entry(1), entry(2)], [job()])
    store.append([entry(3)])
    assert list(stored.journal(store)) == [entry(1), entry(2), entry(3)]
    assert stored.jobs(store) == [job()]
    store.close()


def test_a_database_that_dies_again_while_a_batch_is_looked_for_is_tried_again(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(url, now_us=1)
    store.append([entry(1)], [job()])

    def die(*_: object) -> None:
        raise OperationalError("select", None, Exception("the server closed the connection"))

    with monkeypatch.context() as patch:
        patch.setattr(store, "_read", die)
        with pytest.raises(PlexError) as unheard:
            store.append([entry(1)], [job()])
    assert unheard.value.code == ErrorCode.UNAVAILABLE
    store.append([entry(1)], [job()])
    assert list(stored.journal(store)) == [entry(1)]
    store.close()


def test_a_store_on_a_full_disk_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: sa.Connection) -> None:
        error = sqlite3.OperationalError("database or disk is full")
        error.sqlite_errorcode = sqlite3.SQLITE_FULL
        raise OperationalError("insert", {}, error)

    monkeypatch.setattr("plexsvc.store.opening.migrate", full)
    with pytest.raises(PlexError, match=r"the disk of .* is full") as refused:
        open_store(f"sqlite:///{tmp_path / 'plex.db'}", now_us=1)
    assert refused.value.code is ErrorCode.DISK_FULL


def test_a_store_that_cannot_be_opened_says_so(tmp_path: Path) -> None:
    with pytest.raises(PlexError) as refused:
        open_store(f"sqlite:///{tmp_path}/missing/plex.db", now_us=1)
    assert refused.value.code == ErrorCode.UNAVAILABLE


@pytest.mark.parametrize("url", ["foo", "mysql://a/b", "sqlite://", "sqlite:///:memory:"])
def test_a_url_of_no_store_is_refused(url: str) -> None:
    with pytest.raises(
        PlexError, match="names no store; give sqlite:////DIRECTORY/FILE"
    ) as refused:
        database_file(url)
    assert refused.value.code == ErrorCode.BAD_REQUEST


def test_sqlite_keeps_every_commit_through_a_power_cut(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path}/plex.db", now_us=1)
    connection = store._connection
    assert connection.exec_driver_sql("pragma journal_mode").scalar_one() == "wal"
    assert connection.exec_driver_sql("pragma synchronous").scalar_one() == 2
    store.close()


def test_what_is_written_without_a_sync_is_there_and_fenced_like_the_rest(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/plex.db"
    old = open_store(url, now_us=1)
    assert old.append_now([entry(1)], is_synced=False)
    assert old.append_now([entry(2)], is_synced=True)
    assert old.write_now([operation()])
    assert old.write_now([operation("failed"), job()])
    assert list(stored.journal(old)) == [entry(1), entry(2)]
    assert stored.operation(old, b"0123456789abcdef") == operation("failed")
    new = open_store(url, now_us=2)
    assert not old.append_now([entry(3)], is_synced=False)
    assert not old.write_now([job("completed")])
    assert stored.jobs(new) == [job()]
    assert new.write_now([job("failed")])
    old.close()
    new.close()


def snapshot(idx: int) -> SnapshotRow:
    return SnapshotRow(idx=idx, at_us=idx * 10, version=1, body=bytes([idx]) * 9)


def test_the_last_two_snapshots_stay_and_rows_before_them_are_cut_some_at_a_time(url: str) -> None:
    store = open_store(url, now_us=1)
    store.append([entry(idx) for idx in range(1, 31)])
    assert store.cut(max_rows=100) == 0
    store.keep_snapshot(snapshot(5))
    assert store.cut(max_rows=100) == 0
    for idx in (12, 20):
        store.keep_snapshot(snapshot(idx))
    assert [store.cut(max_rows=5) for _ in range(4)] == [5, 5, 2, 0]
    found = read_journal(url)
    assert found.snapshots == (snapshot(12), snapshot(20))
    assert [row.idx for row in found.rows] == list(range(13, 31))
    assert [row.idx for row in found.after(20)] == list(range(21, 31))
    store.close()


def test_a_replaced_scheduler_keeps_no_snapshot_and_cuts_nothing(url: str) -> None:
    old = open_store(url, now_us=1)
    old.append([entry(1), entry(2)])
    beside = reopen_store(url, epoch=1)
    beside.keep_snapshot(snapshot(1))
    beside.keep_snapshot(snapshot(2))
    open_store(url, now_us=2).close()
    for write in (lambda: beside.keep_snapshot(snapshot(3)), lambda: old.cut(max_rows=9)):
        with pytest.raises(PlexError) as refused:
            write()
        assert refused.value.code == ErrorCode.STALE_FENCE
    assert read_journal(url, epoch=1).snapshots == (snapshot(1), snapshot(2))
    beside.close()
    old.close()


def test_jobs_that_ended_long_ago_are_deleted_with_their_deployments(url: str) -> None:
    store = open_store(url, now_us=10)
    ends = {"runs": 0, "old": 24, "recent": 25}
    jobs = [dataclasses.replace(job(), job_id=name, ended_us=end) for name, end in ends.items()]
    store.append([], [*jobs, *map(deployment, ends)])
    assert store.forget(before_us=25) == 2
    assert {one.job_id for one in stored.jobs(store)} == {"runs", "recent"}
    assert [len(stored.deployments(store, job_id=name)) for name in ends] == [1, 0, 1]
    store.close()


def test_snapshots_go_with_the_journal_of_a_scheduler_replaced_long_ago(url: str) -> None:
    old = open_store(url, now_us=10)
    old.append([entry(1)])
    old.keep_snapshot(snapshot(1))
    old.close()
    new = open_store(url, now_us=20)
    assert new.forget(before_us=25) == 2
    new.close()


def test_usage_is_the_newest_reading_of_each_job_or_of_the_hours_before(url: str) -> None:
    store = open_store(url, now_us=1)
    ended = dataclasses.replace(job("completed"), job_id="job-0", tenant="rival", ended_us=50)

    def row(hour_us: int, *, job_id: str = "job-1", device_us: int) -> UsageRow:
        return UsageRow(job_id=job_id, kind="step", hour_us=hour_us, device_us=device_us)

    def of(tenant: str, used: UsageRow) -> JobUsage:
        return JobUsage(tenant=tenant, name=job().name, used=used)

    store.append([], [job(), ended, row(10, device_us=3), row(20, device_us=7)])
    for write in (store.write_now, partial(store.append, [])):
        write([row(20, device_us=1 << 40), row(10, job_id="job-0", device_us=2)])
    theirs = of("rival", row(10, job_id="job-0", device_us=2))
    ours = of("lab", row(20, device_us=1 << 40))
    assert sorted(store.usage(), key=lambda one: one.used.job_id) == [theirs, ours]
    assert store.usage(tenant="lab") == store.usage(job_id="job-1") == [ours]
    assert store.usage(tenant="lab", before_us=20) == [of("lab", row(10, device_us=3))]
    assert store.usage(tenant="rival", job_id="job-1") == []
    early, late = (
        ChargesRow(job_id="job-0", first=first, last=last, body=b"x")
        for first, last in ((1, 3), (4, 9))
    )
    store.append((), [early, late])
    assert store.charged() == {"job-0": 9}
    assert store.charges(job_id="job-0", limit=6) == [late]
    assert store.charges(job_id="job-0", limit=7) == [early, late]
    store.forget(before_us=51)
    assert store.usage() == [ours]
    assert store.charged() == {}
    store.close()
