"""Operations that a durable deployment runs again when it is rebuilt."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "kept_operations",
        sa.Column("deployment_id", sa.String(256), primary_key=True),
        sa.Column("slot", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("scheduler_epoch", sa.BigInteger, nullable=False),
        sa.Column("seq", sa.BigInteger, nullable=False),
        sa.Column("operation", sa.LargeBinary, nullable=False),
        sa.Column("staged_on", sa.Text, nullable=False),
        sa.Column("digest", sa.String(128), nullable=False),
        sa.Column("error_code", sa.String(32), nullable=False),
    )
