"""Enqueue in the caller's own transaction through connections that are awaited."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import aiosqlite
import asyncpg
import psycopg
import psycopg.rows
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker, create_async_engine

from redrive.domain.errors import Conflict, InvalidField, NotMigrated, Unavailable
from redrive.domain.job import Enqueued
from redrive.store.sql.postgres_async import numbered

from .make import Floor, job
from .rows import Rows
from .test_enqueue_in import sqlite_path


class Theirs:
    """An application's connection, and how it ends its transaction."""

    def __init__(self, connection: Any, commit: Callable[[], Awaitable[Any]], rollback: Callable[[], Awaitable[Any]]):
        self.connection, self.commit, self.rollback = connection, commit, rollback

    async def execute(self, statement: str) -> None:
        alchemy = type(self.connection).__module__.startswith("sqlalchemy")
        await self.connection.execute(text(statement) if alchemy else statement)


Way = Callable[[str], Any]


def alchemy(driver: str, kind: str) -> Way:
    @asynccontextmanager
    async def opened(url: str) -> AsyncIterator[Theirs]:
        engine = create_async_engine(url.replace("postgresql", "postgresql+x").replace("sqlite", "sqlite+x").replace(
            "+x", f"+{driver}"))  # fmt: skip
        try:
            if kind == "connection":
                async with engine.connect() as connection:
                    yield Theirs(connection, connection.commit, connection.rollback)
            elif kind == "session":
                async with AsyncSession(engine) as session:
                    yield Theirs(session, session.commit, session.rollback)
            else:
                scoped = async_scoped_session(async_sessionmaker(engine), scopefunc=asyncio.current_task)
                yield Theirs(scoped, scoped.commit, scoped.rollback)
                await scoped.remove()
        finally:
            await engine.dispose()

    return opened


@asynccontextmanager
async def psycopg_dicts(url: str) -> AsyncIterator[Theirs]:
    async with await psycopg.AsyncConnection.connect(url, row_factory=psycopg.rows.dict_row) as connection:
        yield Theirs(connection, connection.commit, connection.rollback)


@asynccontextmanager
async def asyncpg_plain(url: str) -> AsyncIterator[Theirs]:
    connection = await asyncpg.connect(url)
    transaction = connection.transaction()
    await transaction.start()
    yield Theirs(connection, transaction.commit, transaction.rollback)
    await connection.close()


@asynccontextmanager
async def asyncpg_pool(url: str) -> AsyncIterator[Theirs]:
    async with asyncpg.create_pool(url, min_size=1, max_size=1) as pool, pool.acquire() as connection:
        transaction = connection.transaction()
        await transaction.start()
        yield Theirs(connection, transaction.commit, transaction.rollback)


@asynccontextmanager
async def aiosqlite_dicts(url: str) -> AsyncIterator[Theirs]:
    async with aiosqlite.connect(sqlite_path(url)) as connection:
        connection.row_factory = lambda cursor, row: {  # type: ignore[assignment]  # any function can be one
            one[0]: value for one, value in zip(cursor.description, row, strict=True)
        }
        yield Theirs(connection, connection.commit, connection.rollback)


WAYS = [
    *(pytest.param("sqlite", alchemy("aiosqlite", kind), id=f"sqlite-{kind}") for kind in ("connection", "session")),
    pytest.param("sqlite", aiosqlite_dicts, id="aiosqlite-dicts"),
    *(
        pytest.param("postgres", alchemy(driver, kind), id=f"{driver}-{kind}", marks=pytest.mark.postgres)
        for driver in ("psycopg", "asyncpg")
        for kind in ("connection", "session", "scoped")
    ),
    *(
        pytest.param("postgres", way, id=way.__name__, marks=pytest.mark.postgres)
        for way in (psycopg_dicts, asyncpg_plain, asyncpg_pool)
    ),
]


@pytest.fixture
def store(request: pytest.FixtureRequest, kind: str) -> Any:
    return request.getfixturevalue(f"{kind}_store")


