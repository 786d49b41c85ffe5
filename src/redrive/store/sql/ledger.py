"""Lines of the ledger: one for each run that failed, was rescued, or ended too late."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, bindparam, insert

from redrive.domain.failures import Reason
from redrive.domain.outcome import ErrorReport

from .dialect import Dialect
from .held import Held
from .tables import job_ledger

NOT_OWN = ("zombie", "late_success", "late_failure", "refused")
"""Ledger kinds whose lease is not that of an applied settle: the lease a rescuer took away, and notes."""
NOTES = ("late_success", "late_failure", "refused")
"""Ledger kinds that tell of something that changed nothing."""


@dataclass(frozen=True, slots=True)
class Line:
    """A ledger line about a locked row. ``lease`` is that of the run it tells of, if there was one.

    ``said`` is what it says where there was no error.
    """

    row: Held
    kind: str
    reason: Reason | None
    error: ErrorReport | None
    lease: int | None
    charged: bool
    said: str | None = None


def write_ledger(
    db: Dialect,
    connection: Connection,
    lines: Sequence[Line],
    *,
    worker_id: str | None,
    build: str | None,
) -> None:
    """Add lines to the ledger; ``worker_id`` None takes the row's."""
    connection.execute(
        insert(job_ledger).values(
            {
                "ended_at": db.now(),
                **{
                    name: bindparam(name)
                    for name in (
                        "job_id",
                        "life",
                        "attempt",
                        "spent",
                        "lease",
                        "kind",
                        "revision",
                        "started_at",
                        "queue",
                        "type",
                        "worker_id",
                        "build",
                        "reason",
                        "error_type",
                        "error_message",
                        "traceback",
                        "fingerprint",
                        "fingerprint_version",
                    )
                },
            }
        ),
        [
            {
                "job_id": line.row.id,
                "life": line.row.life,
                "attempt": line.row.attempt,
                "spent": line.row.spent + line.charged,
                "lease": line.lease,
                "kind": line.kind,
                "revision": line.row.revision,
                "started_at": line.row.started_at,
                "queue": line.row.queue,
                "type": line.row.type,
                "worker_id": worker_id or line.row.worker_id,
                "build": build,
                "reason": None if line.reason is None else line.reason.value,
                "error_type": None if line.error is None else line.error.error_type,
                "error_message": line.said if line.error is None else line.error.message,
                "traceback": None if line.error is None else line.error.traceback,
                "fingerprint": None if line.error is None else line.error.fingerprint,
                "fingerprint_version": None if line.error is None else line.error.fingerprint_version,
            }
            for line in lines
        ],
    )
