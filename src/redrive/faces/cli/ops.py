"""redrive ops: operations under way and past, and their reins."""

from __future__ import annotations

from typing import Annotated

import typer

from redrive.domain.operations import Operation, OperationState
from redrive.domain.plans import PAST, Action

from .carry import Detach, carry_out, told
from .common import DONE, REFUSED, Json, Limit, Note, Session, command
from .output import as_json, facts, plain, remark, say, span, table

Number = Annotated[int, typer.Argument(metavar="OPERATION", min=1, help="The operation's number.")]


def add(group: typer.Typer) -> None:
    """Add the commands of this group."""
    command(group, "list")(list_operations)
    command(group, "show")(show)
    command(group, "run")(run)
    command(group, "pause")(pause)
    command(group, "resume")(resume)
    command(group, "cancel")(cancel)
    command(group, "take-back")(take_back)


def list_operations(session: Session, limit: Limit = 50, json: Json = False) -> None:
    """List operations, newest first."""
    found = session.store.operations(limit=limit)
    if json:
        as_json([told(one) for one in found])
        return
    if not found:
        remark("no operations: redrive plan run begins one")
        return
    table(
        ("operation", "plan", "action", "state", "done", "of", "skipped", "failed", "eta", "by", "started"),
        [
            (one.number, one.plan, one.action, one.state, one.progress.done, one.progress.total,
             sum(one.progress.skipped.values()), one.progress.failed, span(one.eta), one.actor, one.started_at)
            for one in found
        ],
    )  # fmt: skip


def show(session: Session, number: Number, limit: Limit = 50, json: Json = False) -> None:
    """Show an operation: progress, what became of its jobs, and what it left out."""
    operation = session.desk.operations.get(number)
    outcomes = session.desk.operations.outcomes(operation)
    left = session.desk.operations.left_out(operation, limit=limit)
    if json:
        as_json(told(operation) | {"outcomes": plain(outcomes), "left_out": plain(left)})
        return
    progress = operation.progress
    pairs: list[tuple[str, object]] = [
        ("operation", operation.number), ("plan", operation.plan), ("action", operation.action),
        ("state", operation.state), ("why", progress.why), ("by", operation.actor), ("note", operation.note),
        ("started", operation.started_at), ("finished", operation.finished_at), ("run by", operation.owner),
        (PAST[Action(operation.action)], f"{progress.moved} of {progress.total}"),
        *((f"skipped: {name}", one) for name, one in sorted(progress.skipped.items())),
        ("failed", progress.failed or None), ("unchanged", progress.unchanged or None), ("left", operation.left),
        ("rows per second", f"{operation.pace:.0f}" if operation.pace else None),
        ("eta", None if operation.eta is None else span(operation.eta)),
    ]  # fmt: skip
    if outcomes is not None:
        words = ("waiting", "retrying", "succeeded", "died_again", "moved_on")
        pairs += [(f"since: {name.replace('_', ' ')}", str(getattr(outcomes, name))) for name in words]
    facts(pairs)
    if left:
        say()
        table(
            ("no.", "job", "result", "reason", "why"), [(o.ordinal, o.job_id, o.result, o.reason, o.why) for o in left]
        )


def run(session: Session, number: Number, detach: Detach = False, json: Json = False) -> int:
    """Go on with an operation here, or follow it where it runs. One that was paused or halted is resumed."""
    operation = session.desk.operations.get(number)
    if operation.state in (OperationState.PAUSED, OperationState.HALTED):
        operation = session.desk.operations.resume(number)
    return carry_out(session, operation, PAST[Action(operation.action)], detach=detach, json=json)


def pause(session: Session, number: Number, note: Note = None) -> None:
    """Pause an operation; no batch begins any more when this returns."""
    _say(session.desk.operations.pause(number, note=note))


def resume(session: Session, number: Number, note: Note = None) -> None:
    """Let an operation go on in a worker; redrive ops run does it here."""
    _say(session.desk.operations.resume(number, note=note))


def cancel(session: Session, number: Number, note: Note = None) -> None:
    """End an operation where it is. What it moved stays moved; ops take-back undoes that."""
    _say(session.desk.operations.cancel(number, note=note))


def take_back(session: Session, number: Number, note: Note = None) -> int:
    """End an operation and put back what it resurrected and nobody has started."""
    back, kept = session.desk.operations.take_back(number, note=note)
    say(f"{back} taken back" + (f", {kept} had started or were changed meanwhile" if kept else ""))
    return REFUSED if kept else DONE


def _say(operation: Operation) -> None:
    progress = operation.progress
    say(f"operation {operation.number} is {operation.state}: {progress.done} of {progress.total} gone through")
