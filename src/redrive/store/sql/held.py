"""Taken rows, locked: what a transaction of several job statements starts with.

It locks without deciding anything, and touches only what it has locked. Order of locks, the same everywhere: dlq rows
by id, hot rows by id, inserts, completion markers by key, lock keys, totals, buckets, incidents, audit.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, select

from .dialect import Dialect
from .tables import jobs_hot

FREED: dict[str, Any] = {"lease": None, "worker_id": None, "heartbeat_at": None, "started_at": None}
"""What every move that gives a job up sets: a lease is there exactly while the job is taken."""


@dataclass(frozen=True, slots=True)
class Held:
    """A taken row, locked."""

    id: UUID
    queue: str
    type: str
    life: int
    attempt: int
    spent: int
    revision: int
    version: int
    lease: int | None
    worker_id: str | None
    started_at: datetime | None
    cancel_requested: datetime | None
    marks: str | None
    lock_key: str | None


_HELD = [jobs_hot.c[name] for name in Held.__dataclass_fields__]


def lock_hot(db: Dialect, connection: Connection, ids: Iterable[UUID]) -> dict[UUID, Held]:
    """Lock hot rows in id order; a transaction of several job statements starts here and touches only these."""
    statement = select(*_HELD).where(jobs_hot.c.id.in_(sorted(ids))).order_by(jobs_hot.c.id)
    return {row.id: Held(*row) for row in connection.execute(db.locking(statement, of=jobs_hot))}
