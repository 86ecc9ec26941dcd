"""Reads a journal that somebody else writes, or wrote: takes no epoch, migrates nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Engine, create_engine, func, make_url, select
from sqlalchemy.exc import SQLAlchemyError

from plexsvc.errors import ErrorCode, PlexError
from plexsvc.store.rows import JournalRow
from plexsvc.store.tables import JOURNAL


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochRows:
    """The journal of one scheduler."""

    epoch: int
    rows: Sequence[JournalRow]


def read_journal(source: str, *, epoch: int | None = None) -> EpochRows:
    """Return the rows of an epoch, by default the newest that has any.

    Args:
        source: a SQLite file, or a database by SQLAlchemy URL.
        epoch: the scheduler whose rows are wanted.

    Raises:
        PlexError: `not_found` without the file or the epoch, `unavailable` when it cannot be read.
    """
    try:
        engine = _engine(source)
        try:
            return _read(engine, source=source, epoch=epoch)
        finally:
            engine.dispose()
    except SQLAlchemyError as error:
        raise PlexError(
            ErrorCode.UNAVAILABLE,
            f"no journal can be read from {source}: {error}; name the "
            "database of a cluster, plexsvc.db in its state directory by default",
        ) from error


def _engine(source: str) -> Engine:
    if "://" in source:
        return create_engine(make_url(source))
    path = Path(source)
    if not path.is_file():
        raise PlexError(
            ErrorCode.NOT_FOUND,
            f"there is no journal {source}; name the database of a cluster, plexsvc.db in its "
            "state directory by default",
        )
    return create_engine(f"sqlite:///file:{path.resolve()}?mode=ro&uri=true")


def _read(engine: Engine, *, source: str, epoch: int | None) -> EpochRows:
    with engine.connect() as connection:
        newest = connection.execute(select(func.max(JOURNAL.c.scheduler_epoch))).scalar_one()
        wanted = epoch if epoch is not None else newest
        query = select(JOURNAL).where(JOURNAL.c.scheduler_epoch == wanted).order_by(JOURNAL.c.idx)
        rows = [
            JournalRow(
                idx=row.idx, at_us=row.at_us, kind=row.kind, version=row.version, body=row.body
            )
            for row in connection.execute(query)
        ]
    if not rows:
        raise PlexError(
            ErrorCode.NOT_FOUND,
            f"the journal {source} has no events of scheduler epoch {wanted}; the newest with "
            f"events is {newest or 'none'}",
        )
    return EpochRows(epoch=int(wanted), rows=rows)
