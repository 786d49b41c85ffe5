"""Lists and counts. Pages go by keyset, read no payload and no traceback, and cost the same at any depth."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import fields
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, Select, and_, func, literal, or_, select, tuple_

from redrive.domain.errors import InvalidField, require_aware
from redrive.domain.failures import Reason
from redrive.domain.filters import COUNT_CAP, DEFAULT_SORT, SORTS, Count, JobFilter, PageRequest, Sort
from redrive.domain.job import JobHead, JobRecord
from redrive.domain.states import HotState, Place
from redrive.store.port import JobPage

from .rows import LEDGER_COLUMNS, PLACES, REVISION_COLUMNS, head, head_columns, ledger_entry, revision
from .tables import dead_marks, job_ledger, job_revisions

WORDS_MAX = 5
"""The most words of a search."""
CURSOR_MAX = 400
_UNSTORABLE = re.compile(r"[\x00\ud800-\udfff]")


def find(connection: Connection, job_id: UUID) -> JobRecord | None:
    """One job wherever it is, with its trail."""
    for place, table in PLACES.items():
        extra = [table.c.payload, *([table.c.result] if place is Place.ARCHIVE else [])]
        found = connection.execute(select(*head_columns(place)).where(table.c.id == job_id)).first()
        if found is None:
            continue
        heavy = connection.execute(select(*extra).where(table.c.id == job_id)).one()
        ledger = select(*LEDGER_COLUMNS).where(job_ledger.c.job_id == job_id).order_by(job_ledger.c.id)
        revisions = select(*REVISION_COLUMNS).where(job_revisions.c.job_id == job_id)
        revisions = revisions.order_by(job_revisions.c.revision)
        return JobRecord(
            head=head(place, found),
            payload=heavy.payload,
            result=heavy.result if place is Place.ARCHIVE else None,
            ledger=tuple(ledger_entry(line) for line in connection.execute(ledger)),
            revisions=tuple(revision(line) for line in connection.execute(revisions)),
        )
    return None


def find_head(connection: Connection, job_id: UUID) -> JobHead | None:
    """One head wherever it is."""
    for place, table in PLACES.items():
        row = connection.execute(select(*head_columns(place)).where(table.c.id == job_id)).first()
        if row is not None:
            return head(place, row)
    return None


def page(connection: Connection, job_filter: JobFilter, request: PageRequest) -> JobPage:
    """One page; one row more is read to know whether another follows."""
    place = job_filter.check().place
    sort = request.sort or DEFAULT_SORT[place]
    if sort not in SORTS[place]:
        raise InvalidField("sort", f"{sort} does not go with place {place}", expected=" or ".join(SORTS[place]))
    if sort is Sort.DUE_AT and job_filter.state is not HotState.SCHEDULED:
        raise InvalidField("sort", "due_at is for scheduled jobs", expected="state scheduled with it, or created_at")
    table = PLACES[place]
    # Ids are UUIDv7: their order is the order of creation, so that sort needs no index of its own.
    keys = [table.c.id] if sort is Sort.CREATED_AT else [table.c[sort.value], table.c.id]
    statement = filtered(select(*head_columns(place)), job_filter)
    if request.cursor is not None:
        position = [literal(value, key.type) for value, key in zip(_decode(request.cursor, sort), keys, strict=True)]
        edge: Any = tuple_(*keys)
        at: Any = tuple_(*position)
        statement = statement.where(edge > at if sort is Sort.DUE_AT else edge < at)
    order = [key.asc() if sort is Sort.DUE_AT else key.desc() for key in keys]
    rows = connection.execute(statement.order_by(*order).limit(request.limit + 1)).all()
    jobs = tuple(head(place, row) for row in rows[: request.limit])
    more = len(rows) > request.limit
    return JobPage(jobs, _encode(jobs[-1], sort) if more else None)


def count(connection: Connection, job_filter: JobFilter) -> Count:
    """How many match, counted up to the cap."""
    table = PLACES[job_filter.check().place]
    some = filtered(select(table.c.id), job_filter).limit(COUNT_CAP + 1).subquery()
    number = connection.execute(select(func.count()).select_from(some)).scalar_one()
    return Count(min(number, COUNT_CAP), number > COUNT_CAP)


def filtered(statement: Select[Any], f: JobFilter) -> Select[Any]:
    """``statement`` over the place's table with every condition of the filter."""
    c = PLACES[f.place].c
    _check_text(f)
    for value, column in (
        (f.queue, c.queue),
        (f.type, c.type),
        (f.key, c.idempotency_key),
        (f.operation, c.operation_id),
    ):
        if value is not None:
            statement = statement.where(column == value)
    if f.life_min is not None:
        statement = statement.where(c.life >= f.life_min)
    match f.state:
        case None:
            pass
        case HotState.SCHEDULED | HotState.PENDING:
            statement = statement.where(c.state == f.state.value)
        case HotState.FETCHED:
            statement = statement.where(c.state == "taken", c.started_at.is_(None))
        case HotState.PROCESSING:
            statement = statement.where(c.state == "taken", c.started_at.is_not(None))
    if f.place is Place.ARCHIVE:
        statement = _between(statement, c.finished_at, f.finished_after, f.finished_before)
    if f.place is Place.DLQ:
        statement = _between(statement, c.failed_at, f.failed_after, f.failed_before)
        statement = _dead(statement, c, f)
    return statement


