"""Burials: rows of hot go to the dlq with their ledger lines and marks, whoever decided it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Integer,
    Text,
    bindparam,
    cast,
    delete,
    func,
    insert,
    null,
    select,
)

from redrive.domain.failures import FAILURES, Reason
from redrive.domain.fingerprint import VERSION, fingerprint, title
from redrive.domain.marks import unpack
from redrive.domain.outcome import ErrorReport

from .columns import text
from .counters import Tally
from .dialect import Dialect
from .held import Held
from .ledger import Line, write_ledger
from .tables import JOB_COLUMNS, dead_marks, jobs_dlq, jobs_hot


@dataclass(frozen=True, slots=True)
class Burial:
    """One locked row to move to the dlq. ``lease`` is that of the run the ledger line tells of, if there was one."""

    row: Held
    reason: Reason
    kind: str
    error: ErrorReport | None
    charged: bool
    duration_ms: int = 0
    max_attempts: int | None = None
    lease: int | None = None


def rule_error(job_type: str, reason: Reason, message: str) -> ErrorReport:
    """The report of a death that no exception caused: its cause is the reason."""
    return ErrorReport("", message, "", fingerprint(job_type, reason.value, "", message, ()), VERSION)


def bury(
    db: Dialect,
    connection: Connection,
    burials: Sequence[Burial],
    *,
    worker_id: str | None,
    build: str | None,
    tally: Tally,
    modified_by: str | None = None,
) -> None:
    """Move locked hot rows to the dlq, with their ledger lines and marks; counters are added to ``tally``."""
    if not burials:
        return
    values: dict[str, ColumnElement[Any]] = {name: jobs_hot.c[name] for name in JOB_COLUMNS}
    values["version"] = jobs_hot.c.version + 1
    values["updated_at"] = db.now()
    values["spent"] = jobs_hot.c.spent + cast(bindparam("charge"), Integer)
    values["max_attempts"] = func.coalesce(cast(bindparam("budget"), Integer), jobs_hot.c.max_attempts)
    values["lease"] = cast(null(), BigInteger)
    if modified_by is not None:
        values["modified_by"] = text(modified_by)
    values["failed_at"] = db.now()
    values["reason"] = cast(bindparam("why"), Text)
    values["error_type"] = cast(bindparam("error_kind"), Text)
    values["error_message"] = cast(bindparam("error_text"), Text)
    values["incident_id"] = cast(bindparam("incident"), Text)
    values["build"] = cast(bindparam("built"), Text)
    connection.execute(
        insert(jobs_dlq).from_select(list(values), select(*values.values()).where(jobs_hot.c.id == bindparam("job"))),
        [
            {
                "job": item.row.id,
                "charge": int(item.charged),
                "budget": item.max_attempts,
                "why": item.reason.value,
                "error_kind": None if item.error is None else item.error.error_type,
                "error_text": None if item.error is None else item.error.message,
                "incident": _incident(item),
                "built": build,
            }
            for item in burials
        ],
    )
    connection.execute(delete(jobs_hot).where(jobs_hot.c.id.in_([item.row.id for item in burials])))
    write_ledger(
        db,
        connection,
        [Line(item.row, item.kind, item.reason, item.error, item.lease, item.charged) for item in burials],
        worker_id=worker_id,
        build=build,
    )
    mark_dead(connection, [(item.row.id, item.row.marks) for item in burials])
    for item in burials:
        error = item.error
        name = (
            title(item.row.type, error.error_type, error.message)
            if error is not None
            else f"{item.row.type}: {item.reason}"
        )
        tally.buried(item.row.queue, item.row.type, item.reason, item.duration_ms, _incident(item), name)


def _incident(item: Burial) -> str | None:
    return item.error.fingerprint if item.error is not None and item.reason in FAILURES else None


def mark_dead(connection: Connection, marked: Iterable[tuple[UUID, str | None]]) -> None:
    """Make tags and labels of dead rows searchable."""
    rows = []
    for job_id, marks in marked:
        tags, labels = unpack(marks)
        rows += [{"job_id": job_id, "kind": "tag", "name": tag, "value": ""} for tag in tags]
        rows += [{"job_id": job_id, "kind": "label", "name": k, "value": v} for k, v in labels.items()]
    if rows:
        connection.execute(insert(dead_marks), rows)
