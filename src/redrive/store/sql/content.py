"""What a job carries, replaced; the replaced content is kept as a revision."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import Text, cast, delete, insert, literal, select, update

from redrive.domain.edits import UNSET, JobEdit, Unset
from redrive.domain.job import JobHead
from redrive.domain.lifecycle import Refusal
from redrive.domain.marks import pack
from redrive.domain.moves import ApplyEdit, Skipped
from redrive.domain.states import Place

from .act import Act, Applied, sha
from .audit import Target
from .burial import mark_dead
from .rows import PLACES
from .tables import dead_marks, job_revisions

NOTHING_NEW = Refusal(Skipped.UNCHANGED, "it already is as asked; nothing was written")


def edit(act: Act, group: list[tuple[JobHead, ApplyEdit]]) -> Iterator[Applied]:
    """Edit in place."""
    for job, move in group:
        fields, details = change(act, job, move.edit, "edit")
        if not fields:
            yield job, move, NOTHING_NEW
            continue
        table = PLACES[job.place]
        changed = update(table).where(table.c.id == job.id)
        act.connection.execute(
            changed.values(
                **fields,
                revision=table.c.revision + 1,
                version=table.c.version + 1,
                updated_at=act.db.now(),
                modified_by=act.audit.actor.name,
            )
        )
        if job.place is Place.DLQ and "marks" in fields:
            act.connection.execute(delete(dead_marks).where(dead_marks.c.job_id == job.id))
            mark_dead(act.connection, [(job.id, fields["marks"])])
        yield job, move, Target(str(job.id), "edited", job.id, job.revision + 1, details)


def change(act: Act, job: JobHead, edit: JobEdit, by: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Columns that really change, and the audit's words for them; keeps the replaced content as a revision."""
    fields: dict[str, Any] = {}
    table = PLACES[job.place]
    details: dict[str, Any] = {"changed": []}
    if not isinstance(edit.payload, Unset):
        before: bytes = act.connection.execute(select(table.c.payload).where(table.c.id == job.id)).scalar_one()
        if before != edit.payload:
            fields["payload"] = edit.payload
            details["payload_sha256"] = {"before": sha(before), "after": sha(edit.payload)}
    tags = job.tags if isinstance(edit.tags, Unset) else edit.tags
    labels = job.labels if isinstance(edit.labels, Unset) else edit.labels
    words = [name for name, new in (("tags", tags), ("labels", dict(labels))) if new != getattr(job, name)]
    if words:
        fields["marks"] = pack(tags, labels)
    for name in ("content_type", "priority", "idempotency_key"):
        wanted = getattr(edit, name)
        if wanted is not UNSET and wanted != getattr(job, name):
            fields[name] = wanted
    if "idempotency_key" in fields:
        details["idempotency_key"] = {"before": job.idempotency_key, "after": fields["idempotency_key"]}
    if fields:
        details["changed"] = sorted([*(name for name in fields if name != "marks"), *words])
        details["revision"] = {"before": job.revision, "after": job.revision + 1}
        keep_revision(act, [job.id], table, by)
    return fields, details


def keep_revision(act: Act, ids: Sequence[UUID], table: Any, by: str) -> None:
    """Keep what rows carry now under its revision number; ``by`` is the move that replaces it."""
    names = ("payload", "content_type", "marks", "priority", "idempotency_key")
    source = select(
        table.c.id,
        table.c.revision,
        table.c.life,
        cast(literal(by), Text),
        *(table.c[name] for name in names),
        cast(literal(act.audit.actor.name), Text),
        act.db.now(),
    ).where(table.c.id.in_(ids))
    act.connection.execute(
        insert(job_revisions).from_select(["job_id", "revision", "life", "replaced_by", *names, "actor", "at"], source)
    )
