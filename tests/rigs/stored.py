"""New stores for tests, and what a store holds, read by a connection of their own."""

from __future__ import annotations

import tempfile
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Select, create_engine, select

from plexsvc.store.opening import migrate, open_store
from plexsvc.store.rows import DeploymentRow, JobRow, JournalRow, OperationRow
from plexsvc.store.store import Store
from plexsvc.store.tables import JOURNAL, UPSERTED

R = TypeVar("R")


def open_new(directory: Path) -> Store:
    """Open a store in a directory, new if it has none.

    Its tables are a copy: to make them takes longer than most tests (`tests/unit/store` does).
    """
    file = directory / "plex.db"
    if not file.exists():
        file.write_bytes(_tables())
    return open_store(f"sqlite:///{file}", now_us=1)


@cache
def _tables() -> bytes:
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "plex.db"
        engine = create_engine(f"sqlite:///{file}")
        with engine.begin() as connection:
            migrate(connection)
        engine.dispose()
        return file.read_bytes()


def journal(store: Store, *, epoch: int | None = None) -> list[JournalRow]:
    """Return the events of an epoch, the store's own by default, in order."""
    wanted = JOURNAL.c.scheduler_epoch == (store.epoch if epoch is None else epoch)
    return _read(store, select(JOURNAL).where(wanted).order_by(JOURNAL.c.idx), JournalRow)


def jobs(store: Store) -> list[JobRow]:
    """Return the known jobs, oldest first."""
    found = _read(store, select(UPSERTED[JobRow]), JobRow)
    return sorted(found, key=lambda row: (row.created_us, row.job_id))


def deployments(store: Store, *, job_id: str) -> list[DeploymentRow]:
    """Return a job's deployments."""
    found = _read(store, select(UPSERTED[DeploymentRow]), DeploymentRow)
    return sorted((r for r in found if r.job_id == job_id), key=lambda row: row.deployment_id)


def operation(store: Store, operation_id: bytes) -> OperationRow | None:
    """Return the record of an answered operation."""
    found = _read(store, select(UPSERTED[OperationRow]), OperationRow)
    return next((row for row in found if row.operation_id == operation_id), None)


def _read(store: Store, query: Select[Any], kind: type[R]) -> list[R]:
    names = [field.name for field in fields(kind)]  # type: ignore[arg-type]  # a dataclass
    engine = create_engine(store.url)
    try:
        with engine.connect() as connection:
            rows = connection.execute(query).mappings()
            return [kind(**{name: row[name] for name in names}) for row in rows]
    finally:
        engine.dispose()
