"""Workers, types and queues: who is there, what they serve, how it is set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from sqlalchemy import Connection, delete, func, select, update

from redrive.domain.audit import AuditDraft
from redrive.domain.edits import check_name
from redrive.domain.errors import InvalidField, NotFound, VersionChanged
from redrive.domain.limits import check_running, parse_rate
from redrive.store.port import Condition, Orders, QueueChange, QueueInfo, TypeView, WorkerInfo, WorkerView

from . import limited, lock_keys
from .audit import Target, write_audit
from .dialect import Dialect
from .tables import job_types, jobs_dlq, jobs_hot, queue_totals, queues, workers
from .tables_later import circuits

SLOTS = 16
"""Shards of the counters; workers share them evenly."""
ABSENT = 60.0
"""Seconds after which a silent worker is not reckoned with."""
FORGOTTEN = 86_400.0
"""Seconds after which a silent worker's row is removed."""


def register(db: Dialect, worker: WorkerInfo) -> int:
    """Announce a worker, its queues and types; takes the slot the fewest live workers use."""

    def work(connection: Connection) -> int:
        connection.execute(delete(workers).where(db.age(workers.c.seen_at) > FORGOTTEN))
        used = dict.fromkeys(range(SLOTS), 0)
        for row in connection.execute(select(workers.c.slot, func.count()).group_by(workers.c.slot)):
            used[row[0]] = row[1]
        again = connection.execute(select(workers.c.slot).where(workers.c.id == worker.id)).scalar()
        slot = min(used, key=lambda number: (used[number], number)) if again is None else again
        announced = {
            "slot": slot,
            "host": worker.host,
            "pid": worker.pid,
            "build": worker.build,
            "queues": list(worker.queues),
            "types": [info.type for info in worker.types],
            "concurrency": worker.concurrency,
            "started_at": db.now(),
            "seen_at": db.now(),
        }
        if worker.schedules:
            announced["schedules"] = dict(worker.schedules)
        # It may be there: the answer to an earlier call was lost.
        insert_worker = db.insert(workers).values(id=worker.id, **announced)
        connection.execute(insert_worker.on_conflict_do_update(index_elements=["id"], set_=announced))
        if worker.queues:  # a claim locks its queues' rows, so they have to exist
            insert_queue = db.insert(queues).on_conflict_do_nothing()
            connection.execute(insert_queue, [{"name": name, "version": 0} for name in sorted(set(worker.queues))])
        if names := sorted({info.breaker["name"] for info in worker.types if info.breaker}):
            connection.execute(db.insert(circuits).on_conflict_do_nothing(), [{"name": name} for name in names])
        for info in sorted(worker.types, key=lambda info: info.type):
            values = {**asdict(info), "build": worker.build, "seen_at": db.now()}
            insert_type = db.insert(job_types).values(**values)
            changed = {name: insert_type.excluded[name] for name in values if name not in ("type", "build")}
            connection.execute(insert_type.on_conflict_do_update(index_elements=["type", "build"], set_=changed))
        return slot

    return db.write(work)


def seen(db: Dialect, worker_id: str, waiting: bool, condition: Condition | None) -> Orders | None:
    """The worker lives, and how it is; None when its row is gone."""
    said: dict[str, Any] = {} if condition is None else asdict(condition)
    beat = update(workers).where(workers.c.id == worker_id).values(seen_at=db.now(), waiting=waiting, **said)
    returned = beat.returning(workers.c.wanted_concurrency)
    row = db.write(lambda connection: connection.execute(returned).one_or_none())
    return None if row is None else Orders(row.wanted_concurrency)


