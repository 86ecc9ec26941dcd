"""Fast path of writes on SQLite: events and rows, without SQLAlchemy's calls.

An operation waits for two batches of events, one after the other. Begin, fence, insert and commit
as calls of their own cost more than the sync that they end in, because each gives the interpreter's
lock away and waits for it. So a batch of events is one statement, which is its transaction.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from operator import attrgetter
from typing import Any, Final

from sqlalchemy import Engine, bindparam, literal_column

from plexsvc.store.rows import JournalRow, OperationGone, RecordGone, Row

_COLUMNS: Final = "scheduler_epoch, idx, at_us, kind, version, body"
_ROW: Final = "(?, ?, ?, ?, ?, ?)"
_DELETE: Final = "delete from operations where operation_id = ?"
_FORGET: Final = "delete from records where tenant = ? and key = ?"
_FENCE: Final = "(select max(scheduler_epoch) from scheduler_epochs) = ?"


class SqliteAppender:
    """Writes under one epoch, on a connection of its own that commits each statement.

    Nothing is written, and `False` returned, when another connection holds the lock, a newer epoch
    leads, or SQLite refuses: the long way finds out.
    """

    def __init__(self, engine: Engine, *, epoch: int, upserts: Mapping[type, Any]) -> None:
        self._epoch = epoch
        self._held = engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        connection = self._held.connection.driver_connection
        assert isinstance(connection, sqlite3.Connection), connection
        # Nobody is waited for here: the long way waits.
        connection.execute("pragma busy_timeout=0")
        self._connection = connection
        self._is_synced = True
        self._upserts = {
            kind: _compiled(engine, upsert, kind=kind, epoch=epoch)
            for kind, upsert in upserts.items()
        }

    def append(self, events: Sequence[JournalRow], *, is_synced: bool) -> bool:
        """Write all of `events` or none; return which.

        What is not synced survives this process but not the machine, until a later batch is synced.
        """
        values: list[int | str] = []
        for row in events:
            values += (self._epoch, row.idx, row.at_us, row.kind, row.version, row.body)
        values.append(self._epoch)
        try:
            self._sync_commits(is_synced)
            return self._connection.execute(_statement(len(events)), values).rowcount > 0
        except sqlite3.Error:
            return False

    def write(self, rows: Sequence[Row], *, is_synced: bool) -> bool:
        """Write all of `rows` or none; return which."""
        run = self._connection.execute
        try:
            self._sync_commits(is_synced)
            run("begin immediate")
            leads: bool = run(f"select {_FENCE}", (self._epoch,)).fetchone() == (1,)
            for kind, (statement, values_of) in self._upserts.items():
                values = [values_of(row) for row in rows if type(row) is kind]
                if leads and values:
                    self._connection.executemany(statement, values)
            gone = [(row.operation_id,) for row in rows if isinstance(row, OperationGone)]
            if leads and gone:
                self._connection.executemany(_DELETE, gone)
            lost = [(row.tenant, row.key) for row in rows if isinstance(row, RecordGone)]
            if leads and lost:
                self._connection.executemany(_FORGET, lost)
            run("commit")
        except sqlite3.Error:
            if self._connection.in_transaction:
                run("rollback")
            return False
        return leads

    def close(self) -> None:
        """Give the connection back."""
        self._held.close()

    def _sync_commits(self, is_synced: bool) -> None:
        # Between transactions: SQLite heeds it in none.
        if is_synced is not self._is_synced:
            self._connection.execute(f"pragma synchronous={'full' if is_synced else 'normal'}")
            self._is_synced = is_synced


def _statement(count: int) -> str:
    rows = ", ".join([_ROW] * count)
    return f"insert into journal ({_COLUMNS}) select * from (values {rows}) where {_FENCE}"


def _compiled(
    engine: Engine,
    upsert: Any,
    *,
    kind: type,
    epoch: int,
) -> tuple[str, Callable[[Row], tuple[Any, ...]]]:
    """Return an upsert as SQLite's driver takes it, and what reads a row's values in its order."""
    names = [field.name for field in fields(kind)]
    marks: dict[str, Any] = {name: bindparam(name) for name in names}
    made = upsert.values(scheduler_epoch=literal_column(str(epoch)), **marks).compile(engine)
    return str(made), attrgetter(*made.positiontup)
