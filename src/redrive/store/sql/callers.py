"""Enqueue in the caller's own transaction: a rollback leaves nothing, a commit leaves the jobs.

Only what is imported already can be what a caller holds: libraries are looked up, never imported here.
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Sequence
from typing import Any

import sqlalchemy.exc
from sqlalchemy import Connection
from sqlalchemy.orm import Session, scoped_session

from redrive.domain.errors import InvalidField
from redrive.domain.job import Enqueued, NewJob

from .dialect import Dialect

EXPECTED = (
    "a SQLAlchemy Connection or Session, a psycopg, asyncpg, sqlite3 or aiosqlite Connection,"
    " or django.db.connection, on Redrive's own database"
)


def enqueue_in(db: Dialect, connection: object, jobs: Sequence[NewJob]) -> list[Enqueued]:
    """Insert through ``connection``; nothing is committed here."""
    if _is_async(connection):
        raise InvalidField(
            "connection", f"a {_kind(connection)} is awaited", expected="await aenqueue(...), or one that is not"
        )
    driver = _driver(connection)
    if db.name == "sqlite":
        if not isinstance(driver, sqlite3.Connection):
            raise _refused(connection, "Redrive's database is SQLite")
    elif not isinstance(driver, _classes("psycopg", "Connection")):
        raise _refused(connection, "Redrive's database is PostgreSQL")
    return db.enqueue_in(driver, jobs)


async def aenqueue_in(db: Dialect, connection: object, jobs: Sequence[NewJob]) -> list[Enqueued]:
    """``enqueue_in`` that also takes connections that are awaited; one that blocks is used in this thread."""
    if not _is_async(connection):
        return enqueue_in(db, connection, jobs)
    driver = await _async_driver(connection)
    kinds = _sqlite_asyncs() if db.name == "sqlite" else _postgres_asyncs()
    if not isinstance(driver, kinds):
        raise _refused(connection, f"Redrive's database is {'SQLite' if db.name == 'sqlite' else 'PostgreSQL'}")
    return await db.aenqueue_in(driver, jobs)


def _driver(connection: object) -> Any:
    """The driver's connection below, with SQLAlchemy or Django knowing that a transaction has begun."""
    try:
        if isinstance(connection, scoped_session):
            connection = connection()
        if isinstance(connection, Session):
            connection = connection.connection()
        if isinstance(connection, Connection):
            if not connection.in_transaction():
                connection.begin()  # as its first execute would: otherwise its commit would do nothing
            return connection.connection.driver_connection
    except sqlalchemy.exc.SQLAlchemyError as error:
        raise InvalidField("connection", f"cannot be used: {error}", expected=EXPECTED) from error
    proxy = _classes("django.utils.connection", "ConnectionProxy")  # which ``django.db.connection`` is
    if isinstance(connection, proxy + _classes("django.db.backends.base.base", "BaseDatabaseWrapper")):
        wrapper: Any = connection
        wrapper.validate_no_broken_transaction()
        wrapper.ensure_connection()
        return wrapper.connection
    return connection


async def _async_driver(connection: Any) -> Any:
    try:
        if _alchemy(connection, "async_scoped_session"):
            connection = connection()
        if _alchemy(connection, "AsyncSession"):
            connection = await connection.connection()
        if _alchemy(connection, "AsyncConnection"):
            if not connection.in_transaction():
                await connection.begin()
            # For asyncpg SQLAlchemy begins the transaction not before its own first statement.
            await connection.exec_driver_sql("SELECT 1")
            return (await connection.get_raw_connection()).driver_connection
    except sqlalchemy.exc.SQLAlchemyError as error:
        raise InvalidField("connection", f"cannot be used: {error}", expected=EXPECTED) from error
    return connection


def _is_async(connection: object) -> bool:
    alchemy = _alchemy(connection, "AsyncSession", "AsyncConnection", "async_scoped_session")
    return alchemy or isinstance(connection, _postgres_asyncs() + _sqlite_asyncs())


def _alchemy(connection: object, *names: str) -> bool:
    return isinstance(connection, _classes("sqlalchemy.ext.asyncio", *names))


def _postgres_asyncs() -> tuple[type, ...]:
    pooled = _classes("asyncpg.pool", "PoolConnectionProxy")
    return _classes("psycopg", "AsyncConnection") + _classes("asyncpg", "Connection") + pooled


def _sqlite_asyncs() -> tuple[type, ...]:
    return _classes("aiosqlite", "Connection")


def _classes(module: str, *names: str) -> tuple[type, ...]:
    loaded = sys.modules.get(module)
    return tuple(one for name in names if isinstance(one := getattr(loaded, name, None), type))


def _kind(connection: object) -> str:
    return f"{type(connection).__module__}.{type(connection).__qualname__}"


def _refused(connection: object, why: str) -> InvalidField:
    return InvalidField("connection", f"a {_kind(connection)} cannot be used: {why}", expected=EXPECTED)
