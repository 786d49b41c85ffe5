"""The one schema, for PostgreSQL and SQLite alike. Every constraint and index has a name.

Tables carry no schema here: on PostgreSQL the connection translates to the configured one (``redrive`` by default).
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Double,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.schema import SchemaItem

from .columns import BigId, Id, Json, UtcTime

metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
    }
)


def _job_columns() -> list[Column[Any]]:
    """What a job carries in every place, in storage order: fixed widths first, so that PostgreSQL pads least."""
    return [
        Column("id", Id, primary_key=True),
        Column("version", BigInteger, nullable=False, server_default=text("1")),
        Column("lease", BigInteger),
        Column("due_at", UtcTime, nullable=False),
        Column("created_at", UtcTime, nullable=False),
        Column("updated_at", UtcTime, nullable=False),
        Column("life_started_at", UtcTime, nullable=False),
        Column("started_at", UtcTime),
        Column("operation_id", Id),
        Column("attempt", Integer, nullable=False, server_default=text("0")),
        Column("spent", Integer, nullable=False, server_default=text("0")),
        Column("max_attempts", Integer),
        Column("life", Integer, nullable=False, server_default=text("1")),
        Column("revision", Integer, nullable=False, server_default=text("1")),
        Column("priority", SmallInteger, nullable=False, server_default=text("10")),
        Column("queue", Text, nullable=False),
        Column("type", Text, nullable=False),
        Column("content_type", Text, nullable=False),
        Column("worker_id", Text),
        Column("created_by", Text),
        Column("modified_by", Text),
        Column("idempotency_key", Text),
        Column("lock_key", Text),
        Column("marks", Text),
        Column("progress", Text),
        Column("origin", Text),
        Column("trace_context", Text),
        Column("payload", LargeBinary, nullable=False),
    ]


JOB_COLUMNS = tuple(column.name for column in _job_columns())
"""Names of the columns all three places share."""


def _place(name: str, *extra: SchemaItem, **options: Any) -> Table:
    return Table(
        name,
        metadata,
        *_job_columns(),
        *extra,
        CheckConstraint("priority BETWEEN 0 AND 100", name="priority"),
        **options,
    )


jobs_hot = _place(
    "jobs_hot",
    Column("state", Text, nullable=False, server_default=text("'pending'")),
    Column("heartbeat_at", UtcTime),
    Column("cancel_requested", UtcTime),
    Column("unserved_since", UtcTime),
    # Pending, but another job holds its lock key: out of the way of claims until that one ends.
    Column("blocked", Boolean, nullable=False, server_default=text("false")),
    CheckConstraint("state IN ('scheduled', 'pending', 'taken')", name="state"),
    # A lease is set exactly while a job is taken: a guard on the lease alone then proves ownership.
    CheckConstraint("(state = 'taken') = (lease IS NOT NULL)", name="lease"),
    CheckConstraint("state = 'taken' OR started_at IS NULL", name="started"),
    # Heartbeats and starts stay HOT updates where a page has room.
    postgresql_with={"fillfactor": "70", "autovacuum_vacuum_scale_factor": "0.02"},
)

jobs_archive = _place(
    "jobs_archive",
    Column("finished_at", UtcTime, nullable=False),
    Column("duration_ms", BigInteger),
    Column("outcome", Text, nullable=False),
    Column("result", LargeBinary),
    CheckConstraint("outcome IN ('succeeded', 'returned', 'skipped')", name="outcome"),
)

jobs_dlq = _place(
    "jobs_dlq",
    Column("failed_at", UtcTime, nullable=False),
    Column("reason", Text, nullable=False),
    Column("error_type", Text),
    Column("error_message", Text),
    Column("incident_id", Text),
    Column("build", Text),
)

UNBLOCKED = text("NOT blocked")
CLAIMABLE = text(f"state = 'pending' AND {UNBLOCKED.text}")
BLOCKED = text("blocked")
"""Conditions on ``jobs_hot`` in the words of its partial indexes, so that both databases see that those serve."""

# -- indexes of the places ---------------------------------------------------------------------------------------------


def _partial(where: str) -> dict[str, Any]:
    return {"postgresql_where": text(where), "sqlite_where": text(where)}


_hot, _archive, _dlq = jobs_hot.c, jobs_archive.c, jobs_dlq.c

Index("ix_jobs_hot_claim", _hot.queue, _hot.priority.desc(), _hot.due_at, _hot.id, **_partial(CLAIMABLE.text))
Index("ix_jobs_hot_blocked", _hot.lock_key, _hot.priority.desc(), _hot.due_at, _hot.id, **_partial(BLOCKED.text))
Index("ix_jobs_hot_scheduled", _hot.due_at, **_partial("state = 'scheduled'"))
Index("uq_jobs_hot_key", _hot.type, _hot.idempotency_key, unique=True, **_partial("idempotency_key IS NOT NULL"))
Index("ix_jobs_hot_taken", _hot.queue, **_partial("state = 'taken'"))
Index("ix_jobs_hot_operation", _hot.operation_id, **_partial("operation_id IS NOT NULL"))

Index("ix_jobs_archive_finished", _archive.finished_at, _archive.id)
Index("ix_jobs_archive_type", _archive.type, _archive.finished_at, _archive.id)
Index("ix_jobs_archive_operation", _archive.operation_id, **_partial("operation_id IS NOT NULL"))

Index("ix_jobs_dlq_failed", _dlq.failed_at, _dlq.id)
Index("ix_jobs_dlq_queue", _dlq.queue, _dlq.failed_at, _dlq.id)
Index("ix_jobs_dlq_type", _dlq.type, _dlq.failed_at, _dlq.id)
Index("ix_jobs_dlq_reason", _dlq.reason, _dlq.failed_at, _dlq.id)
Index("ix_jobs_dlq_incident", _dlq.incident_id, _dlq.failed_at, _dlq.id)
Index("ix_jobs_dlq_operation", _dlq.operation_id, **_partial("operation_id IS NOT NULL"))

# -- evidence ----------------------------------------------------------------------------------------------------------

dead_marks = Table(
    "dead_marks",
    metadata,
    Column("job_id", Id, nullable=False),
    Column("kind", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("value", Text, nullable=False, server_default=text("''")),
    PrimaryKeyConstraint("job_id", "kind", "name"),
    CheckConstraint("kind IN ('tag', 'label')", name="kind"),
    Index("ix_dead_marks_name", "kind", "name", "value", "job_id"),
)

job_ledger = Table(
    "job_ledger",
    metadata,
    Column("id", BigId, primary_key=True),
    Column("job_id", Id, nullable=False),
    Column("life", Integer, nullable=False),
    Column("attempt", Integer, nullable=False),
    # What is charged to the budget after this line. Queue and type may change with a resurrection: a take-back, and
    # whoever reads the line later, needs those of then. All three are unknown for notes and some imports.
    Column("spent", Integer),
    Column("lease", BigInteger),
    Column("kind", Text, nullable=False),
    Column("revision", Integer, nullable=False),
    Column("started_at", UtcTime),
    Column("ended_at", UtcTime, nullable=False),
    Column("queue", Text),
    Column("type", Text),
    Column("worker_id", Text),
    Column("build", Text),
    Column("reason", Text),
    Column("error_type", Text),
    Column("error_message", Text),
    Column("traceback", Text),
    Column("fingerprint", Text),
    Column("fingerprint_version", SmallInteger),
    CheckConstraint(
        "kind IN ('failed', 'zombie', 'cancelled', 'skipped', 'copied', 'late_success', 'late_failure', 'refused')",
        name="kind",
    ),
    Index("ix_job_ledger_job", "job_id", "life", "attempt"),
)

job_revisions = Table(
    "job_revisions",
    metadata,
    Column("job_id", Id, nullable=False),
    Column("revision", Integer, nullable=False),
    Column("life", Integer, nullable=False),
    # Which move replaced it: a take-back undoes what the resurrection changed, and nothing an editor did.
    Column("replaced_by", Text, nullable=False),
    Column("payload", LargeBinary, nullable=False),
    Column("content_type", Text, nullable=False),
    Column("marks", Text),
    Column("priority", SmallInteger, nullable=False),
    Column("idempotency_key", Text),
    Column("actor", Text, nullable=False),
    Column("at", UtcTime, nullable=False),
    PrimaryKeyConstraint("job_id", "revision"),
)

audit_log = Table(
    "audit_log",
    metadata,
    Column("id", BigId, primary_key=True),
    Column("at", UtcTime, nullable=False),
    Column("actor", Text, nullable=False),
    Column("role", Text, nullable=False),
    Column("channel", Text, nullable=False),
    Column("action", Text, nullable=False),
    Column("target", Text, nullable=False),
    Column("job_id", Id),
    Column("revision", Integer),
    Column("operation_id", Id),
    Column("note", Text),
    Column("result", Text, nullable=False),
    Column("request_id", Text),
    Column("details", Json, nullable=False),
    Column("content_hash", Text, nullable=False),
    Column("seal", BigInteger),
    Index("ix_audit_log_job", "job_id", "id"),
    Index("ix_audit_log_unsealed", "id", postgresql_where=text("seal IS NULL"), sqlite_where=text("seal IS NULL")),
    Index("ix_audit_log_seal", "seal", "id"),
)

audit_seals = Table(
    "audit_seals",
    metadata,
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("first_id", BigInteger, nullable=False),
    Column("last_id", BigInteger, nullable=False),
    Column("entries", Integer, nullable=False),
    Column("previous", Text, nullable=False),
    Column("root", Text, nullable=False),
    Column("at", UtcTime, nullable=False),
)

incidents = Table(
    "incidents",
    metadata,
    Column("id", Text, primary_key=True),
    Column("number", BigInteger),
    Column("version", BigInteger, nullable=False, server_default=text("1")),
    Column("title", Text, nullable=False),
    Column("type", Text, nullable=False),
    Column("state", Text, nullable=False, server_default=text("'open'")),
    Column("owner", Text),
    Column("first_seen", UtcTime, nullable=False),
    Column("last_seen", UtcTime, nullable=False),
    Column("deaths", BigInteger, nullable=False),
    UniqueConstraint("number"),
    Index("ix_incidents_seen", "last_seen", "id"),
    postgresql_with={"fillfactor": "50"},
)

incident_notes = Table(
    "incident_notes",
    metadata,
    Column("id", BigId, primary_key=True),
    Column("incident_id", Text, nullable=False),
    Column("at", UtcTime, nullable=False),
    Column("actor", Text, nullable=False),
    Column("note", Text, nullable=False),
    Index("ix_incident_notes_incident", "incident_id", "id"),
)

# -- settings and people who work --------------------------------------------------------------------------------------

queues = Table(
    "queues",
    metadata,
    Column("name", Text, primary_key=True),
    Column("paused", Boolean, nullable=False, server_default=text("false")),
    Column("max_running", Integer),
    Column("rate", Text),
    # The rate limiter's theoretical arrival time: see domain/limits.
    Column("rate_tat", UtcTime),
    Column("zombie_timeout", Double),
    Column("fetched_timeout", Double),
    Column("execution_timeout", Double),
    Column("owner", Text),
    Column("version", BigInteger, nullable=False, server_default=text("1")),
    CheckConstraint("max_running > 0", name="max_running"),
    postgresql_with={"fillfactor": "50"},
)

workers = Table(
    "workers",
    metadata,
    Column("id", Text, primary_key=True),
    Column("slot", SmallInteger, nullable=False),
    Column("host", Text, nullable=False),
    Column("pid", Integer, nullable=False),
    Column("build", Text, nullable=False),
    Column("queues", Json, nullable=False),
    Column("types", Json, nullable=False),
    Column("concurrency", Integer, nullable=False),
    Column("wanted_concurrency", Integer),
    Column("mode", Text, nullable=False, server_default=text("'serving'")),
    Column("stuck", Integer, nullable=False, server_default=text("0")),
    Column("waiting", Boolean, nullable=False, server_default=text("false")),
    Column("started_at", UtcTime, nullable=False),
    Column("seen_at", UtcTime, nullable=False),
    Column("schedules", Json),
    postgresql_with={"fillfactor": "50"},
)

job_types = Table(
    "job_types",
    metadata,
    Column("type", Text, nullable=False),
    Column("build", Text, nullable=False),
    Column("queue", Text, nullable=False),
    Column("schema", Json, nullable=False),
    Column("idempotent", Boolean, nullable=False),
    Column("on_zombie", Text, nullable=False),
    Column("retry", Json, nullable=False),
    Column("timeout", Double),
    Column("owner", Text),
    Column("breaker", Json),
    Column("seen_at", UtcTime, nullable=False),
    PrimaryKeyConstraint("type", "build"),
)

# -- counters ----------------------------------------------------------------------------------------------------------

queue_totals = Table(
    "queue_totals",
    metadata,
    Column("queue", Text, nullable=False),
    Column("shard", SmallInteger, nullable=False),
    Column("succeeded", BigInteger, nullable=False, server_default=text("0")),
    Column("failed", BigInteger, nullable=False, server_default=text("0")),
    Column("retried", BigInteger, nullable=False, server_default=text("0")),
    Column("purged_succeeded", BigInteger, nullable=False, server_default=text("0")),
    Column("purged_failed", BigInteger, nullable=False, server_default=text("0")),
    PrimaryKeyConstraint("queue", "shard"),
    postgresql_with={"fillfactor": "50"},
)

metric_buckets = Table(
    "metric_buckets",
    metadata,
    Column("at", UtcTime, nullable=False),
    Column("queue", Text, nullable=False),
    Column("type", Text, nullable=False),
    Column("outcome", Text, nullable=False),
    Column("reason", Text, nullable=False, server_default=text("''")),
    Column("shard", SmallInteger, nullable=False),
    Column("n", BigInteger, nullable=False),
    Column("ms", BigInteger, nullable=False),
    PrimaryKeyConstraint("at", "queue", "type", "outcome", "reason", "shard"),
    postgresql_with={"fillfactor": "70"},
)
