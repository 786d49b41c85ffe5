"""redrive jobs: look at any job, and act on those that wait."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from redrive.domain.filters import JobFilter, PageRequest, Sort
from redrive.domain.lifecycle import Wish
from redrive.domain.states import HotState, Place, Verb
from redrive.ops.inputs import targets

from . import values, views
from .answers import report
from .common import Cursor, Json, Limit, Note, Queue, Session, Type, command
from .output import as_json

Id = Annotated[str, typer.Argument(metavar="ID", help="The job's id.")]
Some = Annotated[list[str], typer.Argument(metavar="ID...", help="Jobs by id.")]


def add(jobs: typer.Typer) -> None:
    """Add the commands of this group."""
    command(jobs, "list")(list_jobs)
    command(jobs, "show")(show)
    command(jobs, "cancel")(cancel)
    command(jobs, "isolate")(isolate)
    command(jobs, "run-now")(run_now)


def list_jobs(
    session: Session,
    place: Annotated[Place, typer.Option("--place", help="Which table.")] = Place.HOT,
    state: Annotated[HotState | None, typer.Option("--state", help="Only hot jobs in this state.")] = None,
    queue: Queue = None,
    type: Type = None,
    key: Annotated[str | None, typer.Option("--key", help="Only the jobs with this idempotency key.")] = None,
    finished_after: Annotated[str | None, typer.Option("--finished-after", metavar="TIME", help="Archive.")] = None,
    finished_before: Annotated[str | None, typer.Option("--finished-before", metavar="TIME", help="Archive.")] = None,
    sort: Annotated[Sort | None, typer.Option("--sort", help="Order; by default that of the place.")] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
    json: Json = False,
) -> None:
    """List jobs of one place: hot (waiting and running), archive (succeeded) or dlq (dead)."""
    wanted = JobFilter(
        place=place,
        state=state,
        queue=queue,
        type=type,
        key=key,
        finished_after=values.moment("finished_after", finished_after),
        finished_before=values.moment("finished_before", finished_before),
    )
    views.page(place, session.insight.jobs(wanted, PageRequest(limit, cursor, sort)), json=json)


def show(
    session: Session,
    job: Id,
    json: Json = False,
    payload: Annotated[bool, typer.Option("--payload", help="Only the payload, byte for byte, for a file.")] = False,
) -> None:
    """Show one job wherever it is: why it is there, whether it may run again, payload, ledger, revisions."""
    if payload:
        sys.stdout.buffer.write(session.desk.get(job).payload)
        sys.stdout.buffer.flush()
        return
    explained = session.insight.explain(job)
    if json:
        as_json(views.explained_json(explained))
    else:
        views.explained(explained)


def cancel(session: Session, jobs: Some, note: Note = None, json: Json = False) -> int:
    """Cancel jobs that wait; running ones are asked to stop."""
    return _act(session, Verb.CANCEL, "cancelled", jobs, note, json)


def isolate(session: Session, jobs: Some, note: Note = None, json: Json = False) -> int:
    """Take jobs that wait out of the way, into the dead letter queue, to be judged."""
    return _act(session, Verb.ISOLATE, "isolated", jobs, note, json)


def run_now(session: Session, jobs: Some, note: Note = None, json: Json = False) -> int:
    """Let scheduled jobs start at once."""
    return _act(session, Verb.RUN_NOW, "made due", jobs, note, json)


def _act(session: Session, verb: Verb, done: str, jobs: list[str], note: str | None, json: bool) -> int:
    found = list(targets(jobs))
    return report(done, session.desk.act(Wish(verb), found, note=note), total=len(found), json=json)
