"""Plans: ids and versions of what matches, written down batch by batch up to a fixed cut-off."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, Row, delete, exists, func, insert, literal, or_, select, tuple_, update
from uuid_utils.compat import uuid7

from redrive.domain.filter_json import dump, load
from redrive.domain.filters import COUNT_CAP, Count, JobFilter
from redrive.domain.job import JobHead
from redrive.domain.lifecycle import Refusal, operate
from redrive.domain.moves import Skipped
from redrive.domain.plans import (
    PLAN_LIFE,
    SAMPLE,
    Action,
    Counts,
    Plan,
    PlanItem,
    PlanOptions,
    PlanState,
    wish_of,
)
from redrive.domain.states import Place, Verb
from redrive.store.bulk import After, Filled
from redrive.store.port import BATCH

from .dialect import Dialect
from .lists import filtered
from .operate import key_holders, wanted_key
from .readable import unreadable
from .rows import PLACES, head, head_columns
from .tables_later import operations, plan_items, plans

KEPT = 7 * 86_400.0
"""Seconds for which the items of a finished operation are kept."""


def plan_of(row: Row[Any]) -> Plan:
    """A plan from its row."""
    values = dict(row._mapping)
    counts = values.pop("counts")
    return Plan(
        **values
        | {
            "action": Action(values["action"]),
            "filter": None if values["filter"] is None else load(values["filter"]),
            "options": PlanOptions.load(values["options"]),
            "state": PlanState(values["state"]),
            "counts": Counts(**counts),
        }
    )


def begin(db: Dialect, action: Action, job_filter: JobFilter | None, options: PlanOptions, actor: str) -> Plan:
    """See ``PlanPort.begin_plan``."""

    def work(connection: Connection) -> Plan:
        plan_id = uuid7()
        connection.execute(
            insert(plans).values(
                id=plan_id,
                number=db.numbering(plans.c.number),
                action=action.value,
                filter=None if job_filter is None else dump(job_filter),
                options=options.given(),
                counts={},
                state=PlanState.BUILDING.value,
                actor=actor,
                created_at=db.now(),
                expires_at=db.after(PLAN_LIFE.total_seconds()),
            )
        )
        return plan_of(connection.execute(select(plans).where(plans.c.id == plan_id)).one())

    return db.write(work)


def fill(db: Dialect, plan: Plan, start: int, after: After | None, *, payloads: bool) -> Filled:
    """See ``PlanPort.fill_plan``."""
    assert plan.filter is not None
    place = plan.filter.place
    table = PLACES[place]
    # Oldest first: what waited longest goes first. Ids are UUIDv7, so hot rows have an order without a sort.
    keys = [table.c.failed_at, table.c.id] if place is Place.DLQ else [table.c.id]
    statement = filtered(select(*head_columns(place)), plan.filter)
    statement = statement.where(table.c["failed_at" if place is Place.DLQ else "created_at"] < plan.created_at)
    if after is not None:
        position: Any = tuple_(*(literal(value, key.type) for value, key in zip(after, keys, strict=True)))
        edge: Any = tuple_(*keys)
        statement = statement.where(edge > position)
    statement = statement.order_by(*keys).limit(BATCH)

    def work(connection: Connection) -> Filled:
        heads = [head(place, row) for row in connection.execute(statement)]
        found = _add(connection, plan, start, heads, payloads=payloads)
        last = heads[-1] if heads else None
        end = None if last is None else (last.failed_at, last.id) if place is Place.DLQ else (last.id,)
        return Filled(tuple((one.id, one.version) for one in heads), found, end if len(heads) == BATCH else None)

    return db.write(work)


def add(db: Dialect, plan: Plan, start: int, targets: Sequence[tuple[UUID, int | None]], *, payloads: bool) -> Filled:
    """See ``PlanPort.add_to_plan``."""

    def work(connection: Connection) -> Filled:
        heads = _heads(connection, [job_id for job_id, _ in targets])
        here = [heads[job_id] for job_id, _ in targets if job_id in heads]
        found = Counter(_add(connection, plan, start, here, payloads=payloads, versions=dict(targets)))
        if missing := len(targets) - len(here):
            found[Skipped.NOT_FOUND.value] += missing
        versions = {job_id: version for job_id, version in targets if version is not None}
        return Filled(tuple((one.id, versions.get(one.id, one.version)) for one in here), dict(found), None)

    return db.write(work)


def _heads(connection: Connection, ids: Sequence[UUID]) -> dict[UUID, JobHead]:
    heads: dict[UUID, JobHead] = {}
    for place, table in PLACES.items():
        rows = connection.execute(select(*head_columns(place)).where(table.c.id.in_(ids)))
        heads |= {row.id: head(place, row) for row in rows}
    return heads


def _add(
    connection: Connection,
    plan: Plan,
    start: int,
    heads: Sequence[JobHead],
    *,
    payloads: bool,
    versions: dict[UUID, int | None] | None = None,
) -> dict[str, int]:
    """Write the items down; the answer counts what keeps some of them from being moved, as the move itself would."""
    if not heads:
        return {}
    at = {one.id: one.version for one in heads}
    at |= {job_id: version for job_id, version in (versions or {}).items() if version is not None and job_id in at}
    connection.execute(
        insert(plan_items),
        [
            {"plan_id": plan.id, "ordinal": start + n, "job_id": one.id, "version": at[one.id]}
            for n, one in enumerate(heads)
        ],
    )
    wish = wish_of(plan.action, plan.options)
    holders = key_holders(connection, heads, wish)
    broken = unreadable(connection, heads) if payloads and wish.readable else {}
    found: Counter[str] = Counter()
    for one in sorted(heads, key=lambda job: job.id):  # in the order of the move: of two with one key the first gets it
        key = wanted_key(one, wish)
        holder = holders.get(key) if key is not None else None
        verdict = operate(one, wish, version=at[one.id], key_holder=holder if holder != one.id else None)
        if isinstance(verdict, Refusal):
            found[verdict.skipped.value] += 1
        elif one.id in broken:
            found[Skipped.UNREADABLE.value] += 1
        elif key is not None and wish.verb is Verb.RESURRECT and not wish.drop_key:
            holders.setdefault(key, one.id)
    return dict(found)


def seal(db: Dialect, plan: Plan, digest: str, counts: Counts) -> Plan:
    """See ``PlanPort.seal_plan``."""
    stored = {
        "matched": counts.matched,
        "affected": counts.affected,
        "skipped": dict(counts.skipped),
        "sampled": dict(counts.sampled),
    }

    def work(connection: Connection) -> Plan:
        connection.execute(
            update(plans)
            .where(plans.c.id == plan.id, plans.c.state == PlanState.BUILDING.value)
            .values(digest=digest, counts=stored, state=PlanState.READY.value)
        )
        return plan_of(connection.execute(select(plans).where(plans.c.id == plan.id)).one())

    return db.write(work)


def by_number(connection: Connection, number: int) -> Plan | None:
    """See ``PlanPort.plan``."""
    row = connection.execute(select(plans).where(plans.c.number == number)).first()
    return None if row is None else plan_of(row)


def newest(connection: Connection, limit: int, before: int | None) -> list[Plan]:
    """See ``PlanPort.plans``."""
    statement = select(plans).order_by(plans.c.number.desc()).limit(limit)
    if before is not None:
        statement = statement.where(plans.c.number < before)
    return [plan_of(row) for row in connection.execute(statement)]


def items(connection: Connection, plan_id: UUID, after: int, limit: int) -> list[PlanItem]:
    """See ``PlanPort.plan_items``."""
    c = plan_items.c
    rows = connection.execute(
        select(c.ordinal, c.job_id, c.version)
        .where(c.plan_id == plan_id, c.ordinal > after)
        .order_by(c.ordinal)
        .limit(limit)
    )
    return [PlanItem(*row) for row in rows]


def item_heads(connection: Connection, plan_id: UUID, after: int, limit: int) -> list[JobHead]:
    """See ``PlanPort.plan_heads``."""
    ids = [item.job_id for item in items(connection, plan_id, after, limit)]
    heads = _heads(connection, ids)
    return [heads[job_id] for job_id in ids if job_id in heads]


def arrived(connection: Connection, plan: Plan) -> tuple[Count, list[UUID]]:
    """See ``PlanPort.arrived_since``."""
    if plan.filter is None:
        return Count(0), []
    table = PLACES[plan.filter.place]
    moment = table.c["failed_at" if plan.filter.place is Place.DLQ else "created_at"]
    own = select(operations.c.id).where(operations.c.plan_id == plan.id).scalar_subquery()
    since = (
        filtered(select(table.c.id), plan.filter)
        .where(
            moment >= plan.created_at, or_(table.c.operation_id.is_(None), own.is_(None), table.c.operation_id != own)
        )
        .order_by(moment, table.c.id)
        .limit(COUNT_CAP + 1)
    )
    number = connection.execute(select(func.count()).select_from(since.subquery())).scalar_one()
    some = connection.execute(since.limit(SAMPLE)).scalars().all() if number else []
    return Count(min(number, COUNT_CAP), number > COUNT_CAP), list(some)


def prune(db: Dialect) -> int:
    """See ``PlanPort.prune_plans``."""
    over = exists().where(operations.c.plan_id == plans.c.id, operations.c.finished_at < db.after(-KEPT))
    never = (plans.c.state != PlanState.RUN.value) & (plans.c.expires_at <= db.now())
    kept = exists().where(plan_items.c.plan_id == plans.c.id)
    due = select(plans.c.id, plans.c.state).where(never | (over & kept)).order_by(plans.c.number).limit(1)

    def work(connection: Connection) -> int:
        # The row is the lock between two that collect, and against whoever starts it now.
        row = connection.execute(db.locking(due, of=plans, skip=True)).first()
        if row is None:
            return 0
        some = select(plan_items.c.ordinal).where(plan_items.c.plan_id == row.id).limit(BATCH)
        ordinals = connection.execute(some).scalars().all()
        if ordinals:
            connection.execute(
                delete(plan_items).where(plan_items.c.plan_id == row.id, plan_items.c.ordinal.in_(ordinals))
            )
        if len(ordinals) < BATCH and row.state != PlanState.RUN.value:
            connection.execute(delete(plans).where(plans.c.id == row.id))
        return max(1, len(ordinals))

    return db.write(work) if db.look(lambda connection: connection.execute(due).first() is not None) else 0
