"""Jobs and deployments as their clients know them, for the next scheduler."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

TABLES = ("jobs", "deployments")


def upgrade() -> None:
    """Add the column; what was written before has an empty one."""
    for table in TABLES:
        column = sa.Column("record", sa.LargeBinary, nullable=False, server_default="")
        op.add_column(table, column)


def downgrade() -> None:
    """Drop the column."""
    for table in TABLES:
        op.drop_column(table, "record")
