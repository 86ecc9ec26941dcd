"""The repository: appends events and rows under one epoch, and reads rows.

All calls block; the scheduler's driver makes those that may wait on a thread of its own. SQLite
runs in WAL mode with `synchronous=FULL`: a committed event survives a power cut, unless its writer
asked for less. On PostgreSQL, and on SQLite when two schedulers share a file, a write carries the
epoch and is refused once a newer one was allocated.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError

from plexsvc.errors import ErrorCode, PlexError, internal, unavailable
from plexsvc.store.appender import SqliteAppender
from plexsvc.store.rows import (
    ChargesRow,
    DeploymentRow,
    JobRow,
    JobUsage,
    JournalRow,
    KeptOperationRow,
    MemberRow,
    NodeRow,
    OperationGone,
    OperationRow,
    ProfileRow,
    QuotaRow,
    RecordGone,
    RecordRow,
    Row,
    SnapshotRow,
    TokenRow,
    UsageRow,
)
from plexsvc.store.tables import (
    CHARGES,
    DEPLOYMENTS,
    EPOCHS,
    JOBS,
    JOURNAL,
    KEPT_OPERATIONS,
    MEMBERS,
    NODES,
    OPERATIONS,
    PROFILES,
    QUOTAS,
    RECORDS,
    SNAPSHOTS,
    TOKENS,
    UPSERTED,
    USAGE,
    read_rows,
)

_Row = TypeVar("_Row")

READINGS: Final = ("hour_us", "count", "device_us", "switch_us", "tokens", "nbytes", "host_mib_s")
"""Columns of `USAGE` that grow from row to row."""


def needs_sync(rows: Sequence[Row]) -> bool:
    """Return whether rows must survive a power cut.

    Rows of operations alone need not: the journal, which is synced, tells of them too. Records need
    not, either: they survive this process.
    """
    unsynced = OperationRow | OperationGone | RecordRow | RecordGone
    return any(not isinstance(row, unsynced) for row in rows)


class Store:
    """One open database, led under one epoch."""

    def __init__(self, engine: sa.Engine, *, epoch: int) -> None:
        self.url = engine.url.render_as_string(hide_password=False)
        self._engine = engine
        self._connection = engine.connect()
        self._upserts = {kind: _upsert(engine, table) for kind, table in UPSERTED.items()}
        self._appender = None
        if engine.dialect.name == "sqlite":
            self._appender = SqliteAppender(engine, epoch=epoch, upserts=self._upserts)
        self.epoch = epoch

    def append(self, events: Sequence[JournalRow], rows: Sequence[Row] = ()) -> None:
        """Write a batch of events and changed rows in one transaction; durable on return.

        Rows alone that `needs_sync` leaves out survive this process, not a power cut.

        Raises:
            PlexError: `stale_fence` when another scheduler has taken over; `disk_full`;
                `unavailable` when the database does not answer; `internal` for rows that
                contradict what is there. Nothing is written then.
        """
        if events and not rows and self.append_now(events, is_synced=True):
            return
        if rows and not events and self.write_now(rows):
            return
        try:
            with self._led():
                self._write(events, rows)
        except PlexError as error:
            # The server can commit a batch and die before it says so; the writer repeats it.
            if error.code != ErrorCode.INTERNAL or not self._has(events):
                raise

    def _has(self, events: Sequence[JournalRow]) -> bool:
        """Whether all of these events are in the journal as they are."""
        mine = (JOURNAL.c.scheduler_epoch == self.epoch, JOURNAL.c.idx.in_([r.idx for r in events]))
        query = sa.select(JOURNAL).where(*mine).order_by(JOURNAL.c.idx)
        try:
            found = self._read(query, JournalRow)
        except (SQLAlchemyError, sqlite3.Error) as error:  # it died again
            raise self._failure(error) from error
        return bool(events) and found == list(events)

    @contextmanager
    def _led(self) -> Iterator[None]:
        """Make one transaction, as long as this epoch leads."""
        try:
            with self._connection.begin():
                self._fence()
                yield
        except (SQLAlchemyError, sqlite3.Error) as error:
            raise self._failure(error) from error

    def _failure(self, error: Exception) -> PlexError:
        found = error.orig if isinstance(error, DBAPIError) else error
        where = self._engine.url.render_as_string(hide_password=True)
        if isinstance(error, IntegrityError | sqlite3.IntegrityError):
            return internal(f"the store {where} holds such rows: {found}")
        return full(where, found) or unavailable(f"the store {where} took nothing: {found}")

    def append_now(self, events: Sequence[JournalRow], *, is_synced: bool) -> bool:
        """Write a batch of events if nobody need be waited for; return whether it is written.

        Args:
            events: the batch.
            is_synced: whether it must survive a power cut; else it does once a later batch must,
                and survives the end of this process alone.

        When it is not written, nothing was, and `append` says why.
        """
        return self._appender is not None and self._appender.append(events, is_synced=is_synced)

    def write_now(self, rows: Sequence[Row]) -> bool:
        """Write changed rows if nobody need be waited for; return whether they are written.

        When nothing was written, `append` says why.
        """
        appender, is_synced = self._appender, needs_sync(rows)
        return appender is not None and appender.write(rows, is_synced=is_synced)

    def profiles(self, *, limit: int) -> list[ProfileRow]:
        """Return the cycles measured last, oldest of them first."""
        query = sa.select(PROFILES).order_by(PROFILES.c.at_us.desc()).limit(limit)
        return self._read(query, ProfileRow)[::-1]

    def jobs(self, *, limit: int) -> list[JobRow]:
        """Return the jobs that have not ended, and the newest of the others, oldest first."""
        newest = sa.select(JOBS).order_by(JOBS.c.ended_us > 0, JOBS.c.ended_us.desc()).limit(limit)
        return sorted(self._read(newest, JobRow), key=lambda row: row.created_us)

    def deployments(self, job_ids: Sequence[str]) -> list[DeploymentRow]:
        """Return the deployments of some jobs."""
        query = sa.select(DEPLOYMENTS).where(DEPLOYMENTS.c.job_id.in_(job_ids))
        return self._read(query, DeploymentRow)

    def answers(self) -> list[OperationRow]:
        """Return the operations whose answers are kept here."""
        query = sa.select(OPERATIONS).where(sa.func.length(OPERATIONS.c.answer) > 0)
        return self._read(query, OperationRow)

    def kept_operations(self, deployment_ids: Sequence[str]) -> list[KeptOperationRow]:
        """Return what is kept of what some deployments ran, in order."""
        mine = KEPT_OPERATIONS.c.deployment_id.in_(deployment_ids)
        query = sa.select(KEPT_OPERATIONS).where(mine).order_by(KEPT_OPERATIONS.c.seq)
        return self._read(query, KeptOperationRow)

    def nodes(self) -> list[NodeRow]:
        """Return the nodes that operators added and that were not forgotten since."""
        query = sa.select(NODES).where(NODES.c.is_member).order_by(NODES.c.agent)
        return self._read(query, NodeRow)

    def tokens(self) -> list[TokenRow]:
        """Return the tokens that operators made, oldest first."""
        query = sa.select(TOKENS).order_by(TOKENS.c.created_us, TOKENS.c.token_id)
        return self._read(query, TokenRow)

    def members(self) -> list[MemberRow]:
        """Return the certificates that nodes were given, oldest first."""
        query = sa.select(MEMBERS).order_by(MEMBERS.c.issued_us, MEMBERS.c.serial)
        return self._read(query, MemberRow)

    def quotas(self) -> list[QuotaRow]:
        """Return the quotas that bind, by tenant."""
        query = sa.select(QUOTAS).where(QUOTAS.c.most > 0).order_by(QUOTAS.c.tenant, QUOTAS.c.what)
        return self._read(query, QuotaRow)

    def records(
        self, *, tenant: str, prefix: str, after: str = "", limit: int | None = None
    ) -> list[RecordRow]:
        """Return what routers remember for a tenant under keys that begin so, by key.

        Args:
            tenant: whose.
            prefix: how their keys begin.
            after: the key before the first one; all are behind an empty one.
            limit: how many at most; all of them without.
        """
        # The first key that no longer begins so: a range, which the table's own index answers.
        end = prefix[:-1] + chr(ord(prefix[-1]) + 1)
        key = RECORDS.c.key
        mine = (RECORDS.c.tenant == tenant, key >= prefix, key < end, key > after)
        return self._read(sa.select(RECORDS).where(*mine).order_by(key).limit(limit), RecordRow)

    def usage(
        self, *, tenant: str = "", job_id: str = "", before_us: int | None = None
    ) -> list[JobUsage]:
        """Return the newest readings of some jobs, or the newest of hours before a time.

        Args:
            tenant: whose; all tenants' if empty.
            job_id: of which; of all jobs if empty.
            before_us: the beginning of an hour.
        """
        read = [sa.func.max(USAGE.c[name]).label(name) for name in READINGS]  # they only grow
        of = (JOBS.c.tenant, JOBS.c.name, USAGE.c.job_id, USAGE.c.kind)
        query = sa.select(*of, *read).join(JOBS, JOBS.c.job_id == USAGE.c.job_id)
        if tenant:
            query = query.where(JOBS.c.tenant == tenant)
        if job_id:
            query = query.where(JOBS.c.job_id == job_id)
        if before_us is not None:
            query = query.where(USAGE.c.hour_us < before_us)
        with self._engine.connect() as connection:
            found = connection.execute(query.group_by(*of)).mappings().all()
        return [
            JobUsage(
                tenant=row["tenant"],
                name=row["name"],
                used=UsageRow(**{name: row[name] for name in ("job_id", "kind", *READINGS)}),
            )
            for row in found
        ]

    def charged(self) -> dict[str, int]:
        """Return the number of each job's newest charge."""
        query = sa.select(CHARGES.c.job_id, sa.func.max(CHARGES.c.last)).group_by(CHARGES.c.job_id)
        with self._engine.connect() as connection:
            return {row[0]: row[1] for row in connection.execute(query)}

    def charges(self, *, job_id: str, limit: int) -> list[ChargesRow]:
        """Return the newest charges of a job, oldest first: of rows that have `limit` in all."""
        query = sa.select(CHARGES).where(CHARGES.c.job_id == job_id).order_by(CHARGES.c.first)
        ends = sa.select(sa.func.max(CHARGES.c.last)).where(CHARGES.c.job_id == job_id)
        newest = query.where(CHARGES.c.last > ends.scalar_subquery() - limit)
        return self._read(newest, ChargesRow)

    def fail_orphans(self, *, reason: str, ended_us: int) -> int:
        """Mark jobs that an earlier scheduler left unfinished as failed; return how many."""
        unfinished = JOBS.c.state.in_(["queued", "running"])
        with self._led():
            done = self._connection.execute(
                sa.update(JOBS)
                .where(unfinished, JOBS.c.scheduler_epoch < self.epoch)
                .values(state="failed", reason=reason, ended_us=ended_us)
            )
            return int(done.rowcount)

    def forget(self, *, before_us: int) -> int:
        """Delete what is only history by then; return how many rows went.

        The journal, snapshots and operations of schedulers that another had replaced before that
        time, jobs that ended before it with their deployments and what they used, and cycles
        measured and tokens that ended before it.
        """
        then = sa.select(sa.func.max(EPOCHS.c.scheduler_epoch)).where(
            EPOCHS.c.started_us < before_us
        )
        with self._led():
            led_then = self._connection.execute(then).scalar_one() or 0
            # What says whose rows these are, a deployment or a job, goes after them.
            ended = sa.select(JOBS.c.job_id).where(JOBS.c.ended_us.between(1, before_us - 1))
            theirs = sa.select(DEPLOYMENTS.c.deployment_id).where(DEPLOYMENTS.c.job_id.in_(ended))
            led = [(t, t.c.scheduler_epoch < led_then) for t in (JOURNAL, SNAPSHOTS, OPERATIONS)]
            of_jobs = [(t, t.c.job_id.in_(ended)) for t in (DEPLOYMENTS, USAGE, CHARGES, JOBS)]
            gone: list[tuple[sa.Table, sa.ColumnElement[bool]]] = [
                *led,
                (KEPT_OPERATIONS, KEPT_OPERATIONS.c.deployment_id.in_(theirs)),
                *of_jobs,
                (PROFILES, PROFILES.c.at_us < before_us),
                (TOKENS, TOKENS.c.revoked_us.between(1, before_us - 1)),
                (TOKENS, TOKENS.c.expires_us.between(1, before_us - 1)),
            ]
            orders = (sa.delete(table).where(where) for table, where in gone)
            return sum(int(self._connection.execute(one).rowcount) for one in orders)

    def keep_snapshot(self, snapshot: SnapshotRow) -> None:
        """Add a snapshot of this epoch's core and drop all but the one before; durable on return.

        Raises:
            PlexError: as `append`.
        """
        with self._led():
            mine = SNAPSHOTS.c.scheduler_epoch == self.epoch
            before = sa.select(sa.func.max(SNAPSHOTS.c.idx)).where(mine)
            previous = self._connection.execute(before).scalar_one() or 0
            self._connection.execute(sa.insert(SNAPSHOTS), [_values(snapshot, epoch=self.epoch)])
            self._connection.execute(sa.delete(SNAPSHOTS).where(mine, SNAPSHOTS.c.idx < previous))

    def cut(self, *, max_rows: int) -> int:
        """Delete the oldest of the rows that come before the last two snapshots.

        Returns how many rows went, at most `max_rows`; 0: none is left to cut.

        Raises:
            PlexError: as `append`.
        """
        with self._led():
            mine = SNAPSHOTS.c.scheduler_epoch == self.epoch
            kept = sa.select(SNAPSHOTS.c.idx).where(mine).order_by(SNAPSHOTS.c.idx)
            snapshots = self._connection.execute(kept).scalars().all()
            if len(snapshots) < 2:
                return 0
            rows = JOURNAL.c.scheduler_epoch == self.epoch
            first = self._connection.execute(sa.select(sa.func.min(JOURNAL.c.idx)).where(rows))
            # Rows are numbered without a gap: these are no more than `max_rows`.
            end = min((first.scalar_one() or 0) + max_rows - 1, snapshots[0])
            gone = self._connection.execute(sa.delete(JOURNAL).where(rows, JOURNAL.c.idx <= end))
            return int(gone.rowcount)

    def close(self) -> None:
        """Give the connections back."""
        if self._appender is not None:
            self._appender.close()
        self._connection.close()
        self._engine.dispose()

    def _fence(self) -> None:
        """Refuse to write once a newer epoch was allocated; none is until this transaction ends.

        SQLite has one writer at a time, from here on this one. On PostgreSQL the lock of the row
        shares its table, which `_take_epoch` wants for itself.
        """
        if self._engine.dialect.name == "sqlite":
            self._connection.exec_driver_sql("begin immediate")
        epoch = EPOCHS.c.scheduler_epoch
        leading = sa.select(epoch).order_by(epoch.desc()).limit(1)
        query = leading.with_for_update(read=True, key_share=True)
        newest = self._connection.execute(query).scalar_one()
        if newest != self.epoch:
            raise PlexError(
                ErrorCode.STALE_FENCE,
                f"scheduler epoch {self.epoch} wrote to the store, but epoch {newest} leads; this "
                "scheduler must stop",
                epoch=self.epoch,
                newest=newest,
            )

    def _write(self, events: Sequence[JournalRow], rows: Sequence[Row]) -> None:
        if events:
            self._connection.execute(
                sa.insert(JOURNAL), [_values(row, epoch=self.epoch) for row in events]
            )
        for kind, upsert in self._upserts.items():
            values = [_values(row, epoch=self.epoch) for row in rows if isinstance(row, kind)]
            if values:
                self._connection.execute(upsert, values)
        gone = [{"gone": row.operation_id} for row in rows if isinstance(row, OperationGone)]
        if gone:
            one = sa.delete(OPERATIONS).where(OPERATIONS.c.operation_id == sa.bindparam("gone"))
            self._connection.execute(one, gone)
        for row in rows:
            if isinstance(row, RecordGone):
                mine = (RECORDS.c.tenant == row.tenant, RECORDS.c.key == row.key)
                self._connection.execute(sa.delete(RECORDS).where(*mine))

    def _read(self, query: Any, kind: type[_Row]) -> list[_Row]:
        return read_rows(self._engine, query, kind)


def full(where: str, found: BaseException | None) -> PlexError | None:
    """Return that a disk is full, if that is what SQLite found."""
    if getattr(found, "sqlite_errorcode", None) != sqlite3.SQLITE_FULL:
        return None
    return PlexError(
        ErrorCode.DISK_FULL,
        f"the disk of {where} is full: {found}; make room there, and it goes on",
    )


def _upsert(engine: sa.Engine, table: sa.Table) -> Any:
    dialect = postgresql if engine.dialect.name == "postgresql" else sqlite
    statement = dialect.insert(table)
    keys = [column.name for column in table.primary_key]
    changed = {c.name: statement.excluded[c.name] for c in table.columns if c.name not in keys}
    return statement.on_conflict_do_update(index_elements=keys, set_=changed)


def _values(row: JournalRow | SnapshotRow | Row, *, epoch: int) -> dict[str, Any]:
    values = {name: getattr(row, name) for name in row.__slots__}
    values["scheduler_epoch"] = epoch
    return values
