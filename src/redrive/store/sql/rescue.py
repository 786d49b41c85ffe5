"""Rescue: leases that were not renewed in time are taken from workers that vanished.

The rows are locked, without deciding anything; ``domain/lifecycle`` then judges the locked rows, and the statements
after it touch only those. A run is judged by a rescuer that knows its type, since others do not know whether it may be
repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import datetime, timedelta
from typing import Any, assert_never

from sqlalchemy import Connection, Select, and_, bindparam, case, func, or_, select, update

from redrive.domain.failures import Reason
from redrive.domain.lifecycle import Expired, TypeRules, rescue
from redrive.domain.moves import BackToPending, BackToScheduled, BuryByRule
from redrive.domain.states import HotState
from redrive.store.port import BATCH, Rescued

from . import lock_keys
from .burial import Burial, bury, rule_error
from .counters import Tally, add_up
from .dialect import Dialect
from .fleet import served
from .held import FREED, Held
from .ledger import Line, write_ledger
from .once import release
from .tables import jobs_hot, queues


def rescue_expired(
    db: Dialect,
    *,
    zombie_timeout: float,
    fetched_timeout: float,
    rules: Callable[[str], TypeRules | None],
    jitter: Callable[[], float],
    slot: int,
    as_of: datetime | None = None,
    within: float = 0.0,
    types: Collection[str] | None = None,
    orphaned: float = 600.0,
) -> list[Rescued]:
    """See ``WorkerPort.rescue``; never waits for a row that somebody has locked, nor for another rescuer."""
    hot = jobs_hot.c
    silent = func.abs(db.age(hot.heartbeat_at))
    limit: Any = case(
        (hot.started_at.is_not(None), func.coalesce(queues.c.zombie_timeout, zombie_timeout)),
        else_=func.coalesce(queues.c.fetched_timeout, fetched_timeout),
    )
    expired = (
        select(
            *(hot[name] for name in Held.__dataclass_fields__),
            hot.max_attempts,
            db.age(hot.life_started_at).label("age"),
            db.now().label("now"),
        )
        .select_from(jobs_hot.outerjoin(queues, queues.c.name == hot.queue))
        .where(hot.state == "taken", silent > limit)
        .limit(BATCH)
    )
    # What was only reserved, or is not wanted any more, needs no knowledge of its type.
    for_anybody = or_(hot.started_at.is_(None), hot.cancel_requested.is_not(None))

    def orphans(connection: Connection, known: Collection[str]) -> frozenset[str]:
        """Types of runs that nobody judges: no worker that lives serves them."""
        overdue = select(hot.type).select_from(jobs_hot.outerjoin(queues, queues.c.name == hot.queue)).distinct()
        strange = overdue.where(hot.state == "taken", silent > limit + orphaned, hot.type.not_in(known)).limit(BATCH)
        found = frozenset(row[0] for row in connection.execute(strange))
        return found - served(db, connection, zombie_timeout) if found else found

    def look(connection: Connection) -> Select[Any] | None:
        """What there is to take; None when there is nothing, as in most rounds."""
        ours = expired
        if types is not None:
            lost = and_(hot.type.in_(orphans(connection, types)), silent > limit + orphaned)
            ours = expired.where(or_(for_anybody, hot.type.in_(types), lost))
        return ours if connection.execute(ours.limit(1)).first() is not None else None

    def work(connection: Connection, ours: Select[Any]) -> list[Rescued]:
        pending, scheduled, burials, rescued = [], [], [], []
        if not db.alone(connection, "rescue"):
            return []
        found_expired = connection.execute(db.locking(ours, of=jobs_hot, skip=True)).all()
        late = found_expired[0].now - as_of if found_expired and as_of is not None else timedelta(0)
        if abs(late.total_seconds()) > within:
            return []
        for found in found_expired:
            row = Held(*found[: len(Held.__dataclass_fields__)])
            state = HotState.FETCHED if row.started_at is None else HotState.PROCESSING
            known = rules(row.type)
            move = rescue(
                Expired(state, row.spent, found.max_attempts, float(found.age), row.cancel_requested is not None),
                known,
                jitter=jitter(),
            )
            budget = known.retry.max_attempts if known and found.max_attempts is None else found.max_attempts
            lost = f"the worker {row.worker_id} stopped renewing its lease while the handler was running"
            match move:
                case BackToPending():
                    pending.append({"job": row.id})
                    spot = "pending"
                case BackToScheduled(delay):
                    scheduled.append((row, delay, rule_error(row.type, Reason.ZOMBIE, lost)))
                    spot = "scheduled"
                case BuryByRule(reason):
                    error = rule_error(row.type, reason, lost)
                    burials.append(Burial(row, reason, "zombie", error, True, max_attempts=budget, lease=row.lease))
                    spot = "dlq"
                case _:
                    assert_never(move)
            rescued.append(Rescued(row.id, row.type, spot, row.worker_id))
        if rescued:
            release(db, connection, [one.id for one in rescued])
        common = {**FREED, "version": hot.version + 1, "updated_at": db.now()}
        freed = update(jobs_hot).where(hot.id == bindparam("job"))
        if pending:
            connection.execute(freed.values(state="pending", **common), pending)
        tally = Tally()
        if scheduled:
            connection.execute(
                freed.values(state="scheduled", due_at=db.after(bindparam("delay")), spent=hot.spent + 1, **common),
                [{"job": row.id, "delay": delay} for row, delay, _ in scheduled],
            )
            # No reason: the job is not dead, it is tried again.
            lines = [Line(row, "zombie", None, error, row.lease, charged=True) for row, _, error in scheduled]
            write_ledger(db, connection, lines, worker_id=None, build=None)
            for row, _, _ in scheduled:
                tally.retried(row.queue)
        bury(db, connection, burials, worker_id=None, build=None, tally=tally)
        lock_keys.free(db, connection, [*(row for row, _, _ in scheduled), *(item.row for item in burials)])
        add_up(db, connection, tally, slot)
        return rescued

    # Look first, so that idle rescuers take no write lock.
    ours = db.look(look)
    return [] if ours is None else db.write(lambda connection: work(connection, ours))
