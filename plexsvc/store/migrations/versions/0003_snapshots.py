"""Snapshots of a scheduler's core, from which its journal goes on."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "snapshots",
        sa.Column("scheduler_epoch", sa.BigInteger, primary_key=True),
        sa.Column("idx", sa.BigInteger, primary_key=True),
        sa.Column("at_us", sa.BigInteger, nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.ForeignKeyConstraint(["scheduler_epoch"], ["scheduler_epochs.scheduler_epoch"]),
    )


def downgrade() -> None:
    """Drop the table."""
    op.drop_table("snapshots")
