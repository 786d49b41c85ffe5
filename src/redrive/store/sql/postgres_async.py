"""Enqueue in the caller's transaction through connections that are awaited: psycopg's and asyncpg's."""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from redrive.domain.job import Enqueued, NewJob

from .postgres_hot import Ask, PostgresHot, Rows
from .steps import adrive


async def enqueue_in(hot: PostgresHot, connection: Any, jobs: Sequence[NewJob]) -> list[Enqueued]:
    """As ``PostgresDialect.enqueue_in``; errors are psycopg's, also where the connection is asyncpg's."""
    if not isinstance(connection, psycopg.AsyncConnection):
        return await _asyncpg(hot, connection, jobs)
    return await _psycopg(hot, connection, jobs)


async def _psycopg(
    hot: PostgresHot, connection: psycopg.AsyncConnection[Any], jobs: Sequence[NewJob]
) -> list[Enqueued]:
    async def run(ask: Ask) -> Rows:
        name, values = ask
        cursor = psycopg.AsyncCursor(connection, row_factory=tuple_row)
        await cursor.execute(hot.texts[name], values, prepare=True, binary=True)
        return await cursor.fetchall()

    own = connection.autocommit and connection.info.transaction_status == TransactionStatus.IDLE
    async with connection.transaction() if own else contextlib.nullcontext():
        return await adrive(hot.accepting(jobs), run)


async def _asyncpg(hot: PostgresHot, connection: Any, jobs: Sequence[NewJob]) -> list[Enqueued]:
    async def run(ask: Ask) -> Rows:
        text, values = numbered(hot.texts[ask[0]], ask[1])
        return [tuple(row) for row in await connection.fetch(text, *values)]

    theirs = connection.is_in_transaction()
    async with _as_psycopg(), contextlib.nullcontext() if theirs else connection.transaction():
        return await adrive(hot.accepting(jobs), run)


@contextlib.asynccontextmanager
async def _as_psycopg() -> AsyncIterator[None]:
    """Errors of asyncpg as psycopg has them: both name them by the server's code."""
    import asyncpg

    try:
        yield
    except asyncpg.PostgresError as error:
        try:
            known = psycopg.errors.lookup(error.sqlstate)
        except KeyError:
            known = psycopg.DatabaseError
        raise known(str(error)) from error
    except (asyncpg.InterfaceError, OSError) as error:
        raise psycopg.InterfaceError(str(error)) from error


_PLACE = re.compile(r"%(?:\((\w+)\))?s")


def numbered(text: str, values: Mapping[str, Any] | Sequence[Any]) -> tuple[str, list[Any]]:
    """A statement with psycopg's places, and its values, as asyncpg takes them: ``$1``, ``$2``."""
    if not isinstance(values, Mapping):
        values = {str(place): value for place, value in enumerate(values)}
    used: list[str] = []
    unnamed = iter(range(len(values)))

    def place(found: re.Match[str]) -> str:
        name = found[1] or str(next(unnamed))
        if name not in used:
            used.append(name)
        return f"${used.index(name) + 1}"

    return _PLACE.sub(place, text), [values[name] for name in used]
