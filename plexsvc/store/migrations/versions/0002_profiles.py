"""Measured cycles, for warm starts."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "profiles",
        sa.Column("tenant", sa.String(128), primary_key=True),
        sa.Column("model", sa.String(512), primary_key=True),
        sa.Column("layout", sa.String(256), primary_key=True),
        sa.Column("name", sa.String(512), primary_key=True),
        sa.Column("scheduler_epoch", sa.BigInteger, nullable=False),
        sa.Column("at_us", sa.BigInteger, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
    )


def downgrade() -> None:
    """Drop the table."""
    op.drop_table("profiles")
