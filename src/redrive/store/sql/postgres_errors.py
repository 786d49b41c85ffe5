"""The one door for driver errors of PostgreSQL: what happened, and what to do next."""

from __future__ import annotations

import re

import psycopg

from redrive.domain.errors import NotMigrated, RedriveError, Unavailable

from .dialect import Again, Clash

_ADVICE = {
    "lost": "the connection broke; whether the call was carried out is not known",
    "unreachable": "check that PostgreSQL runs there and the URL is right",
    "unresolved": "check the host's name in database.url, and the name service of this host",
    "refused": "check the user and the password in database.url, and pg_hba.conf of the server",
    "full": "no connection is free: raise max_connections, or see in pg_stat_activity who holds them",
    "starting": "the server is starting or stopping; wait, or see its log",
    "missing": "create the database, or correct its name in database.url",
    "read-only": "the server is read-only (a standby?); nothing was changed. With several hosts in database.url the one"
    " that can be written is used",
    "disk-full": "the server's disk is full; nothing was changed. Free some space",
    "busy": "somebody holds a lock; nothing was changed",
    "cancelled": "the statement was cancelled; nothing was changed. See statement_timeout, and who cancels",
    "unknown": "check that PostgreSQL runs there and the URL is right",
}

# By the code where the server has told one. While a connection is made the driver keeps none, so the text has to do;
# in another language than English (lc_messages) only the advice is less apt.
_CODES = (
    ("57P03", "starting"),
    ("57P", "lost"),
    ("57014", "cancelled"),
    ("53300", "full"),
    ("53100", "disk-full"),
    ("55P03", "busy"),
    ("25006", "read-only"),
    ("28", "refused"),
    ("3D000", "missing"),
    ("08", "lost"),
)
_TEXTS = (
    ("full", r"too many (clients|connections)|connection slots|no more connections allowed"),
    ("starting", r"starting up|shutting down|in recovery mode|not yet accepting"),
    ("read-only", r"session is read-only|is in hot standby"),
    ("refused", r"authentication failed|no password supplied|pg_hba\.conf|role .* does not exist|not permitted to log"),
    ("missing", r"database .* does not exist"),
    ("unresolved", r"failed to resolve|could not translate host name"),
    ("unreachable", r"connection refused|timeout|timed out|unreachable|no route"),
    ("lost", r"closed the connection|connection is closed|terminating connection|connection is lost|consuming input"),
)
_ATTEMPT = re.compile(
    r"^- host: '?([^',]*)'?, port: '?([^',]*)'?.*?: (?=\w+ failed|connection|failed)(.*)$", re.MULTILINE
)


def translate(error: psycopg.Error, where: str) -> RedriveError:
    """The error as callers know it. ``where`` is the database without its password."""
    text = _text(error)
    match error:
        case psycopg.errors.DeadlockDetected() | psycopg.errors.SerializationFailure():
            return Again(f"{where}: {text}")
        case psycopg.errors.UniqueViolation():
            return Clash(f"{where}: {text}: {error.diag.message_detail}")
        case psycopg.errors.UndefinedTable() | psycopg.errors.UndefinedColumn() | psycopg.errors.InvalidSchemaName():
            return NotMigrated(f"{where}: {text}; run `redrive db upgrade`")
        case psycopg.errors.InsufficientPrivilege():
            return RedriveError(f"{where}: {text}; grant the role rights on the schema")
        case psycopg.OperationalError() | psycopg.InterfaceError() | psycopg.errors.ReadOnlySqlTransaction():
            cause = _cause(error)
            return Unavailable(f"{where}: {text}; {_ADVICE[cause]}", cause=cause)
        case _:
            return RedriveError(f"{where}: {type(error).__name__}: {text}")


def _cause(error: psycopg.Error) -> str:
    if error.sqlstate:
        return next((cause for code, cause in _CODES if error.sqlstate.startswith(code)), "unknown")
    # Of several hosts each has failed: what all have in common says less than what the last one said.
    text = str(error).lower()
    return next((cause for cause, pattern in _TEXTS if re.search(pattern, text)), "unknown")


def _text(error: psycopg.Error) -> str:
    """One line; of several hosts what each has said."""
    text = str(error).strip()
    attempts = list(
        dict.fromkeys(f"{host}:{port}: {said.rpartition('failed: ')[2]}" for host, port, said in _ATTEMPT.findall(text))
    )
    return "; ".join(attempts) if attempts else (text or type(error).__name__).splitlines()[0]
