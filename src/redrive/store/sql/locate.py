"""Jobs wherever they are, their rows locked.

Lock order of every transaction that locks more than one place: dlq rows by id, hot rows by id, archive rows by id. A
job that moved between those looks is looked for again, at last by running the transaction anew, so that "not found" is
always true.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from sqlalchemy import Connection, select

from redrive.domain.job import JobHead
from redrive.domain.states import Place

from .dialect import Again, Dialect
from .rows import PLACES, head, head_columns

LOOKS = 4
"""How often jobs that move while they are looked for are looked for, before the transaction is run again."""


def lock_jobs(db: Dialect, connection: Connection, ids: Sequence[UUID], *, archive: bool) -> dict[UUID, JobHead]:
    """The jobs of ``ids`` (sorted) that exist, their rows locked; those in the archive only if ``archive`` says so."""
    heads: dict[UUID, JobHead] = {}
    for look in range(LOOKS):
        for place in (Place.DLQ, Place.HOT, Place.ARCHIVE):
            table = PLACES[place]
            missing = [job_id for job_id in ids if job_id not in heads]
            if not missing:
                return heads
            statement = select(*head_columns(place)).where(table.c.id.in_(missing)).order_by(table.c.id)
            if place is not Place.ARCHIVE or archive:
                # Only the first look keeps the order of locks, so only the first may wait.
                statement = db.locking(statement, of=table, skip=look > 0)
            heads |= {row.id: head(place, row) for row in connection.execute(statement)}
        missing = [job_id for job_id in ids if job_id not in heads]
        anywhere = [select(table.c.id).where(table.c.id.in_(missing)) for table in PLACES.values()]
        if not missing or connection.execute(anywhere[0].union_all(*anywhere[1:]).limit(1)).first() is None:
            return heads
    raise Again("jobs kept moving while they were looked for")
