"""An operator's transaction: what its parts share."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from sqlalchemy import Connection

from redrive.domain.audit import AuditDraft
from redrive.domain.job import JobHead
from redrive.domain.lifecycle import Refusal
from redrive.domain.moves import OperatorMove

from .audit import Target
from .counters import Tally
from .dialect import Dialect

Applied = tuple[JobHead, OperatorMove, Target | Refusal]
"""A job, its move, and what the audit says of it, or why nothing was written after all."""


@dataclass(frozen=True, slots=True)
class Act:
    """One transaction that applies moves and adds what they did to the tally."""

    db: Dialect
    connection: Connection
    audit: AuditDraft
    tally: Tally


def sha(content: bytes) -> str:
    """SHA-256 of bytes, as 64 hex digits."""
    return hashlib.sha256(content).hexdigest()
