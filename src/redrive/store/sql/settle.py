"""Failing ends, written once for both databases.

Successes never come here: they have a statement of their own in the hot path. A batch of failing ends locks its rows
in id order, touches only rows whose lease still holds, then counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never
from uuid import UUID

from sqlalchemy import Connection, bindparam, update

from redrive.domain.failures import Reason
from redrive.domain.moves import Bury, Retry, SnoozeFor
from redrive.store.port import Pair

from . import lock_keys
from .burial import Burial, bury
from .counters import Tally, add_up
from .dialect import Dialect
from .held import FREED, Held, lock_hot
from .ledger import Line, write_ledger
from .once import release
from .tables import jobs_hot


def settle_failures(
    db: Dialect, moves: Sequence[Retry | Bury | SnoozeFor], *, worker_id: str, build: str, slot: int
) -> dict[Pair, Reason | None]:
    """Apply failing ends whose lease holds; the answer has the pairs applied, with the reason where one was buried."""

    def work(connection: Connection) -> dict[Pair, Reason | None]:
        rows = lock_hot(db, connection, {UUID(bytes=move.id) for move in moves})
        applied: dict[Pair, Reason | None] = {}
        ended: list[Held] = []
        retries: list[tuple[Held, Retry]] = []
        snoozes: list[tuple[Held, SnoozeFor]] = []
        burials: list[Burial] = []
        for move in moves:
            row = rows.get(UUID(bytes=move.id))
            if row is None or row.lease != move.lease or row.started_at is None or (move.id, move.lease) in applied:
                continue
            cancel = row.cancel_requested is not None
            reason: Reason | None = None
            match move:
                case Bury():
                    reason = Reason.CANCELLED if cancel else move.reason
                    burials.append(_burial(row, move, reason, charged=move.charged))
                case Retry() if cancel:
                    reason = Reason.CANCELLED
                    burials.append(_burial(row, move, reason, charged=True))
                case SnoozeFor() if cancel:
                    reason = Reason.CANCELLED
                    burials.append(Burial(row, reason, "cancelled", None, False, move.duration_ms, None, move.lease))
                case Retry():
                    retries.append((row, move))
                case SnoozeFor():
                    snoozes.append((row, move))
                case _:
                    assert_never(move)
            applied[move.id, move.lease] = reason
            ended.append(row)
        release(db, connection, [UUID(bytes=job) for job, _ in applied])
        tally = Tally()
        _retry(db, connection, retries, worker_id, build, tally)
        _snooze(db, connection, snoozes)
        bury(db, connection, burials, worker_id=worker_id, build=build, tally=tally)
        lock_keys.free(db, connection, ended)
        add_up(db, connection, tally, slot)
        return applied

    return db.write(work)


def _burial(row: Held, move: Bury | Retry, reason: Reason, *, charged: bool) -> Burial:
    kind = "cancelled" if reason is Reason.CANCELLED else "failed"
    return Burial(row, reason, kind, move.error, charged, move.duration_ms, move.max_attempts, move.lease)


def _retry(
    db: Dialect, connection: Connection, retries: list[tuple[Held, Retry]], worker_id: str, build: str, tally: Tally
) -> None:
    if not retries:
        return
    connection.execute(
        update(jobs_hot)
        .where(jobs_hot.c.id == bindparam("job"))
        .values(
            state="scheduled",
            due_at=db.after(bindparam("delay")),
            spent=jobs_hot.c.spent + 1,
            max_attempts=bindparam("budget"),
            version=jobs_hot.c.version + 1,
            updated_at=db.now(),
            **FREED,
        ),
        [{"job": row.id, "delay": move.delay, "budget": move.max_attempts} for row, move in retries],
    )
    lines = [Line(row, "failed", None, move.error, move.lease, charged=True) for row, move in retries]
    write_ledger(db, connection, lines, worker_id=worker_id, build=build)
    for row, _ in retries:
        tally.retried(row.queue)


def _snooze(db: Dialect, connection: Connection, snoozes: list[tuple[Held, SnoozeFor]]) -> None:
    if snoozes:
        connection.execute(
            update(jobs_hot)
            .where(jobs_hot.c.id == bindparam("job"))
            .values(
                state="scheduled",
                due_at=db.after(bindparam("delay")),
                version=jobs_hot.c.version + 1,
                updated_at=db.now(),
                **FREED,
            ),
            [{"job": row.id, "delay": move.delay} for row, move in snoozes],
        )
