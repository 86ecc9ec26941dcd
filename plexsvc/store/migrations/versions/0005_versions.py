"""Published versions of deployments, for the next scheduler."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; of what was written before no version is known."""
    column = sa.Column("versions", sa.LargeBinary, nullable=False, server_default="")
    op.add_column("deployments", column)


def downgrade() -> None:
    """Drop the column."""
    op.drop_column("deployments", "versions")
