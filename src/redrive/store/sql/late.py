"""Answers for moves whose lease was gone: applied before, or stale; a stale end is noted once in the ledger."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, assert_never
from uuid import UUID

from sqlalchemy import Connection, bindparam, insert, null, select

from redrive.domain.failures import Reason
from redrive.domain.moves import Answer, Bury, Retry, Settled, SettleMove, Skip, SnoozeFor, Succeed
from redrive.domain.outcome import ErrorReport

from .counters import Tally, add_up
from .dialect import Dialect
from .ledger import NOT_OWN, NOTES
from .locate import lock_jobs
from .tables import job_ledger, jobs_archive


def explain(db: Dialect, moves: Sequence[SettleMove], *, worker_id: str, build: str, slot: int) -> list[Settled]:
    """Answers for moves whose lease was gone: applied before, or stale. A stale end is noted once, and counted.

    Runs in a transaction of its own: its snapshot has to be younger than the settle that found the lease gone.
    """
    pairs = [(UUID(bytes=move.id), move.lease) for move in moves]

    def work(connection: Connection) -> list[Settled]:
        known = _applied(connection, sorted({job for job, _ in pairs}))
        answers = []
        stale = []
        for move, pair in zip(moves, pairs, strict=True):
            if pair in known:
                why = known[pair]
                answers.append(Settled(move.id, move.lease, Answer.ALREADY, None if why is None else Reason(why)))
            else:
                answers.append(Settled(move.id, move.lease, Answer.STALE))
                stale.append(move)
        _note(db, connection, stale, worker_id, build, slot)
        return answers

    return db.write(work)


def _applied(connection: Connection, ids: Sequence[UUID]) -> dict[tuple[UUID, int], str | None]:
    """The leases under which an end of these jobs was applied, each with the reason it was given."""
    archive = select(jobs_archive.c.id, jobs_archive.c.lease, null()).where(jobs_archive.c.id.in_(ids))
    ledger = select(job_ledger.c.job_id, job_ledger.c.lease, job_ledger.c.reason).where(
        job_ledger.c.job_id.in_(ids), job_ledger.c.kind.not_in(NOT_OWN)
    )
    return {(row[0], row[1]): row[2] for statement in (archive, ledger) for row in connection.execute(statement)}


def _note(
    db: Dialect, connection: Connection, moves: Sequence[SettleMove], worker_id: str, build: str, slot: int
) -> None:
    if not (ids := sorted({UUID(bytes=move.id) for move in moves if _late(move) is not None})):
        return
    line = job_ledger.c
    # The jobs are held until the notes are committed: a purge beside this would leave a note without its job, and
    # somebody who says the same beside this would note it a second time.
    jobs = lock_jobs(db, connection, ids, archive=True)
    told = select(line.job_id, line.lease, line.kind, line.life, line.attempt, line.queue, line.type).where(
        line.job_id.in_(ids), line.kind.in_((*NOTES, "zombie"))
    )
    rows = connection.execute(told).all()
    noted = {(row.job_id, row.lease) for row in rows if row.kind in NOTES}
    rescued = {(row.job_id, row.lease): row for row in rows if row.kind == "zombie"}
    notes: list[dict[str, Any]] = []
    tally = Tally()
    for move in moves:
        pair = (UUID(bytes=move.id), move.lease)
        late = _late(move)
        job = jobs.get(pair[0])
        if late is None or job is None or pair in noted:  # a purged job gets no note: it has no trail left
            continue
        noted.add(pair)
        kind, error = late
        run = rescued.get(pair, job)  # the job may be in a later life by now
        notes.append(
            {
                "job_id": job.id,
                "life": run.life,
                "attempt": run.attempt,
                "queue": run.queue,
                "type": run.type,
                "lease": move.lease,
                "kind": kind,
                "revision": job.revision,
                "worker_id": worker_id,
                "build": build,
                "error_type": None if error is None else error.error_type,
                "error_message": None if error is None else error.message,
                "traceback": None if error is None else error.traceback,
            }
        )
        tally.late(run.queue, run.type, kind, move.duration_ms)
    if notes:
        columns: dict[str, Any] = {name: bindparam(name) for name in notes[0]}
        connection.execute(insert(job_ledger).values(ended_at=db.now(), **columns), notes)
    add_up(db, connection, tally, slot)


def _late(move: SettleMove) -> tuple[str, ErrorReport | None] | None:
    match move:
        case Succeed():
            return "late_success", None
        case Retry() | Bury():
            return "late_failure", move.error
        case SnoozeFor() | Skip():
            return None  # it asked for nothing but to be given up, and it was
        case _:
            assert_never(move)
