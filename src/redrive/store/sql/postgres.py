"""PostgreSQL: a schema of its own, psycopg below, NOTIFY for wake-ups; time is the server's."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any
from weakref import WeakSet, ref

import psycopg
from psycopg import sql
from psycopg.pq import TransactionStatus
from sqlalchemy import ColumnElement, Connection, Double, Engine, Select, Table, cast, create_engine, exc, func, select
from sqlalchemy import Sequence as Numbers
from sqlalchemy.dialects.postgresql import insert as postgres_insert
from sqlalchemy.engine import URL

from redrive.domain.errors import Conflict, NotMigrated, RedriveError, Unavailable
from redrive.domain.job import Enqueued, NewJob
from redrive.store.port import Listener

from . import migrate
from .dialect import Again, Clash, T
from .notify import NotifyListener, PollingListener
from .postgres_connect import parameters, pooled
from .postgres_errors import translate
from .postgres_hot import PostgresHot
from .postgres_pool import Hot, HotPool, steady
from .urls import Pooler

RETRIES = 5
"""How often a transaction that met a deadlock or a serialization failure is run again."""


class PostgresDialect:
    """One schema of one PostgreSQL database."""

    name = "postgresql"

    def __init__(self, url: URL, schema: str, pooler: Pooler = "auto") -> None:
        plain = url.set(drivername="postgresql")
        self._parameters = parameters(plain)
        shown = plain.difference_update_query(_SECRETS).render_as_string(hide_password=True)
        self.where = shown.replace("%2C", ",")
        self._pooler: Pooler = pooler
        self._listeners: WeakSet[NotifyListener] = WeakSet()
        self.schema = schema
        self.engine = self._engine(lambda: self._connect(autocommit=False))
        # Moves find their rows by id: for them, too, no plan may flip.
        self._writer = self._engine(self._connect_writer)
        for engine in (self.engine, self._writer):
            os.register_at_fork(after_in_child=_forgetting(engine))
        self.pool = HotPool(self._connect, self._is_pooled)
        self.hot = PostgresHot(self, schema)

    def _engine(self, creator: Callable[[], Hot]) -> Engine:
        return create_engine(
            "postgresql+psycopg://",
            creator=creator,
            pool_size=5,
            max_overflow=-1,
            pool_pre_ping=True,
            pool_use_lifo=True,
            hide_parameters=True,  # payloads have no place in the text of an error
            execution_options={"schema_translate_map": {None: self.schema}},
        )

    def _connect(self, *, autocommit: bool) -> Hot:
        # Not prepared unless asked: a plan made for an empty table would be kept when the table has filled.
        return psycopg.connect(
            **self._parameters,
            autocommit=autocommit,
            prepare_threshold=None,
        )

    def _connect_writer(self) -> Hot:
        connection = self._connect(autocommit=False)
        return connection if self._is_pooled(connection) else steady(connection)

    def _is_pooled(self, connection: Hot) -> bool:
        try:
            return pooled(connection, self._pooler)
        except BaseException:
            connection.close()
            raise

    def _leave(self) -> None:
        """The server only reads: a standby, or a primary of yesterday. Every connection is made anew."""
        self.close()
        for listener in list(self._listeners):
            listener.leave()

    def read(self, work: Callable[[Connection], T]) -> T:
        """Run ``work`` over one snapshot."""
        return self._read(self.engine, work)

    def look(self, work: Callable[[Connection], T]) -> T:
        """``read`` with plans that cannot flip."""
        return self._read(self._writer, work)

    def _read(self, engine: Engine, work: Callable[[Connection], T]) -> T:
        with self.door(), engine.connect() as plain:
            connection = plain.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
            return work(connection)

    def write(self, work: Callable[[Connection], T]) -> T:
        """Run ``work`` in one READ COMMITTED transaction, again after a deadlock."""
        return self.again(lambda: self._write(work))

    def _write(self, work: Callable[[Connection], T]) -> T:
        with self.door(), self._writer.connect() as connection, connection.begin():
            return work(connection)

    def on_hot(self, work: Callable[[Hot], T]) -> T:
        """Run hot statements on a connection of the hot pool."""

        def once() -> T:
            with self.door(), self.pool.connection() as connection:
                return work(connection)

        return self.again(once)

    @staticmethod
    def again(work: Callable[[], T]) -> T:
        """Run ``work``, and again when it met another transaction: it did nothing then."""
        for _ in range(RETRIES):
            with contextlib.suppress(Again):
                return work()
        try:
            return work()
        except Clash as clash:  # nobody was in the way, the key is taken: repeating the call would not help
            raise Conflict(str(clash)) from clash

    @contextlib.contextmanager
    def door(self) -> Any:
        """Translate driver errors."""
        try:
            yield
        except exc.DBAPIError as error:
            if isinstance(error.orig, psycopg.Error):
                raise self._translated(error.orig) from error
            raise RedriveError(f"{self.where}: {error.orig}") from error
        except psycopg.Error as error:
            raise self._translated(error) from error

    def _translated(self, error: psycopg.Error) -> RedriveError:
        translated = translate(error, self.where)
        if isinstance(translated, Unavailable) and translated.cause == "read-only":
            self._leave()
        return translated

    def enqueue_in(self, connection: Hot, jobs: Sequence[NewJob]) -> list[Enqueued]:
        """Accept jobs in the caller's transaction; in one of their own where the caller has none open."""
        own = connection.autocommit and connection.info.transaction_status == TransactionStatus.IDLE
        with self.theirs(), connection.transaction() if own else contextlib.nullcontext():
            return self.hot.enqueue_in(connection, jobs)

    async def aenqueue_in(self, connection: Any, jobs: Sequence[NewJob]) -> list[Enqueued]:
        """``enqueue_in`` through a connection that is awaited: psycopg's or asyncpg's."""
        from . import postgres_async

        with self.theirs():
            return await postgres_async.enqueue_in(self.hot, connection, jobs)

    @contextlib.contextmanager
    def theirs(self) -> Any:
        """Translate errors of a connection that belongs to the caller."""
        try:
            with self.door():
                yield
        except Clash as clash:
            raise Conflict(str(clash)) from clash
        except NotMigrated as error:
            raise NotMigrated(f"{error}, or the connection given is one to another database") from error

    def insert(self, table: Table) -> Any:
        """An INSERT that knows ON CONFLICT."""
        return postgres_insert(table)

    def locking(self, statement: Select[Any], *, of: Table, skip: bool = False, share: bool = False) -> Select[Any]:
        """FOR UPDATE (or SHARE) OF the table, optionally SKIP LOCKED."""
        return statement.with_for_update(read=share, of=of, skip_locked=skip)

    def now(self) -> ColumnElement[Any]:
        """The server's clock at the start of the transaction."""
        return func.now()

    def after(self, seconds: ColumnElement[Any] | float) -> ColumnElement[Any]:
        """``seconds`` from now."""
        return func.now() + func.make_interval(0, 0, 0, 0, 0, 0, cast(seconds, Double))

    def this_second(self) -> ColumnElement[Any]:
        """The server's clock, cut to the second."""
        return func.date_trunc("second", func.now())

    def age(self, moment: ColumnElement[Any]) -> ColumnElement[float]:
        """Seconds since ``moment``."""
        return cast(func.extract("epoch", func.now() - moment), Double)

    def sha256(self, content: ColumnElement[bytes]) -> ColumnElement[str]:
        """SHA-256 in hex."""
        return func.encode(func.sha256(content), "hex")

    def numbering(self, column: ColumnElement[int]) -> ColumnElement[int]:
        """The next number of the column's sequence, ``<table>_<column>``."""
        table = column.table
        return Numbers(f"{table.name}_{column.name}").next_value()

    def alone(self, connection: Connection, name: str) -> bool:
        """By an advisory lock of the transaction."""
        lock = func.pg_try_advisory_xact_lock(func.hashtext(f"redrive:{self.schema}:{name}"))
        return bool(connection.execute(select(lock)).scalar_one())

    def notify(self, connection: Connection, names: Sequence[str]) -> None:
        """Notify whoever listens to these names, at the commit."""
        for name in names:
            connection.execute(select(func.pg_notify(self.schema, name)))

    def wake(self, connection: Connection, queues: Collection[str]) -> None:
        """NOTIFY, each queue once, while somebody waits."""
        if queues:
            connection.exec_driver_sql(self.hot.notice, {"channel": self.schema, "queues": sorted(queues)})

    def listen(self, queues: Sequence[str]) -> Listener:
        """A connection of its own that waits for notifications about ``queues``; none behind a pooler."""
        with self.door():
            connection = self._connect(autocommit=True)
            if self._is_pooled(connection):
                connection.close()
                return PollingListener(f"{self.where}: a connection pooler in between delivers no notifications")
        listener = NotifyListener(connection, self.door, self.schema, queues)
        self._listeners.add(listener)
        return listener

    def upgrade(self) -> None:
        """Bring the schema to the newest version; one process at a time."""

        def work(connection: Connection) -> None:
            connection.exec_driver_sql("SELECT pg_advisory_xact_lock(hashtext(%s))", (f"redrive:{self.schema}",))
            there = "SELECT 1 FROM pg_namespace WHERE nspname = %s"
            # Asked first, because the right to create schemas is needed even for one that is there.
            if connection.exec_driver_sql(there, (self.schema,)).first() is None:
                connection.exec_driver_sql(f"CREATE SCHEMA {quoted(self.schema)}")
            migrate.run(connection, schema=self.schema)

        self.write(work)

    def describe(self) -> Mapping[str, str]:
        """Facts for ``doctor``."""

        def facts(connection: Connection) -> Mapping[str, str]:
            def show(name: str) -> str:
                return str(connection.exec_driver_sql(f"SHOW {name}").scalar_one())

            oldest = connection.exec_driver_sql(
                "SELECT coalesce(extract(epoch FROM max(now() - xact_start)), 0)::int FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            ).scalar_one()
            dead = connection.exec_driver_sql(
                "SELECT coalesce(max(n_dead_tup), 0) FROM pg_stat_user_tables"
                " WHERE schemaname = %s AND relname = 'jobs_hot'",
                (self.schema,),
            ).scalar_one()
            ahead = connection.exec_driver_sql(
                "SELECT extract(epoch FROM clock_timestamp()) - %s::numeric", (time.time(),)
            ).scalar_one()
            return {
                "database": f"PostgreSQL {show('server_version')}",
                "url": self.where,
                "schema": self.schema,
                "durability": f"fsync {show('fsync')}, synchronous_commit {show('synchronous_commit')}",
                "pooler": _POOLED if behind else "none in between",
                "oldest transaction": f"{oldest} s",
                "dead rows": f"{dead} of jobs in work",
                "clock": f"the server's, {float(ahead):+.2f} s from this host's",
            }

        with self.door(), self.pool.connection() as hot:
            behind = self._is_pooled(hot)
        return self.read(facts)

    def close(self) -> None:
        """Close every connection."""
        self.engine.dispose()
        self._writer.dispose()
        self.pool.close()


_POOLED = "in between: no prepared statements, and workers look for work instead of being notified"
_SECRETS = ("password", "sslpassword", "passfile")


def _forgetting(engine: Engine) -> Callable[[], None]:
    found = ref(engine)

    def forget() -> None:
        if (inherited := found()) is not None:
            inherited.dispose(close=False)

    return forget


def quoted(name: str) -> str:
    """An identifier, quoted."""
    return sql.Identifier(name).as_string(None)
