"""The store: the port, on either database. Each method is one line to the file that knows how."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, func, select
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from redrive.domain.audit import AuditDraft, AuditEntry
from redrive.domain.circuit import Breaker, Circuit, Seen
from redrive.domain.errors import ConfigError, Unavailable
from redrive.domain.filters import Count, JobFilter, PageRequest
from redrive.domain.job import ClaimedJob, Enqueued, JobHead, JobRecord, NewJob
from redrive.domain.lifecycle import TypeRules, Wish
from redrive.domain.moves import Answer, Answered, PutOff, Release, Settled, SettleMove, Skip, Succeed
from redrive.domain.operations import Operation, OperationState, Outcomes, Progress, RunOptions
from redrive.domain.plans import Action, Counts, Plan, PlanItem, PlanOptions
from redrive.store.bulk import Advanced, After, Filled, Left
from redrive.store.port import (
    BATCH,
    AuditVerdict,
    CircuitView,
    ClaimRequest,
    Condition,
    Guarded,
    ImportedJob,
    IncidentView,
    JobPage,
    Listener,
    MarkAnswer,
    MarkClaim,
    Orders,
    Pair,
    Probing,
    PromiseResult,
    Promoted,
    Pulse,
    QueueChange,
    QueueInfo,
    Rescued,
    ScheduleRow,
    ScheduleView,
    SchemaState,
    TypeView,
    WorkerInfo,
    WorkerView,
)

from . import (
    audit,
    circuits,
    claims,
    copies,
    exchange,
    fleet,
    lists,
    lock_keys,
    migrate,
    moves,
    once,
    operations,
    plans,
    promises,
    rescue,
    schedules,
)
from .archive import settle_marked
from .callers import aenqueue_in, enqueue_in
from .columns import host_micros
from .dialect import Dialect
from .late import explain
from .operate import operate_batch
from .settle import settle_failures
from .tables import incidents, jobs_dlq
from .urls import Pooler, listed


class SqlStore:
    """See ``store/port.py`` for what each method promises."""

    def __init__(self, dialect: Dialect, schema: str | None) -> None:
        self._db = dialect
        self._schema = schema

    # -- enqueue -------------------------------------------------------------------------------------------------------

    def enqueue(self, jobs: Sequence[NewJob], *, connection: object | None = None) -> list[Enqueued]:
        if not jobs:
            return []
        return self._db.hot.enqueue(jobs) if connection is None else enqueue_in(self._db, connection, jobs)

    async def aenqueue(self, jobs: Sequence[NewJob], *, connection: object) -> list[Enqueued]:
        return await aenqueue_in(self._db, connection, jobs) if jobs else []

    # -- worker --------------------------------------------------------------------------------------------------------

    def register(self, worker: WorkerInfo) -> int:
        return fleet.register(self._db, worker)

    def seen(self, worker_id: str, *, waiting: bool, condition: Condition | None = None) -> Orders | None:
        return fleet.seen(self._db, worker_id, waiting, condition)

    def unregister(self, worker_id: str) -> None:
        fleet.unregister(self._db, worker_id)

    def claim(self, request: ClaimRequest) -> list[ClaimedJob]:
        return self._db.hot.claim(request)

    def reclaim(self, worker_id: str, known: Collection[Pair]) -> list[ClaimedJob]:
        return claims.reclaim(self._db, worker_id, known)

    def held_back(self, request: ClaimRequest) -> float | None:
        return self._db.hot.held_back(request) if request.queues else None

    def start(self, queues: Sequence[str], pairs: Sequence[Pair], guarded: Guarded = ()) -> frozenset[Pair]:
        return self._db.hot.start(queues, pairs, guarded) if pairs else frozenset()

    def give_back(self, moves_: Sequence[Release | PutOff]) -> None:
        if moves_:
            moves.give_back(self._db, moves_)

    def settle(self, ends: Sequence[SettleMove], *, worker_id: str, build: str, slot: int) -> list[Settled]:
        successes = [move for move in ends if isinstance(move, Succeed) and move.mark is None]
        marked = [move for move in ends if isinstance(move, Skip) or (isinstance(move, Succeed) and move.mark)]
        failures = [move for move in ends if not isinstance(move, Succeed | Skip)]
        done = self._db.hot.succeed(successes, slot=slot) if successes else frozenset()
        if marked:
            done |= settle_marked(self._db, marked, worker_id=worker_id, build=build, slot=slot)
        failed = settle_failures(self._db, failures, worker_id=worker_id, build=build, slot=slot) if failures else {}
        left = [move for move in ends if (move.id, move.lease) not in done and (move.id, move.lease) not in failed]
        explained = explain(self._db, left, worker_id=worker_id, build=build, slot=slot) if left else []
        answers = {(answer.id, answer.lease): answer for answer in explained}
        return [
            answers.get((move.id, move.lease))
            or Settled(move.id, move.lease, Answer.APPLIED, failed.get((move.id, move.lease)))
            for move in ends
        ]

    def claim_marks(self, wanted: Sequence[MarkClaim]) -> list[MarkAnswer]:
        return once.claim(self._db, wanted) if wanted else []

    def prune_marks(self) -> int:
        return once.prune(self._db)

    def heartbeat(self, pairs: Sequence[Pair], *, progress: Mapping[Pair, str] | None = None) -> Pulse:
        return self._db.hot.heartbeat(pairs, progress or {}) if pairs else Pulse(frozenset(), frozenset())

    def promote(self, limit: int = BATCH) -> Promoted:
        return self._db.hot.promote(limit)

    def rescue(
        self, *, zombie_timeout: float, fetched_timeout: float, rules: Callable[[str], TypeRules | None], slot: int,
        as_of: datetime | None = None, within: float = 0.0, types: Collection[str] | None = None,
        orphaned: float = 600.0,
    ) -> list[Rescued]:  # fmt: skip
        lock_keys.wake_forgotten(self._db)  # first: a key that this rescue frees lets somebody go on by itself
        return rescue.rescue_expired(
            self._db,
            zombie_timeout=zombie_timeout,
            fetched_timeout=fetched_timeout,
            rules=rules,
            jitter=random.random,
            slot=slot,
            as_of=as_of,
            within=within,
            types=types,
            orphaned=orphaned,
        )

    def bury_unserved(self, pairs: Sequence[Pair], *, worker_id: str, build: str, slot: int) -> None:
        if pairs:
            moves.bury_unserved(self._db, pairs, worker_id=worker_id, build=build, slot=slot)

    def announced(self, types: Sequence[str], *, alive_within: float) -> frozenset[str]:
        return fleet.announced(self._db, types, alive_within)

    def awaited(self, worker_id: str) -> frozenset[str]:
        return fleet.awaited(self._db, worker_id)

    def listen(self, queues: Sequence[str]) -> Listener:
        return self._db.listen(queues)

    # -- schedules -----------------------------------------------------------------------------------------------------

    def schedule_rows(self, names: Sequence[str]) -> tuple[datetime, dict[str, ScheduleRow]]:
        return schedules.rows(self._db, names)

    def declare_schedule(
        self, name: str, spec: Mapping[str, Any], next_slot: datetime | None, *, version: int | None
    ) -> bool:
        return schedules.declare(self._db, name, spec, next_slot, version)

    def announced_schedules(self, *, alive_within: float) -> frozenset[tuple[str, str]]:
        return self._db.read(lambda connection: schedules.announced(self._db, connection, alive_within))

    def enqueue_slots(
        self, name: str, jobs: Sequence[NewJob], *, slot: datetime, last: datetime | None, next: datetime | None,
        version: int,
    ) -> list[Enqueued] | None:  # fmt: skip
        return schedules.enqueue_slots(self._db, name, jobs, slot=slot, last=last, following=next, version=version)

    # -- circuits ------------------------------------------------------------------------------------------------------

    def circuit_states(self, names: Sequence[str]) -> tuple[datetime, dict[str, Circuit]]:
        return circuits.states(self._db, names)

    def observe(self, name: str, breaker: Breaker, ends: Sequence[Seen]) -> tuple[Circuit, Circuit]:
        return circuits.observed(self._db, name, breaker, ends)

    def probe(self, name: str, breaker: Breaker, request: ClaimRequest) -> Probing:
        return circuits.probed(self._db, name, breaker, request)

    def bury_kept_off(
        self, name: str, max_ages: Mapping[str, float], *, every: float, worker_id: str, build: str, slot: int
    ) -> int:
        return circuits.bury_kept_off(
            self._db, name, max_ages, every=every, worker_id=worker_id, build=build, slot=slot
        )

    # -- operators -----------------------------------------------------------------------------------------------------

    def operate(self, wish: Wish, targets: Sequence[tuple[UUID, int | None]], draft: AuditDraft) -> list[Answered]:
        return operate_batch(self._db, wish, targets, draft) if targets else []

    def copy(self, job_id: UUID, new_id: UUID, audit: AuditDraft, *, drop_key: bool) -> Answered:
        return copies.copy(self._db, job_id, new_id, audit, drop_key)

    def purge_archive(self, older_than: datetime, draft: AuditDraft, *, limit: int = BATCH) -> int:
        return exchange.purge_archive(self._db, older_than, draft, limit)

    def set_queue(self, name: str, change: QueueChange, draft: AuditDraft, *, version: int | None) -> QueueInfo:
        return fleet.set_queue(self._db, name, change, draft, version)

    def set_worker(self, worker_id: str, concurrency: int | None, draft: AuditDraft) -> WorkerView:
        return fleet.set_worker(self._db, worker_id, concurrency, draft)

    def pause_schedule(self, name: str, paused: bool, draft: AuditDraft, *, version: int | None) -> ScheduleView:
        return schedules.pause(self._db, name, paused, draft, version)

    def reset_circuit(self, name: str, draft: AuditDraft) -> CircuitView:
        return circuits.reset_by(self._db, name, draft)

    def import_dead(self, jobs: Sequence[ImportedJob], draft: AuditDraft) -> list[Answered]:
        return exchange.import_dead(self._db, jobs, draft) if jobs else []

    def seal_audit(self, *, limit: int = BATCH) -> int:
        return audit.seal(self._db, limit)

    # -- plans and operations ------------------------------------------------------------------------------------------

    def begin_plan(self, action: Action, job_filter: JobFilter | None, options: PlanOptions, actor: str) -> Plan:
        return plans.begin(self._db, action, job_filter, options, actor)

    def fill_plan(self, plan: Plan, start: int, after: After | None, *, payloads: bool = False) -> Filled:
        return plans.fill(self._db, plan, start, after, payloads=payloads)

    def add_to_plan(
        self, plan: Plan, start: int, targets: Sequence[tuple[UUID, int | None]], *, payloads: bool = False
    ) -> Filled:
        return plans.add(self._db, plan, start, targets, payloads=payloads)

    def seal_plan(self, plan: Plan, digest: str, counts: Counts) -> Plan:
        return plans.seal(self._db, plan, digest, counts)

    def plan(self, number: int) -> Plan | None:
        return self._db.read(lambda connection: plans.by_number(connection, number))

    def plans(self, *, limit: int = 100, before: int | None = None) -> list[Plan]:
        return self._db.read(lambda connection: plans.newest(connection, limit, before))

    def plan_items(self, plan_id: UUID, *, after: int = 0, limit: int) -> list[PlanItem]:
        return self._db.read(lambda connection: plans.items(connection, plan_id, after, limit))

    def plan_heads(self, plan_id: UUID, *, after: int = 0, limit: int) -> list[JobHead]:
        return self._db.read(lambda connection: plans.item_heads(connection, plan_id, after, limit))

    def arrived_since(self, plan: Plan) -> tuple[Count, list[UUID]]:
        return self._db.read(lambda connection: plans.arrived(connection, plan))

    def prune_plans(self) -> int:
        return plans.prune(self._db)

    def start_operation(self, plan: Plan, options: RunOptions, draft: AuditDraft) -> tuple[Operation, bool]:
        return operations.start(self._db, plan, options, draft)

    def operation(self, number: int) -> Operation | None:
        return self._db.read(lambda connection: operations.by_number(self._db, connection, number))

    def operations(self, *, limit: int = 100, before: int | None = None, unfinished: bool = False) -> list[Operation]:
        return self._db.look(lambda connection: operations.newest(self._db, connection, limit, before, unfinished))

    def take_operation(self, operation_id: UUID, owner: str, *, lease: float) -> int | None:
        return operations.take(self._db, operation_id, owner, lease)

    def advance(self, operation_id: UUID, lease: int, rows: int, *, keep: Progress | None = None) -> Advanced:
        return operations.advance(self._db, operation_id, lease, rows, keep)

    def leave_out(self, operation_id: UUID, lease: int, why: str) -> Advanced:
        return operations.leave_out(self._db, operation_id, lease, why)

    def let_go(self, operation_id: UUID, lease: int) -> None:
        operations.let_go(self._db, operation_id, lease)

    def halt(self, operation_id: UUID, lease: int, why: str) -> None:
        operations.halt(self._db, operation_id, lease, why)

    def steer(self, operation_id: UUID, state: OperationState, draft: AuditDraft) -> Operation:
        return operations.steer(self._db, operation_id, state, draft)

    def outcomes(self, operation_id: UUID, moved: int) -> Outcomes:
        return self._db.look(lambda connection: operations.outcomes(connection, operation_id, moved))

    def unstarted(self, operation_id: UUID, *, after: UUID | None, limit: int) -> list[UUID]:
        return self._db.read(lambda connection: operations.unstarted(connection, operation_id, after, limit))

    def left_out(self, operation_id: UUID, *, after: int = 0, limit: int = 1000) -> list[Left]:
        return self._db.read(lambda connection: operations.left_out(connection, operation_id, after, limit))

    # -- insight -------------------------------------------------------------------------------------------------------

    def find(self, job_id: UUID) -> JobRecord | None:
        return self._db.read(lambda connection: lists.find(connection, job_id))

    def head(self, job_id: UUID) -> JobHead | None:
        return self._db.read(lambda connection: lists.find_head(connection, job_id))

    def list_jobs(self, job_filter: JobFilter, page: PageRequest) -> JobPage:
        return self._db.read(lambda connection: lists.page(connection, job_filter, page))

    def count_jobs(self, job_filter: JobFilter) -> Count:
        return self._db.read(lambda connection: lists.count(connection, job_filter))

    def dead_by_reason(self, queue: str | None = None) -> dict[str, int]:
        statement = select(jobs_dlq.c.reason, func.count()).group_by(jobs_dlq.c.reason)
        if queue is not None:
            statement = statement.where(jobs_dlq.c.queue == queue)
        rows = self._db.read(lambda connection: connection.execute(statement).all())
        return {row[0]: row[1] for row in sorted(rows, key=lambda row: (-row[1], row[0]))}

    def queues(self) -> list[QueueInfo]:
        return fleet.queue_infos(self._db)

    def lock_holder(self, lock_key: str) -> UUID | None:
        return self._db.read(lambda connection: lock_keys.holder(connection, lock_key))

    def types(self) -> list[TypeView]:
        return fleet.type_views(self._db)

    def workers(self) -> list[WorkerView]:
        return fleet.worker_views(self._db)

    def schedules(self, *, alive_within: float = 60.0) -> list[ScheduleView]:
        return schedules.views(self._db, alive_within)

    def circuits(self) -> list[CircuitView]:
        return circuits.views(self._db)

    def incidents(self, *, limit: int = 100) -> list[IncidentView]:
        newest = select(incidents).order_by(incidents.c.last_seen.desc(), incidents.c.id).limit(limit)
        rows = self._db.read(lambda connection: connection.execute(newest).all())
        return [IncidentView(**row._mapping) for row in rows]

    def audit_entries(
        self, *, limit: int = 100, before: int | None = None, target: str | None = None, actor: str | None = None
    ) -> list[AuditEntry]:
        return self._db.read(
            lambda connection: audit.read_audit(connection, limit=limit, before=before, target=target, actor=actor)
        )

    def verify_audit(self) -> AuditVerdict:
        return self._db.read(audit.verify)

    def promises(self, *, examples: int = 5) -> list[PromiseResult]:
        return self._db.read(
            lambda connection: promises.check(
                connection, postgres=self._db.name == "postgresql", schema=self._schema, examples=examples
            )
        )

    def now(self) -> datetime:
        moment: datetime = self._db.read(lambda connection: connection.execute(select(self._db.now())).scalar_one())
        return moment.astimezone(UTC)  # else days would be added by the calendar of the session's zone

    # -- schema --------------------------------------------------------------------------------------------------------

    def schema_state(self) -> SchemaState:
        def state(connection: Connection) -> str | None:
            return migrate.current(connection, schema=self._schema)

        return SchemaState(self._db.read(state), migrate.head())

    def upgrade(self) -> None:
        self._db.upgrade()

    def upgrade_sql(self) -> str:
        return migrate.script(self._db.name, schema=self._schema)

    def describe(self) -> Mapping[str, str]:
        return self._db.describe()

    def close(self) -> None:
        self._db.close()


SMALL = 65_536
"""Bytes of a SQLite file that may still be empty; one with our tables is larger."""
URL_EXPECTED = "sqlite:///file.db, sqlite:// (temporary) or postgresql://user@host/database"


def open_store(
    url: str,
    *,
    schema: str = "redrive",
    create: bool = True,
    pooler: Pooler = "auto",
    micros: Callable[[], int] = host_micros,
) -> SqlStore:
    """The store at ``url``. Nothing is connected yet, except that a new SQLite file gets its tables.

    ``create`` False refuses a SQLite file that is not there: whoever only looks is in the wrong folder then. ``pooler``
    is ``database.pooler``. ``micros`` is the clock of SQLite.
    """
    try:
        parsed = make_url(listed(url))
    except (ArgumentError, ValueError):  # without the cause, which may quote a part of the password
        raise ConfigError(f"database.url: not a URL; expected {URL_EXPECTED}") from None
    match parsed.get_backend_name():
        case "sqlite":
            return _sqlite(parsed, create, micros)
        case "postgresql" | "postgres":
            return _postgres(parsed, schema, pooler)
        case other:
            raise ConfigError(f"database.url: {other} is not supported; expected {URL_EXPECTED}")


def _sqlite(url: URL, create: bool, micros: Callable[[], int]) -> SqlStore:
    from .sqlite import SqliteDialect

    if url.query:
        raise ConfigError(f"database.url: SQLite takes no options, such as ?{next(iter(url.query))}=")
    memory = url.database in (None, "", ":memory:")
    path = None if memory else Path(str(url.database))
    if not create and (path is None or not path.exists()):
        where = "a temporary database ends with its process" if path is None else f"{path.absolute()}: no such file"
        raise Unavailable(f"{where}; enqueue, work and `redrive db upgrade` make one, other commands need one")
    dialect = SqliteDialect(path, micros)
    store = SqlStore(dialect, None)
    # An embedded database belongs to nobody else: the first one to open it sets it up. A file of one page may be one
    # that another process is setting up right now.
    small = path is None or not path.exists() or path.stat().st_size <= SMALL
    if small and dialect.read(lambda c: c.exec_driver_sql("SELECT count(*) FROM sqlite_master").scalar_one()) == 0:
        store.upgrade()
    return store


def _postgres(url: URL, schema: str, pooler: Pooler) -> SqlStore:
    try:
        from .postgres import PostgresDialect
    except ImportError as error:
        raise ConfigError("database.url: PostgreSQL needs its driver; pip install 'redrive[postgres]'") from error
    return SqlStore(PostgresDialect(url, schema, pooler), schema)
