"""Lock keys: of all jobs with one key at most one is running, whatever its type or queue.

A row of ``held_keys`` is there exactly while the job that it names is processing. A start takes the row; a job that
finds it taken becomes *blocked*: pending, but not in the index that claims read, so that however many wait for one key
they are in nobody's way. Every end of a run deletes the row in its own transaction, then lets the first waiting job of
the key go on.

No wake-up is lost: who blocks a job holds the key's row in share mode until it has committed, so the end that deletes
the row waits for it, and looks for blocked jobs after that. What such an end does not see (it died before it looked,
or the job it let go on was cancelled or cannot be claimed) is found by ``wake_forgotten``, which runs with the rescues.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, Row, delete, exists, func, select, update

from redrive.store.port import BATCH

from .dialect import Dialect
from .held import FREED, Held
from .tables import BLOCKED, jobs_hot
from .tables_later import held_keys


def take(db: Dialect, connection: Connection, jobs: Sequence[Row[Any]]) -> set[UUID]:
    """Let locked, fetched jobs have their keys, the first of each key first; the answer has those that may start.

    The others become blocked. One whose key is just being freed stays as it is, to be given back and claimed again.
    """
    first: dict[str, Row[Any]] = {}
    for job in jobs:
        first.setdefault(job.lock_key, job)
    # In one order by everybody: two starts that take the same keys wait for each other, and must not in a circle.
    rows = [{"lock_key": key, "job_id": first[key].id, "lease": first[key].lease} for key in sorted(first)]
    taken = db.insert(held_keys).values(rows).on_conflict_do_nothing().returning(held_keys.c.job_id)
    got = set(connection.execute(taken).scalars())
    if losers := [job for job in jobs if job.id not in got]:
        keys = held_keys.c.lock_key
        holding = select(keys).where(keys.in_({job.lock_key for job in losers}))
        sure = set(connection.execute(db.locking(holding, of=held_keys, skip=True, share=True)).scalars())
        blocked = update(jobs_hot).where(jobs_hot.c.id.in_([job.id for job in losers if job.lock_key in sure]))
        changed = {"version": jobs_hot.c.version + 1, "updated_at": db.now()}
        connection.execute(blocked.values(state="pending", blocked=True, **changed, **FREED))
    return got


def free(db: Dialect, connection: Connection, rows: Collection[Held]) -> None:
    """Runs of these jobs have ended: their keys are free, and whoever waits for one may go on."""
    holders = [row for row in rows if row.lock_key is not None and row.started_at is not None]
    if holders:
        connection.execute(delete(held_keys).where(held_keys.c.job_id.in_([row.id for row in holders])))
        wake(db, connection, {row.lock_key for row in holders if row.lock_key is not None})


def wake(db: Dialect, connection: Connection, keys: Collection[str]) -> None:
    """Let the first blocked job of each key be claimed; never waits for one that somebody has locked."""
    hot, chosen = jobs_hot.c, list[Row[Any]]()
    waited_for = select(hot.lock_key).where(BLOCKED, hot.lock_key.in_(keys)).distinct()
    for key in sorted(connection.execute(waited_for).scalars()):
        first = select(hot.id, hot.queue).where(BLOCKED, hot.lock_key == key)
        first = first.order_by(hot.priority.desc(), hot.due_at, hot.id).limit(1)
        chosen += connection.execute(db.locking(first, of=jobs_hot, skip=True)).all()
    if chosen:
        connection.execute(update(jobs_hot).where(hot.id.in_([row.id for row in chosen])).values(blocked=False))
        db.wake(connection, {row.queue for row in chosen})


def wake_forgotten(db: Dialect) -> None:
    """Let the first blocked job go on of each key that nobody holds."""
    hot = jobs_hot.c
    held = exists().where(held_keys.c.lock_key == hot.lock_key)
    forgotten = select(hot.lock_key).where(BLOCKED, ~held).distinct().limit(BATCH)

    def look(connection: Connection) -> list[str]:
        return [key for key in connection.execute(forgotten).scalars() if key is not None]

    if keys := db.look(look):
        db.write(lambda connection: wake(db, connection, keys))


def holder(connection: Connection, key: str) -> UUID | None:
    """The job that is running under a key."""
    return connection.execute(select(held_keys.c.job_id).where(held_keys.c.lock_key == key)).scalar_one_or_none()


def blocked_by_queue(connection: Connection) -> dict[str, int]:
    """How many jobs of each queue wait for a lock key."""
    counted = select(jobs_hot.c.queue, func.count()).where(BLOCKED).group_by(jobs_hot.c.queue)
    return {row[0]: row[1] for row in connection.execute(counted)}
