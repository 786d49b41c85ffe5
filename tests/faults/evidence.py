"""The tables, read with the drivers alone, and the account of a whole test: what was accepted, run and settled."""

import contextlib
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import psycopg
from sqlalchemy.engine import make_url

from tests.faults.handlers import Key, Line

ENDED = ("failed", "zombie", "cancelled")
"""Kinds of ledger lines that end an attempt; the others are notes of something that changed nothing."""


@dataclass(frozen=True, slots=True)
class Held:
    """A taken row."""

    key: Key
    lease: int
    started: bool
    heartbeat: float


@dataclass(frozen=True, slots=True)
class Note:
    """A ledger line. ``at`` in seconds, by the database's clock."""

    key: Key
    lease: int | None
    kind: str
    reason: str | None
    started: bool
    at: float


class Evidence:
    """What is in the database."""

    def __init__(self, url: str) -> None:
        self._url = make_url(url)
        self._postgres = self._url.get_backend_name() == "postgresql"

    @contextlib.contextmanager
    def connection(self) -> Iterator[Any]:
        """A connection of its own; its block is a transaction."""
        if self._postgres:
            with psycopg.connect(self._url.render_as_string(hide_password=False)) as connection:
                yield connection
        else:
            with contextlib.closing(sqlite3.connect(str(self._url.database), timeout=60)) as driver, driver:
                yield driver

    def query(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """Rows of a statement with ``?`` for values, ``{s}`` before tables, ``{seconds:column}`` for times."""
        with self.connection() as connection:
            cursor = connection.execute(self.text(statement), values)
            return [tuple(map(_plain, row)) for row in cursor.fetchall()]

    def change(self, statement: str, *values: object) -> int:
        """Number of rows that a statement changed."""
        with self.connection() as connection:
            count: int = connection.execute(self.text(statement), values).rowcount
            return count

    def text(self, statement: str) -> str:
        """The statement for this database."""
        while "{seconds:" in statement:
            before, _, rest = statement.partition("{seconds:")
            column, _, rest = rest.partition("}")
            seconds = f"extract(epoch FROM {column})::float8" if self._postgres else f"{column} / 1000000.0"
            statement = f"{before}{seconds}{rest}"
        statement = statement.replace("{s}", "redrive." if self._postgres else "")
        return statement.replace("%", "%%").replace("?", "%s") if self._postgres else statement

    def id(self, job: UUID | str) -> object:
        """An id as a value for ``?``."""
        identity = job if isinstance(job, UUID) else UUID(job)
        return identity if self._postgres else identity.bytes

    def places(self) -> dict[str, list[str]]:
        """Every job with the tables it is in, in one statement."""
        found: dict[str, list[str]] = {}
        for job, place in self.query(
            "SELECT id, 'hot' FROM {s}jobs_hot UNION ALL SELECT id, 'archive' FROM {s}jobs_archive"
            " UNION ALL SELECT id, 'dlq' FROM {s}jobs_dlq"
        ):
            found.setdefault(job, []).append(place)
        return found

    def hot(self) -> int:
        """How many jobs are not finished."""
        number: int = self.query("SELECT count(*) FROM {s}jobs_hot")[0][0]
        return number

    def held_by(self, pid: int) -> list[Held]:
        """What the worker of that process holds."""
        rows = self.query(
            "SELECT id, life, attempt, lease, started_at IS NOT NULL, {seconds:heartbeat_at} FROM {s}jobs_hot"
            " WHERE state = 'taken' AND worker_id LIKE ?",
            f"%:{pid}:%",
        )
        return [Held((job, life, attempt), lease, bool(on), at) for job, life, attempt, lease, on, at in rows]

    def archived(self) -> dict[str, Key]:
        """Archived jobs, with the attempt that succeeded."""
        rows = self.query("SELECT id, life, attempt FROM {s}jobs_archive")
        return {job: (job, life, attempt) for job, life, attempt in rows}

    def dead(self) -> dict[str, tuple[str, str]]:
        """Dead jobs with type and reason."""
        return {job: (kind, why) for job, kind, why in self.query("SELECT id, type, reason FROM {s}jobs_dlq")}

    def notes(self, *, job: UUID | None = None) -> list[Note]:
        """The ledger, of one job or whole, in the order in which it was written."""
        where, values = ("", ()) if job is None else (" WHERE job_id = ?", (self.id(job),))
        rows = self.query(
            "SELECT job_id, life, attempt, lease, kind, reason, started_at IS NOT NULL, {seconds:ended_at}"
            f" FROM {{s}}job_ledger{where} ORDER BY id",
            *values,
        )
        return [
            Note((job_id, life, attempt), lease, kind, reason, bool(started), at)
            for job_id, life, attempt, lease, kind, reason, started, at in rows
        ]


def _plain(value: Any) -> Any:
    if isinstance(value, UUID):
        return value.hex
    return value.hex() if isinstance(value, bytes) and len(value) == 16 else value


def placed_once(evidence: Evidence, accepted: Iterable[str]) -> list[str]:
    """Offences against conservation, by whoever holds the accepted ids."""
    accepted = set(accepted)  # copied before the look: jobs accepted since are not missed
    places = evidence.places()
    lost = [f"job {job} was accepted and is nowhere" for job in accepted - places.keys()]
    return lost + [f"job {job} is in {' and '.join(at)}" for job, at in places.items() if len(at) > 1]


def account(evidence: Evidence, lines: list[Line], killed: set[int]) -> list[str]:
    """Offences against "one owner", when nothing runs any more: runs of handlers against settled attempts.

    Every run is one attempt. Every attempt ended once: archived, with a run that came to its good end; failed, with
    one that failed (or never began, where the worker had lost the lease before); or taken from a worker that vanished
    or was too slow, whatever its run did. ``killed`` are the processes that could not tell.
    """
    begun = Counter(line.key for line in lines if line.how == "in")
    ends = {line.key: line.how for line in lines if line.how not in ("in", "accepted")}
    pids = {line.key: line.pid for line in lines}
    archived = set(evidence.archived().values())
    notes = evidence.notes()
    given_up = {note.key for note in notes if note.reason == "heartbeat_lost"}
    ended: dict[Key, str] = dict.fromkeys(archived, "archived")
    wrong = [f"{key} began {number} times" for key, number in begun.items() if number > 1]
    for note in notes:
        if note.kind in ENDED and note.started:
            if note.key in ended:
                wrong.append(f"{note.key} ended twice: {ended[note.key]} and {note.kind}")
            ended[note.key] = note.kind
    late = {note.key: note.kind for note in notes if note.kind not in ENDED}
    for key, how in ended.items():
        run = ends.get(key)
        if how == "archived" and run != "ok":
            wrong.append(f"{key} is archived, its run {run or 'did not end'}")
        if how == "failed" and run != "failed" and not (run is None and key in given_up and key not in begun):
            wrong.append(f"{key} is told to have failed, its run {run or 'did not end'}")
        owed = {"ok": "late_success", "failed": "late_failure"}.get(run or "")
        if how == "zombie" and owed and pids[key] not in killed and late.get(key) != owed:
            wrong.append(f"{key}, taken from a worker that went on, has no {owed}")
    for key, kind in late.items():
        if ended.get(key) != "zombie":
            wrong.append(f"{key} has a {kind}, and was {ended.get(key, 'never ended')}")
        if kind == "late_success" and ends.get(key) != "ok":
            wrong.append(f"{key} has a late success, its run {ends.get(key, 'did not end')}")
    for key in begun:
        if key not in ended and ends.get(key) != "snoozed":
            wrong.append(f"{key} ran, and how it ended is nowhere")
    return wrong
