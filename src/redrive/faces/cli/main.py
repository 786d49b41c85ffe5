"""The command line. Exit codes: 0 done, 1 refused or partly failed, 2 wrong usage."""

from __future__ import annotations

import os
import sys
import traceback
from importlib.metadata import version
from typing import Annotated

import typer

from redrive.config import DEBUG_VARIABLE

from . import circuits, db, dlq, doctor, edit, enqueue, jobs, look, ops, plan, queues, schedules, start, work, workers
from .common import REFUSED, group
from .output import remark

app = typer.Typer(
    name="redrive",
    help="Background jobs whose failures can be repaired.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"redrive {version('redrive')}\n")
        raise typer.Exit


@app.callback()
def root(
    _: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")] = False,
) -> None:
    """Background jobs whose failures can be repaired.

    The database comes from --database, REDRIVE_DATABASE_URL or redrive.toml. Exit codes: 0 done, 1 refused or partly
    failed, 2 wrong usage.
    """


start.add(app)
work.add(app)
enqueue.add(app)
_jobs = group(app, "jobs", "Look at any job, and act on those that wait.")
jobs.add(_jobs)
edit.add(_jobs)
dlq.add(group(app, "dlq", "The dead letter queue: look, repair, send back, delete."))
plan.add(group(app, "plan", "Bulk actions: exactly which jobs, looked at first, then run by the plan's digest."))
ops.add(group(app, "ops", "Plans being run: progress, pause, resume, cancel, take back."))
queues.add(group(app, "queues", "What is in the queues, and their settings."))
schedules.add(group(app, "schedules", "Periodic jobs: when they are due, and whether they are paused."))
circuits.add(group(app, "circuits", "Breakers: which dependencies keep their jobs off, and why."))
workers.add(app)
look.add(
    app,
    group(app, "archive", "Jobs that succeeded."),
    group(app, "audit", "Who did what, and whether the record is intact."),
)
db.add(group(app, "db", "The database's schema."))
doctor.add(app)


def main() -> None:
    """Run the command of this process's arguments."""
    try:
        app(prog_name="redrive")
    except Exception as error:  # the last door: a person gets words, a developer the traceback on request
        if os.environ.get(DEBUG_VARIABLE):
            traceback.print_exc()
        remark(f"redrive: {type(error).__name__}: {error}")
        remark(f"this was not expected; {DEBUG_VARIABLE}=1 shows where it happened")
        sys.exit(REFUSED)
