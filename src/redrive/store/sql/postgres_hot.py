"""The hot statements on PostgreSQL, on psycopg's own cursor, prepared, with arrays packed by hand."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, Protocol, cast
from uuid import UUID

import psycopg
from psycopg import sql
from psycopg.rows import tuple_row

from redrive.domain.errors import Retryable, Unavailable
from redrive.domain.job import ClaimedJob, Enqueued, NewJob
from redrive.domain.marks import pack
from redrive.domain.moves import Succeed
from redrive.store.port import ClaimRequest, Guarded, Pair, Promoted, Pulse

from . import limited, lock_keys
from .dialect import Dialect, T
from .packing import byteas, int8s, uuids
from .postgres_pool import Hot, count_micros
from .postgres_sql import INSERT_COLUMNS, Texts
from .steps import Steps, drive

_COPY_TYPES = [
    "uuid",
    "text",
    "text",
    "bytea",
    "text",
    "int2",
    "text",
    "text",
    "text",
    "int4",
    "text",
    "text",
    "text",
]
LOOK = 0.25
"""Seconds for which claims that find something do without a look whether a queue has a limit."""
ROUNDS = 100
"""Rounds of a keyed enqueue before it gives up on holders that keep vanishing."""


Ask = tuple[str, Any]
"""The name of a statement, and its values."""
Rows = list[tuple[Any, ...]]


class Database(Dialect, Protocol):
    """What these statements need of the dialect."""

    def on_hot(self, work: Callable[[Hot], T]) -> T: ...


class PostgresHot:
    """Enqueue, claim, start, succeed, heartbeat, promote."""

    def __init__(self, database: Database, schema: str) -> None:
        self._database = database
        self._schema = schema
        # Queues with a limit when somebody last looked. It decides what is asked; every statement sees for itself.
        self._limited: frozenset[str] = frozenset()
        self._look_at = 0.0

    @property
    def notice(self) -> str:
        """The statement that wakes workers which wait for ``queues`` on ``channel``."""
        return self.texts["notify"]

    @cached_property
    def texts(self) -> dict[str, str]:
        """The statements by name."""
        texts = Texts(sql.Identifier(self._schema).as_string(None))
        named = (
            "claim",
            "claim_guarded",
            "claim_only",
            "limits",
            "start",
            "start_guarded",
            "heartbeat",
            "progress",
            "holding",
            "succeed",
            "promote",
            "next_due",
            "copy_now",
            "enqueue_one",
            "stage",
        )
        found = {name: getattr(texts, name) for name in (*named, "holder", "holders", "notify")}
        found["insert_one"] = texts.insert(texts.values)
        found["insert_staged"] = texts.insert("SELECT * FROM redrive_incoming")
        return found

    def _run(self, connection: Hot, name: str, values: Any, *, pooled: bool = True) -> list[tuple[Any, ...]]:
        # A caller's connection may build dicts from rows; ours are tuples.
        cursor = connection.cursor(binary=True, row_factory=tuple_row)
        if not pooled:
            count_micros(cursor)
        cursor.execute(self.texts[name], values, prepare=True)
        # ``cursor.description`` would build an object for each column just to be asked whether there is one.
        return cursor.fetchall() if cursor.pgresult is not None and cursor.pgresult.nfields else []

    # -- enqueue -------------------------------------------------------------------------------------------------------

    def enqueue(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        """Accept jobs: the plain ones by COPY, the others through a staging table; all of them or none.

        The holder of a key may leave between the insert and the look-up. Everything is rolled back and done again then:
        a second insert under the locks of the first would take keys out of order.
        """
        if len(jobs) == 1 and jobs[0].idempotency_key is None:
            return self._database.on_hot(lambda connection: self._enqueue_one(connection, jobs[0]))
        simple = [job for job in jobs if job.idempotency_key is None and job.due is None]
        staged = [job for job in jobs if job.idempotency_key is not None or job.due is not None]

        def insert(connection: Hot) -> dict[UUID, Enqueued]:
            if len(jobs) == 1:
                answer = self._insert_one(connection, jobs[0])
                return {} if answer is None else {jobs[0].id: answer}
            return self._copy(connection, simple) | self._stage(connection, staged)

        def work(connection: Hot) -> list[Enqueued] | None:
            with connection.transaction() as transaction:
                answers = insert(connection)
                if any(job.id not in answers for job in jobs):
                    raise psycopg.Rollback(transaction)
                if any(not answer.duplicate for answer in answers.values()):
                    self._notify(connection, {job.queue for job in jobs})
                return [answers[job.id] for job in jobs]
            return None

        for _ in range(ROUNDS):
            if (accepted := self._database.on_hot(work)) is not None:
                return accepted
        raise Retryable("the holders of idempotency keys keep changing; send the call again")

    def enqueue_in(self, connection: object, jobs: Sequence[NewJob]) -> list[Enqueued]:
        """Accept jobs in the transaction of ``connection``, a ``psycopg.Connection``: one round only."""
        theirs = cast(Hot, connection)

        def run(ask: Ask) -> Rows:
            # Neither their cursor class nor their row factory: Django's cursors know no binary results.
            cursor = psycopg.Cursor(theirs, row_factory=tuple_row)
            return cursor.execute(self.texts[ask[0]], ask[1], prepare=True, binary=True).fetchall()

        return drive(self.accepting(jobs), run)

    def accepting(self, jobs: Sequence[NewJob]) -> Steps[Ask, Rows]:
        """What ``enqueue_in`` asks of a connection: names of ``texts`` with values, answered by rows."""
        answers = {}
        for job in sorted(jobs, key=lambda job: (job.type, job.idempotency_key or "")):
            if (yield "insert_one", _values(job)):
                answers[job.id] = Enqueued(job.id)
            elif held := (yield "holder", (job.type, job.idempotency_key)):
                answers[job.id] = Enqueued(UUID(bytes=held[0][0]), duplicate=True)
            else:
                key = job.idempotency_key
                raise Retryable(f"the holder of idempotency key {key!r} just ended; roll back, then repeat")
        yield "notify", {"channel": self._schema, "queues": sorted({job.queue for job in jobs})}
        return [answers[job.id] for job in jobs]

    def _enqueue_one(self, connection: Hot, job: NewJob) -> list[Enqueued]:
        self._run(connection, "enqueue_one", {**_values(job), "channel": self._schema})
        return [Enqueued(job.id)]

    def _insert_one(self, connection: Hot, job: NewJob) -> Enqueued | None:
        if self._run(connection, "insert_one", _values(job)):
            return Enqueued(job.id)
        held = self._run(connection, "holder", (job.type, job.idempotency_key))
        return Enqueued(UUID(bytes=held[0][0]), duplicate=True) if held else None

    def _copy(self, connection: Hot, jobs: Sequence[NewJob]) -> dict[UUID, Enqueued]:
        if jobs:
            # COPY takes no expressions: the moment comes from the server first, so that no other clock is involved.
            stamps = (connection.execute("SELECT now()").fetchall()[0][0],) * 4
            with connection.cursor().copy(self.texts["copy_now"]) as copy:
                copy.set_types([*_COPY_TYPES, "timestamptz", "timestamptz", "timestamptz", "timestamptz"])
                for job in jobs:
                    copy.write_row((*_row(job), *stamps))
        return {job.id: Enqueued(job.id) for job in jobs}

    def _stage(self, connection: Hot, jobs: Sequence[NewJob]) -> dict[UUID, Enqueued]:
        if not jobs:
            return {}
        connection.execute(self.texts["stage"])
        columns = ", ".join((*INSERT_COLUMNS, "wait", "at", "place"))
        copy_in = f"COPY redrive_incoming ({columns}) FROM STDIN (FORMAT BINARY)"
        with connection.cursor().copy(copy_in) as copy:
            copy.set_types([*_COPY_TYPES, "interval", "timestamptz", "int4"])
            for place, job in enumerate(jobs):
                wait = job.due if isinstance(job.due, timedelta) else None
                copy.write_row((*_row(job), wait, job.due if isinstance(job.due, datetime) else None, place))
        inserted = {row[0] for row in self._run(connection, "insert_staged", None)}
        answers = {job.id: Enqueued(job.id) for job in jobs if job.id.bytes in inserted}
        if len(answers) < len(jobs):
            for job_id, holder in self._run(connection, "holders", None):
                answers.setdefault(UUID(bytes=job_id), Enqueued(UUID(bytes=holder), duplicate=True))
        return answers

    def _notify(self, connection: Hot, queues: set[str]) -> None:
        values = {"channel": self._schema, "queues": sorted(queues)}
        connection.cursor().execute(self.texts["notify"], values, prepare=True)

    # -- worker --------------------------------------------------------------------------------------------------------

    def claim(self, request: ClaimRequest) -> list[ClaimedJob]:
        """Take pending jobs, and start those of the asked types, in one statement.

        That statement leaves out queues with a limit. Whether there are any is asked when it found nothing, and now and
        then. While there are, they take turns with the others, in the order given, each in a transaction of its own.
        Where a later one fails, what the earlier ones claimed is answered all the same: it is committed.
        """
        jobs: list[ClaimedJob] = []
        try:
            for job in self._claiming(request):
                jobs.append(job)
        except Unavailable:
            if not jobs:
                raise
        return jobs

    def _claiming(self, request: ClaimRequest) -> Iterator[ClaimedJob]:
        if self._limited:
            yield from self._in_turn(request)
            return
        jobs = self._claim_unlimited(request)
        yield from jobs
        if jobs and time.monotonic() < self._look_at:
            return
        self._look_for_limits()
        if queues := tuple(queue for queue in request.queues if queue in self._limited):
            yield from self._in_turn(replace(request, queues=queues, limit=request.limit - len(jobs)))

    def _in_turn(self, request: ClaimRequest) -> Iterator[ClaimedJob]:
        self._look_for_limits()
        db = self._database

        def claim_limited(queue: str, room: int) -> list[ClaimedJob]:
            return db.write(lambda connection: limited.claim(db, connection, queue, request, room))

        return limited.in_turn(request, self._limited, self._claim_unlimited, claim_limited)

    def _look_for_limits(self) -> None:
        rows = self._database.on_hot(lambda connection: self._run(connection, "limits", None))
        self._limited = frozenset(row[0] for row in rows)
        self._look_at = time.monotonic() + LOOK

    def _claim_unlimited(self, request: ClaimRequest) -> list[ClaimedJob]:
        return self._database.on_hot(lambda connection: self._claim(connection, request))

    def claim_in(self, connection: object, request: ClaimRequest) -> list[ClaimedJob]:
        """``claim`` in the transaction of ``connection``, a ``psycopg.Connection`` that is not of the hot pool.

        From queues without a limit.
        """
        return self._claim(cast(Hot, connection), request, pooled=False)

    def _claim(self, connection: Hot, request: ClaimRequest, *, pooled: bool = True) -> list[ClaimedJob]:
        values: dict[str, Any] = {
            "queues": list(request.queues),
            "types": list(request.start_types),
            "lease": secrets.randbits(62),
            "worker": request.worker_id,
            "limit": request.limit,
        }
        name = "claim_only" if request.only_start_types else "claim_guarded" if request.guarded else "claim"
        if name == "claim_guarded":
            values |= _guards(request.guarded)
        rows = self._run(connection, name, values, pooled=pooled)
        order = {queue: place for place, queue in enumerate(request.queues)}
        rows.sort(key=lambda row: (order[row[3]], -row[11], row[17], row[0]))
        return [_claimed(row) for row in rows]

    def held_back(self, request: ClaimRequest) -> float | None:
        """See the port; where no limit is known nothing is asked."""
        db, some = self._database, not self._limited.isdisjoint(request.queues)
        return db.look(lambda connection: limited.held_back(db, connection, request)) if some else None

    def start(self, queues: Sequence[str], pairs: Sequence[Pair], guarded: Guarded) -> frozenset[Pair]:
        """Start fetched jobs of queues that are not paused and circuits that are closed.

        Those under a limit or with a lock key start in a second step.
        """
        name = "start_guarded" if guarded else "start"
        values = {**_pairs(pairs), "queues": list(queues), **(_guards(guarded) if guarded else {})}

        def work(connection: Hot) -> tuple[set[Pair], set[Pair]]:
            rows = self._run(connection, name, values)
            started = {(row[0], row[1]) for row in rows}
            if missing := set(pairs) - started:  # an earlier call whose answer was lost may have started them
                rows = self._run(connection, "holding", _pairs(sorted(missing)))
                started |= {(row[0], row[1]) for row in rows if row[2]}
                return started, {(row[0], row[1]) for row in rows if not row[2]}
            return started, set()

        db = self._database
        started, left = db.on_hot(work)
        if left:
            started |= db.write(lambda connection: limited.start(db, connection, left, guarded))
        return frozenset(started)

    def succeed(self, moves: Sequence[Succeed], *, slot: int) -> frozenset[Pair]:
        """Archive what still holds its lease; the others are left to the caller."""
        ordered = sorted(moves, key=lambda move: move.id)
        values = {
            "ids": uuids([move.id for move in ordered]),
            "leases": int8s([move.lease for move in ordered]),
            "ms": int8s([move.duration_ms for move in ordered]),
            "results": byteas([move.result for move in ordered]),
            "slot": slot,
        }
        db = self._database
        rows = db.on_hot(lambda connection: self._run(connection, "succeed", values))
        if freed := {row[2] for row in rows if row[2] is not None}:
            # Not part of the statement, whose snapshot is older than the jobs that were blocked until it had the keys.
            db.write(lambda connection: lock_keys.wake(db, connection, freed))
        return frozenset((row[0], row[1]) for row in rows)

    def heartbeat(self, pairs: Sequence[Pair], progress: Mapping[Pair, str]) -> Pulse:
        """Renew leases, and keep what handlers say; a row that somebody has locked is asked for, not waited for."""

        def work(connection: Hot) -> Pulse:
            beaten = self._run(connection, "heartbeat", _pairs(pairs))
            for (job, lease), text in progress.items():
                self._run(connection, "progress", {"id": UUID(bytes=job), "lease": lease, "text": text})
            cancel = frozenset((row[0], row[1]) for row in beaten if row[2])
            missing = set(pairs) - {(row[0], row[1]) for row in beaten}
            if missing:
                missing -= {(row[0], row[1]) for row in self._run(connection, "holding", _pairs(sorted(missing)))}
            return Pulse(frozenset(missing), cancel)

        return self._database.on_hot(work)

    def promote(self, limit: int) -> Promoted:
        """Make due jobs pending; the next one is looked for only when none is left due."""

        def work(connection: Hot) -> Promoted:
            due = self._run(connection, "next_due", None)
            if not due or due[0][0] > 0:
                return Promoted(0, due[0][0] if due else None)
            with connection.transaction():  # who is told of a failure must find nothing done
                cursor = connection.cursor()
                cursor.execute(self.texts["promote"], {"limit": limit}, prepare=True)
                count = max(0, cursor.rowcount)
                due = self._run(connection, "next_due", None)
            return Promoted(count, max(0.0, due[0][0]) if due else None)

        return self._database.on_hot(work)


def _claimed(row: tuple[Any, ...]) -> ClaimedJob:
    life_began, unserved_since, _, now = row[15:]
    age = max(0.0, (now - life_began) / 1_000_000)
    waited = None if unserved_since is None else max(0.0, (now - unserved_since) / 1_000_000)
    return ClaimedJob(*(*row[:15], age, waited))


def _pairs(pairs: Sequence[Pair]) -> dict[str, psycopg.abc.Buffer]:
    ordered = sorted(pairs)
    return {"ids": uuids([pair[0] for pair in ordered]), "leases": int8s([pair[1] for pair in ordered])}


def _guards(guarded: Guarded) -> dict[str, list[str]]:
    return {"guarded": [type_ for type_, _ in guarded], "circuits": [circuit for _, circuit in guarded]}


def _values(job: NewJob) -> dict[str, Any]:
    values = dict(zip(INSERT_COLUMNS, _row(job), strict=True))
    values["wait"] = job.due if isinstance(job.due, timedelta) else None
    values["at"] = job.due if isinstance(job.due, datetime) else None
    return values


def _row(job: NewJob) -> tuple[Any, ...]:
    return (
        job.id,
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
    )
