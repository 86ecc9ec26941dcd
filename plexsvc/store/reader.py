"""Reader of a journal that another process writes or wrote: takes no epoch, migrates nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote

from sqlalchemy import URL, Engine, create_engine, func, make_url, select
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from plexsvc.errors import not_found, unavailable
from plexsvc.store.rows import JournalRow, SnapshotRow
from plexsvc.store.tables import JOURNAL, SNAPSHOTS, read_rows

ROWS_AT_ONCE: Final = 2048
"""Rows read with one query: no query is open while its rows are worked on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochRows:
    """The journal of one scheduler, read as far as it is asked for."""

    source: str
    epoch: int
    snapshots: tuple[SnapshotRow, ...]
    """The core behind some of the rows, oldest first."""

    @property
    def rows(self) -> Iterator[JournalRow]:
        """Yield all rows there are."""
        return self.after(0)

    def after(self, idx: int, *, more: Callable[[], bool] = lambda: False) -> Iterator[JournalRow]:
        """Yield the rows behind row `idx`; at the end ask `more` whether to look again.

        Raises:
            PlexError: `unavailable`.
        """
        with _reading(self.source) as engine:
            while True:
                found = _rows(engine, epoch=self.epoch, after=idx, limit=ROWS_AT_ONCE)
                yield from found
                if found:
                    idx = found[-1].idx
                elif not more():
                    return


def read_journal(source: str, *, epoch: int | None = None) -> EpochRows:
    """Return the journal of an epoch, by default of the newest that has one.

    Args:
        source: a SQLite file, or a database by SQLAlchemy URL.
        epoch: the scheduler whose rows are wanted.

    Raises:
        PlexError: `not_found` without the file or the epoch, `unavailable` when it cannot be read.
    """
    with _reading(source) as engine:
        return _read(engine, source=source, epoch=epoch)


@contextmanager
def _reading(source: str) -> Iterator[Engine]:
    try:
        engine = _engine(source)
        try:
            yield engine
        finally:
            engine.dispose()
    except SQLAlchemyError as error:
        why = str(error).partition("\n")[0]
        raise unavailable(
            f"no journal can be read from {_shown(source)}: {why}; name the "
            "database of a cluster, plexsvc.db in its state directory by default"
        ) from error


def _engine(source: str) -> Engine:
    if "://" in source:
        return _engine_of(source)
    path = Path(source)
    if not path.is_file():
        raise not_found(
            f"there is no journal {source}; name the database of a cluster, plexsvc.db in its "
            "state directory by default"
        )
    database = f"file:{quote(str(path.resolve()))}"
    query = {"mode": "ro", "uri": "true"}
    return create_engine(URL.create("sqlite", database=database, query=query))


def _engine_of(url: str) -> Engine:
    try:
        return create_engine(make_url(url))
    except ImportError as error:
        raise unavailable(
            f"no journal can be read from {_shown(url)}: {error}; give the URL of a database of "
            "plexsvc, with sqlite or postgresql+psycopg"
        ) from error


def _shown(source: str) -> str:
    """Return a source as messages may show it: without its password."""
    try:
        return make_url(source).render_as_string(hide_password=True)
    except ArgumentError:
        return source


def _read(engine: Engine, *, source: str, epoch: int | None) -> EpochRows:
    with engine.connect() as connection:
        newest = connection.execute(select(func.max(JOURNAL.c.scheduler_epoch))).scalar_one()
    wanted = epoch if epoch is not None else newest
    of_epoch = SNAPSHOTS.c.scheduler_epoch == wanted
    query = select(SNAPSHOTS).where(of_epoch).order_by(SNAPSHOTS.c.idx)
    snapshots = tuple(read_rows(engine, query, SnapshotRow))
    if wanted is None or not _rows(engine, epoch=wanted, after=0, limit=1):
        raise not_found(
            f"the journal {_shown(source)} has no events"
            + (
                ""
                if newest is None
                else f" of scheduler epoch {wanted}; the newest with events is {newest}"
            )
        )
    return EpochRows(source=source, epoch=int(wanted), snapshots=snapshots)


def _rows(engine: Engine, *, epoch: int, after: int, limit: int) -> list[JournalRow]:
    query = select(JOURNAL).where(JOURNAL.c.scheduler_epoch == epoch, JOURNAL.c.idx > after)
    return read_rows(engine, query.order_by(JOURNAL.c.idx).limit(limit), JournalRow)
