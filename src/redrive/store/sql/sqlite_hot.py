"""The hot statements on SQLite: short immediate transactions on the driver's own cursor.

Traps this file walks around: RETURNING comes in any order, must be fetched before COMMIT, and does not exist for
``executemany``; an ``IS NOT NULL`` in RETURNING answers wrongly on tables with a CHECK of that form (3.40), so columns
come back as they are; ``rowcount`` is -1 for statements that begin with WITH; there is no clock with microseconds
before SQLite 3.42, so times are bound.
"""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple, Protocol, cast
from uuid import UUID

from sqlalchemy import Connection

from redrive.domain.job import ClaimedJob, Enqueued, NewJob
from redrive.domain.marks import pack
from redrive.domain.moves import Succeed
from redrive.store.port import ClaimRequest, Guarded, Pair, Promoted, Pulse

from . import limited, lock_keys
from .columns import second_of, to_micros
from .counters import Tally
from .dialect import Dialect
from .steps import Steps, drive
from .tables import CLAIMABLE, JOB_COLUMNS

_INSERT = """
INSERT INTO jobs_hot (id, type, queue, payload, content_type, priority, marks, idempotency_key, lock_key, max_attempts,
 created_by, trace_context, origin, due_at, life_started_at, created_at, updated_at, state)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
_INSERT_KEYED = _INSERT + " ON CONFLICT (type, idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING"
_HOLDER = "SELECT id FROM jobs_hot WHERE type = ? AND idempotency_key = ?"

_GOT = """id, lease, type, queue, payload, content_type, attempt, spent, max_attempts, life, revision, priority, marks,
 trace_context, started_at, life_started_at, unserved_since, due_at"""

_LIMITED = "SELECT name FROM queues WHERE max_running IS NOT NULL OR rate IS NOT NULL"

_CLAIM = f"""
UPDATE jobs_hot SET state = 'taken', lease = ?, worker_id = ?, heartbeat_at = ?, updated_at = ?, version = version + 1,
 started_at = CASE WHEN lock_key IS NULL AND type IN ({{types}}) THEN ? END,
 attempt = attempt + (lock_key IS NULL AND type IN ({{types}}))
WHERE id IN (
  SELECT id FROM jobs_hot WHERE {CLAIMABLE.text} AND queue = ?{{which}} ORDER BY priority DESC, due_at, id LIMIT ?)
 AND EXISTS (SELECT 1 FROM queues WHERE name = ? AND NOT paused AND max_running IS NULL AND rate IS NULL)
