"""The tables, as SQLAlchemy Core knows them; migrations under `migrations/` make them."""

from __future__ import annotations

from typing import Final

from sqlalchemy import (
    BigInteger,
    Column,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
)

METADATA: Final = MetaData()

EPOCHS: Final = Table(
    "scheduler_epochs",
    METADATA,
    Column("scheduler_epoch", BigInteger, primary_key=True, autoincrement=False),
    Column("started_us", BigInteger, nullable=False),
)
"""One row a scheduler that led; its number fences the ones before it."""

JOURNAL: Final = Table(
    "journal",
    METADATA,
    Column("scheduler_epoch", BigInteger, primary_key=True),
    Column("idx", BigInteger, primary_key=True),
    Column("at_us", BigInteger, nullable=False),
    Column("kind", String(64), nullable=False),
    Column("version", Integer, nullable=False),
    Column("body", Text, nullable=False),
    ForeignKeyConstraint(["scheduler_epoch"], ["scheduler_epochs.scheduler_epoch"]),
)
"""Every event the core was told, in order; those before the last two snapshots are cut."""

SNAPSHOTS: Final = Table(
    "snapshots",
    METADATA,
    Column("scheduler_epoch", BigInteger, primary_key=True),
    Column("idx", BigInteger, primary_key=True),
    Column("at_us", BigInteger, nullable=False),
    Column("version", Integer, nullable=False),
    Column("body", LargeBinary, nullable=False),
    ForeignKeyConstraint(["scheduler_epoch"], ["scheduler_epochs.scheduler_epoch"]),
)
"""The core as it was behind a row of the journal; the last two of each scheduler."""

JOBS: Final = Table(
    "jobs",
    METADATA,
    Column("job_id", String(128), primary_key=True),
    Column("tenant", String(128), nullable=False),
    Column("scheduler_epoch", BigInteger, nullable=False),
    Column("name", String(256), nullable=False),
    Column("state", String(16), nullable=False),
    Column("reason", Text, nullable=False),
    Column("exit_code", Integer, nullable=True),
    Column("created_us", BigInteger, nullable=False),
    Column("ended_us", BigInteger, nullable=False),
    Index("jobs_by_tenant", "tenant", "created_us"),
)

DEPLOYMENTS: Final = Table(
    "deployments",
    METADATA,
    Column("deployment_id", String(256), primary_key=True),
    Column("tenant", String(128), nullable=False),
    Column("job_id", String(128), nullable=False),
    Column("scheduler_epoch", BigInteger, nullable=False),
    Column("lease_no", BigInteger, nullable=False),
    Column("incarnation", BigInteger, nullable=False),
    Column("applied_seq", BigInteger, nullable=False),
    Column("role", String(32), nullable=False),
    Column("backend", String(32), nullable=False),
    Column("model", Text, nullable=False),
    Column("wpg_id", String(64), nullable=False),
    Column("state", String(16), nullable=False),
    Column("error", Text, nullable=False),
    Index("deployments_by_job", "job_id"),
)

OPERATIONS: Final = Table(
    "operations",
    METADATA,
    Column("operation_id", LargeBinary(16), primary_key=True),
    Column("tenant", String(128), nullable=False),
    Column("job_id", String(128), nullable=False),
    Column("deployment_id", String(256), nullable=False),
    Column("scheduler_epoch", BigInteger, nullable=False),
    Column("lease_no", BigInteger, nullable=False),
    Column("incarnation", BigInteger, nullable=False),
    Column("seq", BigInteger, nullable=False),
    Column("kind", String(32), nullable=False),
    Column("state", String(16), nullable=False),
    Column("digest", String(128), nullable=False),
    Column("error_code", String(32), nullable=False),
    Column("submitted_us", BigInteger, nullable=False),
    Column("answered_us", BigInteger, nullable=False),
    Index("operations_by_deployment", "deployment_id", "seq"),
)
"""One row an operation whose answer is not acknowledged; others are in the journal alone."""

PROFILES: Final = Table(
    "profiles",
    METADATA,
    Column("tenant", String(128), primary_key=True),
    Column("model", String(512), primary_key=True),
    Column("layout", String(256), primary_key=True),
    Column("name", String(512), primary_key=True),
    Column("scheduler_epoch", BigInteger, nullable=False),
    Column("at_us", BigInteger, nullable=False),
    Column("body", Text, nullable=False),
)
"""One row a measured cycle: a later submission of its kind starts warm."""
