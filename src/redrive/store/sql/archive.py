"""Ends that go to the archive and concern more than the job: completion markers, skips. Once for both databases.

Plain successes never come here: they have a statement of their own in the hot path.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import BigInteger, ColumnElement, Connection, LargeBinary, Text, bindparam, cast, delete, insert, select

from redrive.domain.moves import Skip, Succeed
from redrive.store.port import Pair

from . import lock_keys
from .counters import Tally, add_up
from .dialect import Dialect
from .held import Held, lock_hot
from .ledger import Line, write_ledger
from .once import complete, release
from .tables import JOB_COLUMNS, jobs_archive, jobs_hot


def settle_marked(
    db: Dialect, moves: Sequence[Succeed | Skip], *, worker_id: str, build: str, slot: int
) -> frozenset[Pair]:
    """Archive what still holds its lease, with its marker completed or a line that says why it was skipped."""

    def work(connection: Connection) -> frozenset[Pair]:
        rows = lock_hot(db, connection, {UUID(bytes=move.id) for move in moves})
        ends: dict[Pair, tuple[Held, Succeed | Skip]] = {}
        for move in moves:
            row = rows.get(UUID(bytes=move.id))
            if row is not None and row.lease == move.lease and row.started_at is not None:
                ends[move.id, move.lease] = (row, move)
        if not ends:
            return frozenset()
        _archive(db, connection, list(ends.values()))
        skipped = [(row, move) for row, move in ends.values() if isinstance(move, Skip)]
        if skipped:
            lines = [
                Line(row, "skipped", None, None, move.lease, charged=False, said=move.why) for row, move in skipped
            ]
            write_ledger(db, connection, lines, worker_id=worker_id, build=build)
            release(db, connection, [row.id for row, _ in skipped])  # skipped for another's marker, it may hold its own
        marks = [(pair, end.mark) for pair, (_, end) in ends.items() if isinstance(end, Succeed) and end.mark]
        complete(db, connection, marks)
        lock_keys.free(db, connection, [row for row, _ in ends.values()])
        tally = Tally()
        for row, move in ends.values():
            count = tally.skipped if isinstance(move, Skip) else tally.succeeded
            count(row.queue, row.type, move.duration_ms)
        add_up(db, connection, tally, slot)
        return frozenset(ends)

    return db.write(work)


def _archive(db: Dialect, connection: Connection, ends: Sequence[tuple[Held, Succeed | Skip]]) -> None:
    values: dict[str, ColumnElement[Any]] = {name: jobs_hot.c[name] for name in JOB_COLUMNS}
    values["version"] = jobs_hot.c.version + 1
    values["updated_at"] = values["finished_at"] = db.now()
    values["duration_ms"] = cast(bindparam("ms"), BigInteger)
    values["outcome"] = cast(bindparam("how"), Text)
    values["result"] = cast(bindparam("answer"), LargeBinary)
    connection.execute(
        insert(jobs_archive).from_select(
            list(values), select(*values.values()).where(jobs_hot.c.id == bindparam("job"))
        ),
        [
            {
                "job": row.id,
                "ms": move.duration_ms,
                "how": "skipped" if isinstance(move, Skip) else "succeeded",
                "answer": None if isinstance(move, Skip) else move.result,
            }
            for row, move in ends
        ],
    )
    connection.execute(delete(jobs_hot).where(jobs_hot.c.id.in_([row.id for row, _ in ends])))