RETURNING {_GOT}
"""

_START = """
UPDATE jobs_hot SET started_at = ?, heartbeat_at = ?, updated_at = ?, attempt = attempt + 1, version = version + 1
WHERE id = ? AND lease = ? AND started_at IS NULL AND lock_key IS NULL
 AND queue NOT IN (SELECT name FROM queues WHERE paused OR max_running IS NOT NULL OR rate IS NOT NULL)
{which} RETURNING id
"""

_STARTED = "SELECT id FROM jobs_hot WHERE id = ? AND lease = ? AND started_at IS NOT NULL"

_PROGRESS = "UPDATE jobs_hot SET progress = ? WHERE id = ? AND lease = ?"
_HEARTBEAT = "UPDATE jobs_hot SET heartbeat_at = ? WHERE id = ? AND lease = ? RETURNING cancel_requested"

_MOVED = ", ".join({"version": "h.version + 1", "updated_at": "?"}.get(name, f"h.{name}") for name in JOB_COLUMNS)
_ENDS = "WITH i (id, lease, ms, result) AS (VALUES {ends})"
_HELD = "FROM i CROSS JOIN jobs_hot h ON h.id = i.id WHERE h.lease = i.lease AND h.started_at IS NOT NULL"
_COUNT = f"{_ENDS} SELECT h.queue, h.type, count(*), sum(i.ms) {_HELD} GROUP BY h.queue, h.type"
_HOLDERS = f"{_ENDS} SELECT i.id, i.lease {_HELD}"
_ARCHIVE = f"""
INSERT INTO jobs_archive ({", ".join(JOB_COLUMNS)}, finished_at, duration_ms, outcome, result)
{_ENDS} SELECT {_MOVED}, ?, i.ms, 'succeeded', i.result {_HELD}
"""
_DELETE = "DELETE FROM jobs_hot WHERE id IN ({ids})"
_FREE = "DELETE FROM held_keys WHERE job_id IN ({ids}) RETURNING lock_key"

_PROMOTE = """
UPDATE jobs_hot SET state = 'pending', updated_at = ?, version = version + 1
WHERE id IN (SELECT id FROM jobs_hot WHERE state = 'scheduled' AND due_at <= ? ORDER BY due_at LIMIT ?)
"""
_NEXT_DUE = "SELECT min(due_at) FROM jobs_hot WHERE state = 'scheduled'"


class Database(Dialect, Protocol):
    """What these statements need of the dialect."""

    def woke(self) -> None: ...
    def micros(self) -> int: ...


class Ask(NamedTuple):
    """A statement and its values; a list of values is for each in turn."""

    text: str
    values: tuple[Any, ...] | list[tuple[Any, ...]]


Answer = tuple[int, Any]
"""How many rows were added, and the row where one was asked for."""


def raw(connection: Connection) -> sqlite3.Connection:
    """The driver's connection below."""
    return cast(sqlite3.Connection, connection.connection.driver_connection)


