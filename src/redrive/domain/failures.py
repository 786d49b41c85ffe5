"""Why a job is dead, and what kind of failure a run was."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class FailureClass(StrEnum):
    """What a failed run means for the next one."""

    FATAL = "fatal"
    TRANSIENT = "transient"
    THROTTLED = "throttled"


class Reason(StrEnum):
    """Why a job rests in the dead letter queue."""

    FATAL = "fatal"
    RETRIES_EXHAUSTED = "retries_exhausted"
    TIMEOUT = "timeout"
    THROTTLED = "throttled"
    RETRY_LIFETIME_EXPIRED = "retry_lifetime_expired"
    CIRCUIT_OPEN = "circuit_open"
    ZOMBIE = "zombie"
    HEARTBEAT_LOST = "heartbeat_lost"
    UNKNOWN = "unknown"
    CANCELLED = "cancelled"
    ISOLATED = "isolated"


@dataclass(frozen=True, slots=True)
class ReasonInfo:
    """What an operator reads about a reason: what it means, whether it counts as a failure, what to do first."""

    meaning: str
    is_failure: bool
    first_step: str


REASONS: dict[Reason, ReasonInfo] = {
    Reason.FATAL: ReasonInfo("it cannot succeed as it is", True, "repair the payload or the code, then resurrect"),
    Reason.RETRIES_EXHAUSTED: ReasonInfo(
        "transient failures used the whole budget", True, "check the dependency, then resurrect"
    ),
    Reason.TIMEOUT: ReasonInfo("it ran over its time", True, "look at the duration and at side effects of the run"),
    Reason.THROTTLED: ReasonInfo("a peer kept telling it to slow down", True, "lower the limit, wait, then resurrect"),
    Reason.RETRY_LIFETIME_EXPIRED: ReasonInfo(
        "its next attempt would have started too late", True, "ask whether it is still wanted"
    ),
    Reason.CIRCUIT_OPEN: ReasonInfo("its breaker kept it off for its lifetime", True, "check the dependency"),
    Reason.ZOMBIE: ReasonInfo(
        "its worker vanished while it ran", True, "check side effects and whether the handler is idempotent"
    ),
    Reason.HEARTBEAT_LOST: ReasonInfo("its worker lost its lease and gave up", True, "check the database and the host"),
    Reason.UNKNOWN: ReasonInfo("the engine could not classify or settle it", True, "read the worker's logs"),
    Reason.CANCELLED: ReasonInfo("somebody cancelled it", False, "ask whether that was intended"),
    Reason.ISOLATED: ReasonInfo("an operator took it out to be judged", False, "judge it"),
}

FAILURES: frozenset[Reason] = frozenset(reason for reason, info in REASONS.items() if info.is_failure)
"""Reasons that count in totals, rates, incidents and alerts."""

SEED_NAMES: dict[str, Reason] = {
    "FatalError": Reason.FATAL,
    "Fatal": Reason.FATAL,
    "MaxRetriesExceeded": Reason.RETRIES_EXHAUSTED,
    "Timeout": Reason.TIMEOUT,
    "Throttled": Reason.THROTTLED,
    "Zombie": Reason.ZOMBIE,
    "Cancelled": Reason.CANCELLED,
    "Unknown": Reason.UNKNOWN,
}
"""Names of an older engine that filters and imports accept for a reason."""


def parse_reason(name: str) -> Reason | None:
    """The reason of that name, in our spelling or the older one; None when there is none."""
    try:
        return Reason(name)
    except ValueError:
        return SEED_NAMES.get(name)
