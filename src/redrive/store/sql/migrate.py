"""Migrations: one linear history for both databases, run by Alembic from inside the package.

Alembic is imported inside the functions: it is slow to load, and only these calls need it.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, text

if TYPE_CHECKING:
    from alembic.config import Config

VERSION_TABLE = "redrive_version"
_MIGRATIONS = Path(__file__).parent / "migrations"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _config(**attributes: Any) -> Config:
    from alembic.config import Config

    config = Config(output_buffer=attributes.pop("output", None))
    # A percent sign in the path would be read as interpolation.
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    config.attributes.update(attributes)
    return config


def head() -> str:
    """The newest version this code knows."""
    from alembic.script import ScriptDirectory

    newest = ScriptDirectory.from_config(_config()).get_current_head()
    assert newest is not None
    return newest


def current(connection: Connection, *, schema: str | None) -> str | None:
    """The database's version; None before the first migration."""
    from sqlalchemy import inspect

    if not inspect(connection).has_table(VERSION_TABLE, schema=schema):
        return None
    prefix = f"{_quoted(schema)}." if schema else ""
    row = connection.execute(text(f"SELECT version_num FROM {prefix}{VERSION_TABLE}")).first()
    return None if row is None else str(row[0])


def run(connection: Connection, *, schema: str | None) -> None:
    """Upgrade to the newest version inside the caller's transaction."""
    from alembic import command

    if schema is not None:
        connection.exec_driver_sql("SELECT set_config('search_path', %s, true)", (_quoted(schema),))
    command.upgrade(_config(connection=connection, schema=schema), "head")


def script(dialect: str, *, schema: str | None) -> str:
    """The statements of an upgrade from nothing."""
    from alembic import command

    output = io.StringIO()
    if schema is not None:
        output.write(f"CREATE SCHEMA IF NOT EXISTS {_quoted(schema)};\nSET search_path TO {_quoted(schema)};\n\n")
    command.upgrade(_config(output=output, dialect=dialect, schema=schema), "head", sql=True)
    return output.getvalue()