class SqliteHot:
    """Enqueue, claim, start, succeed, heartbeat, promote."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def enqueue(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        """Accept jobs in one transaction, then wake this process's workers."""
        accepted = self._database.write(lambda connection: self.enqueue_in(raw(connection), jobs))
        self._database.woke()
        return accepted

    def enqueue_in(self, connection: object, jobs: Sequence[NewJob]) -> list[Enqueued]:
        """Accept jobs in the transaction of ``connection``, a ``sqlite3.Connection``."""
        # A caller's connection may build dicts from rows; ours are tuples.
        driver = cast(sqlite3.Connection, connection).cursor()
        driver.row_factory = None

        def run(ask: Ask) -> Answer:
            if isinstance(ask.values, list):
                return driver.executemany(ask.text, ask.values).rowcount, None
            cursor = driver.execute(ask.text, ask.values)
            return cursor.rowcount, cursor.fetchone() if ask.text is _HOLDER else None

        return drive(self.accepting(jobs), run)

    def accepting(self, jobs: Sequence[NewJob]) -> Steps[Ask, Answer]:
        """What ``enqueue_in`` asks of a connection."""
        now = self._database.micros()
        if not any(job.idempotency_key for job in jobs):
            yield Ask(_INSERT, [_row(job, now) for job in jobs])
            return [Enqueued(job.id) for job in jobs]
        answers = []
        for job in jobs:
            added, _ = yield Ask(_INSERT_KEYED, _row(job, now))
            if added:
                answers.append(Enqueued(job.id))
            else:  # no other writer can have moved the holder: this transaction holds the write lock
                _, row = yield Ask(_HOLDER, (job.type, job.idempotency_key))
                answers.append(Enqueued(UUID(bytes=cast(Any, row)[0]), duplicate=True))
        return answers

    def claim(self, request: ClaimRequest) -> list[ClaimedJob]:
        """Take pending jobs; a look without the write lock comes first, so that idle workers do not queue for it."""
        marks = ",".join("?" * len(request.queues))
        waiting = f"SELECT EXISTS (SELECT 1 FROM jobs_hot WHERE {CLAIMABLE.text} AND queue IN ({marks}))"
        if not self._database.read(lambda c: raw(c).execute(waiting, request.queues).fetchone()[0]):
            return []
        db = self._database

        def work(connection: Connection) -> list[ClaimedJob]:
            driver = raw(connection)
            named = frozenset(name for (name,) in driver.execute(_LIMITED))
            jobs = limited.in_turn(
                request,
                named,
                lambda part: self.claim_in(driver, part),
                lambda queue, room: limited.claim(db, connection, queue, request, room),
            )
            return list(jobs)

        return db.write(work)

    def claim_in(self, connection: object, request: ClaimRequest) -> list[ClaimedJob]:
        """``claim`` in the transaction of ``connection``, a ``sqlite3.Connection``, from queues without a limit."""
        driver = cast(sqlite3.Connection, connection)
        now, lease = self._database.micros(), secrets.randbits(62)
        types = request.start_types or ("",)
        named = types if request.only_start_types else _blocked(driver, request.guarded)
        which = _which("IN" if request.only_start_types else "NOT IN", named)
        statement = _CLAIM.format(types=",".join("?" * len(types)), which=which)
        claimed: list[ClaimedJob] = []
        for queue in request.queues:
            room = request.limit - len(claimed)
            if room <= 0:
                break
            values = (lease, request.worker_id, now, now, *types, now, *types, queue, *named, room, queue)
            rows = driver.execute(statement, values).fetchall()
            rows.sort(key=lambda row: (-row[11], row[17], row[0]))
            claimed += [_claimed(row, now) for row in rows]
        return claimed

    def start(self, queues: Sequence[str], pairs: Sequence[Pair], guarded: Guarded) -> frozenset[Pair]:  # noqa: ARG002
        """Start fetched jobs of queues that are not paused and circuits that are closed.

        Those under a limit or with a lock key start in a second step.
        """

        def work(connection: Connection) -> frozenset[Pair]:
            driver, now = raw(connection), self._database.micros()
            blocked = _blocked(driver, guarded)
            statement = _START.format(which=_which("NOT IN", blocked))
            started = {
                pair
                for pair in pairs
                if driver.execute(statement, (now, now, now, *pair, *blocked)).fetchall()
                or driver.execute(_STARTED, pair).fetchall()  # an earlier call whose answer was lost
            }
            if left := set(pairs) - started:
                started |= limited.start(self._database, connection, left, guarded)
            return frozenset(started)

        return self._database.write(work)

    def held_back(self, request: ClaimRequest) -> float | None:
        """See the port."""

        def look(connection: Connection) -> float | None:
            some = raw(connection).execute(_LIMITED).fetchone()
            return limited.held_back(self._database, connection, request) if some else None

        return self._database.read(look)

    def succeed(self, moves: Sequence[Succeed], *, slot: int) -> frozenset[Pair]:
        """Archive what still holds its lease; the others are left to the caller.

        Whole batches in three statements: the driver lets go of the interpreter at each step of each, and a store
        thread that did so for every row would wait for the busy event loop every time.
        """
        ends = {(move.id, move.lease): (move.id, move.lease, move.duration_ms, move.result) for move in moves}

        def work(connection: Connection) -> frozenset[Pair]:
            driver, now, tally, held = raw(connection), self._database.micros(), Tally(), frozenset(ends)
            given = {"ends": ",".join(["(?, ?, ?, ?)"] * len(ends))}
            values = [value for end in ends.values() for value in end]
            for queue, type_, number, ms in driver.execute(_COUNT.format(**given), values).fetchall():
                tally.totals[queue].succeeded += number
                tally.buckets[queue, type_, "succeeded", ""] = (number, ms)
            archived = driver.execute(_ARCHIVE.format(**given), (*values, now, now)).rowcount
            if archived < len(ends):
                held = frozenset(driver.execute(_HOLDERS.format(**given), values).fetchall())
            ids, jobs = ",".join("?" * len(held)), [job for job, _ in held]
            driver.execute(_DELETE.format(ids=ids), jobs)
            if freed := driver.execute(_FREE.format(ids=ids), jobs).fetchall():
                lock_keys.wake(self._database, connection, {key for (key,) in freed})
            _count(driver, tally, second_of(now), slot)
            return held

        return self._database.write(work)

    def heartbeat(self, pairs: Sequence[Pair], progress: Mapping[Pair, str]) -> Pulse:
        """Renew leases, and keep what handlers say of their progress."""

        def work(connection: Connection) -> Pulse:
            driver, now, lost, cancel = raw(connection), self._database.micros(), set(), set()
            for pair in pairs:
                rows = driver.execute(_HEARTBEAT, (now, *pair)).fetchall()
                if not rows:
                    lost.add(pair)
                elif rows[0][0] is not None:
                    cancel.add(pair)
            driver.executemany(_PROGRESS, ((text, *pair) for pair, text in progress.items()))
            return Pulse(frozenset(lost), frozenset(cancel))

        return self._database.write(work)

    def promote(self, limit: int) -> Promoted:
        """Make due jobs pending; nothing is written when none is."""
        next_due = self._database.read(lambda c: raw(c).execute(_NEXT_DUE).fetchone()[0])
        now = self._database.micros()
        if next_due is None or next_due > now:
            return Promoted(0, None if next_due is None else (next_due - now) / 1_000_000)

        def work(connection: Connection) -> Promoted:
            count = raw(connection).execute(_PROMOTE, (now, now, limit)).rowcount
            (left,) = raw(connection).execute(_NEXT_DUE).fetchone()
            return Promoted(count, None if left is None else max(0.0, (left - now) / 1_000_000))

        return self._database.write(work)


