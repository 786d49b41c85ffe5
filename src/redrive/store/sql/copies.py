"""An archived job again, as a new one; the ledgers of both tell of each other."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import BigInteger, ColumnElement, Connection, Integer, Text, cast, insert, literal, null, select

from redrive.domain.audit import AuditDraft
from redrive.domain.moves import Answered, Did, Skipped

from .audit import Target, write_audit
from .columns import Id, UtcTime
from .dialect import Dialect
from .lists import find_head
from .tables import job_ledger, jobs_archive, jobs_hot

CARRIED = (
    "queue",
    "type",
    "payload",
    "content_type",
    "marks",
    "priority",
    "max_attempts",
    "idempotency_key",
    "lock_key",
)
"""What the new job has of the old one."""


def copy(db: Dialect, job_id: UUID, new_id: UUID, audit: AuditDraft, drop_key: bool) -> Answered:
    """See ``OperatorPort.copy``."""

    def work(connection: Connection) -> Answered:
        locked = select(jobs_archive.c.id).where(jobs_archive.c.id == job_id)
        if connection.execute(db.locking(locked, of=jobs_archive)).first() is None:
            return _elsewhere(connection, job_id)
        values = _values(db, new_id, audit.actor.name)
        if drop_key:
            del values["idempotency_key"]
        source = select(*values.values()).where(jobs_archive.c.id == job_id)
        new = db.insert(jobs_hot).from_select(list(values), source)
        added = connection.execute(
            new.on_conflict_do_nothing(
                index_elements=["type", "idempotency_key"], index_where=jobs_hot.c.idempotency_key.is_not(None)
            ).returning(jobs_hot.c.id)
        ).first()
        if added is None:
            held = select(jobs_hot.c.id).join(
                jobs_archive,
                (jobs_archive.c.type == jobs_hot.c.type)
                & (jobs_archive.c.idempotency_key == jobs_hot.c.idempotency_key),
            )
            holder = connection.execute(held.where(jobs_archive.c.id == job_id)).scalar()
            why = "a live job of the type has its idempotency key"
            return Answered(job_id, None, Skipped.KEY_HELD, why, holder=holder)
        now: datetime = connection.execute(select(db.now())).scalar_one()
        _tell(connection, jobs_archive, job_id, f"as job {new_id}", now)
        _tell(connection, jobs_hot, new_id, f"of job {job_id}", now)
        copied = Target(str(job_id), "copied", job_id, details={"copy": str(new_id)})
        write_audit(db, connection, audit, [copied, Target(str(new_id), "made", new_id, details={"of": str(job_id)})])
        return Answered(job_id, Did.DONE)

    return db.write(work)


def _values(db: Dialect, new_id: UUID, actor: str) -> dict[str, ColumnElement[Any]]:
    whole = {"version": 1, "revision": 1, "life": 1, "attempt": 0, "spent": 0}
    return {
        "id": cast(literal(new_id, Id()), Id()),
        **{name: jobs_archive.c[name] for name in CARRIED},
        **{name: literal(value, Integer) for name, value in whole.items()},
        **{name: db.now() for name in ("due_at", "life_started_at", "created_at", "updated_at")},
        "state": cast(literal("pending"), Text),
        "created_by": cast(literal(actor), Text),
        "lease": cast(null(), BigInteger),
        "started_at": cast(null(), UtcTime),
    }


def _tell(connection: Connection, table: Any, job_id: UUID, said: str, now: datetime) -> None:
    """A line in the job's ledger: when, in which life, and what was made of what."""
    names = ("life", "attempt", "revision", "queue", "type")
    row = connection.execute(select(*(table.c[name] for name in names)).where(table.c.id == job_id)).one()
    connection.execute(
        insert(job_ledger).values(job_id=job_id, kind="copied", ended_at=now, error_message=said, **row._mapping)
    )


def _elsewhere(connection: Connection, job_id: UUID) -> Answered:
    head = find_head(connection, job_id)
    if head is None:
        return Answered(job_id, None, Skipped.NOT_FOUND, "no such job: it never existed, or it was purged")
    why = "it is dead; resurrect it to run it again" if head.reason else "it has not ended; a copy would be a duplicate"
    return Answered(job_id, None, Skipped.NOT_ALLOWED, why)
