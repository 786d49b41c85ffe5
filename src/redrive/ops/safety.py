"""Whether a dead job may run again, from what is known of it: a verdict in words, and the findings behind it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from redrive.domain.errors import PayloadError
from redrive.domain.failures import Reason
from redrive.domain.job import JobHead, JobRecord
from redrive.store.port import TypeView

MIDWAY = (Reason.ZOMBIE, Reason.HEARTBEAT_LOST, Reason.TIMEOUT, Reason.UNKNOWN)
"""Deaths in the middle of a run, of which nobody can say how far it came."""
LIVES = 3
"""After as many lives ended dead, another one is unlikely to end better."""


class Safety(StrEnum):
    """The verdicts, best first."""

    SAFE = "safe"
    FUTILE = "safe, but would die again"
    UNKNOWN = "cannot tell"
    UNSAFE = "not safe"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The worst finding decides."""

    safety: Safety
    findings: tuple[str, ...]


def judge(
    record: JobRecord, problem: PayloadError | None, view: TypeView | None, holder: JobHead | None, live: bool
) -> Verdict:
    """Judge one dead job. ``view`` is its type as last announced, ``holder`` the live job that has its key."""
    found: list[tuple[Safety, str]] = []
    head = record.head
    if any(entry.kind == "late_success" for entry in record.ledger):
        found.append((Safety.UNSAFE, "a late run of it succeeded after it was given up: its effect has happened"))
    if holder is not None:
        found.append((Safety.UNSAFE, f"live job {holder.id} holds its key: the same work is already on its way"))
    if head.reason in MIDWAY:
        if view is None:
            found.append((Safety.UNKNOWN, "it may have done part of its work, and no worker has announced its type"))
        elif not view.idempotent:
            found.append((Safety.UNKNOWN, "it may have done part of its work, and its handler is not idempotent"))
        else:
            found.append((Safety.SAFE, "it may have done part of its work; its handler says that it is idempotent"))
    if problem is not None:
        found.append((Safety.FUTILE, "its payload cannot be read: repair it first"))
    if view is None and not live:
        found.append((Safety.FUTILE, "no worker has announced its type: it would wait, and be given up"))
    elif not live:
        found.append((Safety.SAFE, "no live worker serves its type now: it would wait for one"))
    deaths = {entry.life for entry in record.ledger}
    if len(deaths) >= LIVES:
        found.append((Safety.FUTILE, f"it has died in {len(deaths)} lives: find out why before the next one"))
    if head.reason is Reason.FATAL and problem is None and head.revision == 1:
        found.append((Safety.FUTILE, "it died of a fatal error and its payload is still the same"))
    ran = head.attempt > 0 and head.reason not in MIDWAY and head.reason is not Reason.CANCELLED
    if ran and problem is None and not (view and view.idempotent):
        found.append((Safety.SAFE, "what it did before its error was not undone, and its handler is not idempotent"))
    order = list(Safety)
    worst = max((safety for safety, _ in found), key=order.index, default=Safety.SAFE)
    return Verdict(worst, tuple(text for _, text in sorted(found, key=lambda pair: -order.index(pair[0]))))
