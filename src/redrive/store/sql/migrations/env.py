"""Alembic's environment: a connection is handed in, or the statements are written out."""

from typing import Any

from alembic import context

from redrive.store.sql import migrate, tables_later  # noqa: F401 - loads every table into the metadata
from redrive.store.sql.tables import metadata

attributes = context.config.attributes
common: dict[str, Any] = {"target_metadata": metadata, "version_table": migrate.VERSION_TABLE}

if context.is_offline_mode():
    context.configure(dialect_name=attributes["dialect"], literal_binds=True, **common)
else:
    context.configure(connection=attributes["connection"], render_as_batch=True, **common)

with context.begin_transaction():
    context.run_migrations()
