"""Certificates of the nodes that joined."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "members",
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
