"""Alembic's entry: runs migrations on the connection that `store.opening.migrate` passes."""

from __future__ import annotations

from alembic import context

from plexsvc.store.tables import METADATA

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=METADATA,
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
