"""Oldest schema that is upgraded: `tables` makes it in a new database; later ones alter it."""

from __future__ import annotations

revision = "0011"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Alter nothing: a database of this version has its tables."""
