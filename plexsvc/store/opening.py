"""Opening of a database: its URL, its pragmas, its migrations, and the next epoch.

SQLite runs in WAL mode with `synchronous=FULL`, and waits some seconds for another writer.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Final

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError

from plexsvc.errors import PlexError, bad_request, unavailable
from plexsvc.store.store import Store, full
from plexsvc.store.tables import EPOCHS, METADATA

MIGRATIONS: Final = Path(__file__).parent / "migrations"


def database_file(url: str) -> Path | None:
    """Return the file that a URL names, None for a database server.

    Raises:
        PlexError: `bad_request` for any other URL.
    """
    try:
        made = sa.make_url(url)
    except ArgumentError:
        made = None
    if made is not None and made.drivername == "postgresql+psycopg":
        return None
    if made is None or made.drivername != "sqlite" or made.database in {None, "", ":memory:"}:
        raise bad_request(
            f"database = {'?' if made is None else made.render_as_string()!r} names no store; give "
            "sqlite:////DIRECTORY/FILE or postgresql+psycopg://USER@HOST/NAME"
        )
    return Path(str(made.database))


def open_store(url: str, *, now_us: int) -> Store:
    """Open a database by SQLAlchemy URL, migrate it, and take the next epoch.

    Args:
        url: `sqlite:///FILE` or `postgresql+psycopg://...`.
        now_us: the wall clock, recorded with the epoch.

    Raises:
        PlexError: `unavailable` when the database cannot be reached; `disk_full`; `bad_request`
            when its schema is newer than this build, or older than what it upgrades.
    """
    engine = _engine(url)
    try:
        with engine.begin() as connection:
            migrate(connection)
            epoch = _take_epoch(connection, now_us=now_us)
        return Store(engine, epoch=epoch)
    except PlexError:
        engine.dispose()
        raise
    except (SQLAlchemyError, sqlite3.Error) as error:
        raise _unreachable(url, error) from error


def reopen_store(url: str, *, epoch: int) -> Store:
    """Open a database that a scheduler leads under `epoch`, for another process of its own.

    Raises:
        PlexError: `unavailable` when the database cannot be reached.
    """
    try:
        return Store(_engine(url), epoch=epoch)
    except (SQLAlchemyError, sqlite3.Error) as error:
        raise _unreachable(url, error) from error


def _unreachable(url: str, error: Exception) -> PlexError:
    found = error.orig if isinstance(error, DBAPIError) else error
    shown = _shown(url)
    return full(shown, found) or unavailable(f"cannot open store {shown}: {error}")


def _shown(url: str | sa.URL) -> str:
    return sa.make_url(url).render_as_string(hide_password=True)


def migrate(connection: sa.Connection) -> None:
    """Make the tables of a new database; bring an older one's to the newest version.

    Raises:
        PlexError: `bad_request` for a version that this build does not know.
    """
    is_new = not sa.inspect(connection).has_table(EPOCHS.name)
    if not is_new and _version(connection) == max(MIGRATIONS.glob("versions/0*.py")).stem[:4]:
        return
    # Only now: they cost 0.13 s of processor time, and a service that takes over needs none.
    from alembic import command
    from alembic.config import Config
    from alembic.util import CommandError

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.attributes["connection"] = connection
    if is_new:
        # A new database has the tables as they stand; no migration made them, all count as made.
        METADATA.create_all(connection)
        command.stamp(config, "head")
        return
    try:
        command.upgrade(config, "head")
    except CommandError as error:
        shown = _shown(connection.engine.url)
        raise bad_request(
            f"store {shown} is another build's: {error}; start with that, or name another database"
        ) from error


def _version(connection: sa.Connection) -> str | None:
    return connection.exec_driver_sql("select version_num from alembic_version").scalar()


def _engine(url: str) -> sa.Engine:
    engine = sa.create_engine(url)
    if engine.dialect.name == "sqlite":
        sa.event.listen(engine, "connect", _sqlite_pragmas)
    return engine


def _sqlite_pragmas(connection: sqlite3.Connection, _record: object) -> None:
    connection.execute("pragma journal_mode=wal")
    connection.execute("pragma synchronous=full")
    connection.execute("pragma busy_timeout=5000")
    connection.execute("pragma foreign_keys=on")


def _take_epoch(connection: sa.Connection, *, now_us: int) -> int:
    # Two schedulers that start at once must not read the same newest epoch. SQLite has one writer.
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql("lock table scheduler_epochs in exclusive mode")
    newest = connection.execute(sa.select(sa.func.max(EPOCHS.c.scheduler_epoch))).scalar_one()
    epoch = int(newest or 0) + 1
    connection.execute(sa.insert(EPOCHS).values(scheduler_epoch=epoch, started_us=now_us))
    return epoch
