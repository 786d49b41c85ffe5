"""Deletion for good: of the job and its trail only hashes remain."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from uuid import UUID

from sqlalchemy import Connection, delete, select

from redrive.domain.failures import FAILURES
from redrive.domain.job import JobHead
from redrive.domain.moves import Remove
from redrive.domain.states import Place

from .act import Act, Applied
from .audit import Target
from .dialect import Dialect
from .once import forget
from .rows import PLACES
from .tables import dead_marks, job_ledger, job_revisions


def remove(act: Act, group: list[tuple[JobHead, Remove]]) -> Iterator[Applied]:
    """Purge; the audit gets the hashes."""
    hashes: dict[UUID, str] = {}
    for place in (Place.DLQ, Place.ARCHIVE):
        ids = [job.id for job, _ in group if job.place is place]
        if ids:
            table = PLACES[place]
            hashed = select(table.c.id, act.db.sha256(table.c.payload)).where(table.c.id.in_(ids))
            hashes |= {row[0]: row[1] for row in act.connection.execute(hashed)}
    trail = remove_trails(act.db, act.connection, group_ids := [job.id for job, _ in group])
    for table in (PLACES[Place.DLQ], PLACES[Place.ARCHIVE]):
        act.connection.execute(delete(table).where(table.c.id.in_(group_ids)))
    forget(act.db, act.connection, group_ids)
    for job, move in group:
        if job.place is Place.ARCHIVE:
            act.tally.totals[job.queue].purged_succeeded += 1
        elif job.reason in FAILURES:
            act.tally.totals[job.queue].purged_failed += 1
        details = {
            "from": job.place.value,
            "type": job.type,
            "queue": job.queue,
            "reason": None if job.reason is None else job.reason.value,
            "payload_sha256": hashes[job.id],
            "payload_bytes": job.payload_size,
            "trail_sha256": trail[job.id],
        }
        yield job, move, Target(str(job.id), "purged", job.id, job.revision, details)


def remove_trails(db: Dialect, connection: Connection, ids: Sequence[UUID]) -> dict[UUID, str]:
    """Delete ledger, revisions and marks of jobs; the answer has the hash of each trail that was removed."""
    digests = {job_id: hashlib.sha256() for job_id in ids}
    lines = (
        select(job_ledger.c.job_id, job_ledger.c.life, job_ledger.c.attempt, job_ledger.c.kind, job_ledger.c.reason)
        .add_columns(job_ledger.c.error_type, job_ledger.c.error_message, job_ledger.c.ended_at)
        .where(job_ledger.c.job_id.in_(ids))
        .order_by(job_ledger.c.id)
    )
    revisions = (
        select(job_revisions.c.job_id, job_revisions.c.revision, db.sha256(job_revisions.c.payload))
        .where(job_revisions.c.job_id.in_(ids))
        .order_by(job_revisions.c.job_id, job_revisions.c.revision)
    )
    for statement in (lines, revisions):
        for row in connection.execute(statement):
            digests[row.job_id].update(repr(tuple(row)[1:]).encode())
    for table in (job_ledger, job_revisions, dead_marks):
        connection.execute(delete(table).where(table.c.job_id.in_(ids)))
    return {job_id: digest.hexdigest() for job_id, digest in digests.items()}