def set_worker(db: Dialect, worker_id: str, concurrency: int | None, audit: AuditDraft) -> WorkerView:
    """Leave an order for a worker; it finds it at its next heartbeat."""

    def work(connection: Connection) -> None:
        mine = workers.c.id == worker_id
        locked = db.locking(select(workers.c.wanted_concurrency).where(mine), of=workers)
        row = connection.execute(locked).one_or_none()
        if row is None:
            raise NotFound("worker", worker_id)
        if row.wanted_concurrency == concurrency:
            return
        connection.execute(update(workers).where(mine).values(wanted_concurrency=concurrency))
        details = {"before": {"concurrency": row.wanted_concurrency}, "after": {"concurrency": concurrency}}
        write_audit(db, connection, audit, [Target(f"worker {worker_id}", "changed", details=details)])

    db.write(work)
    found = next((view for view in worker_views(db) if view.id == worker_id), None)
    if found is None:
        raise NotFound("worker", worker_id)
    return found


def unregister(db: Dialect, worker_id: str) -> None:
    """The worker ended in order."""
    db.write(lambda connection: connection.execute(delete(workers).where(workers.c.id == worker_id)))


def announced(db: Dialect, types: Sequence[str], alive_within: float) -> frozenset[str]:
    """Which types a live worker serves."""
    return frozenset(types) & db.read(lambda connection: served(db, connection, alive_within))


def served(db: Dialect, connection: Connection, alive_within: float) -> frozenset[str]:
    """Every type that a worker seen within that many seconds serves."""
    alive = select(workers.c.types).where(db.age(workers.c.seen_at) <= alive_within)
    return frozenset(name for row in connection.execute(alive) for name in row[0])


def awaited(db: Dialect, worker_id: str) -> frozenset[str]:
    """The types of other live workers that wait for work."""
    live = (workers.c.waiting, db.age(workers.c.seen_at) <= ABSENT, workers.c.id != worker_id)
    rows = db.look(lambda connection: connection.execute(select(workers.c.types).where(*live)).all())
    return frozenset(name for row in rows for name in row[0])


_VIEWED = [column for column in workers.c if column is not workers.c.schedules]  # came later, and is not shown


def worker_views(db: Dialect) -> list[WorkerView]:
    """Registered workers, the most recently seen first."""
    held = (
        select(jobs_hot.c.worker_id, func.count().label("n"))
        .where(jobs_hot.c.state == "taken")
        .group_by(jobs_hot.c.worker_id)
        .subquery()
    )
    statement = (
        select(*_VIEWED, db.age(workers.c.seen_at).label("silent"), func.coalesce(held.c.n, 0).label("holding"))
        .outerjoin(held, held.c.worker_id == workers.c.id)
        .order_by(workers.c.seen_at.desc(), workers.c.id)
    )
    return [
        WorkerView(
            id=row.id,
            slot=row.slot,
            host=row.host,
            pid=row.pid,
            build=row.build,
            queues=tuple(row.queues),
            types=tuple(row.types),
            concurrency=row.concurrency,
            waiting=row.waiting,
            started_at=row.started_at,
            silent=max(0.0, float(row.silent)),
            holding=row.holding,
            mode=row.mode,
            stuck=row.stuck,
            wanted_concurrency=row.wanted_concurrency,
        )
        for row in db.read(lambda connection: connection.execute(statement).all())
    ]


def type_views(db: Dialect) -> list[TypeView]:
    """Announced types."""
    statement = select(job_types).order_by(job_types.c.type, job_types.c.seen_at.desc())
    return [TypeView(**row._mapping) for row in db.read(lambda connection: connection.execute(statement).all())]


def queue_infos(db: Dialect, only: str | None = None) -> list[QueueInfo]:
    """Queues with settings, jobs or counters."""

    def work(connection: Connection) -> list[QueueInfo]:
        return _queue_infos(db, connection, only)

    return db.read(work)


