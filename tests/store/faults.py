"""Failures on purpose: the n-th statement from now does not reach the database."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from redrive.store.sql.store import SqlStore


class Faults:
    """Counts statements down and fails one."""

    def __init__(self) -> None:
        self._left: int | None = None
        self.struck = False

    @contextmanager
    def at(self, statement: int) -> Iterator[None]:
        """Within the block the statement of that number fails; the first has number 1."""
        self._left, self.struck = statement, False
        try:
            yield
        finally:
            self._left = None

    def tick(self, error: type[Exception]) -> None:
        if self._left is None:
            return
        self._left -= 1
        if self._left == 0:
            self.struck = True
            self._left = None
            raise error("disk I/O error, made by the test")


def faulty(store: SqlStore) -> Faults:
    """Make every connection that ``store`` opens from now on obey the answer."""
    faults = Faults()
    database: Any = store._db
    connect = database._connect
    store.close()

    if database.name == "sqlite":

        def open_sqlite() -> sqlite3.Connection:
            plain = sqlite3.connect
            sqlite3.connect = lambda *args, **named: plain(*args, factory=_connection(faults), **named)  # type: ignore[assignment]
            try:
                opened: sqlite3.Connection = connect()
            finally:
                sqlite3.connect = plain
            return opened

        database.engine.pool._creator = open_sqlite
        database.engine.pool._invoke_creator = lambda _: open_sqlite()
        return faults

    def open_postgres(*, autocommit: bool) -> Any:
        opened = connect(autocommit=autocommit)
        opened.cursor_factory = _cursor(faults)
        return opened

    database._connect = open_postgres
    database.pool._connect = open_postgres
    return faults


def _connection(faults: Faults) -> type[sqlite3.Connection]:
    class Cursor(sqlite3.Cursor):
        def execute(self, *args: Any) -> Any:
            faults.tick(sqlite3.OperationalError)
            return super().execute(*args)

        def executemany(self, *args: Any) -> Any:
            faults.tick(sqlite3.OperationalError)
            return super().executemany(*args)

    class Connection(sqlite3.Connection):
        def cursor(self, factory: Any = Cursor) -> Any:
            return super().cursor(factory)

        def execute(self, *args: Any) -> Any:
            return self.cursor().execute(*args)

        def executemany(self, *args: Any) -> Any:
            return self.cursor().executemany(*args)

        def commit(self) -> None:
            faults.tick(sqlite3.OperationalError)
            super().commit()

    return Connection


def _cursor(faults: Faults) -> type[psycopg.Cursor[Any]]:
    class Cursor(psycopg.Cursor[Any]):
        def execute(self, *args: Any, **named: Any) -> Any:
            faults.tick(psycopg.OperationalError)
            return super().execute(*args, **named)

        def executemany(self, *args: Any, **named: Any) -> None:
            faults.tick(psycopg.OperationalError)
            super().executemany(*args, **named)

        def copy(self, *args: Any, **named: Any) -> Any:
            faults.tick(psycopg.OperationalError)
            return super().copy(*args, **named)

    return Cursor
