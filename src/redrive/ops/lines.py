"""One dead job as a line of NDJSON: exact payload, ledger and revisions."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from redrive.domain.job import JobRecord, LedgerEntry, Revision

FORMAT = 1
_HEAD = (
    "id", "type", "queue", "priority", "content_type", "tags", "labels", "idempotency_key", "lock_key", "max_attempts",
    "reason", "error_type", "error_message", "failed_at", "build", "life", "attempt", "spent", "revision", "version",
    "created_at", "created_by", "modified_by", "updated_at", "life_started_at", "due_at", "started_at", "worker_id",
    "origin",
)  # fmt: skip


def line_of(record: JobRecord) -> bytes:
    """One dead job as a line."""
    out: dict[str, Any] = {"redrive": FORMAT}
    for name in _HEAD:
        value = getattr(record.head, name)
        if value is not None:
            out[name] = _plain(value)
        if name == "content_type":
            out |= _payload_out(record.payload)
    out["ledger"] = [_entry_out(entry) for entry in record.ledger]
    out["revisions"] = [_entry_out(revision) for revision in record.revisions]
    return json.dumps(out, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def _entry_out(entry: LedgerEntry | Revision) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name in (item.name for item in fields(entry)):
        value = getattr(entry, name)
        if isinstance(value, bytes):
            out |= _payload_out(value)
        elif value is not None:
            out[name] = _plain(value)
    return out


def _payload_out(payload: bytes) -> dict[str, str]:
    try:
        return {"payload": payload.decode()}
    except UnicodeDecodeError:
        return {"payload_base64": base64.b64encode(payload).decode()}


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="microseconds")
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, tuple) else value
