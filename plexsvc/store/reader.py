"""Reader of a journal that another process writes or wrote: takes no epoch, migrates nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from sqlalchemy import URL, Engine, create_engine, func, make_url, select
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

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
            f"no journal can be read from {_shown(source)}: {_first_line(error)}; name the "
            "database of a cluster, plexsvc.db in its state directory by default",
        ) from error


def _engine(source: str) -> Engine:
    if "://" in source:
        return _engine_of(source)
    path = Path(source)
    if not path.is_file():
        raise PlexError(
            ErrorCode.NOT_FOUND,
            f"there is no journal {source}; name the database of a cluster, plexsvc.db in its "
            "state directory by default",
        )
    database = f"file:{quote(str(path.resolve()))}"
    query = {"mode": "ro", "uri": "true"}
    return create_engine(URL.create("sqlite", database=database, query=query))


def _engine_of(url: str) -> Engine:
    try:
        return create_engine(make_url(url))
    except ImportError as error:
        raise PlexError(
            ErrorCode.UNAVAILABLE,
            f"no journal can be read from {_shown(url)}: {error}; give the URL of a database of "
            "plexsvc, with sqlite or postgresql+psycopg",
        ) from error


def _shown(source: str) -> str:
    """Return a source as messages may show it: without its password."""
    try:
        return make_url(source).render_as_string(hide_password=True)
    except ArgumentError:
        return source


def _first_line(error: SQLAlchemyError) -> str:
    return str(error).partition("\n")[0]


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
            f"the journal {_shown(source)} has no events"
            + (
                ""
                if newest is None
                else f" of scheduler epoch {wanted}; the newest with events is {newest}"
            ),
        )
    return EpochRows(epoch=int(wanted), rows=rows)
