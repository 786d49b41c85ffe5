"""Who did what: the values of the audit log, and the hashes that make it evidence."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from .edits import check_note, check_word


class Channel(StrEnum):
    """Through which face an action came. ``cli`` and ``code`` are trusted: the actor is what the caller said."""

    DECK = "deck"
    API = "api"
    CLI = "cli"
    CODE = "code"


@dataclass(frozen=True, slots=True)
class Actor:
    """Who acts, in which role, through which channel."""

    name: str
    channel: Channel = Channel.CODE
    role: str = "admin"
    request_id: str | None = None

    def __post_init__(self) -> None:
        check_word("actor", self.name)


@dataclass(frozen=True, slots=True)
class AuditDraft:
    """An action about to happen: becomes an entry in the transaction that carries it out."""

    actor: Actor
    action: str
    note: str | None = None
    operation_id: UUID | None = None

    def __post_init__(self) -> None:
        check_note(self.note)


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One line of the audit log. ``details`` holds revisions, counts and hashes; payloads never."""

    id: int
    at: datetime
    actor: str
    role: str
    channel: str
    action: str
    target: str
    operation_id: UUID | None
    note: str | None
    result: str
    request_id: str | None
    content_hash: str
    details: dict[str, Any] = field(default_factory=dict)
    seal: int | None = None


GENESIS = "0" * 64
"""What the first seal names as its predecessor."""


def content_hash(
    *,
    at: datetime,
    actor: str,
    role: str,
    channel: str,
    action: str,
    target: str,
    operation_id: UUID | None,
    note: str | None,
    result: str,
    request_id: str | None,
    details: dict[str, Any],
) -> str:
    """SHA-256 of an entry's content in canonical JSON (sorted keys, no spaces, UTC with microseconds)."""
    content = {
        "at": at.astimezone(UTC).isoformat(timespec="microseconds"),
        "actor": actor,
        "role": role,
        "channel": channel,
        "action": action,
        "target": target,
        "operation_id": None if operation_id is None else str(operation_id),
        "note": note,
        "result": result,
        "request_id": request_id,
        "details": details,
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def seal_hash(number: int, previous: str, entry_hashes: Iterable[tuple[int, str]]) -> str:
    """The hash of seal ``number`` over (entry id, content hash) in id order, chained to ``previous``."""
    digest = hashlib.sha256(f"{number}:{previous}".encode())
    for entry_id, entry_hash in entry_hashes:
        digest.update(f"|{entry_id}:{entry_hash}".encode())
    return digest.hexdigest()
