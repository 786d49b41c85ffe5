"""Circuits: one row for each breaker, judged by ``domain/circuit`` while it is locked.

The row holds the permits of its probes. Whether one is in force is asked of the jobs: it is while the job's row holds
the lease it was given for. Order of locks: the circuit, queues, hot rows; whoever settles holds no circuit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, Row, or_, select, update

from redrive.domain.audit import AuditDraft
from redrive.domain.circuit import (
    CLOSED,
    Breaker,
    Circuit,
    CircuitState,
    Pair,
    Seen,
    in_force,
    observe,
    permit,
    probe_in,
    reset,
    room,
)
from redrive.domain.edits import check_name
from redrive.domain.errors import NotFound
from redrive.domain.failures import Reason
from redrive.domain.text import one_line
from redrive.store.port import BATCH, CircuitView, ClaimRequest, Probing

from . import limited
from .audit import Target, write_audit
from .burial import Burial, bury, rule_error
from .counters import Tally, add_up
from .dialect import Dialect
from .held import Held
from .tables import UNBLOCKED, job_types, jobs_hot
from .tables_later import circuits

_c = circuits.c
_MOMENTS = ("opened_at", "changed_at", "probe_at")


def _circuit(row: Row[Any]) -> Circuit:
    return Circuit(
        state=CircuitState(row.state),
        failures=row.failures,
        successes=row.successes,
        **{name: getattr(row, name) for name in _MOMENTS},
        permits=tuple((bytes.fromhex(job), lease) for job, lease in row.permits),
        reason=row.reason,
        version=row.version,
    )


def _values(circuit: Circuit) -> dict[str, Any]:
    return {
        "state": circuit.state.value,
        "failures": circuit.failures,
        "successes": circuit.successes,
        **{name: getattr(circuit, name) for name in _MOMENTS},
        "permits": [[job.hex(), lease] for job, lease in circuit.permits],
        "reason": circuit.reason,
        "version": circuit.version,
    }


def _locked(db: Dialect, connection: Connection, name: str) -> Circuit:
    found = db.locking(select(circuits).where(_c.name == name), of=circuits)
    row = connection.execute(found).first()
    if row is None:  # a worker announces its circuits; somebody has removed this one since
        connection.execute(db.insert(circuits).values(name=name).on_conflict_do_nothing())
        row = connection.execute(found).one()
    return _circuit(row)


def _put(connection: Connection, name: str, before: Circuit, after: Circuit) -> Circuit:
    if after == before:
        return before
    after = replace(after, version=before.version + 1)
    connection.execute(update(circuits).where(_c.name == name).values(**_values(after)))
    return after


def _now(db: Dialect, connection: Connection) -> datetime:
    moment: datetime = connection.execute(select(db.now())).scalar_one()
    return moment


def _held(connection: Connection, pairs: Iterable[Pair]) -> frozenset[Pair]:
    """Which of the pairs still hold their jobs."""
    asked = frozenset(pairs)
    if not asked:
        return asked
    hot = jobs_hot.c
    found = select(hot.id, hot.lease).where(hot.id.in_([UUID(bytes=job) for job, _ in asked]))
    return asked & {(row.id.bytes, row.lease) for row in connection.execute(found)}


def states(db: Dialect, names: Sequence[str]) -> tuple[datetime, dict[str, Circuit]]:
    """The clock, and the circuits that are there."""

    def work(connection: Connection) -> tuple[datetime, dict[str, Circuit]]:
        found = {row.name: _circuit(row) for row in connection.execute(select(circuits).where(_c.name.in_(names)))}
        held = _held(connection, (pair for circuit in found.values() for pair in circuit.permits))
        return _now(db, connection), {name: in_force(circuit, held) for name, circuit in found.items()}

    return db.read(work)


def observed(db: Dialect, name: str, breaker: Breaker, ends: Sequence[Seen]) -> tuple[Circuit, Circuit]:
    """Let a circuit know how runs ended."""

    def work(connection: Connection) -> tuple[Circuit, Circuit]:
        before = _locked(db, connection, name)
        return before, _put(connection, name, before, observe(before, breaker, ends, _now(db, connection)))

    return db.write(work)


def probed(db: Dialect, name: str, breaker: Breaker, request: ClaimRequest) -> Probing:
    """Claim probes, as many as there are permits left, under the circuit's lock."""
    hot = jobs_hot.c
    waiting = select(hot.id).where(
        hot.state == "pending", UNBLOCKED, hot.queue.in_(request.queues), hot.type.in_(request.start_types)
    )

    def look(connection: Connection) -> bool:
        return connection.execute(waiting.limit(1)).first() is not None

    def work(connection: Connection) -> Probing:
        stored = _locked(db, connection, name)
        before, now = in_force(stored, _held(connection, stored.permits)), _now(db, connection)
        limit = min(request.limit, room(before, breaker, now))
        if limit <= 0:
            return Probing(now, before, [])
        asked = ClaimRequest(request.worker_id, request.queues, limit, request.start_types, only_start_types=True)
        jobs = limited.probes(db, connection, asked)
        if not jobs:
            return Probing(now, before, [])
        after = permit(before, [(job.id, job.lease) for job in jobs], now)
        return Probing(now, _put(connection, name, stored, after), jobs)

    # Every worker asks now and then while it is open: where nothing waits, nobody takes the lock.
    if db.look(look):
        return db.write(work)
    clock, found = states(db, [name])
    return Probing(clock, found.get(name, CLOSED), [])


