"""What a job carries, as plain values: to be enqueued, claimed by a worker, or looked at by an operator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from types import MappingProxyType
from uuid import UUID

from .failures import Reason
from .states import HotState, Place, Spot, spot_of

JSON = "application/json"
PRIORITY_DEFAULT, PRIORITY_MIN, PRIORITY_MAX = 10, 0, 100
NO_LABELS: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class NewJob:
    """Work to accept. ``payload`` is stored as these bytes; ``max_attempts`` None lets the handler's policy decide.

    ``due`` is an absolute time or a delay on the database's clock; None is now.
    """

    id: UUID
    type: str
    queue: str
    payload: bytes
    content_type: str = JSON
    priority: int = PRIORITY_DEFAULT
    due: datetime | timedelta | None = None
    tags: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=lambda: NO_LABELS)
    idempotency_key: str | None = None
    lock_key: str | None = None
    max_attempts: int | None = None
    created_by: str | None = None
    trace_context: str | None = None
    origin: str | None = None


@dataclass(frozen=True, slots=True)
class Enqueued:
    """The answer to an enqueue: the id under which the work is known. ``duplicate``: a live job held the key."""

    id: UUID
    duplicate: bool = False


@dataclass(slots=True)
class ClaimedJob:
    """A job a worker holds. ``id`` is 16 raw bytes: the hot path builds no UUID objects.

    ``age`` and ``unserved`` are seconds by the database's clock when the claim answered: since this life became due,
    and since a worker first met the job without knowing its type (None when none did).
    """

    id: bytes
    lease: int
    type: str
    queue: str
    payload: bytes
    content_type: str
    attempt: int
    spent: int
    max_attempts: int | None
    life: int
    revision: int
    priority: int
    marks: str | None
    trace_context: str | None
    started: bool
    age: float
    unserved: float | None
    claimed_at: float = 0.0

    @property
    def uuid(self) -> UUID:
        """The id as people write it."""
        return UUID(bytes=self.id)


@dataclass(frozen=True, slots=True)
class JobHead:
    """What a list shows and a rule decides on: everything about a job but its payload, traceback and result."""

    id: UUID
    place: Place
    state: HotState | None
    type: str
    queue: str
    priority: int
    version: int
    revision: int
    life: int
    attempt: int
    spent: int
    max_attempts: int | None
    content_type: str
    payload_size: int
    tags: tuple[str, ...]
    labels: Mapping[str, str]
    idempotency_key: str | None
    lock_key: str | None
    worker_id: str | None
    due_at: datetime
    created_at: datetime
    updated_at: datetime
    life_started_at: datetime
    created_by: str | None
    modified_by: str | None
    started_at: datetime | None = None
    heartbeat_at: datetime | None = None
    cancel_requested: datetime | None = None
    progress: str | None = None
    operation_id: UUID | None = None
    origin: str | None = None
    unserved_since: datetime | None = None
    blocked: bool = False
    # archive
    outcome: str | None = None
    finished_at: datetime | None = None
    duration_ms: int | None = None
    # dlq
    reason: Reason | None = None
    error_type: str | None = None
    error_message: str | None = None
    incident_id: str | None = None
    failed_at: datetime | None = None
    build: str | None = None

    @property
    def spot(self) -> Spot:
        """Place and hot state in one word."""
        return spot_of(self.place, self.state)


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """One line of a job's history that no later move changes."""

    life: int
    attempt: int
    kind: str
    revision: int
    started_at: datetime | None
    ended_at: datetime
    worker_id: str | None
    build: str | None
    reason: str | None
    error_type: str | None
    error_message: str | None
    traceback: str | None
    fingerprint: str | None


@dataclass(frozen=True, slots=True)
class Revision:
    """Content that an edit replaced, under the number it had. ``actor`` and ``at`` are of the edit that replaced it."""

    revision: int
    life: int
    payload: bytes
    content_type: str
    tags: tuple[str, ...]
    labels: Mapping[str, str]
    priority: int
    idempotency_key: str | None
    actor: str
    at: datetime


@dataclass(frozen=True, slots=True)
class JobRecord:
    """One job whole: head, payload, result, ledger (oldest first) and revisions (oldest first)."""

    head: JobHead
    payload: bytes
    result: bytes | None
    ledger: tuple[LedgerEntry, ...] = field(default=())
    revisions: tuple[Revision, ...] = field(default=())