def _blocked(driver: sqlite3.Connection, guarded: Guarded) -> tuple[str, ...]:
    """The guarded types whose circuit is not closed."""
    if not guarded:
        return ()
    names = sorted({circuit for _, circuit in guarded})
    open_ones = f"SELECT name FROM circuits WHERE state <> 'closed' AND name IN ({','.join('?' * len(names))})"
    found = {row[0] for row in driver.execute(open_ones, names)}
    return tuple(type_ for type_, circuit in guarded if circuit in found)


def _which(how: str, types: Sequence[str]) -> str:
    return f" AND type {how} ({','.join('?' * len(types))})" if types else ""


def _row(job: NewJob, now: int) -> tuple[Any, ...]:
    match job.due:
        case None:
            due = now
        case timedelta():
            due = now + job.due // timedelta(microseconds=1)
        case moment:
            due = to_micros(moment)
    # A time that has passed is now: it neither overtakes what waits nor uses up the life of the job.
    due = max(due, now)
    return (
        job.id.bytes,
        job.type,
        job.queue,
        job.payload,
        job.content_type,
        job.priority,
        pack(job.tags, job.labels),
        job.idempotency_key,
        job.lock_key,
        job.max_attempts,
        job.created_by,
        job.trace_context,
        job.origin,
        due,
        due,
        now,
        now,
        "scheduled" if due > now else "pending",
    )


def _claimed(row: tuple[Any, ...], now: int) -> ClaimedJob:
    life_started, unserved = row[15], row[16]
    age = max(0.0, (now - life_started) / 1_000_000)
    waited = None if unserved is None else max(0.0, (now - unserved) / 1_000_000)
    return ClaimedJob(*(*row[:14], row[14] is not None, age, waited))


def _count(driver: sqlite3.Connection, tally: Tally, second: int, slot: int) -> None:
    for queue, numbers in sorted(tally.totals.items()):
        driver.execute(
            "INSERT INTO queue_totals (queue, shard, succeeded) VALUES (?, ?, ?)"
            " ON CONFLICT DO UPDATE SET succeeded = succeeded + excluded.succeeded",
            (queue, slot, numbers.succeeded),
        )
    for (queue, type_, outcome, reason), (n, ms) in sorted(tally.buckets.items()):
        driver.execute(
            "INSERT INTO metric_buckets (at, queue, type, outcome, reason, shard, n, ms)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
            " ON CONFLICT DO UPDATE SET n = n + excluded.n, ms = ms + excluded.ms",
            (second, queue, type_, outcome, reason, slot, n, ms),
        )
