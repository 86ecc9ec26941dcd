"""Quotas of tenants, as operators set them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "quotas",
        sa.Column("tenant", sa.String(128), primary_key=True),
        sa.Column("what", sa.String(32), primary_key=True),
        sa.Column("scheduler_epoch", sa.BigInteger, nullable=False),
        sa.Column("most", sa.BigInteger, nullable=False),
    )


def downgrade() -> None:
    """Drop the table."""
    op.drop_table("quotas")
