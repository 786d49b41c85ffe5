"""Completion markers. Each is held by a run for as long as it holds its lease, and completed or let go with its end.

Markers are locked after the rows of jobs, in the order of their keys, by everybody.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, bindparam, delete, or_, select, tuple_

from redrive.domain.once import Mark
from redrive.store.port import BATCH, MarkAnswer, MarkClaim, Pair

from .dialect import Again, Dialect
from .held import lock_hot
from .tables_later import once_marks

_mark = once_marks.c
_KEY: Any = tuple_(_mark.scope, _mark.key)


def claim(db: Dialect, wanted: Sequence[MarkClaim]) -> list[MarkAnswer]:
    """Give each run its marker, unless another job has completed it or holds it; answers in the order given.

    The runs' rows are locked first: a marker given to a run whose lease was just taken away would stay for ever.
    """

    def work(connection: Connection) -> list[MarkAnswer]:
        rows = lock_hot(db, connection, {UUID(bytes=one.id) for one in wanted})
        firsts: dict[tuple[str, str], MarkClaim] = {}
        for one in wanted:
            row = rows.get(UUID(bytes=one.id))
            if row is not None and row.lease == one.lease and row.started_at is not None:
                firsts.setdefault((one.scope, one.key), one)
        ours = _take(db, connection, firsts)
        others = {key: MarkAnswer(False, job, done) for key, job, done in _holders(connection, firsts.keys() - ours)}
        if len(ours) + len(others) < len(firsts):
            raise Again("a completion marker was let go meanwhile")
        answers = []
        for one in wanted:
            key = (one.scope, one.key)
            first = firsts.get(key)
            row = rows.get(UUID(bytes=one.id))
            if row is None or row.lease != one.lease or row.started_at is None or first is None:
                answers.append(MarkAnswer(False))
            elif key in others:
                answers.append(others[key])
            else:
                answers.append(MarkAnswer(True) if first is one else MarkAnswer(False, UUID(bytes=first.id)))
        return answers

    return db.write(work)


def _take(db: Dialect, connection: Connection, firsts: dict[tuple[str, str], MarkClaim]) -> set[tuple[str, str]]:
    if not firsts:
        return set()
    insert = db.insert(once_marks).values(
        [
            {"scope": scope, "key": key, "job_id": UUID(bytes=one.id), "lease": one.lease, "state": "running"}
            for (scope, key), one in sorted(firsts.items())
        ]
    )
    new = insert.excluded
    taken = insert.on_conflict_do_update(
        index_elements=["scope", "key"],
        set_={"job_id": new.job_id, "lease": new.lease, "state": "running", "expires_at": None},
        # The second: the answer to an earlier call was lost.
        where=or_(_mark.expires_at <= db.now(), (_mark.job_id == new.job_id) & (_mark.lease == new.lease)),
    )
    return {(row.scope, row.key) for row in connection.execute(taken.returning(_mark.scope, _mark.key))}


def _holders(connection: Connection, keys: Collection[tuple[str, str]]) -> list[tuple[tuple[str, str], UUID, bool]]:
    if not keys:
        return []
    held = select(_mark.scope, _mark.key, _mark.job_id, _mark.state).where(_KEY.in_(sorted(keys)))
    return [((row.scope, row.key), row.job_id, row.state == "completed") for row in connection.execute(held)]


def complete(db: Dialect, connection: Connection, marks: Iterable[tuple[Pair, Mark]]) -> None:
    """Runs have succeeded: their markers say so for as long as they are kept."""
    rows = [
        {"scope": mark.scope, "key": mark.key, "job": UUID(bytes=job), "lease": lease, "keep": mark.keep}
        for (job, lease), mark in sorted(marks, key=lambda one: (one[1].scope, one[1].key))
    ]
    if not rows:
        return
    insert = db.insert(once_marks).values(
        scope=bindparam("scope"),
        key=bindparam("key"),
        job_id=bindparam("job"),
        lease=bindparam("lease"),
        state="completed",
        expires_at=db.after(bindparam("keep")),
    )
    done = {"state": "completed", "expires_at": insert.excluded.expires_at}
    mine = (_mark.job_id == insert.excluded.job_id) & (_mark.lease == insert.excluded.lease)
    connection.execute(insert.on_conflict_do_update(index_elements=["scope", "key"], set_=done, where=mine), rows)


def release(db: Dialect, connection: Connection, jobs: Collection[UUID]) -> None:
    """Runs of locked jobs have ended without success: whoever comes next may do their work."""
    running = (_mark.job_id.in_(jobs), _mark.state == "running")
    locked = db.locking(select(_mark.scope).where(*running).order_by(_mark.scope, _mark.key), of=once_marks)
    if connection.execute(locked).all():
        connection.execute(delete(once_marks).where(*running))


def forget(db: Dialect, connection: Connection, jobs: Collection[UUID]) -> None:
    """Jobs are deleted for good: what they have completed may be done again."""
    locked = db.locking(
        select(_mark.scope).where(_mark.job_id.in_(jobs)).order_by(_mark.scope, _mark.key), of=once_marks
    )
    if connection.execute(locked).all():
        connection.execute(delete(once_marks).where(_mark.job_id.in_(jobs)))


def prune(db: Dialect) -> int:
    """Delete up to ``BATCH`` markers whose time is over; how many."""
    over = select(_mark.scope, _mark.key).where(_mark.expires_at <= db.now()).order_by(_mark.expires_at).limit(BATCH)

    def work(connection: Connection) -> int:
        keys = [tuple(row) for row in connection.execute(db.locking(over, of=once_marks, skip=True))]
        if keys:
            connection.execute(delete(once_marks).where(_KEY.in_(keys)))
        return len(keys)

    # Most looks find nothing: they take no write lock.
    return db.write(work) if db.look(lambda connection: connection.execute(over.limit(1)).first()) else 0
