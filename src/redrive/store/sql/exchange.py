"""Bulk removal of old successes, and dead jobs from an export file."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from uuid import UUID

from sqlalchemy import Connection, delete, insert, select

from redrive.domain.audit import AuditDraft
from redrive.domain.errors import InvalidField
from redrive.domain.failures import FAILURES
from redrive.domain.fingerprint import title
from redrive.domain.job import JobRecord, LedgerEntry
from redrive.domain.marks import pack
from redrive.domain.moves import Answered, Did, Skipped
from redrive.store.port import BATCH, ImportedJob

from .audit import Target, write_audit
from .burial import mark_dead
from .counters import Death, Tally, add_up
from .dialect import Dialect
from .operate import OPERATOR_SLOT
from .purge import remove_trails
from .rows import PLACES
from .tables import JOB_COLUMNS, job_ledger, job_revisions, jobs_archive, jobs_dlq

ENDS = ("failed", "zombie", "cancelled")
"""Ledger kinds that tell of an end; the others are notes."""


def purge_archive(db: Dialect, older_than: datetime, audit: AuditDraft, limit: int) -> int:
    """Delete one batch of old archived jobs; one audit entry tells how many, and hashes what they were."""
    old = (
        select(jobs_archive.c.id)
        .where(jobs_archive.c.finished_at < older_than)
        .order_by(jobs_archive.c.finished_at, jobs_archive.c.id)
        .limit(limit)
    )

    def work(connection: Connection) -> int:
        ids = sorted(connection.execute(db.locking(old, of=jobs_archive, skip=True)).scalars())
        if not ids:
            return 0
        digest, tally = hashlib.sha256(), Tally()
        rows = select(jobs_archive.c.id, jobs_archive.c.queue, db.sha256(jobs_archive.c.payload))
        for row in connection.execute(rows.where(jobs_archive.c.id.in_(ids)).order_by(jobs_archive.c.id)):
            digest.update(f"{row[0]}:{row[2]}|".encode())
            tally.totals[row.queue].purged_succeeded += 1
        trails = remove_trails(db, connection, ids)
        connection.execute(delete(jobs_archive).where(jobs_archive.c.id.in_(ids)))
        for job_id in ids:
            digest.update(trails[job_id].encode())
        add_up(db, connection, tally, OPERATOR_SLOT)
        details = {"jobs": len(ids), "older_than": older_than.isoformat(), "sha256": digest.hexdigest()}
        write_audit(db, connection, audit, [Target("archive", "purged", details=details)])
        return len(ids)

    return db.write(work)


def import_dead(db: Dialect, jobs: Sequence[ImportedJob], audit: AuditDraft) -> list[Answered]:
    """Insert exported dead jobs as they were. They died elsewhere, so no metric bucket counts them."""
    if len(jobs) > BATCH:
        raise InvalidField("jobs", f"{len(jobs)} jobs in one call", expected=f"at most {BATCH}")
    ids = sorted({job.record.head.id for job in jobs})

    def work(connection: Connection) -> list[Answered]:
        taken: set[UUID] = set()
        for table in PLACES.values():
            taken |= set(connection.execute(select(table.c.id).where(table.c.id.in_(ids))).scalars())
        taken |= set(connection.execute(select(job_ledger.c.job_id).where(job_ledger.c.job_id.in_(ids))).scalars())
        answers, fresh = [], []
        for job in jobs:
            job_id = job.record.head.id
            if job_id in taken:
                why = "a job with this id is, or was, already here"
                answers.append(Answered(job_id, None, Skipped.NOT_ALLOWED, why))
            elif (missing := _missing(job.record)) is not None:
                answers.append(Answered(job_id, None, Skipped.UNREADABLE, missing))
            else:
                taken.add(job_id)
                fresh.append(_completed(job.record))
                answers.append(Answered(job_id, Did.DONE, version=job.record.head.version))
        tally = Tally()
        if fresh:
            connection.execute(insert(jobs_dlq), [_dlq_row(record) for record in fresh])
            _import_trails(connection, fresh)
        for dead in (record.head for record in fresh):
            if dead.reason in FAILURES:
                tally.totals[dead.queue].failed += 1
                if dead.incident_id is not None:
                    name = title(dead.type, dead.error_type or str(dead.reason), dead.error_message or "")
                    tally.deaths.setdefault(dead.incident_id, Death(name, dead.type)).deaths += 1
        add_up(db, connection, tally, OPERATOR_SLOT)
        write_audit(
            db,
            connection,
            audit,
            [
                Target(
                    str(record.head.id),
                    "imported",
                    record.head.id,
                    record.head.revision,
                    {"payload_sha256": {"after": hashlib.sha256(record.payload).hexdigest()}, "life": record.head.life},
                )
                for record in fresh
            ],
        )
        return answers

    return db.write(work)


def _deaths(record: JobRecord) -> list[LedgerEntry]:
    return [line for line in record.ledger if line.reason is not None and line.kind in ENDS]


def _missing(record: JobRecord) -> str | None:
    """Why the trail does not carry what the job claims; a job without a story would break the promises later."""
    job = record.head
    if job.reason is None or job.failed_at is None:
        return "it is not dead: it has no reason, or no time of death"
    told = {line.life for line in _deaths(record)}
    if missing := sorted(set(range(1, job.life)) - told):
        return f"it is in life {job.life}, and its ledger tells of no death in life {missing[0]}"
    ends = sum(line.life == job.life and line.kind in ENDS for line in record.ledger)
    if job.spent > max(ends, 1):
        return f"it was charged {job.spent} attempts, and its ledger tells of {ends}"
    if {old.revision for old in record.revisions} != set(range(1, job.revision)):
        return f"it is at revision {job.revision}, and the revisions before that are not all there, each once"
    return None


def _completed(record: JobRecord) -> JobRecord:
    """The record with a ledger line for its death, and the incident that follows from it."""
    job = record.head
    died = [line for line in _deaths(record) if line.life == job.life and line.reason == job.reason]
    if not died:
        assert job.failed_at is not None
        line = LedgerEntry(
            life=job.life,
            attempt=job.attempt,
            kind="failed" if job.reason in FAILURES else "cancelled",
            revision=job.revision,
            started_at=None,
            ended_at=job.failed_at,
            worker_id=job.worker_id,
            build=job.build,
            reason=job.reason,
            error_type=job.error_type,
            error_message=job.error_message,
            traceback=None,
            fingerprint=None,
        )
        return replace(record, ledger=(*record.ledger, line))
    if job.incident_id is None and job.reason in FAILURES:
        return replace(record, head=replace(job, incident_id=died[-1].fingerprint))
    return record


def _dlq_row(record: JobRecord) -> dict[str, object]:
    job = record.head
    row: dict[str, object] = {name: getattr(job, name) for name in JOB_COLUMNS if hasattr(job, name)}
    return row | {
        "lease": None,
        "trace_context": None,
        "marks": pack(job.tags, job.labels),
        "payload": record.payload,
        "failed_at": job.failed_at,
        "reason": None if job.reason is None else job.reason.value,
        "error_type": job.error_type,
        "error_message": job.error_message,
        "incident_id": job.incident_id,
        "build": job.build,
    }


def _ran(record: JobRecord, line: LedgerEntry) -> dict[str, object]:
    """What the file does not say of each line; it is known of the job's last death."""
    job = record.head
    if line is not _deaths(record)[-1]:
        return {"queue": None, "type": None, "spent": None}
    return {"queue": job.queue, "type": job.type, "spent": job.spent}


def _import_trails(connection: Connection, records: Sequence[JobRecord]) -> None:
    mark_dead(connection, [(record.head.id, pack(record.head.tags, record.head.labels)) for record in records])
    lines = [
        {name: getattr(line, name) for name in line.__dataclass_fields__}
        | {"job_id": record.head.id, "lease": None}
        | _ran(record, line)
        for record in records
        for line in record.ledger
    ]
    if lines:
        connection.execute(insert(job_ledger), lines)
    revisions = [
        {
            "job_id": record.head.id,
            "revision": old.revision,
            "life": old.life,
            "replaced_by": "import",
            "payload": old.payload,
            "content_type": old.content_type,
            "marks": pack(old.tags, old.labels),
            "priority": old.priority,
            "idempotency_key": old.idempotency_key,
            "actor": old.actor,
            "at": old.at,
        }
        for record in records
        for old in record.revisions
    ]
    if revisions:
        connection.execute(insert(job_revisions), revisions)
