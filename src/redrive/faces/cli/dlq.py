"""redrive dlq: the dead letter queue. Look, repair, send back, delete."""

from __future__ import annotations

from typing import Annotated

import typer

from redrive.domain.filters import PageRequest
from redrive.domain.lifecycle import Wish
from redrive.domain.plans import Action
from redrive.domain.states import Place, Verb
from redrive.ops.inputs import targets

from . import edit, jobs, resurrect, transfer, views
from .answers import report
from .carry import Export, NoExport, carry_out, exported
from .choose import (
    Cancelled,
    FailedAfter,
    FailedBefore,
    Filter,
    Ids,
    Incident,
    Label,
    ReasonName,
    Tag,
    Words,
    dead,
    not_both,
    planned,
    selected,
)
from .common import Cursor, Json, Limit, Note, Queue, Session, Type, command, usage
from .output import as_json, table


def add(group: typer.Typer) -> None:
    """Add the commands of this group."""
    command(group, "list")(list_dead)
    command(group, "show")(jobs.show)
    edit.add(group)
    resurrect.add(group)
    command(group, "take-back")(take_back)
    command(group, "purge")(purge)
    transfer.add(group)


def list_dead(
    session: Session,
    queue: Queue = None,
    type: Type = None,
    reason: ReasonName = None,
    incident: Incident = None,
    with_tag: Tag = None,
    with_label: Label = None,
    q: Words = None,
    failed_after: FailedAfter = None,
    failed_before: FailedBefore = None,
    cancelled: Cancelled = False,
    summary: Annotated[bool, typer.Option("--summary", help="Only how many there are by reason.")] = False,
    limit: Limit = 50,
    cursor: Cursor = None,
    json: Json = False,
) -> None:
    """List dead jobs, newest first."""
    if summary:
        counts = session.store.dead_by_reason(queue)
        if json:
            as_json(counts)
        else:
            table(("reason", "jobs"), list(counts.items()))
        return
    wanted = dead(
        queue=queue, type=type, reason=reason, incident=incident, tag=with_tag, label=with_label, q=q,
        failed_after=failed_after, failed_before=failed_before, cancelled=cancelled,
    )  # fmt: skip
    views.page(Place.DLQ, session.insight.jobs(wanted, PageRequest(limit, cursor)), json=json)


def take_back(
    session: Session,
    ids: Annotated[list[str], typer.Argument(metavar="ID...", help="Jobs by id.")],
    note: Note = None,
    json: Json = False,
) -> int:
    """Undo resurrections whose jobs have not started yet."""
    answers = session.desk.act(Wish(Verb.TAKE_BACK), targets(ids), note=note)
    return report("taken back", answers, total=len(ids), json=json)


def purge(
    session: Session,
    ids: Ids = None,
    queue: Queue = None,
    type: Type = None,
    reason: ReasonName = None,
    incident: Incident = None,
    with_tag: Tag = None,
    with_label: Label = None,
    q: Words = None,
    failed_after: FailedAfter = None,
    failed_before: FailedBefore = None,
    cancelled: Cancelled = False,
    filter: Filter = None,
    count: Annotated[int | None, typer.Option("--count", help="How many it deletes, instead of typing it.")] = None,
    export: Export = None,
    no_export: NoExport = False,
    note: Note = None,
    json: Json = False,
) -> int:
    """Delete dead jobs with all their evidence, for good: by ids, or by filters.

    By filters a plan is made, its number of jobs has to be typed, and they are exported first or --no-export is said.
    """
    if ids:
        not_both(filter, queue, type, reason, incident, with_tag, with_label, q, failed_after, failed_before, cancelled)
        # Only dead ones: what succeeded is removed by archive purge, by its age.
        answers = session.desk.act(Wish(Verb.PURGE, place=Place.DLQ), targets(ids), note=note)
        return report("purged", answers, total=len(ids), json=json)
    wanted = selected(
        session, filter, queue=queue, type=type, reason=reason, incident=incident, tag=with_tag, label=with_label, q=q,
        failed_after=failed_after, failed_before=failed_before, cancelled=cancelled,
    )  # fmt: skip
    if export is None and not no_export:
        usage("what becomes of the evidence? --export FILE writes the jobs there first, --no-export does not")
    plan = planned(session, Action.PURGE, wanted, {}, count=count)
    if plan is None:
        return 0
    with exported(export) as target:
        operation, _ = session.desk.plans.run(
            plan, count=plan.counts.affected, export=target, exported=no_export, note=note
        )
    return carry_out(session, operation, "purged", json=json)
