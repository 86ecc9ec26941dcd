"""The tables, as SQLAlchemy Core knows them: one for each type of row, and two of their own.

A new database gets them as they stand here. A change of a row or here comes with a migration under
`migrations/`, which alters those of a database that is there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from types import NoneType
from typing import Annotated, Any, Final, TypeVar, get_args, get_origin, get_type_hints

import sqlalchemy as sa
from sqlalchemy.schema import SchemaItem

from plexsvc.store import rows

_Row = TypeVar("_Row")

METADATA: Final = sa.MetaData()

UPSERTED: Final[dict[type, sa.Table]] = {}
"""The table of each row that takes the place of one with its key."""

_TYPES: Final[dict[Any, Any]] = {
    str: sa.Text,
    int: sa.BigInteger,
    bool: sa.Boolean,
    bytes: sa.LargeBinary,
    rows.Small: sa.Integer,
}


def _table(name: str, row: type, *constraints: SchemaItem, key: Sequence[str]) -> sa.Table:
    """Return the table of a type of row: its fields, and the epoch under which it is written."""
    hints = {"scheduler_epoch": int, **get_type_hints(row, include_extras=True)}
    columns = [_column(field, hint, is_key=field in key) for field, hint in hints.items()]
    table = sa.Table(name, METADATA, *columns, *constraints)
    if "scheduler_epoch" not in key:
        UPSERTED[row] = table
    return table


def read_rows(engine: sa.Engine, query: sa.Select[Any], kind: type[_Row]) -> list[_Row]:
    """Return the rows of a query of their table."""
    names = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    with engine.connect() as connection:
        found = connection.execute(query).mappings()
        return [kind(**{name: row[name] for name in names}) for row in found]


def _column(field: str, hint: Any, *, is_key: bool) -> sa.Column[Any]:
    is_nullable = NoneType in get_args(hint)
    kind = get_args(hint)[0] if is_nullable else hint
    if kind not in _TYPES and get_origin(kind) is Annotated:
        made: Any = sa.String(get_args(kind)[1])
    else:
        made = _TYPES[kind]
    return sa.Column(field, made, primary_key=is_key, nullable=is_nullable, autoincrement=False)


EPOCHS: Final = sa.Table(
    "scheduler_epochs",
    METADATA,
    sa.Column("scheduler_epoch", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("started_us", sa.BigInteger, nullable=False),
)
"""One row a scheduler that led; its number fences the ones before it."""

JOURNAL: Final = _table(
    "journal",
    rows.JournalRow,
    sa.ForeignKeyConstraint(["scheduler_epoch"], ["scheduler_epochs.scheduler_epoch"]),
    key=("scheduler_epoch", "idx"),
)
"""Every event the core was told, in order; those before the last two snapshots are cut."""

SNAPSHOTS: Final = _table(
    "snapshots",
    rows.SnapshotRow,
    sa.ForeignKeyConstraint(["scheduler_epoch"], ["scheduler_epochs.scheduler_epoch"]),
    key=("scheduler_epoch", "idx"),
)
"""The core as it was behind a row of the journal; the last two of each scheduler."""

JOBS: Final = _table(
    "jobs", rows.JobRow, sa.Index("jobs_by_tenant", "tenant", "created_us"), key=("job_id",)
)
DEPLOYMENTS: Final = _table(
    "deployments",
    rows.DeploymentRow,
    sa.Index("deployments_by_job", "job_id"),
    key=("deployment_id",),
)
OPERATIONS: Final = _table(
    "operations",
    rows.OperationRow,
    sa.Index("operations_by_deployment", "deployment_id", "seq"),
    key=("operation_id",),
)
"""One row an operation whose answer is not acknowledged; others are in the journal alone."""

KEPT_OPERATIONS: Final = _table(
    "kept_operations", rows.KeptOperationRow, key=("deployment_id", "slot")
)
"""What a durable deployment ran since its copies. A slot whose operation they hold is taken by
another one."""

PROFILES: Final = _table("profiles", rows.ProfileRow, key=("tenant", "model", "layout", "name"))
"""One row a measured cycle: a later submission of its kind starts warm."""

NODES: Final = _table("nodes", rows.NodeRow, key=("agent",))
"""One row a node that an operator added; the configured ones have none."""

TOKENS: Final = _table("tokens", rows.TokenRow, key=("token_id",))
"""One row a token that an operator made; the configured ones have none."""

MEMBERS: Final = _table("members", rows.MemberRow, key=("serial",))
"""One row a certificate that a node was given."""

QUOTAS: Final = _table("quotas", rows.QuotaRow, key=("tenant", "what"))
"""One row a quota that an operator set; its `most` is 0 once it is lifted."""

USAGE: Final = _table("usage", rows.UsageRow, key=("job_id", "kind", "hour_us"))
"""What a job had used by a kind of work when it was read last in an hour: as on a meter, so that
to write it again counts nothing twice."""

CHARGES: Final = _table("charges", rows.ChargesRow, key=("job_id", "first"))
"""What operations added to `USAGE`: one row a job and reading, of the charges from `first` on."""

RECORDS: Final = _table("records", rows.RecordRow, key=("tenant", "key"))
"""What routers remember for clients that keep no state themselves."""

LEADER: Final = sa.Table(
    "leader",
    METADATA,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("holder", sa.Text, nullable=False),
    sa.Column("session", sa.BigInteger, nullable=False),
    sa.Column("renewed", sa.DateTime(timezone=True), nullable=False),
    sa.Column("until", sa.DateTime(timezone=True), nullable=False),
)
"""One row: who leads by which session of the server, and until when (`leadership`)."""
