"""Schedules: the row that lets each slot through once, however many workers want it.

A slot's jobs and the step to the next slot are one transaction, and the step is guarded by the slot it comes from: of
several workers one finds its guard true, the others find that the schedule has moved on. Slots only ever grow, so a
clock that was set back finds them done.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, Row, not_, select, update

from redrive.domain.audit import AuditDraft
from redrive.domain.edits import check_name
from redrive.domain.errors import NotFound, VersionChanged
from redrive.domain.job import Enqueued, NewJob
from redrive.domain.schedule import digest
from redrive.store.port import ScheduleRow, ScheduleView

from .audit import Target, write_audit
from .callers import enqueue_in
from .dialect import Dialect
from .tables import workers
from .tables_later import schedules

_c = schedules.c
_SHOWN = (_c.name, _c.spec, _c.paused, _c.last_slot, _c.next_slot, _c.version)
ALIVE_WITHIN = 60.0


def rows(db: Dialect, names: Sequence[str]) -> tuple[datetime, dict[str, ScheduleRow]]:
    """The clock, and the schedules that are there."""

    def work(connection: Connection) -> tuple[datetime, dict[str, ScheduleRow]]:
        now: datetime = connection.execute(select(db.now())).scalar_one()
        found = connection.execute(select(*_SHOWN).where(_c.name.in_(names)))
        return now.astimezone(UTC), {row.name: ScheduleRow(**row._mapping) for row in found}

    return db.read(work)


def declare(db: Dialect, name: str, spec: Mapping[str, Any], next_slot: datetime | None, version: int | None) -> bool:
    """Put a declaration in force, unless somebody was first."""
    said = {"type": spec["type"], "spec": spec, "next_slot": next_slot}
    if version is None:
        statement = db.insert(schedules).values(name=name, **said).on_conflict_do_nothing()
    else:
        same = update(schedules).where(_c.name == name, _c.version == version)
        statement = same.values(**said, version=_c.version + 1)
    return db.write(lambda connection: connection.execute(statement.returning(_c.name)).first()) is not None


def announced(db: Dialect, connection: Connection, alive_within: float) -> frozenset[tuple[str, str]]:
    """What live workers declare."""
    alive = select(workers.c.schedules).where(
        workers.c.schedules.is_not(None), db.age(workers.c.seen_at) <= alive_within
    )
    return frozenset(pair for (declared,) in connection.execute(alive) for pair in declared.items())


def enqueue_slots(
    db: Dialect,
    name: str,
    jobs: Sequence[NewJob],
    *,
    slot: datetime,
    last: datetime | None,
    following: datetime | None,
    version: int,
) -> list[Enqueued] | None:
    """Go on from ``slot`` to the one that follows, with the jobs of what lies between."""
    waiting = select(_c.name).where(
        _c.name == name,
        _c.version == version,
        _c.next_slot == slot,
        not_(_c.paused),
        db.now() >= (slot if last is None else max(slot, last)),
    )
    # Locked is as good as gone: another worker is at it, and whoever holds it otherwise is waited for at the next look.
    step = update(schedules).where(_c.name.in_(db.locking(waiting, of=schedules, skip=True)))
    step = step.values(next_slot=following, last_slot=_c.last_slot if last is None else last)

    def work(connection: Connection) -> list[Enqueued] | None:
        if connection.execute(step).rowcount == 0:
            return None
        return enqueue_in(db, connection, jobs) if jobs else []

    return db.write(work)


def pause(db: Dialect, name: str, paused: bool, audit: AuditDraft, version: int | None) -> ScheduleView:
    """Pause or resume. The lock waits for a step that is under way, so that a pause is effective on return."""
    check_name("name", name)

    def work(connection: Connection) -> None:
        row = connection.execute(db.locking(select(*_SHOWN).where(_c.name == name), of=schedules)).first()
        if row is None:
            raise NotFound("schedule", name)
        if version is not None and version != row.version:
            raise VersionChanged(f"schedule {name}", version, row.version)
        if row.paused != paused:
            connection.execute(update(schedules).where(_c.name == name).values(paused=paused, version=_c.version + 1))
            details = {"before": {"paused": row.paused}, "after": {"paused": paused}}
            write_audit(db, connection, audit, [Target(f"schedule {name}", "changed", details=details)])

    db.write(work)
    return views(db, ALIVE_WITHIN, only=name)[0]


def views(db: Dialect, alive_within: float, only: str | None = None) -> list[ScheduleView]:
    """Schedules as operators see them."""
    statement = select(*_SHOWN, db.age(_c.next_slot).label("late"), db.age(_c.last_slot).label("since"))
    if only is not None:
        statement = statement.where(_c.name == only)

    def work(connection: Connection) -> list[ScheduleView]:
        found = connection.execute(statement.order_by(_c.name)).all()
        declared = announced(db, connection, alive_within)
        return [_view(row, declared) for row in found]

    return db.read(work)


def _view(row: Row[Any], declared: frozenset[tuple[str, str]]) -> ScheduleView:
    return ScheduleView(
        name=row.name,
        spec=row.spec,
        paused=row.paused,
        last_slot=row.last_slot,
        next_slot=row.next_slot,
        version=row.version,
        declared=(row.name, digest(row.spec)) in declared,
        late=max(0.0, float(row.late or 0.0)),
        ahead=max(0.0, -float(row.since or 0.0)),
    )
