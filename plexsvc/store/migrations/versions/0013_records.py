"""Records that routers keep for clients without state of their own."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "records",
        sa.Column("tenant", sa.String(128), primary_key=True),
        sa.Column("key", sa.String(512), primary_key=True),
        sa.Column("scheduler_epoch", sa.BigInteger, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
    )
