"""Claimed jobs from whole rows; and claims whose answer was lost, written once for both databases: they are rare."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, Row, select, update

from redrive.domain.job import ClaimedJob
from redrive.store.port import BATCH, Pair

from .dialect import Dialect
from .tables import jobs_hot


def reclaim(db: Dialect, worker_id: str, known: Collection[Pair]) -> list[ClaimedJob]:
    """Renew and return what is taken in this worker's name and is not in its hands."""
    hot = jobs_hot.c
    mine = select(hot.id, hot.lease).where(hot.state == "taken", hot.worker_id == worker_id).order_by(hot.id)

    def unknown(connection: Connection) -> dict[UUID, int]:
        rows = connection.execute(mine.limit(BATCH + len(known)))
        return {row.id: row.lease for row in rows if (row.id.bytes, row.lease) not in known}

    def work(connection: Connection) -> list[ClaimedJob]:
        wanted = unknown(connection)
        whole = select(jobs_hot, db.age(hot.life_started_at).label("age"), db.age(hot.unserved_since).label("unserved"))
        # A row that somebody has locked is being judged: whoever it is decides.
        locked = db.locking(whole.where(hot.id.in_(list(wanted)[:BATCH])).order_by(hot.id), of=jobs_hot, skip=True)
        rows = [row for row in connection.execute(locked) if row.lease == wanted[row.id]]
        if rows:
            renewed = update(jobs_hot).where(hot.id.in_([row.id for row in rows]))
            connection.execute(renewed.values(heartbeat_at=db.now()))
        return [claimed(row, row.lease, row.attempt, row.started_at is not None) for row in rows]

    # Most looks find nothing: they take no write lock.
    return db.write(work) if db.look(unknown) else []


def claimed(row: Row[Any], lease: int, attempt: int, started: bool) -> ClaimedJob:
    """A job of a worker from its row, with the columns ``age`` and ``unserved``."""
    return ClaimedJob(
        id=row.id.bytes,
        lease=lease,
        type=row.type,
        queue=row.queue,
        payload=row.payload,
        content_type=row.content_type,
        attempt=attempt,
        spent=row.spent,
        max_attempts=row.max_attempts,
        life=row.life,
        revision=row.revision,
        priority=row.priority,
        marks=row.marks,
        trace_context=row.trace_context,
        started=started,
        age=max(0.0, float(row.age)),
        unserved=None if row.unserved is None else max(0.0, float(row.unserved)),
    )
