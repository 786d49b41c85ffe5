"""Jobs as the command line shows them: rows of a list, one job whole."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from redrive.domain.job import JobHead, JobRecord, LedgerEntry, Revision
from redrive.domain.payload import is_text, preview
from redrive.domain.states import Place
from redrive.domain.text import one_line
from redrive.ops.insight import Explained
from redrive.store.port import JobPage

from .circuits import next_step
from .output import as_json, diff, facts, plain, remark, say, shown, table

COLUMNS = {
    Place.HOT: ("id", "state", "queue", "type", "priority", "attempt", "due"),
    Place.ARCHIVE: ("id", "outcome", "queue", "type", "attempt", "ms", "finished"),
    Place.DLQ: ("id", "reason", "queue", "type", "life", "attempt", "failed", "error"),
}
PAYLOAD_SHOWN = 4_000


def row(head: JobHead) -> Sequence[object]:
    """One job in a list of its place."""
    match head.place:
        case Place.HOT:
            return head.id, head.state, head.queue, head.type, head.priority, head.attempt, head.due_at
        case Place.ARCHIVE:
            return head.id, head.outcome, head.queue, head.type, head.attempt, head.duration_ms, head.finished_at
        case Place.DLQ:
            kind = (head.error_type or "").rpartition(".")[2]
            error = ": ".join(part for part in (kind, head.error_message) if part)
            return (
                head.id, head.reason, head.queue, head.type, head.life, head.attempt, head.failed_at,
                one_line(error, 80),
            )  # fmt: skip


def page(place: Place, found: JobPage, *, json: bool) -> None:
    """A page of a list."""
    if json:
        as_json({"jobs": [head_json(head) for head in found.jobs], "next_cursor": found.next_cursor})
        return
    if not found.jobs:
        remark("no jobs")
        return
    table(COLUMNS[place], [row(head) for head in found.jobs])
    if found.next_cursor is not None:
        remark(f"more: --cursor {found.next_cursor}")


def head_json(head: JobHead) -> dict[str, Any]:
    """Everything about a job that a list knows."""
    return {"spot": head.spot, **plain(head)}


def record_json(record: JobRecord) -> dict[str, Any]:
    """A job whole."""
    return {
        **head_json(record.head),
        **payload_json(record.payload),
        "result": None if record.result is None else record.result.decode(errors="replace"),
        "ledger": plain(record.ledger),
        "revisions": [_revision_json(revision) for revision in record.revisions],
    }


def payload_json(payload: bytes) -> dict[str, str]:
    """The payload's text, or base64 where it has none: both exact."""
    try:
        return {"payload": payload.decode()}
    except UnicodeDecodeError:
        return {"payload_base64": base64.b64encode(payload).decode()}


def _revision_json(revision: Revision) -> dict[str, Any]:
    values = {name: plain(getattr(revision, name)) for name in revision.__dataclass_fields__ if name != "payload"}
    return values | payload_json(revision.payload)


def explained_json(explained: Explained) -> dict[str, Any]:
    """A job whole, with what is said about it."""
    out = record_json(explained.record)
    if explained.reason is not None:
        out["explanation"] = {"meaning": explained.reason.meaning, "first_step": explained.reason.first_step}
    if (problem := explained.problem) is not None:
        out["payload_problem"] = {
            "code": problem.code, "problem": problem.problem, "line": problem.line, "column": problem.column,
            "offset": problem.offset,
        }  # fmt: skip
    if (suggestion := explained.suggestion) is not None:
        out["suggestion"] = payload_json(suggestion.payload) | {
            "what": suggestion.what, "exact": suggestion.exact, "diff": list(suggestion.diff),
        }  # fmt: skip
    if explained.kept_off is not None:
        out["kept_off"] = plain(explained.kept_off)
    if explained.lock_holder is not None:
        out["lock_holder"] = str(explained.lock_holder)
    if explained.verdict is not None:
        out["safe_to_run_again"] = plain(explained.verdict)
    return out


