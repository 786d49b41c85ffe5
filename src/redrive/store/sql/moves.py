"""What becomes of fetched jobs that nobody here can start, written once for both databases."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from sqlalchemy import Connection, bindparam, func, update

from redrive.domain.failures import Reason
from redrive.domain.moves import PutOff, Release
from redrive.store.port import Pair

from .burial import Burial, bury, rule_error
from .counters import Tally, add_up
from .dialect import Dialect
from .held import FREED, lock_hot
from .tables import jobs_hot


def give_back(db: Dialect, moves: Sequence[Release | PutOff]) -> None:
    """Return fetched jobs; one whose lease is gone belongs to somebody else and is left alone."""

    def work(connection: Connection) -> None:
        rows = lock_hot(db, connection, {UUID(bytes=move.id) for move in moves})
        release, aside, queues = [], [], set()
        for move in moves:
            row = rows.get(UUID(bytes=move.id))
            if row is None or row.lease != move.lease or row.started_at is not None:
                continue
            del rows[row.id]  # given twice, it is returned once
            if isinstance(move, PutOff):
                aside.append({"job": row.id, "delay": move.delay})
            else:
                release.append({"job": row.id})
                queues.add(row.queue)
        freed = update(jobs_hot).where(jobs_hot.c.id == bindparam("job"))
        common = {**FREED, "version": jobs_hot.c.version + 1, "updated_at": db.now()}
        if release:
            connection.execute(freed.values(state="pending", **common), release)
            db.notify(connection, sorted(queues))
        if aside:
            connection.execute(
                freed.values(
                    state="scheduled",
                    due_at=db.after(bindparam("delay")),
                    unserved_since=func.coalesce(jobs_hot.c.unserved_since, db.now()),
                    **common,
                ),
                aside,
            )

    db.write(work)


def bury_unserved(db: Dialect, pairs: Sequence[Pair], *, worker_id: str, build: str, slot: int) -> None:
    """Bury fetched jobs whose type nobody serves."""

    def work(connection: Connection) -> None:
        rows = lock_hot(db, connection, {UUID(bytes=job) for job, _ in pairs})
        held = [
            row
            for job, lease in sorted(set(pairs))
            if (row := rows.get(UUID(bytes=job))) and row.lease == lease and row.started_at is None
        ]
        burials = [
            Burial(
                row,
                Reason.FATAL,
                "failed",
                rule_error(
                    row.type,
                    Reason.FATAL,
                    f"no worker serves type {row.type!r}: deploy its handler, or change the type, then resurrect",
                ),
                charged=False,
                lease=row.lease,
            )
            for row in held
        ]
        tally = Tally()
        bury(db, connection, burials, worker_id=worker_id, build=build, tally=tally)
        add_up(db, connection, tally, slot)

    db.write(work)
