"""What a store holds, as tests read it: by a connection of their own."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, TypeVar

from sqlalchemy import Select, create_engine, select

from plexsvc.store.rows import DeploymentRow, JobRow, JournalRow, OperationRow
from plexsvc.store.store import Store
from plexsvc.store.tables import JOURNAL, UPSERTED

R = TypeVar("R")


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
