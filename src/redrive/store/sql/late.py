"""Answers for moves whose lease was gone: applied before, or stale; a stale end is noted once in the ledger."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, assert_never
from uuid import UUID

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    cast,
    exists,
    func,
    insert,
    literal,
    null,
    select,
    union_all,
)

from redrive.domain.failures import Reason
from redrive.domain.moves import Answer, Bury, Retry, Settled, SettleMove, Skip, SnoozeFor, Succeed

from .columns import text
from .counters import Tally, add_up
from .dialect import Dialect
from .ledger import NOT_OWN, NOTES
from .tables import job_ledger, jobs_archive, jobs_dlq, jobs_hot


def explain(db: Dialect, moves: Sequence[SettleMove], *, worker_id: str, build: str, slot: int) -> list[Settled]:
    """Answers for moves whose lease was gone: applied before, or stale. A stale end is noted once, and counted.

    Runs in a transaction of its own: its snapshot has to be younger than the settle that found the lease gone.
    """
    pairs = [(UUID(bytes=move.id), move.lease) for move in moves]
    ids = sorted({job for job, _ in pairs})

    def work(connection: Connection) -> list[Settled]:
        archive = select(jobs_archive.c.id, jobs_archive.c.lease, null()).where(jobs_archive.c.id.in_(ids))
        ledger = select(job_ledger.c.job_id, job_ledger.c.lease, job_ledger.c.reason).where(
            job_ledger.c.job_id.in_(ids), job_ledger.c.kind.not_in(NOT_OWN)
        )
        known: dict[tuple[UUID, int], str | None] = {}
        for statement in (archive, ledger):
            known.update({(row[0], row[1]): row[2] for row in connection.execute(statement)})
        answers = []
        tally = Tally()
        for move, pair in zip(moves, pairs, strict=True):
            if pair in known:
                why = known[pair]
                answers.append(Settled(move.id, move.lease, Answer.ALREADY, None if why is None else Reason(why)))
            else:
                answers.append(Settled(move.id, move.lease, Answer.STALE))
                _note_late(db, connection, move, worker_id, build, tally)
        add_up(db, connection, tally, slot)
        return answers

    return db.write(work)


def _note_late(db: Dialect, connection: Connection, move: SettleMove, worker_id: str, build: str, tally: Tally) -> None:
    match move:
        case Succeed():
            kind, error = "late_success", None
        case Retry() | Bury():
            kind, error = "late_failure", move.error
        case SnoozeFor() | Skip():
            return  # it asked for nothing but to be given up, and it was
        case _:
            assert_never(move)
    job = UUID(bytes=move.id)
    line = job_ledger.c
    noted = exists().where(line.job_id == job, line.lease == move.lease, line.kind.in_(NOTES))
    rescued = [line.job_id == job, line.lease == move.lease, line.kind == "zombie"]
    then = {
        name: select(line[name]).where(*rescued).limit(1).scalar_subquery()
        for name in ("life", "attempt", "queue", "type")
    }
    # One statement, so one snapshot: in two of them a job could move past both looks. A purged job gets no note, for
    # it has no trail left.
    places = (jobs_hot.c, jobs_dlq.c, jobs_archive.c)
    of_job = [select(c.id, c.life, c.attempt, c.revision, c.queue, c.type).where(c.id == job) for c in places]
    anywhere = union_all(*of_job).subquery().c
    values: dict[str, ColumnElement[Any]] = {
        "job_id": anywhere.id,
        **{name: func.coalesce(known, anywhere[name]) for name, known in then.items()},
        "lease": cast(literal(move.lease), BigInteger),
        "kind": text(kind),
        "revision": anywhere.revision,
        "ended_at": db.now(),
        "worker_id": text(worker_id),
        "build": text(build),
        "error_type": text(None if error is None else error.error_type),
        "error_message": text(None if error is None else error.message),
        "traceback": text(None if error is None else error.traceback),
    }
    note = insert(job_ledger).from_select(list(values), select(*values.values()).where(~noted))
    for queue, type_ in connection.execute(note.returning(line.queue, line.type)).all():
        tally.late(queue, type_, kind, move.duration_ms)
