"""From the dlq into a new life, and back as if nothing had been."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, assert_never
from uuid import UUID

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Integer,
    Text,
    bindparam,
    case,
    cast,
    delete,
    insert,
    literal,
    null,
    select,
    update,
)

from redrive.domain.edits import NO_EDIT, UNSET
from redrive.domain.failures import FAILURES
from redrive.domain.job import JobHead
from redrive.domain.lifecycle import Refusal, key_held
from redrive.domain.marks import pack
from redrive.domain.moves import Revive, Skipped, TakeBackMove

from .act import Act, Applied, sha
from .audit import Target
from .burial import mark_dead
from .columns import Id, UtcTime
from .content import change, keep_revision
from .dialect import Again
from .tables import JOB_COLUMNS, dead_marks, job_ledger, job_revisions, jobs_dlq, jobs_hot

EDITED_SINCE = Refusal(Skipped.NOT_ALLOWED, "it was edited since its resurrection; isolate it instead")


def revive(act: Act, group: list[tuple[JobHead, Revive]]) -> Iterator[Applied]:
    """Resurrect: a new life, with what is edited on the way."""
    edited: dict[UUID, tuple[int, dict[str, Any]]] = {}
    for job, move in group:
        edit = replace(move.edit, idempotency_key=None) if move.drop_key else move.edit
        fields, details = change(act, job, edit, "resurrect")
        placed = {name: value for name in ("queue", "type") if (value := getattr(edit, name)) is not UNSET}
        details["changed"] += sorted(name for name, value in placed.items() if value != getattr(job, name))
        if fields or placed:
            grown = {"revision": jobs_dlq.c.revision + 1} if fields else {}
            act.connection.execute(update(jobs_dlq).where(jobs_dlq.c.id == job.id).values(**fields, **placed, **grown))
        edited[job.id] = (job.revision + bool(fields), details)
    due = _due(act, group[0][1].due)
    fresh: dict[str, ColumnElement[Any]] = {name: jobs_dlq.c[name] for name in JOB_COLUMNS}
    fresh |= {
        "version": jobs_dlq.c.version + 1,
        "life": jobs_dlq.c.life + 1,
        "attempt": literal(0, Integer),
        "spent": literal(0, Integer),
        "lease": cast(null(), BigInteger),
        "operation_id": literal(act.audit.operation_id, Id),
        "worker_id": cast(null(), Text),
        "progress": cast(null(), Text),
        "started_at": cast(null(), UtcTime),
        "due_at": due,
        "life_started_at": due,
        "updated_at": act.db.now(),
        "modified_by": cast(literal(act.audit.actor.name), Text),
        "state": cast(case((due > act.db.now(), "scheduled"), else_="pending"), Text),
    }
    ids = [job.id for job, _ in group]
    source = select(*fresh.values()).where(jobs_dlq.c.id.in_(ids)).order_by(jobs_dlq.c.type, jobs_dlq.c.idempotency_key)
    new = act.db.insert(jobs_hot).from_select(list(fresh), source).on_conflict_do_nothing().returning(jobs_hot.c.id)
    inserted = set(act.connection.execute(new).scalars())
    act.connection.execute(delete(jobs_dlq).where(jobs_dlq.c.id.in_(inserted)))
    act.connection.execute(delete(dead_marks).where(dead_marks.c.job_id.in_(inserted)))
    for job, move in group:
        if job.id not in inserted:
            yield job, move, _overtaken(act, job, changed=move.edit != NO_EDIT or move.drop_key)
            continue
        if job.reason in FAILURES:
            act.tally.totals[job.queue].failed -= 1
        revision, details = edited[job.id]
        details |= {"life": job.life + 1, "was": None if job.reason is None else job.reason.value}
        yield job, move, Target(str(job.id), "resurrected", job.id, revision, details)


def _overtaken(act: Act, job: JobHead, *, changed: bool) -> Refusal:
    """Why a job was not revived: another took its idempotency key after the look at who holds it.

    Where keys change hands all the time, looking anew for a whole batch might never end.
    """
    hot = jobs_hot.c
    holds = select(hot.id).where(hot.type == job.type, hot.idempotency_key == job.idempotency_key)
    holder = None if changed else act.connection.execute(holds).scalar()
    if holder is None:  # what was changed has to be undone, or the key is free by now
        raise Again("a live job took an idempotency key meanwhile")
    return key_held(job.idempotency_key, holder)


def _due(act: Act, due: datetime | timedelta | None) -> ColumnElement[Any]:
    match due:
        case None:
            return act.db.now()
        case timedelta():
            return act.db.after(max(0.0, due.total_seconds()))
        case datetime():
            wanted = literal(due, UtcTime)
            return case((wanted > act.db.now(), wanted), else_=act.db.now())
        case _:
            assert_never(due)


def take_back(act: Act, group: list[tuple[JobHead, TakeBackMove]]) -> Iterator[Applied]:
    """Undo a resurrection."""
    kept, line = job_revisions.c, job_ledger.c
    for job, move in group:
        died = act.connection.execute(
            select(job_ledger)
            .where(
                line.job_id == job.id,
                line.life == job.life - 1,
                line.reason.is_not(None),
                line.kind.in_(("failed", "zombie", "cancelled")),
            )
            .order_by(line.id.desc())
            .limit(1)
        ).first()
        edited = select(kept.revision).where(kept.job_id == job.id, kept.life == job.life, kept.replaced_by == "edit")
        if died is None or act.connection.execute(edited.limit(1)).first() is not None:
            yield job, move, EDITED_SINCE
            continue
        newest = select(job_revisions).where(kept.job_id == job.id).order_by(kept.revision.desc()).limit(1)
        replaced = act.connection.execute(newest).first()
        undo: dict[str, Any] = {}
        details: dict[str, Any] = {"life": job.life - 1}
        if replaced is not None and replaced.replaced_by == "resurrect" and replaced.life == job.life - 1:
            undo = {name: replaced._mapping[name] for name in ("payload", "content_type", "marks", "priority")}
            undo["idempotency_key"] = replaced.idempotency_key
            keep_revision(act, [job.id], jobs_hot, "take-back")
            details["payload_sha256"] = {"after": sha(replaced.payload)}
        _return_to_dlq(act, job, died, undo)
        details["content_restored"] = bool(undo)
        yield job, move, Target(str(job.id), "taken back", job.id, job.revision + bool(undo), details)


def _return_to_dlq(act: Act, job: JobHead, died: Any, undo: dict[str, Any]) -> None:
    failed = died.reason in {reason.value for reason in FAILURES}
    queue = died.queue or job.queue
    values: dict[str, Any] = {name: jobs_hot.c[name] for name in JOB_COLUMNS}
    values |= {
        "version": jobs_hot.c.version + 1,
        "revision": jobs_hot.c.revision + int(bool(undo)),
        "life": jobs_hot.c.life - 1,
        "attempt": literal(died.attempt, Integer),
        "spent": literal(died.attempt if died.spent is None else died.spent, Integer),
        "operation_id": literal(None, Id),  # no operation counts it among its own any more
        "queue": cast(literal(queue), Text),
        "type": cast(literal(died.type or job.type), Text),
        "updated_at": act.db.now(),
        "modified_by": cast(literal(act.audit.actor.name), Text),
        "worker_id": cast(literal(died.worker_id), Text),
        "started_at": literal(died.started_at, UtcTime),
        "failed_at": literal(died.ended_at, UtcTime),
        "reason": cast(literal(died.reason), Text),
        "error_type": cast(literal(died.error_type), Text),
        "error_message": cast(literal(died.error_message), Text),
        "incident_id": cast(literal(died.fingerprint if failed else None), Text),
        "build": cast(literal(died.build), Text),
    }
    values |= {name: bindparam(f"old_{name}", value, jobs_dlq.c[name].type) for name, value in undo.items()}
    act.connection.execute(
        insert(jobs_dlq).from_select(list(values), select(*values.values()).where(jobs_hot.c.id == job.id))
    )
    act.connection.execute(delete(jobs_hot).where(jobs_hot.c.id == job.id))
    marks = undo["marks"] if undo else pack(job.tags, job.labels)
    mark_dead(act.connection, [(job.id, marks)])
    if failed:
        act.tally.totals[queue].failed += 1
