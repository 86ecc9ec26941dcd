"""The tables, as SQLAlchemy Core knows them.

A new database gets them as they stand here. A change here comes with a migration under
`migrations/`, which alters those of a database that is there.
"""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa

METADATA: Final = sa.MetaData()

EPOCHS: Final = sa.Table(
    "scheduler_epochs",
    METADATA,
    sa.Column("scheduler_epoch", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("started_us", sa.BigInteger, nullable=False),
)
"""One row a scheduler that led; its number fences the ones before it."""

JOURNAL: Final = sa.Table(
    "journal",
    METADATA,
    sa.Column("scheduler_epoch", sa.BigInteger, primary_key=True),
    sa.Column("idx", sa.BigInteger, primary_key=True),
    sa.Column("at_us", sa.BigInteger, nullable=False),
    sa.Column("kind", sa.String(64), nullable=False),
    sa.Column("version", sa.Integer, nullable=False),
    sa.Column("body", sa.Text, nullable=False),
    sa.ForeignKeyConstraint(["scheduler_epoch"], ["scheduler_epochs.scheduler_epoch"]),
)
"""Every event the core was told, in order; those before the last two snapshots are cut."""

SNAPSHOTS: Final = sa.Table(
    "snapshots",
    METADATA,
    sa.Column("scheduler_epoch", sa.BigInteger, primary_key=True),
    sa.Column("idx", sa.BigInteger, primary_key=True),
    sa.Column("at_us", sa.BigInteger, nullable=False),
    sa.Column("version", sa.Integer, nullable=False),
    sa.Column("body", sa.LargeBinary, nullable=False),
    sa.ForeignKeyConstraint(["scheduler_epoch"], ["scheduler_epochs.scheduler_epoch"]),
)
"""The core as it was behind a row of the journal; the last two of each scheduler."""

JOBS: Final = sa.Table(
    "jobs",
    METADATA,
    sa.Column("job_id", sa.String(128), primary_key=True),
    sa.Column("tenant", sa.String(128), nullable=False),
    sa.Column("scheduler_epoch", sa.BigInteger, nullable=False),
    sa.Column("name", sa.String(256), nullable=False),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("exit_code", sa.Integer, nullable=True),
    sa.Column("created_us", sa.BigInteger, nullable=False),
    sa.Column("ended_us", sa.BigInteger, nullable=False),
    sa.Column("record", sa.LargeBinary, nullable=False),
    sa.Index("jobs_by_tenant", "tenant", "created_us"),
)

DEPLOYMENTS: Final = sa.Table(
    "deployments",
    METADATA,
    sa.Column("deployment_id", sa.String(256), primary_key=True),
    sa.Column("tenant", sa.String(128), nullable=False),
    sa.Column("job_id", sa.String(128), nullable=False),
    sa.Column("scheduler_epoch", sa.BigInteger, nullable=False),
    sa.Column("lease_no", sa.BigInteger, nullable=False),
    sa.Column("incarnation", sa.BigInteger, nullable=False),
    sa.Column("applied_seq", sa.BigInteger, nullable=False),
    sa.Column("role", sa.String(32), nullable=False),
    sa.Column("backend", sa.String(32), nullable=False),
    sa.Column("model", sa.Text, nullable=False),
    sa.Column("wpg_id", sa.String(64), nullable=False),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("error", sa.Text, nullable=False),
    sa.Column("record", sa.LargeBinary, nullable=False),
    sa.Column("versions", sa.LargeBinary, nullable=False),
    sa.Index("deployments_by_job", "job_id"),
)

OPERATIONS: Final = sa.Table(
    "operations",
    METADATA,
    sa.Column("operation_id", sa.LargeBinary(16), primary_key=True),
    sa.Column("tenant", sa.String(128), nullable=False),
    sa.Column("job_id", sa.String(128), nullable=False),
    sa.Column("deployment_id", sa.String(256), nullable=False),
    sa.Column("scheduler_epoch", sa.BigInteger, nullable=False),
    sa.Column("lease_no", sa.BigInteger, nullable=False),
    sa.Column("incarnation", sa.BigInteger, nullable=False),
    sa.Column("seq", sa.BigInteger, nullable=False),
    sa.Column("kind", sa.String(32), nullable=False),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("digest", sa.String(128), nullable=False),
    sa.Column("error_code", sa.String(32), nullable=False),
    sa.Column("submitted_us", sa.BigInteger, nullable=False),
    sa.Column("answered_us", sa.BigInteger, nullable=False),
    sa.Column("answer", sa.LargeBinary, nullable=False),
    sa.Index("operations_by_deployment", "deployment_id", "seq"),
)
"""One row an operation whose answer is not acknowledged; others are in the journal alone."""

KEPT_OPERATIONS: Final = sa.Table(
    "kept_operations",
    METADATA,
    sa.Column("deployment_id", sa.String(256), primary_key=True),
    sa.Column("slot", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("scheduler_epoch", sa.BigInteger, nullable=False),
    sa.Column("seq", sa.BigInteger, nullable=False),
    sa.Column("operation", sa.LargeBinary, nullable=False),
    sa.Column("staged_on", sa.Text, nullable=False),
    sa.Column("digest", sa.String(128), nullable=False),
    sa.Column("error_code", sa.String(32), nullable=False),
)
"""What a durable deployment ran since its copies. A slot whose operation they hold is taken by
another one."""

PROFILES: Final = sa.Table(
    "profiles",
    METADATA,
    sa.Column("tenant", sa.String(128), primary_key=True),
    sa.Column("model", sa.String(512), primary_key=True),
    sa.Column("layout", sa.String(256), primary_key=True),
    sa.Column("name", sa.String(512), primary_key=True),
    sa.Column("scheduler_epoch", sa.BigInteger, nullable=False),
    sa.Column("at_us", sa.BigInteger, nullable=False),
    sa.Column("body", sa.Text, nullable=False),
)
"""One row a measured cycle: a later submission of its kind starts warm."""

NODES: Final = sa.Table(
    "nodes",
    METADATA,
    sa.Column("agent", sa.String(256), primary_key=True),
    sa.Column("scheduler_epoch", sa.BigInteger, nullable=False),
    sa.Column("node_id", sa.String(128), nullable=False),
    sa.Column("is_member", sa.Boolean, nullable=False),
)
"""One row a node that an operator added; the configured ones have none."""

TOKENS: Final = sa.Table(
    "tokens",
    METADATA,
    sa.Column("token_id", sa.String(64), primary_key=True),
    sa.Column("scheduler_epoch", sa.BigInteger, nullable=False),
    sa.Column("tenant", sa.String(128), nullable=False),
    sa.Column("scope", sa.String(16), nullable=False),
    sa.Column("name", sa.String(256), nullable=False),
    sa.Column("hash", sa.LargeBinary(32), nullable=False),
    sa.Column("created_us", sa.BigInteger, nullable=False),
    sa.Column("expires_us", sa.BigInteger, nullable=False),
    sa.Column("revoked_us", sa.BigInteger, nullable=False),
)
"""One row a token that an operator made; the configured ones have none."""

MEMBERS: Final = sa.Table(
    "members",
    METADATA,
    sa.Column("serial", sa.String(64), primary_key=True),
    sa.Column("scheduler_epoch", sa.BigInteger, nullable=False),
    sa.Column("node_id", sa.String(128), nullable=False),
    sa.Column("token_id", sa.String(64), nullable=False),
    sa.Column("key", sa.String(64), nullable=False),
    sa.Column("certificate", sa.Text, nullable=False),
    sa.Column("issued_us", sa.BigInteger, nullable=False),
    sa.Column("expires_us", sa.BigInteger, nullable=False),
    sa.Column("shut_out_us", sa.BigInteger, nullable=False),
)
"""One row a certificate that a node was given."""

QUOTAS: Final = sa.Table(
    "quotas",
    METADATA,
    sa.Column("tenant", sa.String(128), primary_key=True),
    sa.Column("what", sa.String(32), primary_key=True),
    sa.Column("scheduler_epoch", sa.BigInteger, nullable=False),
    sa.Column("most", sa.BigInteger, nullable=False),
)
"""One row a quota that an operator set; its `most` is 0 once it is lifted."""

USAGE: Final = sa.Table(
    "usage",
    METADATA,
    sa.Column("job_id", sa.String(128), primary_key=True),
    sa.Column("kind", sa.String(32), primary_key=True),
    sa.Column("hour_us", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("scheduler_epoch", sa.BigInteger, nullable=False),
    sa.Column("count", sa.BigInteger, nullable=False),
    sa.Column("device_us", sa.BigInteger, nullable=False),
    sa.Column("switch_us", sa.BigInteger, nullable=False),
    sa.Column("tokens", sa.BigInteger, nullable=False),
    sa.Column("nbytes", sa.BigInteger, nullable=False),
    sa.Column("host_mib_s", sa.BigInteger, nullable=False),
)
"""What a job had used by a kind of work when it was read last in an hour: as on a meter, so that
to write it again counts nothing twice."""

RECORDS: Final = sa.Table(
    "records",
    METADATA,
    sa.Column("tenant", sa.String(128), primary_key=True),
    sa.Column("key", sa.String(512), primary_key=True),
    sa.Column("scheduler_epoch", sa.BigInteger, nullable=False),
    sa.Column("body", sa.LargeBinary, nullable=False),
)
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