def _check_text(f: JobFilter) -> None:
    """Refuse what no stored text can hold: the databases would fail, each in its own way."""
    for item in fields(f):
        value = getattr(f, item.name)
        for text in value if isinstance(value, tuple) else (value,):
            if isinstance(text, str) and _UNSTORABLE.search(text):
                raise InvalidField(item.name, "has NUL or half a character", expected="text")


def _between(statement: Select[Any], column: Any, after: datetime | None, before: datetime | None) -> Select[Any]:
    if after is not None:
        statement = statement.where(column >= after)
    if before is not None:
        statement = statement.where(column < before)
    return statement


def _dead(statement: Select[Any], c: Any, f: JobFilter) -> Select[Any]:
    if f.reason is not None:
        statement = statement.where(c.reason == f.reason.value)
    elif not f.cancelled:
        statement = statement.where(c.reason != Reason.CANCELLED.value)
    if f.incident is not None:
        statement = statement.where(c.incident_id == f.incident)
    marks = dead_marks.c
    if f.tag is not None:
        tagged = select(marks.job_id).where(marks.kind == "tag", marks.name == f.tag)
        statement = statement.where(c.id.in_(tagged))
    if f.label is not None:
        name, value = f.label
        labelled = select(marks.job_id).where(marks.kind == "label", marks.name == name, marks.value == value)
        statement = statement.where(c.id.in_(labelled))
    if f.q is not None:
        statement = statement.where(_search(c, f.q))
    return statement


def _search(c: Any, q: str) -> Any:
    try:
        return c.id == UUID(q.strip())
    except ValueError:
        pass
    words = q.split()
    if not 1 <= len(words) <= WORDS_MAX:
        raise InvalidField("q", f"{len(words)} words", expected=f"an id, or 1 to {WORDS_MAX} words")
    return and_(
        *(
            or_(*(column.icontains(word, autoescape=True) for column in (c.type, c.error_type, c.error_message)))
            for word in words
        )
    )


def _encode(job: JobHead, sort: Sort) -> str:
    moment: datetime | None = None if sort is Sort.CREATED_AT else getattr(job, sort.value)
    text = json.dumps([sort.value, None if moment is None else moment.isoformat(), str(job.id)])
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def _decode(cursor: str, sort: Sort) -> list[datetime | UUID]:
    try:
        if len(cursor) > CURSOR_MAX:
            raise ValueError("too long")
        text = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
        kind, moment, job_id = json.loads(text)
        position: list[datetime | UUID] = [UUID(job_id)]
        if sort is not Sort.CREATED_AT and kind == sort.value:
            position.insert(0, require_aware("cursor", datetime.fromisoformat(moment)))
    except (ValueError, TypeError, AttributeError) as error:
        raise InvalidField("cursor", "cannot be read", expected="the next_cursor of the page before") from error
    if kind != sort.value:
        raise InvalidField("cursor", f"is of a list sorted by {str(kind)[:20]}", expected=f"one sorted by {sort}")
    return position
