"""The values that change a job. ``lifecycle`` makes them, the store applies them under their guard.

A worker's moves are guarded by the pair (id, lease): the lease is unique to a claim and set exactly while the job is
taken. An operator's moves are guarded by the version that was read, checked while the row is locked.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from uuid import UUID

from .edits import JobEdit
from .failures import Reason
from .once import Mark
from .outcome import ErrorReport


@dataclass(frozen=True, slots=True)
class Succeed:
    """processing -> archive; the completion marker the run holds, if it holds one, is completed with it."""

    id: bytes
    lease: int
    duration_ms: int
    result: bytes | None = None
    mark: Mark | None = None


@dataclass(frozen=True, slots=True)
class Skip:
    """processing -> archive without a run: another job has done the work, or is doing it. ``why`` says which."""

    id: bytes
    lease: int
    duration_ms: int
    why: str


@dataclass(frozen=True, slots=True)
class Retry:
    """processing -> scheduled, ``delay`` seconds from now; becomes a burial as cancelled where that was requested."""

    id: bytes
    lease: int
    duration_ms: int
    delay: float
    max_attempts: int
    error: ErrorReport


@dataclass(frozen=True, slots=True)
class Bury:
    """taken -> dlq. ``charged`` is whether the run counts against the budget."""

    id: bytes
    lease: int
    duration_ms: int
    reason: Reason
    error: ErrorReport
    max_attempts: int
    charged: bool = True


@dataclass(frozen=True, slots=True)
class SnoozeFor:
    """processing -> scheduled, ``delay`` seconds from now; nothing is charged."""

    id: bytes
    lease: int
    duration_ms: int
    delay: float


@dataclass(frozen=True, slots=True)
class Release:
    """fetched -> pending, nothing counted."""

    id: bytes
    lease: int


@dataclass(frozen=True, slots=True)
class PutOff:
    """fetched -> scheduled, ``delay`` seconds from now, nothing counted: nobody here can run it."""

    id: bytes
    lease: int
    delay: float


SettleMove = Succeed | Skip | Retry | Bury | SnoozeFor
Move = SettleMove | Release | PutOff


class Answer(StrEnum):
    """What became of a settle."""

    APPLIED = "applied"
    ALREADY = "already applied"
    STALE = "stale"


@dataclass(frozen=True, slots=True)
class Settled:
    """The answer to one move of a worker. ``reason`` is the burial's, where the job was buried."""

    id: bytes
    lease: int
    answer: Answer
    reason: Reason | None = None


# -- moves by rule and by operators ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BackToPending:
    """Rescue of a fetched job whose lease expired."""


@dataclass(frozen=True, slots=True)
class BackToScheduled:
    """Rescue of a processing job whose handler says ``on_zombie="retry"``: charged, ``delay`` seconds from now."""

    delay: float


@dataclass(frozen=True, slots=True)
class BuryByRule:
    """A burial that no run decided: an expired lease, a cancel, an isolation."""

    reason: Reason


@dataclass(frozen=True, slots=True)
class RequestCancel:
    """A running handler is asked to stop; success still wins."""


@dataclass(frozen=True, slots=True)
class ApplyEdit:
    """Replace content in place; the replaced content becomes a revision."""

    edit: JobEdit


@dataclass(frozen=True, slots=True)
class Revive:
    """dlq -> hot with a fresh life. ``due`` None is at once."""

    edit: JobEdit
    due: datetime | timedelta | None = None
    drop_key: bool = False


@dataclass(frozen=True, slots=True)
class BringForward:
    """scheduled -> pending now."""


@dataclass(frozen=True, slots=True)
class TakeBackMove:
    """hot -> dlq as it was before its resurrection."""


@dataclass(frozen=True, slots=True)
class Remove:
    """Delete for good; only the audit's hashes remain."""


RuleMove = BackToPending | BackToScheduled | BuryByRule
OperatorMove = ApplyEdit | Revive | BringForward | TakeBackMove | Remove | BuryByRule | RequestCancel


class Skipped(StrEnum):
    """Why one job of a request was left alone."""

    NOT_FOUND = "not-found"
    CHANGED = "version-changed"
    NOT_ALLOWED = "not-allowed"
    KEY_HELD = "key-held"
    UNCHANGED = "unchanged"
    UNREADABLE = "unreadable"


class Did(StrEnum):
    """What was done to one job of a request."""

    DONE = "done"
    REQUESTED = "requested"


@dataclass(frozen=True, slots=True)
class Answered:
    """The answer for one id of an operator's request: what was done, or why it was skipped and what to do about it."""

    id: UUID
    did: Did | None
    skipped: Skipped | None = None
    why: str = ""
    version: int | None = None
    holder: UUID | None = None

    @property
    def ok(self) -> bool:
        """Whether the job is now as asked (a request to stop counts: it was delivered)."""
        return self.did is not None
