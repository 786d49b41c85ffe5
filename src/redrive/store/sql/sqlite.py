"""SQLite: one file, WAL, writers one after the other; time is the host's."""

from __future__ import annotations

import atexit
import hashlib
import os
import shutil
import sqlite3
import tempfile
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from weakref import WeakSet, ref

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Double,
    Engine,
    Select,
    Table,
    cast,
    create_engine,
    event,
    exc,
    func,
    literal,
    select,
    type_coerce,
)
from sqlalchemy.dialects.sqlite import insert as sqlite_insert
from sqlalchemy.pool import QueuePool

from redrive.domain.errors import ConfigError, NotMigrated, RedriveError, Unavailable
from redrive.domain.job import Enqueued, NewJob
from redrive.store.port import Listener

from . import migrate
from .columns import UtcTime, from_micros, host_micros, second_of
from .dialect import T
from .locks import Turnstile
from .mounts import network_file_system
from .sqlite_errors import of_system, translate
from .sqlite_hot import SqliteHot, raw
from .sqlite_listen import LocalListener
from .wal import Wal, use_wal

BUSY_TIMEOUT = 30.0
MINIMUM = (3, 38, 0)


class SqliteDialect:
    """One SQLite file. ``path`` None is a private temporary database that ends with the process."""

    name = "sqlite"

    def __init__(self, path: Path | None, micros: Callable[[], int] = host_micros) -> None:
        if sqlite3.sqlite_version_info < MINIMUM:
            raise Unavailable(f"SQLite {sqlite3.sqlite_version} is too old; Redrive needs 3.38 or newer")
        self.temporary = path is None
        self.micros = micros
        if path is None:
            # A private file in memory: the same locks and transactions as any other file, so no second behaviour.
            shm = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
            folder = tempfile.mkdtemp(prefix="redrive-", dir=shm)
            atexit.register(shutil.rmtree, folder, ignore_errors=True)
            path = Path(folder) / "redrive.db"
        # A handler may change the folder of the process: the file stays the one that was named.
        self.path = path = path.absolute()
        if kind := network_file_system(path):
            raise ConfigError(
                f"database.url: {path} is on a network file system ({kind}), where SQLite's write-ahead log cannot be"
                " shared and the file would be damaged; put it on a disk of this host, or use PostgreSQL"
            )
        self._wal = Wal(path)
        self.turnstile = Turnstile(path)
        self._clock = threading.local()
        self._wakes: WeakSet[threading.Event] = WeakSet()
        self.engine = create_engine(
            "sqlite://",
            creator=self._connect,
            poolclass=QueuePool,
            pool_size=8,
            max_overflow=-1,
        )
        os.register_at_fork(after_in_child=_forgetting(self.engine))
        # The driver begins nothing by itself; transactions are begun here, immediate when they write.
        event.listen(self.engine, "begin", self._begin)
        self.hot = SqliteHot(self)

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self.path, isolation_level=None, cached_statements=256, timeout=BUSY_TIMEOUT, check_same_thread=False
        )
        try:
            self._set_up(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _set_up(self, connection: sqlite3.Connection) -> None:
        use_wal(connection, BUSY_TIMEOUT)
        connection.execute(f"PRAGMA synchronous={'OFF' if self.temporary else 'FULL'}")
        connection.execute("PRAGMA temp_store=MEMORY")
        connection.execute("PRAGMA cache_size=-32768")
        # The built-in one knows no letters but A to Z; a search shall find what PostgreSQL would.
        connection.create_function("lower", 1, _lower, deterministic=True)
        connection.create_function("sha256", 1, lambda content: hashlib.sha256(content).hexdigest(), deterministic=True)

    @staticmethod
    def _begin(connection: Connection) -> None:
        # A read that turned into a write would fail at once when another writer came between: always immediate.
        writing = connection.get_execution_options().get("redrive_write", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writing else "BEGIN")

    def read(self, work: Callable[[Connection], T]) -> T:
        """Run ``work`` over one snapshot."""
        try:
            with self.engine.connect() as connection, self._moment():
                return work(connection)
        except exc.DBAPIError as error:
            raise self._translated(error) from error
        except sqlite3.Error as error:
            raise translate(error, str(self.path)) from error

    look = read
    """Plans do not flip here."""

    def write(self, work: Callable[[Connection], T]) -> T:
        """Run ``work`` in one immediate transaction, in turn with all other writers."""
        try:
            self._clock.news = False
            with self.turnstile.turn(), self.engine.connect() as plain:
                connection = plain.execution_options(redrive_write=True)
                with connection.begin(), self._moment():
                    answer = work(connection)
                self._wal.keep_small(raw(connection), BUSY_TIMEOUT)
            if self._clock.news:
                self.woke()
            return answer
        except exc.DBAPIError as error:
            raise self._translated(error) from error
        except sqlite3.Error as error:
            raise translate(error, str(self.path)) from error
        except OSError as error:
            raise of_system(error, str(self.path)) from error

    @contextmanager
    def _moment(self) -> Iterator[None]:
        """One time for the whole transaction, as on PostgreSQL: its rows tell of one moment."""
        self._clock.micros = self.micros()
        try:
            yield
        finally:
            self._clock.micros = None

    def _now(self) -> int:
        return getattr(self._clock, "micros", None) or self.micros()

    def _translated(self, error: exc.DBAPIError) -> RedriveError:
        if isinstance(error.orig, sqlite3.Error):
            return translate(error.orig, str(self.path))
        return RedriveError(str(error.orig))

    def enqueue_in(self, connection: sqlite3.Connection, jobs: Sequence[NewJob]) -> list[Enqueued]:
        """Accept jobs in the caller's transaction; in one of their own where the caller has none and none begins."""
        with self.theirs():
            if not begins_nothing(connection):
                return self.hot.enqueue_in(connection, jobs)
            connection.execute("BEGIN IMMEDIATE")
            try:
                accepted = self.hot.enqueue_in(connection, jobs)
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
            return accepted

    async def aenqueue_in(self, connection: Any, jobs: Sequence[NewJob]) -> list[Enqueued]:
        """``enqueue_in`` through a connection of aiosqlite."""
        from . import sqlite_async

        with self.theirs():
            return await sqlite_async.enqueue_in(self.hot, connection, jobs)

    @contextmanager
    def theirs(self) -> Iterator[None]:
        """Translate errors of a connection that belongs to the caller."""
        try:
            yield
        except sqlite3.Error as error:
            translated = translate(error, str(self.path))
            if isinstance(translated, NotMigrated):
                translated = NotMigrated(f"{translated}, or the connection given is one to another database")
            raise translated from error

    def insert(self, table: Table) -> Any:
        """An INSERT that knows ON CONFLICT."""
        return sqlite_insert(table)

    def locking(self, statement: Select[Any], *, of: Table, skip: bool = False, share: bool = False) -> Select[Any]:  # noqa: ARG002
        """Nothing to do: the transaction already excludes every other writer."""
        return statement

    def now(self) -> ColumnElement[Any]:
        """The host's clock at the start of the transaction."""
        return literal(from_micros(self._now()), UtcTime)

    def after(self, seconds: ColumnElement[Any] | float) -> ColumnElement[Any]:
        """``seconds`` from now."""
        if isinstance(seconds, int | float):
            return literal(from_micros(self._now() + round(seconds * 1_000_000)), UtcTime)
        return literal(self._now()) + cast(seconds * 1_000_000, BigInteger)

    def this_second(self) -> ColumnElement[Any]:
        """The host's clock, cut to the second."""
        return literal(from_micros(second_of(self._now())), UtcTime)

    def age(self, moment: ColumnElement[Any]) -> ColumnElement[float]:
        """Seconds since ``moment``."""
        return cast((literal(self._now()) - type_coerce(moment, BigInteger)) / 1_000_000.0, Double)

    def sha256(self, content: ColumnElement[bytes]) -> ColumnElement[str]:
        """SHA-256 in hex, by a function of ours."""
        return func.sha256(content)

    def numbering(self, column: ColumnElement[int]) -> ColumnElement[int]:
        """The next number for people: one more than the highest, which no other writer can see change."""
        return select(func.coalesce(func.max(column), 0) + 1).scalar_subquery()

    def alone(self, connection: Connection, name: str) -> bool:  # noqa: ARG002
        """A transaction that writes is the only one."""
        return True

    def notify(self, connection: Connection, names: Sequence[str]) -> None:
        """Nobody can be told: a worker sees a request at its next heartbeat."""

    def wake(self, connection: Connection, queues: Collection[str]) -> None:  # noqa: ARG002
        """Tell this process's listeners after the commit."""
        self._clock.news = self._clock.news or bool(queues)

    def woke(self) -> None:
        """Tell the listeners of this process that work arrived; other processes see it at their next poll."""
        for wake in list(self._wakes):
            wake.set()

    def listen(self, queues: Sequence[str]) -> Listener:  # noqa: ARG002
        """Wake-ups from this process, and short steps for those from others."""
        wake = threading.Event()
        self._wakes.add(wake)
        return LocalListener(wake)

    def upgrade(self) -> None:
        """Bring the schema to the newest version."""
        self.write(lambda connection: migrate.run(connection, schema=None))

    def describe(self) -> Mapping[str, str]:
        """Facts for ``doctor``."""

        def facts(connection: Connection) -> Mapping[str, str]:
            mode = connection.exec_driver_sql("PRAGMA journal_mode").scalar_one()
            return {
                "database": f"SQLite {sqlite3.sqlite_version}",
                "file": "private and temporary" if self.temporary else str(self.path.absolute()),
                "journal": str(mode),
                "write-ahead log": f"{self._wal.size / 1e6:.1f} MB",
                "clock": "the host's",
            }

        return self.read(facts)

    def close(self) -> None:
        """Close every connection."""
        self.engine.dispose()
        self.turnstile.close()


def begins_nothing(connection: sqlite3.Connection) -> bool:
    """Whether nothing is begun here, and no statement would begin it: each commits by itself."""
    # From Python 3.12 on a connection may say autocommit; before, no isolation level is how it is said.
    mode = getattr(connection, "autocommit", -1)
    automatic = mode is True or (mode == -1 and connection.isolation_level is None)
    return automatic and not connection.in_transaction


_INHERITED: list[object] = []
"""Connections of a parent process: a forked child may neither use nor close them."""


def _forgetting(engine: Engine) -> Callable[[], None]:
    found = ref(engine)

    def forget() -> None:
        if (inherited := found()) is not None:
            _INHERITED.append(inherited.pool)
            inherited.dispose(close=False)

    return forget


def _lower(content: Any) -> Any:
    return content.lower() if isinstance(content, str) else content
