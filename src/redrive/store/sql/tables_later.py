"""Tables of features not built yet: in the first migration all the same, so that none has to move rows later."""

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
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
    text,
)

from .columns import BigId, Id, Json, UtcTime
from .tables import metadata

# -- breakers, schedules, markers --------------------------------------------------------------------------------------

circuits = Table(
    "circuits",
    metadata,
    Column("name", Text, primary_key=True),
    Column("state", Text, nullable=False, server_default=text("'closed'")),
    Column("failures", Integer, nullable=False, server_default=text("0")),
    Column("successes", Integer, nullable=False, server_default=text("0")),
    Column("opened_at", UtcTime),
    Column("changed_at", UtcTime),
    Column("probe_at", UtcTime),
    Column("permits", Json, nullable=False, server_default=text("'[]'")),
    Column("reason", Text),
    Column("swept_at", UtcTime),
    Column("version", BigInteger, nullable=False, server_default=text("1")),
    CheckConstraint("state IN ('closed', 'open', 'half_open')", name="state"),
)

schedules = Table(
    "schedules",
    metadata,
    Column("name", Text, primary_key=True),
    Column("type", Text, nullable=False),
    Column("spec", Json, nullable=False),
    Column("paused", Boolean, nullable=False, server_default=text("false")),
    Column("last_slot", UtcTime),
    Column("next_slot", UtcTime),
    Column("version", BigInteger, nullable=False, server_default=text("1")),
)

once_marks = Table(
    "once_marks",
    metadata,
    Column("scope", Text, nullable=False),
    Column("key", Text, nullable=False),
    Column("job_id", Id, nullable=False),
    # Of the run that is in progress, or has completed it.
    Column("lease", BigInteger, nullable=False),
    Column("state", Text, nullable=False),
    Column("expires_at", UtcTime),
    PrimaryKeyConstraint("scope", "key"),
    CheckConstraint("state IN ('running', 'completed')", name="state"),
    # A completion expires; a run in progress has its lease, and its marker goes with that.
    CheckConstraint("(state = 'running') = (expires_at IS NULL)", name="expires"),
    Index("ix_once_marks_job_id", "job_id"),
    Index("ix_once_marks_expires_at", "expires_at"),
)

held_keys = Table(
    "held_keys",
    metadata,
    Column("lock_key", Text, primary_key=True),
    Column("job_id", Id, nullable=False),
    Column("lease", BigInteger, nullable=False),
    UniqueConstraint("job_id"),
)

# -- bulk operations ---------------------------------------------------------------------------------------------------

plans = Table(
    "plans",
    metadata,
    Column("id", Id, primary_key=True),
    Column("number", BigInteger, nullable=False),
    Column("action", Text, nullable=False),
    Column("filter", Json),
    Column("options", Json, nullable=False),
    Column("digest", Text),
    Column("counts", Json, nullable=False),
    Column("state", Text, nullable=False),
    Column("actor", Text, nullable=False),
    Column("created_at", UtcTime, nullable=False),
    Column("expires_at", UtcTime, nullable=False),
    UniqueConstraint("number"),
)

plan_items = Table(
    "plan_items",
    metadata,
    Column("plan_id", Id, nullable=False),
    Column("ordinal", Integer, nullable=False),
    Column("job_id", Id, nullable=False),
    Column("version", BigInteger, nullable=False),
    PrimaryKeyConstraint("plan_id", "ordinal"),
)

_open: dict[str, Any] = {"postgresql_where": text("finished_at IS NULL"), "sqlite_where": text("finished_at IS NULL")}

operations = Table(
    "operations",
    metadata,
    Column("id", Id, primary_key=True),
    Column("number", BigInteger, nullable=False),
    Column("plan_id", Id, nullable=False),
    Column("state", Text, nullable=False),
    Column("cursor", Integer, nullable=False, server_default=text("0")),
    Column("rate", Double),
    Column("canary", Integer),
    Column("options", Json, nullable=False),
    Column("progress", Json, nullable=False),
    # Where and when it was last taken up: its pace is counted from there.
    Column("paced_from", Integer, nullable=False, server_default=text("0")),
    Column("paced_at", UtcTime, nullable=False),
    Column("owner", Text),
    Column("owner_lease", BigInteger),
    Column("owner_seen_at", UtcTime),
    Column("actor", Text, nullable=False),
    Column("started_at", UtcTime, nullable=False),
    Column("finished_at", UtcTime),
    UniqueConstraint("number"),
    UniqueConstraint("plan_id"),
    Index("ix_operations_open", "number", **_open),
)