def _queue_infos(db: Dialect, connection: Connection, only: str | None) -> list[QueueInfo]:
    found: dict[str, dict[str, Any]] = {}

    def of(name: str) -> dict[str, Any]:
        return found.setdefault(name, {"name": name})

    def rows(statement: Any, column: Any) -> Any:
        return connection.execute(statement if only is None else statement.where(column == only))

    for row in rows(select(queues), queues.c.name):
        of(row.name).update(
            paused=row.paused,
            max_running=row.max_running,
            rate=row.rate,
            zombie_timeout=row.zombie_timeout,
            fetched_timeout=row.fetched_timeout,
            owner=row.owner,
            version=row.version,
        )
    hot = jobs_hot.c
    states = select(hot.queue, hot.state, hot.started_at.is_not(None).label("started"), func.count().label("n"))
    for row in rows(states.group_by(hot.queue, hot.state, hot.started_at.is_not(None)), hot.queue):
        name = row.state if row.state != "taken" else "processing" if row.started else "fetched"
        of(row.queue)[name] = row.n
    oldest = select(hot.queue, db.age(func.min(hot.due_at)).label("age")).where(hot.state == "pending")
    for row in rows(oldest.group_by(hot.queue), hot.queue):
        of(row.queue)["oldest_pending"] = max(0.0, float(row.age))
    for name, number in lock_keys.blocked_by_queue(connection).items():
        if only in (None, name):
            of(name)["blocked"] = number
    for name, wait in limited.waits(db, connection, found).items():
        of(name)["next_start"] = wait
    for row in rows(select(jobs_dlq.c.queue, func.count().label("n")).group_by(jobs_dlq.c.queue), jobs_dlq.c.queue):
        of(row.queue)["dead"] = row.n
    names = ("succeeded", "failed", "retried", "purged_succeeded", "purged_failed")
    sums = [func.sum(queue_totals.c[name]).label(name) for name in names]
    totals = select(queue_totals.c.queue, *sums).group_by(queue_totals.c.queue)
    for row in rows(totals, queue_totals.c.queue):
        of(row.queue).update(
            succeeded_total=int(row.succeeded),
            failed_total=int(row.failed),
            retried_total=int(row.retried),
            purged_total=int(row.purged_succeeded + row.purged_failed),
        )
    return [QueueInfo(**found[name]) for name in sorted(found)]


_SETTINGS = ("max_running", "rate", "zombie_timeout", "fetched_timeout", "owner")


def set_queue(db: Dialect, name: str, change: QueueChange, audit: AuditDraft, version: int | None) -> QueueInfo:
    """Change a queue. The UPDATE waits for claims and starts that hold the row, so a pause is effective on return."""
    check_name("queue", name)
    if change.max_running is not None:
        check_running(change.max_running)
    if change.rate is not None:
        change = replace(change, rate=str(parse_rate(change.rate)))
    unknown = set(change.clear) - set(_SETTINGS)
    if unknown:
        raise InvalidField("clear", f"{sorted(unknown)} cannot be cleared", expected=" or ".join(_SETTINGS))
    wanted: dict[str, Any] = {field: value for field in _SETTINGS if (value := getattr(change, field)) is not None}
    wanted |= dict.fromkeys(change.clear)
    if change.paused is not None:
        wanted["paused"] = change.paused

    def work(connection: Connection) -> None:
        # Settings nobody made have version 0, with or without a row.
        connection.execute(db.insert(queues).values(name=name, version=0).on_conflict_do_nothing())
        locked = db.locking(select(queues).where(queues.c.name == name), of=queues)
        row = connection.execute(locked).one()
        if version is not None and version != row.version:
            raise VersionChanged(f"queue {name}", version, row.version)
        changed = {field: value for field, value in wanted.items() if row._mapping[field] != value}
        if changed:
            connection.execute(
                update(queues).where(queues.c.name == name).values(**changed, version=queues.c.version + 1)
            )
            db.wake(connection, [name])  # there may be room now
            before = {field: row._mapping[field] for field in changed}
            write_audit(
                db,
                connection,
                audit,
                [Target(f"queue {name}", "changed", details={"before": before, "after": changed})],
            )

    db.write(work)
    # Counted afterwards: claims wait for the lock on the queue's row, and should not wait for a count.
    return queue_infos(db, name)[0]
