"""redrive dlq resurrect: back into the normal path, repaired on the way or not, one job or many."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from redrive.domain.edits import UNSET, JobEdit, check_edit
from redrive.domain.errors import InvalidField, NotAllowed
from redrive.domain.lifecycle import Wish
from redrive.domain.operations import RunOptions
from redrive.domain.plans import Action
from redrive.domain.states import Place, Verb
from redrive.ops.inputs import due, targets

from . import output, values
from .answers import report
from .carry import Canary, Detach, Hold, Rate, StopAt, carry_out
from .choose import (
    Cancelled,
    FailedAfter,
    FailedBefore,
    Filter,
    Ids,
    Incident,
    Include,
    Label,
    ReasonName,
    Tag,
    Words,
    not_both,
    planned,
    selected,
)
from .common import Json, Note, Queue, Session, Type, Yes, command, confirm, usage
from .edit import Key, Labels, PayloadFile, PayloadText, Priority, Raw, Tags, Version, about_key, new_payload
from .output import remark, say


def add(group: typer.Typer) -> None:
    """Add the command."""
    command(group, "resurrect")(resurrect)


def resurrect(
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
    payload: PayloadText = None,
    file: PayloadFile = None,
    repair: Annotated[bool, typer.Option("--repair", help="Apply the suggested repair, after showing it.")] = False,
    revision: Annotated[int | None, typer.Option("--revision", help="Take the payload of this revision.")] = None,
    raw: Raw = False,
    priority: Priority = None,
    tag: Tags = None,
    label: Labels = None,
    to_queue: Annotated[str | None, typer.Option("--to-queue", help="Send it to this queue.")] = None,
    to_type: Annotated[str | None, typer.Option("--to-type", help="Send it as this type.")] = None,
    delay: Annotated[str | None, typer.Option("--delay", help="Start it only after this long, such as 10m.")] = None,
    key: Key = None,
    drop_key: Annotated[bool, typer.Option("--drop-key", help="Give up an idempotency key that is held.")] = False,
    version: Version = None,
    include: Include = None,
    rate: Rate = None,
    canary: Canary = None,
    stop_at: StopAt = None,
    hold: Hold = None,
    detach: Detach = False,
    note: Note = None,
    yes: Yes = False,
    json: Json = False,
) -> int:
    """Send dead jobs back with a fresh life. Payload options, --key and --version go with one id.

    By ids, or by filters: then a plan is made, its number of jobs shown and confirmed, and run; what was changed since
    is skipped. --rate, --canary, --stop-at, --hold and --detach go with filters. Ctrl-C pauses.
    """
    changes: dict[str, Any] = {
        "tags": values.given(tag),
        "labels": UNSET if label is None else values.labels(label),
        "priority": UNSET if priority is None else priority,
        "queue": UNSET if to_queue is None else to_queue,
        "type": UNSET if to_type is None else to_type,
    }
    wait = values.seconds("delay", delay)
    if key is not None:
        changes["idempotency_key"] = key
    if repair or any(option is not None for option in (payload, file, revision, version, key)):
        if ids is None or len(ids) != 1:
            usage("--payload, --file, --repair, --revision, --key and --version go with exactly one id")
        source = sum(bool(option is not None) for option in (payload, file, revision)) + repair
        if source > 1:
            usage("give one of --payload, --file, --repair, --revision")
        return _one(
            session, ids[0], changes, payload=payload, file=file, repair=repair, revision=revision, raw=raw,
            run_after=wait, drop_key=drop_key, version=version, note=note, yes=yes,
        )  # fmt: skip
    if ids:
        not_both(filter, queue, type, reason, incident, with_tag, with_label, q, failed_after, failed_before, cancelled)
        if detach or any(option is not None for option in (include, rate, canary, stop_at, hold)):
            usage("--include, --rate, --canary, --stop-at, --hold and --detach go with filters")
        edit = check_edit(JobEdit(**changes), payload_limit=session.settings.limits.payload)
        wish = Wish(Verb.RESURRECT, edit, due(wait, "delay"), drop_key)
        found = list(targets(ids))
        return report("resurrected", session.desk.act(wish, found, note=note), total=len(found), json=json)
    wanted = selected(
        session, filter, queue=queue, type=type, reason=reason, incident=incident, tag=with_tag, label=with_label, q=q,
        failed_after=failed_after, failed_before=failed_before, cancelled=cancelled,
    )  # fmt: skip
    options = {name: value for name, value in changes.items() if value is not UNSET}
    options |= {"delay": wait} if wait is not None else {}
    options |= {"drop_key": True} if drop_key else {}
    options |= {"include": tuple(include)} if include else {}
    plan = planned(session, Action.RESURRECT, wanted, options, yes=yes)
    if plan is None:
        return 0
    run = RunOptions(rate, canary, stop_at, values.seconds("hold", hold))
    operation, _ = session.desk.plans.run(plan, options=run, note=note)
    return carry_out(session, operation, "resurrected", detach=detach, json=json)


def _one(
    session: Session,
    job: str,
    changes: dict[str, Any],
    *,
    payload: str | None,
    file: str | None,
    repair: bool,
    revision: int | None,
    raw: bool,
    version: int | None,
    yes: bool,
    **options: Any,
) -> int:
    desk = session.desk
    record = desk.get(job)
    if record.head.place is not Place.DLQ:
        raise NotAllowed("resurrect", record.head.spot, "only a dead job can be resurrected")
    if repair:
        suggestion = session.insight.explain(record.head.id).suggestion
        if suggestion is None:
            raise InvalidField("repair", "there is no suggestion for this payload", expected="--payload or --file")
        say(f"suggested repair: {suggestion.what}")
        output.diff(suggestion.diff)
        confirm("apply it and resurrect?", yes=yes or suggestion.exact)
        changes["payload"] = suggestion.payload
    elif revision is not None:
        changes["revision"] = revision
    else:
        changes["payload"], _ = new_payload(record, payload, file, editor=False, raw=raw)
    answer = desk.resurrect(
        record.head.id, **changes, version=record.head.version if version is None else version, **options
    )
    say(f"resurrected: job {record.head.id} is at version {answer.version}, life {record.head.life + 1}")
    left = session.store.head(record.head.id)
    about_key(record, changes.get("payload", UNSET), UNSET if left is None else left.idempotency_key)
    remark(f"next: redrive jobs show {record.head.id}")
    return 0