def explained(given: Explained) -> None:
    """One job for a person: the operator's two questions first, then the evidence."""
    record, head = given.record, given.record.head
    how = head.spot if head.outcome in (None, "succeeded") else f"{head.spot}, {head.outcome}"
    facts([("job", head.id), ("type", head.type), ("queue", head.queue), ("is", how), ("reason", head.reason)])
    if given.reason is not None:
        say()
        say(f"Why is it here?           {given.reason.meaning}; {given.reason.first_step}")
        if head.error_type:
            say(f"                          {head.error_type}: {one_line(head.error_message or '', 300)}")
    if given.verdict is not None:
        say(f"Is it safe to run again?  {given.verdict.safety}")
        for finding in given.verdict.findings:
            say(f"                          - {finding}")
    if (circuit := given.kept_off) is not None:
        say()
        question = "Would it start at once?" if head.place is Place.DLQ else "Why does it wait?"
        say(f"{question:<24}  circuit {circuit.name} is {circuit.state}: {circuit.reason}")
        say(f"                          {next_step(circuit)}; redrive circuits list")
    if (holder := given.lock_holder) is not None:
        say()
        say(f"{'Why does it wait?':<24}  its lock key is held by a job that is running: redrive jobs show {holder}")
    if given.problem is not None:
        say()
        say(f"The payload cannot be read: {given.problem}")
        if given.suggestion is not None:
            say(f"Suggested repair ({given.suggestion.what}):")
            diff(given.suggestion.diff)
            if head.place is Place.DLQ:
                say(f"Apply it: redrive dlq resurrect {head.id} --repair")
    say()
    facts(_details(head))
    say()
    say(f"payload ({head.payload_size} bytes, {head.content_type}, revision {head.revision}):")
    limit = PAYLOAD_SHOWN if is_text(head.content_type) else 200
    say(preview(record.payload, limit))
    if len(record.payload) > limit:
        remark(f"the whole payload: redrive jobs show {head.id} --payload")
    if record.result is not None:
        say(f"result: {preview(record.result)}")
    _trail(record)


def _details(head: JobHead) -> list[tuple[str, object]]:
    moments: list[tuple[str, datetime | None]] = [
        ("created", head.created_at),
        ("due", head.due_at if head.place is Place.HOT else None),
        ("started", head.started_at),
        ("failed", head.failed_at),
        ("finished", head.finished_at),
        ("cancel requested", head.cancel_requested),
    ]
    budget = "its type's" if head.max_attempts is None else head.max_attempts
    return [
        ("priority", head.priority),
        ("attempt", f"{head.attempt} in life {head.life}; charged {head.spent} of {budget}"),
        ("version", head.version),
        ("tags", head.tags),
        ("labels", head.labels),
        ("idempotency key", head.idempotency_key),
        ("lock key", head.lock_key),
        ("waits for", "its lock key, which another job holds" if head.blocked else None),
        ("worker", head.worker_id),
        ("build", head.build),
        ("incident", head.incident_id),
        ("progress", head.progress),
        *moments,
        ("created by", head.created_by),
        ("modified by", head.modified_by),
        ("origin", head.origin),
    ]


def _trail(record: JobRecord) -> None:
    if record.ledger:
        say()
        say("ledger:")
        for entry in record.ledger:
            say(f"  {_entry(entry)}")
        last = next((entry for entry in reversed(record.ledger) if entry.traceback), None)
        if last is not None:
            say()
            say(f"traceback of life {last.life}, attempt {last.attempt}:")
            say("\n".join(f"  {line}" for line in (last.traceback or "").rstrip().split("\n")))
    if record.revisions:
        say()
        say("revisions (what edits replaced):")
        for old in record.revisions:
            say(f"  {old.revision}: {len(old.payload)} bytes, replaced {shown(old.at)} by {old.actor}")


def _entry(entry: LedgerEntry) -> str:
    error = ": ".join(part for part in (entry.error_type, one_line(entry.error_message or "", 160)) if part)
    reason = f" ({entry.reason})" if entry.reason else ""
    return (
        f"{shown(entry.ended_at)}  life {entry.life}, attempt {entry.attempt}: {entry.kind}{reason}  {error}".rstrip()
    )
