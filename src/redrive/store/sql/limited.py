"""Claims and starts under a limit, written once for both databases; queues without one never come here.

A limit cannot be kept by one statement: it would count in the snapshot it began with. So the queue's row is locked
first, and what runs is counted in a statement after that. A claim skips a row that somebody else has locked, a start
waits for it. ``max_running`` counts what is taken, fetched jobs too; a start counts what is processing, so that it is
kept also when it was set after the jobs were fetched. A rate is used up by starts alone.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, Row, Select, and_, case, func, null, or_, select, update

from redrive.domain.job import ClaimedJob
from redrive.domain.limits import Rate, parse_rate
from redrive.store.port import ClaimRequest, Guarded, Pair

from . import lock_keys
from .claims import claimed
from .dialect import Dialect
from .held import FREED
from .tables import CLAIMABLE, jobs_hot, queues
from .tables_later import circuits

LIMITED = or_(queues.c.max_running.is_not(None), queues.c.rate.is_not(None))
SOON = 0.005
"""Seconds after which to look again where nothing but another claim stood in the way."""


@dataclass(frozen=True, slots=True)
class Limit:
    """What a queue's row says. ``ahead``: seconds from now to the rate's theoretical arrival time."""

    name: str
    max_running: int | None
    rate: Rate | None
    ahead: float

    def room(self, running: int, fetched: int = 0) -> float:
        """How many more may start; ``fetched`` jobs have a claim on the rate already."""
        left = math.inf if self.max_running is None else float(self.max_running - running)
        return left if self.rate is None else min(left, self.rate.allowed(self.ahead) - fetched)

    def wait(self, processing: int, fetched: int) -> float:
        """Seconds until another job may be claimed; infinite until one of these ends, starts or is given back."""
        if self.max_running is not None and processing + fetched >= self.max_running:
            return math.inf
        return 0.0 if self.rate is None else self.rate.wait(self.ahead, fetched)


def names(connection: Connection) -> frozenset[str]:
    """Every queue with a limit."""
    return frozenset(connection.execute(select(queues.c.name).where(LIMITED)).scalars())


def in_turn(
    request: ClaimRequest,
    named: Collection[str],
    unlimited: Callable[[ClaimRequest], list[ClaimedJob]],
    limited: Callable[[str, int], list[ClaimedJob]],
) -> Iterator[ClaimedJob]:
    """Claim from the queues of ``request`` in the order given, from those ``named`` as limited one after the other."""
    room = request.limit
    for has_limit, group in groupby(request.queues, named.__contains__):
        for part in ((queue,) for queue in group) if has_limit else (tuple(group),):
            if room > 0:
                jobs = limited(part[0], room) if has_limit else unlimited(replace(request, queues=part, limit=room))
                room -= len(jobs)
                yield from jobs


def probes(db: Dialect, connection: Connection, request: ClaimRequest) -> list[ClaimedJob]:
    """Claim and start jobs in the transaction of ``connection``, those with a lock key that is free as well.

    For jobs that are let through by an open circuit: a start of its own would find it open.
    """
    driver, limited = connection.connection.driver_connection, names(connection)
    claiming = in_turn(
        request,
        limited,
        lambda part: db.hot.claim_in(driver, part),
        lambda queue, room: claim(db, connection, queue, request, room),
    )
    jobs = list(claiming)
    if fetched := {(job.id, job.lease) for job in jobs if not job.started}:
        begun = start(db, connection, fetched, ())
        for job in jobs:
            if (job.id, job.lease) in begun:
                job.started, job.attempt = True, job.attempt + 1
        rest = update(jobs_hot).where(jobs_hot.c.id.in_([UUID(bytes=job) for job, _ in fetched - begun]))
        freed = {"state": "pending", "version": jobs_hot.c.version + 1, "updated_at": db.now(), **FREED}
        connection.execute(rest.where(jobs_hot.c.state == "taken").values(**freed))
    return [job for job in jobs if job.started]


def claim(db: Dialect, connection: Connection, queue: str, request: ClaimRequest, room: int) -> list[ClaimedJob]:
    """Claim up to ``room`` jobs of one queue, as many as its limit leaves; none while somebody else does so."""
    limit = _limits(connection, db.locking(_rows(db, [queue]), of=queues, skip=True)).get(queue)
    if limit is None:
        return []
    processing, fetched = taken(connection, [queue]).get(queue, (0, 0))
    number = min(float(room), limit.room(processing + fetched, fetched))
    if number < 1:
        return []
    hot = jobs_hot.c
    ages = (db.age(hot.life_started_at).label("age"), db.age(hot.unserved_since).label("unserved"))
    first = select(jobs_hot, *ages).where(CLAIMABLE, hot.queue == queue)
    if request.only_start_types:
        first = first.where(hot.type.in_(request.start_types))
    elif off := _kept_off(connection, request.guarded):
        first = first.where(hot.type.not_in(off))
    first = first.order_by(hot.priority.desc(), hot.due_at, hot.id).limit(int(number))
    found = connection.execute(db.locking(first, of=jobs_hot, skip=True)).all()
    if not found:
        return []
    lease, now = secrets.randbits(62), db.now()
    starts = and_(hot.type.in_(request.start_types), hot.lock_key.is_(None))
    connection.execute(
        update(jobs_hot)
        .where(hot.id.in_([row.id for row in found]))
        .values(
            state="taken", lease=lease, worker_id=request.worker_id, heartbeat_at=now, updated_at=now,
            version=hot.version + 1,
            started_at=case((starts, now), else_=null()),
            attempt=hot.attempt + case((starts, 1), else_=0),
        )
    )  # fmt: skip
    started = [row.type in request.start_types and row.lock_key is None for row in found]
    _use(db, connection, limit, sum(started))
    return [claimed(row, lease, row.attempt + began, began) for row, began in zip(found, started, strict=True)]


def start(db: Dialect, connection: Connection, pairs: Collection[Pair], guarded: Guarded) -> frozenset[Pair]:
    """Start those fetched jobs that their queue's limit, their lock key and their circuit let start.

    Locks queues by name, then jobs by id, then keys, like everybody else.
    """
    hot, leases = jobs_hot.c, {UUID(bytes=job): lease for job, lease in pairs}
    named = set(connection.execute(select(hot.queue).where(hot.id.in_(leases)).distinct()).scalars())
    limits = _limits(connection, db.locking(_rows(db, named).where(LIMITED), of=queues))
    others = _rows(db, named - limits.keys()).where(~LIMITED)
    limits |= _limits(connection, db.locking(others, of=queues, share=True))
    off = _kept_off(connection, guarded)
    columns = (hot.id, hot.lease, hot.queue, hot.type, hot.lock_key, hot.priority, hot.due_at, hot.started_at)
    locked = db.locking(select(*columns).where(hot.id.in_(leases)).order_by(hot.id), of=jobs_hot)
    fetched = [
        row
        for row in connection.execute(locked)
        if row.lease == leases[row.id] and row.started_at is None and row.queue in limits and row.type not in off
    ]
    chosen = _chosen(connection, limits, sorted(fetched, key=lambda row: (-row.priority, row.due_at, row.id)))
    if keyed := [row for row in chosen if row.lock_key is not None]:
        got = lock_keys.take(db, connection, keyed)
        chosen = [row for row in chosen if row.lock_key is None or row.id in got]
    if chosen:
        begun = {"started_at": db.now(), "heartbeat_at": db.now(), "updated_at": db.now()}
        counted = {"attempt": hot.attempt + 1, "version": hot.version + 1}
        connection.execute(update(jobs_hot).where(hot.id.in_([row.id for row in chosen])).values(**begun, **counted))
    for name, limit in limits.items():
        _use(db, connection, limit, sum(row.queue == name for row in chosen))
    return frozenset((row.id.bytes, row.lease) for row in chosen)


def held_back(db: Dialect, connection: Connection, request: ClaimRequest) -> float | None:
    """Seconds until a limit lets another waiting job start; None when no limit stands in the way."""
    limits = _limits(connection, _rows(db, request.queues).where(LIMITED))
    counts = taken(connection, limits) if limits else {}
    off = _kept_off(connection, request.guarded) if limits else set()
    waits = []
    for name, limit in limits.items():
        waiting = select(jobs_hot.c.id).where(CLAIMABLE, jobs_hot.c.queue == name, jobs_hot.c.type.not_in(off)).limit(1)
        if connection.execute(waiting).first() is not None:
            waits.append(max(SOON, limit.wait(*counts.get(name, (0, 0)))))
    return min(waits, default=None)


def waits(db: Dialect, connection: Connection, named: Collection[str]) -> dict[str, float]:
    """Seconds until the rate of each limited, unpaused queue lets another job start."""
    limits = _limits(connection, _rows(db, named).where(queues.c.rate.is_not(None)))
    return {name: limit.rate.wait(limit.ahead) for name, limit in limits.items() if limit.rate is not None}


def taken(connection: Connection, named: Collection[str]) -> dict[str, tuple[int, int]]:
    """(processing, fetched) of each queue."""
    hot = jobs_hot.c
    counted = select(hot.queue, func.count(), func.count(hot.started_at)).group_by(hot.queue)
    rows = connection.execute(counted.where(hot.state == "taken", hot.queue.in_(named)))
    return {queue: (started, number - started) for queue, number, started in rows}


def _chosen(connection: Connection, limits: dict[str, Limit], jobs: Sequence[Row[Any]]) -> list[Row[Any]]:
    """Of jobs in the order they would be claimed, those for which their queues have room."""
    limited = [name for name, limit in limits.items() if limit.max_running is not None or limit.rate is not None]
    counts = taken(connection, limited) if limited else {}
    left = {name: limit.room(counts.get(name, (0, 0))[0]) for name, limit in limits.items()}
    chosen = []
    for row in jobs:
        if left[row.queue] >= 1:
            left[row.queue] -= 1
            chosen.append(row)
    return chosen


def _kept_off(connection: Connection, guarded: Guarded) -> set[str]:
    """The guarded types whose circuit is not closed."""
    if not guarded:
        return set()
    named = {circuit for _, circuit in guarded}
    opened = select(circuits.c.name).where(circuits.c.state != "closed", circuits.c.name.in_(named))
    found = set(connection.execute(opened).scalars())
    return {job_type for job_type, circuit in guarded if circuit in found}


def _use(db: Dialect, connection: Connection, limit: Limit, started: int) -> None:
    """So many starts are used up of the rate."""
    if limit.rate is not None and started:
        ahead = limit.rate.after(limit.ahead, started)
        connection.execute(update(queues).where(queues.c.name == limit.name).values(rate_tat=db.after(ahead)))


def _rows(db: Dialect, named: Collection[str]) -> Select[Any]:
    ahead = (-db.age(queues.c.rate_tat)).label("ahead")
    rows = select(queues.c.name, queues.c.max_running, queues.c.rate, ahead)
    return rows.where(queues.c.name.in_(named), ~queues.c.paused).order_by(queues.c.name)


def _limits(connection: Connection, rows: Select[Any]) -> dict[str, Limit]:
    return {
        row.name: Limit(
            row.name,
            row.max_running,
            None if row.rate is None else parse_rate(row.rate),
            0.0 if row.ahead is None else float(row.ahead),
        )
        for row in connection.execute(rows)
    }
