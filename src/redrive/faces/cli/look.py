"""redrive archive, types, audit: the rest that is looked at."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import typer

from redrive.domain.circuit import CircuitState
from redrive.domain.errors import Conflict, NotFound
from redrive.domain.filters import JobFilter, PageRequest
from redrive.domain.states import Place
from redrive.ops.inputs import targets
from redrive.store.port import TypeView

from . import values, views
from .common import DONE, REFUSED, Cursor, Json, Limit, Note, Queue, Session, Type, Yes, command, confirm
from .output import Counting, as_json, plain, remark, say, span, table

Some = Annotated[list[str], typer.Argument(metavar="ID...", help="Jobs by id.")]


def add(app: typer.Typer, archive: typer.Typer, audit: typer.Typer) -> None:
    """Add the commands."""
    command(archive, "list")(list_archive)
    command(archive, "copy")(copy_archived)
    command(archive, "purge")(purge_archive)
    command(app, "types")(types)
    command(audit, "list")(list_audit)
    command(audit, "verify")(verify)


def list_archive(
    session: Session,
    queue: Queue = None,
    type: Type = None,
    finished_after: Annotated[str | None, typer.Option("--finished-after", metavar="TIME", help="Or 2h ago.")] = None,
    finished_before: Annotated[str | None, typer.Option("--finished-before", metavar="TIME", help="Or 2h ago.")] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
    json: Json = False,
) -> None:
    """List jobs that succeeded, newest first."""
    wanted = JobFilter(
        place=Place.ARCHIVE,
        queue=queue,
        type=type,
        finished_after=values.moment("finished_after", finished_after),
        finished_before=values.moment("finished_before", finished_before),
    )
    views.page(Place.ARCHIVE, session.insight.jobs(wanted, PageRequest(limit, cursor)), json=json)


def copy_archived(
    session: Session,
    jobs: Some,
    drop_key: Annotated[bool, typer.Option("--drop-key", help="Without their idempotency keys.")] = False,
    note: Note = None,
    json: Json = False,
) -> int:
    """Enqueue what jobs carried that succeeded once more, as new jobs."""
    made: list[dict[str, str]] = []
    code = DONE
    for job, _ in targets(jobs):
        try:
            made.append({"id": str(job), "copy": str(session.desk.copy(job, drop_key=drop_key, note=note))})
        except (NotFound, Conflict) as error:
            code = REFUSED
            remark(f"{job} not copied: {error}")
    if json:
        as_json(made)
    else:
        for one in made:
            say(f"{one['id']} copied as {one['copy']}")
    return code


def purge_archive(
    session: Session,
    older_than: Annotated[str, typer.Option("--older-than", metavar="AGE", help="Such as 90d.")],
    note: Note = None,
    yes: Yes = False,
) -> None:
    """Delete jobs that succeeded longer ago than that, for good."""
    age = values.duration("older_than", older_than)
    confirm(f"delete archived jobs older than {older_than} for good?", yes=yes)
    counting = Counting("purged")
    number = session.desk.purge_archive(age, note=note, progress=counting)
    counting.end()
    say(f"{number} archived jobs purged")


def types(session: Session, json: Json = False) -> None:
    """List the types that workers have announced."""
    found = session.store.types()
    if json:
        as_json([plain(view) for view in found])
        return
    if not found:
        remark("no types: workers announce theirs when they start")
        return
    states = {circuit.name: circuit.state for circuit in session.insight.circuits()}
    table(
        ("type", "build", "queue", "idempotent", "attempts", "timeout", "circuit", "owner", "seen"),
        [
            (
                view.type, view.build, view.queue, view.idempotent, view.retry.get("max_attempts"),
                span(view.timeout), _circuit(view, states), view.owner, view.seen_at,
            )
            for view in found
        ],
    )  # fmt: skip


def _circuit(view: TypeView, states: Mapping[str, CircuitState]) -> str | None:
    """The type's circuit, with its state where it is not closed."""
    if view.breaker is None:
        return None
    name: str = view.breaker["name"]
    state = states.get(name, CircuitState.CLOSED)
    return name if state is CircuitState.CLOSED else f"{name} ({state})"


def list_audit(
    session: Session,
    target: Annotated[
        str | None, typer.Option("--target", help="Only this: a job's id, or such as 'queue mail'.")
    ] = None,
    by: Annotated[str | None, typer.Option("--by", help="Only what this actor did.")] = None,
    before: Annotated[int | None, typer.Option("--before", help="Entries before this number.")] = None,
    limit: Limit = 50,
    json: Json = False,
) -> None:
    """List who did what, newest first."""
    found = session.store.audit_entries(limit=limit, before=before, target=target, actor=by)
    if json:
        as_json([plain(entry) for entry in found])
        return
    if not found:
        remark("no entries")
        return
    table(
        ("no.", "at", "actor", "through", "action", "target", "result", "note"),
        [
            (one.id, one.at, one.actor, one.channel, one.action, one.target, one.result, one.note) for one in found
        ],
    )  # fmt: skip
    if len(found) == limit:
        remark(f"more: --before {found[-1].id}")


def verify(session: Session, json: Json = False) -> int:
    """Recompute the hashes of the audit log and the chain of its seals. Exit code 1 when something was changed."""
    while session.store.seal_audit():
        pass
    verdict = session.store.verify_audit()
    if json:
        as_json(plain(verdict))
    else:
        for problem in verdict.problems:
            say(f"BROKEN: {problem}")
        kept = "the log is as it was written" if not verdict.problems else f"{len(verdict.problems)} problems"
        say(f"{verdict.entries} entries, {verdict.seals} seals, {verdict.unsealed} not sealed yet: {kept}")
    return REFUSED if verdict.problems else DONE
