"""Nodes that operators added, for the next scheduler."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "nodes",
        sa.Column("agent", sa.String(256), primary_key=True),
        sa.Column("scheduler_epoch", sa.BigInteger, nullable=False),
        sa.Column("node_id", sa.String(128), nullable=False),
        sa.Column("is_member", sa.Boolean, nullable=False),
    )


def downgrade() -> None:
    """Drop the table."""
    op.drop_table("nodes")
