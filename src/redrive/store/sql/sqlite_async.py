"""Enqueue in the caller's transaction through aiosqlite, which runs a ``sqlite3.Connection`` in a thread of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redrive.domain.job import Enqueued, NewJob

from .sqlite_hot import Answer, Ask, SqliteHot
from .steps import adrive


async def enqueue_in(hot: SqliteHot, connection: Any, jobs: Sequence[NewJob]) -> list[Enqueued]:
    """As ``SqliteDialect.enqueue_in``."""
    if connection.in_transaction or connection.isolation_level is not None:
        return await _accept(hot, connection, jobs)
    await connection.execute("BEGIN IMMEDIATE")
    try:
        accepted = await _accept(hot, connection, jobs)
        await connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            await connection.execute("ROLLBACK")
        raise
    return accepted


async def _accept(hot: SqliteHot, connection: Any, jobs: Sequence[NewJob]) -> list[Enqueued]:
    async with connection.cursor() as cursor:
        cursor.row_factory = None  # a caller's connection may build dicts from rows; ours are tuples

        async def run(ask: Ask) -> Answer:
            if isinstance(ask.values, list):
                await cursor.executemany(ask.text, ask.values)
                return cursor.rowcount, None
            await cursor.execute(ask.text, ask.values)
            return cursor.rowcount, await cursor.fetchone()

        return await adrive(hot.accepting(jobs), run)
