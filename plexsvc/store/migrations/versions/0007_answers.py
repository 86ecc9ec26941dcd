"""Answers of operations that no rank has on record, for the next scheduler."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; answers from before are not known."""
    column = sa.Column("answer", sa.LargeBinary, nullable=False, server_default="")
    op.add_column("operations", column)


def downgrade() -> None:
    """Drop the column."""
    op.drop_column("operations", "answer")