def bury_kept_off(
    db: Dialect, name: str, max_ages: Mapping[str, float], *, every: float, worker_id: str, build: str, slot: int
) -> int:
    """Bury pending jobs whose lifetime ended while the circuit kept them off."""
    recently = or_(_c.swept_at.is_(None), db.age(_c.swept_at) >= every, db.age(_c.swept_at) < 0)
    mine = update(circuits).where(_c.name == name, _c.state != CircuitState.CLOSED.value, recently)
    # In a transaction of its own: nobody waits for the burials.
    if not db.write(lambda connection: connection.execute(mine.values(swept_at=db.now())).rowcount):
        return 0
    hot = jobs_hot.c
    ended = [
        # Its end is not before the circuit opened: whoever waited longer for something else is not judged here.
        (hot.type == type_)
        & (db.age(hot.life_started_at) > age)
        & (db.age(hot.life_started_at) - age <= db.age(_c.opened_at))
        for type_, age in sorted(max_ages.items())
    ]
    found = (
        select(*(hot[name] for name in Held.__dataclass_fields__), _c.opened_at, _c.reason.label("because"))
        .select_from(jobs_hot.join(circuits, _c.name == name))
        .where(hot.state == "pending", UNBLOCKED, or_(*ended))  # one that has closed meanwhile has no ``opened_at``
        .limit(BATCH)
    )

    def work(connection: Connection) -> int:
        burials = []
        for row in connection.execute(db.locking(found, of=jobs_hot, skip=True)).all():
            held = Held(*row[: len(Held.__dataclass_fields__)])
            said = f"its lifetime ended while circuit {name} kept it off, since {row.opened_at:%Y-%m-%d %H:%M:%S} UTC"
            error = rule_error(held.type, Reason.CIRCUIT_OPEN, one_line(f"{said}: {row.because or 'open'}", 1000))
            burials.append(Burial(held, Reason.CIRCUIT_OPEN, "failed", error, charged=False))
        tally = Tally()
        bury(db, connection, burials, worker_id=worker_id, build=build, tally=tally)
        add_up(db, connection, tally, slot)
        return len(burials)

    return db.write(work) if db.look(lambda connection: connection.execute(found.limit(1)).first()) else 0


def reset_by(db: Dialect, name: str, audit: AuditDraft) -> CircuitView:
    """Close a circuit because an operator says so."""
    check_name("circuit", name)

    def work(connection: Connection) -> None:
        row = connection.execute(db.locking(select(circuits).where(_c.name == name), of=circuits)).first()
        if row is None:
            raise NotFound("circuit", name)
        before = _circuit(row)
        if not before.blocks and before.failures == 0:
            return
        why = one_line(
            f"reset by {audit.actor.name}: {audit.note}" if audit.note else f"reset by {audit.actor.name}", 300
        )
        _put(connection, name, before, reset(before, _now(db, connection), why))
        details = {"before": {"state": before.state.value, "failures": before.failures, "reason": before.reason}}
        write_audit(db, connection, audit, [Target(f"circuit {name}", "reset", details=details)])

    db.write(work)
    return views(db, only=name)[0]


def views(db: Dialect, only: str | None = None) -> list[CircuitView]:
    """Circuits as operators see them."""
    statement = select(circuits).order_by(_c.name)
    if only is not None:
        statement = statement.where(_c.name == only)
    announced = select(job_types.c.type, job_types.c.breaker).order_by(job_types.c.seen_at)

    def work(connection: Connection) -> list[CircuitView]:
        now = _now(db, connection)
        rows = connection.execute(statement).all()
        latest = {row.type: row.breaker for row in connection.execute(announced)}  # the newest build's word
        declared: dict[str, Mapping[str, Any]] = {}
        types: dict[str, set[str]] = {}
        for job_type, breaker in latest.items():
            if breaker is not None:
                declared[breaker["name"]] = breaker
                types.setdefault(breaker["name"], set()).add(job_type)
        held = _held(connection, (pair for row in rows for pair in _circuit(row).permits))
        return [
            _view(row, in_force(_circuit(row), held), now, types.get(row.name, set()), declared.get(row.name, {}))
            for row in rows
        ]

    return db.read(work)


def _view(row: Row[Any], circuit: Circuit, now: datetime, types: set[str], declared: Mapping[str, Any]) -> CircuitView:
    opened, is_open = circuit.opened_at, circuit.state is CircuitState.OPEN
    return CircuitView(
        name=row.name,
        state=circuit.state,
        types=tuple(sorted(types)),
        breaker=declared,
        failures=circuit.failures,
        reason=circuit.reason,
        opened_at=opened,
        opened_for=None if opened is None else max(0.0, (now - opened).total_seconds()),
        probe_in=probe_in(circuit, now) if is_open else None,
        probing=len(circuit.permits),
        version=row.version,
    )
