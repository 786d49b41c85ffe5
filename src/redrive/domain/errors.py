"""Every error Redrive raises, and the signals a handler may raise.

::

    RedriveError                 code, message; what to do next is in the message
     ├── InvalidField            a value was refused: names the field and what was expected
     │    └── PayloadError       the payload: also offset (bytes), line and column
     ├── NotFound                no such job, queue, worker ...
     ├── Conflict                the job is not what the caller thinks it is
     │    ├── VersionChanged     somebody changed it since it was read
     │    ├── NotAllowed         the move is not possible from where the job is
     │    └── KeyHeld            its idempotency key is held by a live job
     ├── Retryable               nothing was done; the same call may be sent again
     ├── ConfigError             a setting is unknown or out of range
     ├── NotMigrated             the database has no (or an older, or a newer) schema
     └── Unavailable             the database cannot be reached or refuses writes
    JobSignal                    raised by a handler to say how its run ends
     ├── Fatal                   do not retry
     ├── Throttled               told to slow down; retry_after in seconds
     ├── Snooze                  run again later, budget untouched
     └── Cancel                  unwanted work
    ProcessDied                  how the run of an isolated handler ended, when its process did
"""

from __future__ import annotations

from datetime import datetime, timedelta


class RedriveError(Exception):
    """Root of everything Redrive raises on its own account. ``code`` is stable and meant for programs."""

    code = "error"


class InvalidField(RedriveError, ValueError):
    """A value was refused. ``field`` names it; ``expected`` says what would have been accepted."""

    code = "invalid"

    def __init__(self, field: str, problem: str, *, expected: str = "", code: str | None = None) -> None:
        self.field = field
        self.problem = problem
        self.expected = expected
        if code is not None:
            self.code = code
        super().__init__(f"{field}: {problem}" + (f"; expected {expected}" if expected else ""))


class PayloadError(InvalidField):
    """The payload was refused, or could not be read. ``offset`` counts bytes from 0, ``line`` and ``column`` from 1."""

    code = "payload"

    def __init__(
        self,
        problem: str,
        *,
        field: str = "payload",
        expected: str = "",
        code: str | None = None,
        offset: int | None = None,
        line: int | None = None,
        column: int | None = None,
    ) -> None:
        self.offset = offset
        self.line = line
        self.column = column
        where = f" at line {line}, column {column} (byte {offset})" if offset is not None and line is not None else ""
        super().__init__(field, problem + where, expected=expected, code=code)


class NotFound(RedriveError, LookupError):
    """Nothing of that kind has that name or id."""

    code = "not-found"

    def __init__(self, kind: str, name: object) -> None:
        self.kind = kind
        self.name = str(name)
        super().__init__(f"no {kind} {self.name!s}: it never existed, or it was purged")


class Conflict(RedriveError):
    """The job is not where, or not what, the caller thinks. Nothing was changed."""

    code = "conflict"


class VersionChanged(Conflict):
    """The job was moved or edited since it was read."""

    code = "version-changed"

    def __init__(self, job_id: object, expected: int, actual: int) -> None:
        self.expected = expected
        self.actual = actual
        super().__init__(
            f"job {job_id} is at version {actual}, not {expected}: somebody changed it; look again, then repeat"
        )


class NotAllowed(Conflict):
    """The move is not possible from the job's present spot. ``spot`` is where it is."""

    code = "not-allowed"

    def __init__(self, verb: str, spot: str, why: str) -> None:
        self.verb = verb
        self.spot = spot
        super().__init__(f"cannot {verb} a job that is {spot}: {why}")


class KeyHeld(Conflict):
    """Another live job of the type holds the idempotency key. ``holder`` is its id."""

    code = "key-held"

    def __init__(self, key: str, holder: object) -> None:
        self.key = key
        self.holder = str(holder)
        super().__init__(
            f"idempotency key {key!r} is held by live job {self.holder}: wait for it to finish, or drop the key"
        )


class Retryable(RedriveError):
    """Nothing was done; roll back and send the same call again."""

    code = "retry"


class ConfigError(RedriveError, ValueError):
    """A setting is unknown, or its value is outside the allowed range."""

    code = "config"


class NotMigrated(RedriveError):
    """The database's schema is missing or of another version."""

    code = "not-migrated"


class Unavailable(RedriveError, ConnectionError):
    """The database cannot be reached, or cannot be written to. Nothing is known to have changed.

    ``cause`` is one word for programs: lost, unreachable, unresolved, refused, full (no connection is free), starting,
    missing, read-only, disk-full, busy, cancelled, file, or unknown.
    """

    code = "unavailable"

    def __init__(self, message: str = "", *, cause: str = "unknown") -> None:
        self.cause = cause
        super().__init__(message)


class JobSignal(Exception):
    """How a handler ends its run on purpose."""


class Fatal(JobSignal):
    """The job cannot succeed as it is: bury it now, without further attempts."""


class Throttled(JobSignal):
    """The peer said to slow down. ``retry_after`` (seconds, or timedelta) is the earliest next start."""

    def __init__(self, retry_after: float | timedelta, message: str = "") -> None:
        seconds = retry_after.total_seconds() if isinstance(retry_after, timedelta) else float(retry_after)
        self.retry_after = seconds
        super().__init__(message or f"throttled: retry after {seconds:g} s")


class Snooze(JobSignal):
    """Run again after ``delay`` (seconds, or timedelta); the attempt is not charged to the budget."""

    def __init__(self, delay: float | timedelta, message: str = "") -> None:
        self.delay = delay.total_seconds() if isinstance(delay, timedelta) else float(delay)
        super().__init__(message or f"snoozed for {self.delay:g} s")


class Cancel(JobSignal):
    """The work is not wanted any more: rest in the dead letter queue as cancelled, outside failure counts."""


UTC_REQUIRED = "a datetime with a time zone"


def require_aware(field: str, value: datetime) -> datetime:
    """``value`` when it carries a time zone; a naive time would mean another moment on another host."""
    if value.tzinfo is None or value.utcoffset() is None:
        raise InvalidField(field, f"{value.isoformat()} has no time zone", expected=UTC_REQUIRED)
    return value


class ProcessDied(Exception):
    """The process of an isolated handler ended while it ran: out of memory, a crash in C code, somebody's kill.

    One failed attempt. In a handler's ``fatal=`` it is not tried again.
    """


ProcessDied.__module__ = "redrive"  # what operators read as the error's type
