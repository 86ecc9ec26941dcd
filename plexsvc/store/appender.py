"""The journal's short way on SQLite: a batch of events is one statement, which is its transaction.

An operation waits for two batches, one after the other. Begin, fence, insert and commit as calls of
their own cost more than the sync they end in, and each hands the interpreter's lock to and fro.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Final

from sqlalchemy import Engine

from plexsvc.store.rows import JournalRow

_COLUMNS: Final = "scheduler_epoch, idx, at_us, kind, version, body"
_ROW: Final = "(?, ?, ?, ?, ?, ?)"
_FENCE: Final = "(select max(scheduler_epoch) from scheduler_epochs) = ?"


class SqliteAppender:
    """Appends events under one epoch, on a connection of its own that commits each statement."""

    def __init__(self, engine: Engine, *, epoch: int) -> None:
        self._epoch = epoch
        self._held = engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        connection = self._held.connection.driver_connection
        assert isinstance(connection, sqlite3.Connection), connection
        connection.execute("pragma busy_timeout=0")
        self._connection = connection

    def append(self, events: Sequence[JournalRow]) -> bool:
        """Write all of `events`, durable on return, or none; return which.

        None is written when another connection holds the lock, a newer epoch leads, or SQLite
        refuses: the long way finds out.
        """
        values: list[int | str] = []
        for row in events:
            values += (self._epoch, row.idx, row.at_us, row.kind, row.version, row.body)
        values.append(self._epoch)
        try:
            return self._connection.execute(_statement(len(events)), values).rowcount > 0
        except sqlite3.Error:
            return False

    def close(self) -> None:
        """Give the connection back."""
        self._held.close()


def _statement(count: int) -> str:
    rows = ", ".join([_ROW] * count)
    return f"insert into journal ({_COLUMNS}) select * from (values {rows}) where {_FENCE}"
