"""Dead jobs as lines of JSON (NDJSON): out of one database, into another, with their evidence.

One line is one job. A payload is ``payload`` where its bytes are UTF-8 text, else ``payload_base64``; both come back as
the bytes they were. An import checks every line of the input before it writes the first.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import BinaryIO

from redrive.domain.audit import AuditDraft
from redrive.domain.edits import check_key, check_labels, check_name, check_priority, check_tags, check_word
from redrive.domain.errors import InvalidField, PayloadError
from redrive.domain.failures import Reason, parse_reason
from redrive.domain.filters import PAGE_MAX, JobFilter, PageRequest
from redrive.domain.job import JSON, JobHead, JobRecord, LedgerEntry, Revision
from redrive.domain.moves import Answered
from redrive.domain.payload import parse
from redrive.domain.states import Place
from redrive.store.port import ImportedJob

from .lines import FORMAT, line_of
from .reading import Fields
from .service import Desk, Progress

KINDS = ("failed", "zombie", "cancelled", "copied", "late_success", "late_failure", "refused")


# -- out ---------------------------------------------------------------------------------------------------------------


def export_dead(desk: Desk, job_filter: JobFilter, *, progress: Progress | None = None) -> Iterator[bytes]:
    """Every dead job that matches, a line each, newest first; memory does not grow with their number."""
    cursor, done = None, 0
    while True:
        page = desk.store.list_jobs(job_filter.check(), PageRequest(PAGE_MAX, cursor))
        for head in page.jobs:
            record = desk.store.find(head.id)
            if record is not None and record.head.place is Place.DLQ:
                yield line_of(record)
                done += 1
        if progress is not None:
            progress(done)
        if (cursor := page.next_cursor) is None:
            return


# -- in ----------------------------------------------------------------------------------------------------------------


def check_lines(source: BinaryIO, *, payload_limit: int) -> int:
    """How many jobs ``source`` holds; raises at the first line that is refused. Leaves ``source`` at its start."""
    number = sum(1 for _ in read_dead(source, payload_limit=payload_limit))
    source.seek(0)
    return number


def import_dead(
    desk: Desk, source: BinaryIO, *, note: str | None = None, progress: Progress | None = None
) -> Iterator[list[Answered]]:
    """Insert the jobs of ``source`` (seekable), a batch at a time; an id that exists anywhere is skipped."""
    check_lines(source, payload_limit=desk.payload_limit)
    draft = AuditDraft(desk.actor, "import", note)
    jobs = read_dead(source, payload_limit=desk.payload_limit)
    done = 0
    while batch := list(islice(jobs, desk.batch)):
        yield desk.store.import_dead(batch, draft)
        done += len(batch)
        if progress is not None:
            progress(done)


def read_dead(source: Iterable[bytes], *, payload_limit: int) -> Iterator[ImportedJob]:
    """The jobs of ``source``; ``PayloadError`` names line, field and byte offset of what is refused."""
    offset = 0
    for number, line in enumerate(source, 1):
        if line.strip():
            yield ImportedJob(_record(line, number, offset, payload_limit))
        offset += len(line)


def _record(line: bytes, number: int, offset: int, payload_limit: int) -> JobRecord:
    try:
        return _job(Fields(parse(line)), payload_limit)
    except PayloadError as error:
        column, inside = error.column or 1, error.offset or 0
        where = {"offset": offset + inside, "line": number, "column": column}
        field = "line" if error.field == "payload" and error.line is not None else error.field
        raise PayloadError(error.problem.partition(" at line ")[0], field=field, expected=error.expected,
                           code=error.code, **where) from None  # fmt: skip
    except InvalidField as error:
        raise PayloadError(error.problem, field=error.field, expected=error.expected, code=error.code,
                           offset=offset, line=number, column=1) from None  # fmt: skip


def _job(line: Fields, payload_limit: int) -> JobRecord:
    if line.number("redrive", FORMAT, default=FORMAT) != FORMAT:
        raise InvalidField("redrive", "is of a newer format", expected=str(FORMAT))
    payload = _payload_in(line, payload_limit)
    reason = _reason(line, "reason")
    failed_at = line.time("failed_at", required=True)
    created_at = line.time("created_at") or failed_at
    head = JobHead(
        id=line.uuid("id"),
        place=Place.DLQ,
        state=None,
        type=line.checked("type", check_name),
        queue=line.checked("queue", check_name, default="default"),
        priority=line.checked("priority", lambda field, value: check_priority(value, field), default=10),
        version=line.number("version", 1, default=1),
        revision=line.number("revision", 1, default=1),
        life=line.number("life", 1, default=1),
        attempt=line.number("attempt", 0, default=0),
        spent=line.number("spent", 0, default=0),
        max_attempts=line.number("max_attempts", 0) if line.has("max_attempts") else None,
        content_type=line.checked("content_type", check_word, default=JSON),
        payload_size=len(payload),
        tags=line.checked("tags", lambda field, value: check_tags(value, field), default=()),
        labels=line.checked("labels", lambda field, value: check_labels(value, field), default={}),
        idempotency_key=line.checked("idempotency_key", lambda f, v: check_key(v, f), default=None),
        lock_key=line.checked("lock_key", lambda f, v: check_key(v, f), default=None),
        worker_id=line.text("worker_id", 400),
        due_at=line.time("due_at") or created_at,
        created_at=created_at,
        updated_at=line.time("updated_at") or failed_at,
        life_started_at=line.time("life_started_at") or created_at,
        created_by=line.checked("created_by", check_word, default=None),
        modified_by=line.checked("modified_by", check_word, default=None),
        started_at=line.time("started_at") if line.has("started_at") else None,
        origin=line.text("origin", 10_000),
        reason=reason,
        error_type=line.text("error_type", 400),
        error_message=line.text("error_message", 10_000),
        failed_at=failed_at,
        build=line.text("build", 400),
    )
    ledger = tuple(_ledger_in(entry) for entry in line.items("ledger"))
    revisions = tuple(_revision_in(entry, payload_limit) for entry in line.items("revisions"))
    line.finish()
    return JobRecord(head, payload, None, ledger, revisions)


def _ledger_in(entry: Fields) -> LedgerEntry:
    made = LedgerEntry(
        life=entry.number("life", 1),
        attempt=entry.number("attempt", 0),
        kind=entry.one_of("kind", KINDS),
        revision=entry.number("revision", 1, default=1),
        started_at=entry.time("started_at") if entry.has("started_at") else None,
        ended_at=entry.time("ended_at", required=True),
        worker_id=entry.text("worker_id", 400),
        build=entry.text("build", 400),
        reason=_reason(entry, "reason").value if entry.has("reason") else None,
        error_type=entry.text("error_type", 400),
        error_message=entry.text("error_message", 10_000),
        traceback=entry.text("traceback", 1_000_000),
        fingerprint=entry.text("fingerprint", 200),
    )
    entry.finish()
    return made


def _revision_in(entry: Fields, payload_limit: int) -> Revision:
    made = Revision(
        revision=entry.number("revision", 1),
        life=entry.number("life", 1, default=1),
        payload=_payload_in(entry, payload_limit),
        content_type=entry.checked("content_type", check_word, default=JSON),
        tags=entry.checked("tags", lambda field, value: check_tags(value, field), default=()),
        labels=entry.checked("labels", lambda field, value: check_labels(value, field), default={}),
        priority=entry.checked("priority", lambda field, value: check_priority(value, field), default=10),
        idempotency_key=entry.checked("idempotency_key", lambda f, v: check_key(v, f), default=None),
        actor=entry.checked("actor", check_word),
        at=entry.time("at", required=True),
    )
    entry.finish()
    return made


def _reason(entry: Fields, name: str) -> Reason:
    word = entry.text(name, 200, required=True)
    reason = parse_reason(word or "")
    if reason is None:
        raise InvalidField(entry.path(name), f"{word!r} is no reason", expected=", ".join(Reason))
    return reason


def _payload_in(entry: Fields, limit: int) -> bytes:
    if entry.has("payload") == entry.has("payload_base64"):
        raise InvalidField(entry.path("payload"), "is missing or doubled", expected="payload, or payload_base64")
    name = "payload" if entry.has("payload") else "payload_base64"
    word = entry.string(name)
    try:
        payload = word.encode() if name == "payload" else base64.b64decode(word, validate=True)
    except ValueError:  # binascii.Error is one; a surrogate cannot come out of a parsed line
        raise InvalidField(entry.path(name), "is not base64", expected="base64 with padding") from None
    if len(payload) > limit:
        raise InvalidField(
            entry.path(name), f"{len(payload)} bytes", expected=f"at most {limit} bytes", code="payload-too-large"
        )
    return payload