operation_exceptions = Table(
    "operation_exceptions",
    metadata,
    Column("operation_id", Id, nullable=False),
    Column("ordinal", Integer, nullable=False),
    Column("job_id", Id, nullable=False),
    Column("result", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("why", Text, nullable=False),
    PrimaryKeyConstraint("operation_id", "ordinal"),
)

# -- brokers, access, alerts -----------------------------------------------------------------------------------------

tasks = Table(
    "tasks",
    metadata,
    Column("id", Id, primary_key=True),
    Column("task_type", Text, nullable=False),
    Column("task_data", LargeBinary),
    Column("status", Text, nullable=False),
    Column("attempts", Integer, nullable=False, server_default=text("0")),
    Column("max_attempts", Integer),
    Column("queued_at", UtcTime),
    Column("processing_started_at", UtcTime),
    Column("first_failed_at", UtcTime),
    Column("failed_at", UtcTime),
    Column("completed_at", UtcTime),
    Column("last_error", Text),
    Column("tracker_id", Text),
    Column("labels", Json),
    Column("created_at", UtcTime, nullable=False),
    Column("updated_at", UtcTime, nullable=False),
    CheckConstraint("status IN ('queued', 'processing', 'failed', 'completed', 'archived')", name="status"),
    Index("ix_tasks_status", "status", "updated_at", "id"),
)

broker_runs = Table(
    "broker_runs",
    metadata,
    Column("id", Id, primary_key=True),
    Column("number", BigInteger, nullable=False),
    Column("queue", Text, nullable=False),
    Column("action", Text, nullable=False),
    Column("options", Json, nullable=False),
    Column("state", Text, nullable=False),
    Column("counts", Json, nullable=False),
    Column("actor", Text, nullable=False),
    Column("started_at", UtcTime, nullable=False),
    Column("finished_at", UtcTime),
    UniqueConstraint("number"),
)

broker_items = Table(
    "broker_items",
    metadata,
    Column("run_id", Id, nullable=False),
    Column("ordinal", Integer, nullable=False),
    Column("result", Text, nullable=False),
    Column("message_hash", Text),
    Column("reason", Text),
    PrimaryKeyConstraint("run_id", "ordinal"),
)

locks = Table(
    "locks",
    metadata,
    Column("name", Text, primary_key=True),
    Column("holder", Text, nullable=False),
    Column("lease", BigInteger, nullable=False),
    Column("expires_at", UtcTime, nullable=False),
)

api_tokens = Table(
    "api_tokens",
    metadata,
    Column("id", Id, primary_key=True),
    Column("name", Text, nullable=False),
    Column("token_hash", Text, nullable=False),
    Column("scopes", Json, nullable=False),
    Column("created_by", Text, nullable=False),
    Column("created_at", UtcTime, nullable=False),
    Column("expires_at", UtcTime),
    Column("revoked_at", UtcTime),
    Column("last_used_at", UtcTime),
    UniqueConstraint("token_hash"),
)

sessions = Table(
    "sessions",
    metadata,
    Column("id_hash", Text, primary_key=True),
    Column("actor", Text, nullable=False),
    Column("role", Text, nullable=False),
    Column("created_at", UtcTime, nullable=False),
    Column("expires_at", UtcTime, nullable=False),
)

request_keys = Table(
    "request_keys",
    metadata,
    Column("actor", Text, nullable=False),
    Column("key", Text, nullable=False),
    Column("request_hash", Text, nullable=False),
    Column("answer", Json),
    Column("created_at", UtcTime, nullable=False),
    PrimaryKeyConstraint("actor", "key"),
)

alert_rules = Table(
    "alert_rules",
    metadata,
    Column("name", Text, primary_key=True),
    Column("rule", Json, nullable=False),
    Column("enabled", Boolean, nullable=False, server_default=text("true")),
    Column("version", BigInteger, nullable=False, server_default=text("1")),
)

alert_log = Table(
    "alert_log",
    metadata,
    Column("id", BigId, primary_key=True),
    Column("at", UtcTime, nullable=False),
    Column("rule", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("details", Json, nullable=False),
    Index("ix_alert_log_rule", "rule", "id"),
)
