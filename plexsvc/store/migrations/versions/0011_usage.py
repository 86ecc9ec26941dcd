"""What jobs have used, read as from a meter."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "usage",
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


def downgrade() -> None:
    """Drop the table."""
    op.drop_table("usage")
