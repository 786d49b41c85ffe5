"""redrive plan: what a bulk action would touch, written down, looked at, and then run by its digest."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from redrive.domain.errors import InvalidField
from redrive.domain.operations import RunOptions
from redrive.domain.plans import COUNTS, PAST, Action, Plan
from redrive.ops.plans import Preview

from . import values
from .carry import Canary, Detach, Export, Hold, NoExport, Rate, StopAt, carry_out, exported
from .choose import Filter, Include
from .common import Json, Limit, Note, Session, command, usage
from .edit import Labels, Priority, Tags
from .output import Counting, as_json, facts, plain, remark, say, table

Ids = Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="Jobs by id; or use --filter.")]
Number = Annotated[int, typer.Argument(metavar="PLAN", min=1, help="The plan's number.")]
ToQueue = Annotated[str | None, typer.Option("--to-queue", help="Send them to this queue.")]
ToType = Annotated[str | None, typer.Option("--to-type", help="Send them as this type.")]
Delay = Annotated[str | None, typer.Option("--delay", help="Start them only after this long, such as 10m.")]
DropKey = Annotated[bool, typer.Option("--drop-key", help="Give up idempotency keys that are held.")]


def add(group: typer.Typer) -> None:
    """Add the commands of this group."""
    command(group, "resurrect")(resurrect)
    command(group, "edit")(edit)
    command(group, "cancel")(cancel)
    command(group, "isolate")(isolate)
    command(group, "purge")(purge)
    command(group, "list")(list_plans)
    command(group, "show")(show)
    command(group, "run")(run)


def resurrect(
    session: Session,
    ids: Ids = None,
    filter: Filter = None,
    priority: Priority = None,
    tag: Tags = None,
    label: Labels = None,
    to_queue: ToQueue = None,
    to_type: ToType = None,
    delay: Delay = None,
    drop_key: DropKey = False,
    include: Include = None,
    json: Json = False,
) -> int:
    """Plan to send dead jobs back with a fresh life. Nothing moves until the plan is run."""
    options = chosen(
        priority=priority, tag=tag, label=label, to_queue=to_queue, to_type=to_type, delay=delay, drop_key=drop_key,
        include=include,
    )  # fmt: skip
    return _make(session, Action.RESURRECT, ids, filter, options, json=json)


def edit(
    session: Session,
    ids: Ids = None,
    filter: Filter = None,
    priority: Priority = None,
    tag: Tags = None,
    label: Labels = None,
    json: Json = False,
) -> int:
    """Plan to change tags, labels or priority of dead jobs, or with place=hot of those that wait."""
    return _make(session, Action.EDIT, ids, filter, chosen(priority=priority, tag=tag, label=label), json=json)


def cancel(session: Session, ids: Ids = None, filter: Filter = None, json: Json = False) -> int:
    """Plan to take unwanted work out; running handlers are asked to stop."""
    return _make(session, Action.CANCEL, ids, filter, {}, json=json)


def isolate(session: Session, ids: Ids = None, filter: Filter = None, json: Json = False) -> int:
    """Plan to take suspect work out of the way."""
    return _make(session, Action.ISOLATE, ids, filter, {}, json=json)


def purge(session: Session, ids: Ids = None, filter: Filter = None, json: Json = False) -> int:
    """Plan to delete dead jobs with all their evidence."""
    return _make(session, Action.PURGE, ids, filter, {}, json=json)


def chosen(
    *,
    priority: int | None = None,
    tag: list[str] | None = None,
    label: list[str] | None = None,
    to_queue: str | None = None,
    to_type: str | None = None,
    delay: str | None = None,
    drop_key: bool = False,
    include: list[str] | None = None,
) -> dict[str, Any]:
    """Options of a plan from those of a command."""
    given = {
        "priority": priority,
        "tags": None if tag is None else values.given(tag),
        "labels": None if label is None else values.labels(label),
        "queue": to_queue,
        "type": to_type,
        "delay": values.seconds("delay", delay),
        "drop_key": drop_key or None,
        "include": tuple(include) if include else None,
    }
    return {name: value for name, value in given.items() if value is not None}


def _make(
    session: Session, action: Action, ids: list[str] | None, filter: str | None, options: dict[str, Any], *, json: bool
) -> int:
    if bool(ids) == (filter is not None):
        usage("give ids, or --filter such as 'reason=zombie queue=mail', or --filter all")
    counting = Counting("planned")
    plan = session.desk.plans.make(
        action, filter=filter, ids=ids or None, options=options, progress=counting
    )  # fmt: skip
    counting.end()
    _tell(session.desk.plans.preview(plan.number), json=json)
    return 0


def _tell(preview: Preview, *, json: bool) -> None:
    plan = preview.plan
    if json:
        as_json(told(preview))
        return
    facts(
        [
            ("plan", plan.number), ("action", plan.action), ("state", plan.state), ("by", plan.actor),
            ("cut-off", plan.created_at), ("expires", plan.expires_at), *numbers(plan), ("digest", plan.digest),
            ("the same again", preview.command),
        ]
    )  # fmt: skip
    if preview.sample:
        say()
        table(
            ("job", "type", "queue", "reason", "error", "failed"),
            [(one.id, one.type, one.queue, one.reason, one.error_type, one.failed_at) for one in preview.sample],
        )
    if preview.arrived.number:
        more = "more than " if preview.arrived.capped else ""
        remark(f"{more}{preview.arrived.number} arrived since and are not in it: {', '.join(preview.arrived_ids)}")
    if plan.state == "ready":
        typed = f" --count {plan.counts.affected} --export FILE" if plan.action is Action.PURGE else ""
        remark(f"next: redrive plan run {plan.number} --digest {plan.short}{typed}")


def numbers(plan: Plan) -> list[tuple[str, object]]:
    """The counts of a plan as facts."""
    counts = plan.counts
    found = [("matched", counts.matched), ("will be " + PAST[plan.action], counts.affected)]
    found += [(f"skipped: {name}", number) for name, number in sorted(counts.skipped.items())]
    found += [(f"seen among the first: {name}", number) for name, number in sorted(counts.sampled.items())]
    return [(name, str(number)) for name, number in found]


def told(preview: Preview) -> dict[str, Any]:
    """A plan as JSON."""
    plan = preview.plan
    out = {name: plain(getattr(plan, name)) for name in ("number", "action", "state", "digest", "actor")}
    out |= {name: getattr(plan.counts, name) for name in COUNTS}
    out |= {"skipped": dict(plan.counts.skipped), "sampled": dict(plan.counts.sampled)}
    out |= {"options": plan.options.given(), "cut_off": plan.created_at, "expires_at": plan.expires_at}
    out |= {"sample": [str(one.id) for one in preview.sample], "command": preview.command}
    return out | {"arrived_since": preview.arrived.number, "arrived": list(preview.arrived_ids)}


def list_plans(session: Session, limit: Limit = 50, json: Json = False) -> None:
    """List plans, newest first."""
    found = session.store.plans(limit=limit)
    if json:
        as_json([told(Preview(one, (), session.store.arrived_since(one)[0], (), "")) for one in found])
        return
    if not found:
        remark("no plans: redrive plan resurrect --filter 'reason=zombie'")
        return
    table(
        ("plan", "action", "state", "matched", "affected", "by", "cut-off", "expires"),
        [
            (one.number, one.action, one.state, one.counts.matched, one.counts.affected, one.actor, one.created_at,
             one.expires_at)
            for one in found
        ],
    )  # fmt: skip


def show(session: Session, number: Number, json: Json = False) -> None:
    """Show a plan: counts, a sample, what has arrived since, and its digest."""
    _tell(session.desk.plans.preview(number), json=json)


def run(
    session: Session,
    number: Number,
    digest: Annotated[str, typer.Option("--digest", help="The plan's digest, or its first 12 digits.")],
    count: Annotated[int | None, typer.Option("--count", help="Of a purge: how many jobs it deletes.")] = None,
    export: Export = None,
    no_export: NoExport = False,
    rate: Rate = None,
    canary: Canary = None,
    stop_at: StopAt = None,
    hold: Hold = None,
    detach: Detach = False,
    note: Note = None,
    json: Json = False,
) -> int:
    """Run a plan, once: what was previewed, at the versions that were previewed. Ctrl-C pauses it.

    Running it again goes on with the operation it has. Exit code 1 when some jobs were skipped or failed.
    """
    plan = session.desk.plans.get(number)
    plan.check_digest(digest)
    options = RunOptions(rate, canary, stop_at, values.seconds("hold", hold))
    with exported(export) as target:
        operation, fresh = session.desk.plans.run(
            number, digest=digest, options=options, count=count, export=target, exported=no_export, note=note
        )
    if not fresh:
        remark(f"plan {number} has been run: it is operation {operation.number}")
        if options != RunOptions() and options != operation.options:
            raise InvalidField("options", "cannot be changed any more", expected="none, to go on with the operation")
    return carry_out(session, operation, PAST[plan.action], detach=detach, json=json)
