"""Rows to domain values."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Row, Table, func

from redrive.domain.failures import Reason
from redrive.domain.job import JobHead, LedgerEntry, Revision
from redrive.domain.marks import unpack
from redrive.domain.states import Place, hot_state

from .tables import job_ledger, job_revisions, jobs_archive, jobs_dlq, jobs_hot

PLACES: dict[Place, Table] = {Place.HOT: jobs_hot, Place.ARCHIVE: jobs_archive, Place.DLQ: jobs_dlq}

_HEAVY = frozenset({"payload", "lease", "trace_context", "result"})


def head_columns(place: Place) -> list[ColumnElement[Any]]:
    """Everything of a place's rows but what is heavy; the payload only by its size."""
    table = PLACES[place]
    return [
        *(column for column in table.c if column.name not in _HEAVY),
        func.length(table.c.payload).label("payload_size"),
    ]


def head(place: Place, row: Row[Any]) -> JobHead:
    """A head from a row of ``head_columns``."""
    values: dict[str, Any] = dict(row._mapping)
    tags, labels = unpack(values.pop("marks"))
    state = values.pop("state", None)
    reason = values.pop("reason", None)
    return JobHead(
        place=place,
        state=None if state is None else hot_state(state, started=values["started_at"] is not None),
        tags=tags,
        labels=labels,
        reason=None if reason is None else _reason(reason),
        **values,
    )


def _reason(text: str) -> Reason:
    # A row written by hand must not make a list unreadable.
    try:
        return Reason(text)
    except ValueError:
        return Reason.UNKNOWN


def ledger_entry(row: Row[Any]) -> LedgerEntry:
    """A ledger line from a row of ``LEDGER_COLUMNS``."""
    return LedgerEntry(**dict(row._mapping))


LEDGER_COLUMNS = [
    job_ledger.c[name]
    for name in (
        "life",
        "attempt",
        "kind",
        "revision",
        "started_at",
        "ended_at",
        "worker_id",
        "build",
        "reason",
        "error_type",
        "error_message",
        "traceback",
        "fingerprint",
    )
]


def revision(row: Row[Any]) -> Revision:
    """A revision from a row of ``REVISION_COLUMNS``."""
    values: dict[str, Any] = dict(row._mapping)
    tags, labels = unpack(values.pop("marks"))
    return Revision(tags=tags, labels=labels, **values)


REVISION_COLUMNS = [
    job_revisions.c[name]
    for name in (
        "revision",
        "life",
        "payload",
        "content_type",
        "marks",
        "priority",
        "idempotency_key",
        "actor",
        "at",
    )
]
