"""Epochs, journal, jobs, deployments, operations."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "scheduler_epochs",
        sa.Column("scheduler_epoch", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("started_us", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "journal",
        sa.Column("scheduler_epoch", sa.BigInteger, primary_key=True),
        sa.Column("idx", sa.BigInteger, primary_key=True),
        sa.Column("at_us", sa.BigInteger, nullable=False),
        sa.Column("kind", sa.String(64), nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
        sa.ForeignKeyConstraint(["scheduler_epoch"], ["scheduler_epochs.scheduler_epoch"]),
    )
    _create_jobs()
    _create_deployments()
    _create_operations()


def downgrade() -> None:
    """Drop the tables."""
    for table in ("operations", "deployments", "jobs", "journal", "scheduler_epochs"):
        op.drop_table(table)


def _create_jobs() -> None:
    op.create_table(
        "jobs",
        sa.Column("job_id", sa.String(128), primary_key=True),
        sa.Column("tenant", sa.String(128), nullable=False),
        sa.Column("scheduler_epoch", sa.BigInteger, nullable=False),
        sa.Column("name", sa.String(256), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("exit_code", sa.Integer, nullable=True),
        sa.Column("created_us", sa.BigInteger, nullable=False),
        sa.Column("ended_us", sa.BigInteger, nullable=False),
    )
    op.create_index("jobs_by_tenant", "jobs", ["tenant", "created_us"])


def _create_deployments() -> None:
    op.create_table(
        "deployments",
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
    )
    op.create_index("deployments_by_job", "deployments", ["job_id"])


def _create_operations() -> None:
    op.create_table(
        "operations",
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
    )
    op.create_index("operations_by_deployment", "operations", ["deployment_id", "seq"])
