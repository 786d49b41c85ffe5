"""How one run of a handler ended, as a value. ``lifecycle.settle`` turns it into a move."""

from __future__ import annotations

from dataclasses import dataclass

from .failures import FailureClass


@dataclass(frozen=True, slots=True)
class ErrorReport:
    """What is kept of an error: text only, so that no exception object has to survive. All of it is storable text."""

    error_type: str
    message: str
    traceback: str
    fingerprint: str
    fingerprint_version: int


@dataclass(frozen=True, slots=True)
class Done:
    """The handler returned. ``result`` is JSON, when the job keeps one."""

    result: bytes | None = None


@dataclass(frozen=True, slots=True)
class Skipped:
    """The handler was not called: another job has done the work, or is doing it. ``why`` says which."""

    why: str


@dataclass(frozen=True, slots=True)
class Failed:
    """The handler raised, or its payload did not bind. ``retry_after`` (seconds) goes with a throttled failure."""

    failure: FailureClass
    error: ErrorReport
    retry_after: float | None = None


@dataclass(frozen=True, slots=True)
class TimedOut:
    """The engine ended the run. ``stopped`` is False where the first run may still be going on (a thread)."""

    error: ErrorReport
    stopped: bool = True


@dataclass(frozen=True, slots=True)
class Snoozed:
    """The handler asked to run again after ``delay`` seconds."""

    delay: float


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The handler said the work is not wanted, or stopped because an operator asked."""

    error: ErrorReport


@dataclass(frozen=True, slots=True)
class WorkerStopped:
    """The worker's grace period ended while the handler was still running."""

    error: ErrorReport


@dataclass(frozen=True, slots=True)
class LeaseLost:
    """The worker gave the run up because it could not keep its lease."""

    error: ErrorReport


@dataclass(frozen=True, slots=True)
class Unclassified:
    """The engine itself failed while it ran or judged the job."""

    error: ErrorReport


Outcome = Done | Skipped | Failed | TimedOut | Snoozed | Cancelled | WorkerStopped | LeaseLost | Unclassified