@pytest.mark.parametrize(("kind", "way"), WAYS)
class TestTheirTransaction:
    def test_a_commit_leaves_the_jobs(self, kind, way: Way, url, store, floor: Floor, rows: Rows):
        soon, later = timedelta(hours=1), datetime(2040, 1, 1, tzinfo=UTC)
        jobs = [
            job(b"1"), job(b"2", idempotency_key="k", tags=("a",)), job(b"3", idempotency_key="k"), job(b"4"),
            job(b"5", due=soon), job(b"6", due=later, max_attempts=7, priority=3),
        ]  # fmt: skip

        async def story() -> None:
            async with way(url) as theirs:
                answers = await store.aenqueue(jobs[:4], connection=theirs.connection)
                answers += await store.aenqueue(jobs[4:], connection=theirs.connection)
                assert answers == [
                    *(Enqueued(jobs[place].id) for place in (0, 1)),
                    Enqueued(jobs[1].id, duplicate=True),
                    *(Enqueued(jobs[place].id) for place in (3, 4, 5)),
                ]
                assert rows.places() == {}, "nothing may be seen before their commit"
                await theirs.commit()

        asyncio.run(story())
        assert set(rows.places()) == {jobs[place].id for place in (0, 1, 3, 4, 5)}
        assert sorted(held.payload for held in floor.take(9)) == [b"1", b"2", b"4"]
        last = store.find(jobs[5].id).head
        assert (last.due_at, last.max_attempts, last.priority) == (later, 7, 3)

    def test_a_rollback_leaves_nothing_of_theirs_and_ours(self, kind, way: Way, url, store, rows: Rows):
        orders = "orders" if kind == "sqlite" else "redrive.orders"
        rows.sql("CREATE TABLE {s}orders (id int)")

        async def story() -> None:
            async with way(url) as theirs:
                await theirs.execute(f"INSERT INTO {orders} VALUES (1)")
                await store.aenqueue([job()], connection=theirs.connection)
                await store.aenqueue([job(idempotency_key="k"), job()], connection=theirs.connection)
                await theirs.rollback()

        try:
            asyncio.run(story())
            assert (rows.all(text(f"SELECT count(*) FROM {orders}"))[0][0], rows.places()) == (0, {})
            assert store.enqueue([one := job(idempotency_key="k")]) == [Enqueued(one.id)]
        finally:
            rows.sql("DROP TABLE {s}orders")

    def test_the_first_statement_of_a_transaction_is_part_of_it(self, kind, way: Way, url, store, rows: Rows):
        async def story() -> None:
            async with way(url) as theirs:
                await store.aenqueue([job()], connection=theirs.connection)
                await theirs.rollback()

        asyncio.run(story())
        assert rows.places() == {}

    def test_an_id_that_is_there_is_refused_and_nothing_stays(self, kind, way: Way, url, store, rows: Rows):
        there = job()
        store.enqueue([there])

        async def story() -> None:
            async with way(url) as theirs:
                with pytest.raises(Conflict):
                    await store.aenqueue([job(), there], connection=theirs.connection)
                await theirs.rollback()

        asyncio.run(story())
        assert set(rows.places()) == {there.id}

    def test_it_is_not_for_a_call_that_blocks(self, kind, way: Way, url, store):
        async def story() -> None:
            async with way(url) as theirs:
                with pytest.raises(InvalidField, match="await aenqueue"):
                    store.enqueue([job()], connection=theirs.connection)

        asyncio.run(story())


ALONE = [
    pytest.param("sqlite", lambda url: aiosqlite.connect(sqlite_path(url), isolation_level=None), id="aiosqlite"),
    pytest.param("postgres", asyncpg.connect, id="asyncpg", marks=pytest.mark.postgres),
    pytest.param(
        "postgres",
        lambda url: psycopg.AsyncConnection.connect(url, autocommit=True),
        id="psycopg",
        marks=pytest.mark.postgres,
    ),
]


@pytest.mark.parametrize(("kind", "connect"), ALONE)
@pytest.mark.parametrize("key", [None, "k"])
def test_without_a_transaction_the_call_is_one_of_its_own(kind, connect, url, store, rows: Rows, key):
    there = job()
    store.enqueue([there])
    jobs = [job(), job(idempotency_key=key)]

    async def story() -> None:
        connection = await connect(url)
        try:
            with pytest.raises(Conflict):
                await store.aenqueue([job(), job(idempotency_key=key), there], connection=connection)
            assert set(rows.places()) == {there.id}
            await store.aenqueue(jobs, connection=connection)
        finally:
            await connection.close()  # aiosqlite's thread would keep the process alive

    asyncio.run(story())
    assert set(rows.places()) == {there.id, *(one.id for one in jobs)}


@pytest.mark.postgres
def test_errors_of_asyncpg_say_what_those_of_psycopg_say(postgres_store, databases, shared_postgres):
    async def story() -> None:
        other = await asyncpg.connect(databases.url("postgres"))
        with pytest.raises(NotMigrated, match="another database"):
            await postgres_store.aenqueue([job()], connection=other)
        await other.close()
        with pytest.raises(Unavailable):
            await postgres_store.aenqueue([job()], connection=other)

    asyncio.run(story())


@pytest.mark.postgres
def test_a_connection_to_the_other_kind_of_database_is_refused(sqlite_store, postgres_store, shared_postgres):
    async def story() -> None:
        async with aiosqlite.connect(":memory:") as lite:
            with pytest.raises(InvalidField, match="PostgreSQL"):
                await postgres_store.aenqueue([job()], connection=lite)
        postgres = await asyncpg.connect(shared_postgres)
        with pytest.raises(InvalidField, match="SQLite"):
            await sqlite_store.aenqueue([job()], connection=postgres)
        await postgres.close()
        assert await sqlite_store.aenqueue([], connection=object()) == []

    asyncio.run(story())


def test_places_are_numbered_by_name_and_by_order():
    assert numbered("a %(x)s %(y)s::text %(x)s", {"y": 2, "x": 1}) == ("a $1 $2::text $1", [1, 2])
    assert numbered("%s and %s", ("a", "b")) == ("$1 and $2", ["a", "b"])
