"""redrive db: the schema."""

from __future__ import annotations

import sys

import typer

from .common import DONE, REFUSED, Session, command
from .output import remark, say


def add(group: typer.Typer) -> None:
    """Add the commands of this group."""
    command(group, "upgrade", creates=True)(upgrade)
    command(group, "check")(check)
    command(group, "sql")(sql)


def upgrade(session: Session) -> None:
    """Bring the schema to the newest version; safe to run anywhere, any number of times."""
    before = session.store.schema_state()
    session.store.upgrade()
    after = session.store.schema_state()
    if before.current == after.current:
        say(f"the schema is at {after.head}: nothing to do")
    else:
        say(f"upgraded from {before.current or 'nothing'} to {after.current}")


def check(session: Session) -> int:
    """Say whether the schema is the one this version needs. Exit code 1 when it is not."""
    state = session.store.schema_state()
    if state.ready:
        say(f"the schema is at {state.head}, as needed")
        return DONE
    say(f"the schema is at {state.current or 'nothing'}, needed is {state.head}")
    remark("next: redrive db upgrade")
    return REFUSED


def sql(session: Session) -> None:
    """Print the statements of an upgrade from an empty database, for whoever runs them by hand."""
    url = session.settings.database.url
    if url is not None and url.reveal().startswith("sqlite"):
        session.app.override(url="sqlite://")  # the file need not be there, and is not made by asking
    session.app.creates = True
    sys.stdout.write(session.store.upgrade_sql().rstrip() + "\n")
