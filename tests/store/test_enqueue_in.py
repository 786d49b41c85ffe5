"""Enqueue in the caller's own transaction."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import psycopg
import psycopg.rows
import pytest
import sqlalchemy
from sqlalchemy.orm import Session

from redrive.domain.errors import Conflict, InvalidField, NotMigrated
from redrive.domain.job import Enqueued
from redrive.store.sql.tables import jobs_hot

from .make import Floor, job, succeed
from .rows import Rows


def sqlite_path(url: str) -> str:
    return url.removeprefix("sqlite:///")


def engine_of(url: str) -> sqlalchemy.Engine:
    return sqlalchemy.create_engine(url.replace("postgresql://", "postgresql+psycopg://"))


class Theirs:
    """An application's connection: how it is opened, begun, committed."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    def close(self) -> None:
        engine = getattr(self.connection, "engine", getattr(self.connection, "bind", None))
        self.connection.close()
        if engine is not None:
            engine.dispose()

    def commit(self) -> None:
        self.connection.commit()

    def rollback(self) -> None:
        self.connection.rollback()


def core(url: str) -> Theirs:
    return Theirs(engine_of(url).connect())


def session(url: str) -> Theirs:
    return Theirs(Session(engine_of(url)))


def psycopg_dicts(url: str) -> Theirs:
    connection = psycopg.connect(url, row_factory=psycopg.rows.dict_row)
    return Theirs(connection)


def psycopg_unprepared(url: str) -> Theirs:
    connection = psycopg.connect(url, prepare_threshold=None)
    return Theirs(connection)


def sqlite_rows(url: str) -> Theirs:
    connection = sqlite3.connect(sqlite_path(url))
    connection.row_factory = sqlite3.Row
    return Theirs(connection)


def sqlite_dicts(url: str) -> Theirs:
    connection = sqlite3.connect(sqlite_path(url))
    connection.row_factory = lambda cursor, row: {
        one[0]: value for one, value in zip(cursor.description, row, strict=True)
    }
    return Theirs(connection)


WAYS = [
    pytest.param("sqlite", core, id="sqlite-core"),
    pytest.param("sqlite", session, id="sqlite-session"),
    pytest.param("sqlite", sqlite_rows, id="sqlite3-row-factory"),
    pytest.param("sqlite", sqlite_dicts, id="sqlite3-dicts"),
    *(
        pytest.param("postgres", way, id=f"postgres-{way.__name__}", marks=pytest.mark.postgres)
        for way in (core, session, psycopg_dicts, psycopg_unprepared)
    ),
]


@pytest.fixture
def store(request: pytest.FixtureRequest) -> Any:
    """Of the kind the test's parameter names."""
    kind = request.node.callspec.params["kind"] if hasattr(request.node, "callspec") else "sqlite"
    return request.getfixturevalue(f"{kind}_store")


@pytest.fixture
def theirs(kind: str, way: Callable[[str], Theirs], url: str) -> Iterator[Theirs]:
    opened = way(url)
    yield opened
    opened.close()


@pytest.mark.parametrize(("kind", "way"), WAYS)
class TestTheirTransaction:
    def test_a_commit_leaves_the_jobs(self, kind, way, theirs: Theirs, store, floor: Floor, rows: Rows):
        jobs = [job(b"1"), job(b"2", idempotency_key="k"), job(b"3", idempotency_key="k"), job(b"4")]
        answers = store.enqueue(jobs, connection=theirs.connection)
        assert answers == [
            Enqueued(jobs[0].id),
            Enqueued(jobs[1].id),
            Enqueued(jobs[1].id, duplicate=True),
            Enqueued(jobs[3].id),
        ]
        assert rows.places() == {}, "nothing may be seen before their commit"
        theirs.commit()
        assert set(rows.places()) == {jobs[0].id, jobs[1].id, jobs[3].id}
        assert sorted(held.payload for held in floor.take(5)) == [b"1", b"2", b"4"]

    def test_a_rollback_leaves_nothing(self, kind, way, theirs: Theirs, store, rows: Rows):
        store.enqueue([job()], connection=theirs.connection)
        store.enqueue([job(idempotency_key="k"), job()], connection=theirs.connection)
        theirs.rollback()
        assert rows.places() == {}
        assert store.enqueue([one := job(idempotency_key="k")]) == [Enqueued(one.id)]

    def test_it_is_one_transaction_with_their_own_rows(self, kind, way, theirs: Theirs, store, rows: Rows):
        rows.sql("CREATE TABLE {s}orders (id int)")
        text: Any = "INSERT INTO " + ("orders" if kind == "sqlite" else "redrive.orders") + " VALUES (1)"
        run = theirs.connection.execute
        try:
            run(sqlalchemy.text(text) if way in (core, session) else text)
            store.enqueue([job()], connection=theirs.connection)
            theirs.rollback()
            orders = sqlalchemy.text("SELECT count(*) FROM " + ("orders" if kind == "sqlite" else "redrive.orders"))
            assert (rows.all(orders)[0][0], rows.places()) == (0, {})
        finally:
            theirs.rollback()
            rows.sql("DROP TABLE {s}orders")

    def test_a_key_held_outside_is_found(self, kind, way, theirs: Theirs, store):
        (held,) = store.enqueue([job(idempotency_key="k")])
        assert store.enqueue([job(idempotency_key="k")], connection=theirs.connection) == [
            Enqueued(held.id, duplicate=True)
        ]

    def test_their_connection_is_as_it_was(self, kind, way, theirs: Theirs, store):
        select: Any = "SELECT 1 AS one"
        before = getattr(theirs.connection, "row_factory", None)
        store.enqueue([job()], connection=theirs.connection)
        assert getattr(theirs.connection, "row_factory", None) is before
        cursor = theirs.connection.execute(sqlalchemy.text(select) if way in (core, session) else select)
        row = cursor.fetchone()
        assert row == {"one": 1} if way in (psycopg_dicts, sqlite_dicts) else row[0] == 1
        theirs.commit()

    def test_an_id_that_is_there_is_refused_and_nothing_stays(self, kind, way, theirs: Theirs, store, rows: Rows):
        there = job()
        store.enqueue([there])
        with pytest.raises(Conflict):
            store.enqueue([job(), there], connection=theirs.connection)
        theirs.rollback()
        assert set(rows.places()) == {there.id}


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
class TestAutocommit:
    """A connection without a transaction: the call is one of its own, whole or not at all."""

    @pytest.fixture
    def connection(self, kind, url) -> Iterator[Any]:
        if kind == "sqlite":
            with closing(sqlite3.connect(sqlite_path(url), isolation_level=None)) as connection:
                yield connection
        else:
            with psycopg.connect(url, autocommit=True) as connection:
                yield connection

    @pytest.mark.parametrize("key", [None, "k"])
    def test_the_call_commits_by_itself(self, kind, connection, store, rows: Rows, key):
        jobs = [job(), job(idempotency_key=key)]
        store.enqueue(jobs, connection=connection)
        assert set(rows.places()) == {one.id for one in jobs}

    @pytest.mark.parametrize("key", [None, "k"])
    def test_the_call_is_all_or_nothing(self, kind, connection, store, rows: Rows, key):
        there = job()
        store.enqueue([there])
        with pytest.raises(Conflict):
            store.enqueue([job(), job(idempotency_key=key), there], connection=connection)
        assert set(rows.places()) == {there.id}

    def test_a_transaction_they_began_stays_theirs(self, kind, connection, store, rows: Rows):
        connection.execute("BEGIN")
        store.enqueue([job()], connection=connection)
        connection.execute("ROLLBACK")
        assert rows.places() == {}


@pytest.mark.postgres
def test_a_holder_that_ends_meanwhile_is_retryable(postgres_store, shared_postgres):
    """One round only in a caller's transaction: its locks would be taken out of order by a second."""
    from redrive.domain.errors import Retryable

    floor = Floor(postgres_store)
    from .make import worker

    postgres_store.register(worker())
    held = floor.running(idempotency_key="k")
    with psycopg.connect(shared_postgres) as theirs:
        theirs.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        theirs.execute("SELECT 1")
        floor.settle(succeed(held))
        floor.one(idempotency_key="k")
        # The new holder is not in their snapshot: the key is taken, and nobody to be seen holds it.
        with pytest.raises(Retryable):
            postgres_store.enqueue([job(idempotency_key="k")], connection=theirs)
        theirs.rollback()


NO_CONNECTIONS: dict[str, Callable[[sqlite3.Connection], Any]] = {
    "any object": lambda _: object(),
    "a cursor": lambda connection: connection.cursor(),
    "a string": lambda _: "sqlite://",
    "a session without an engine": lambda _: Session(),
    "an engine": lambda _: sqlalchemy.create_engine("sqlite://"),
}


class TestRefused:
    @pytest.mark.parametrize("what", NO_CONNECTIONS)
    def test_what_is_no_connection_is_refused_by_name(self, sqlite_store, what):
        with closing(sqlite3.connect(":memory:")) as real, pytest.raises(InvalidField, match="connection") as refused:
            sqlite_store.enqueue([job()], connection=NO_CONNECTIONS[what](real))
        assert "psycopg" in str(refused.value)

    @pytest.mark.postgres
    def test_a_connection_to_the_other_kind_of_database_is_refused(self, sqlite_store, postgres_store, shared_postgres):
        with psycopg.connect(shared_postgres) as connection, pytest.raises(InvalidField, match="SQLite"):
            sqlite_store.enqueue([job()], connection=connection)
        with closing(sqlite3.connect(":memory:")) as connection, pytest.raises(InvalidField, match="PostgreSQL"):
            postgres_store.enqueue([job()], connection=connection)
        engine = sqlalchemy.create_engine("sqlite://")
        with engine.connect() as connection, pytest.raises(InvalidField, match="PostgreSQL"):
            postgres_store.enqueue([job()], connection=connection)
        engine.dispose()

    def test_a_connection_to_another_sqlite_file_says_so(self, sqlite_store):
        with closing(sqlite3.connect(":memory:")) as other, pytest.raises(NotMigrated, match="another database"):
            sqlite_store.enqueue([job()], connection=other)

    @pytest.mark.postgres
    def test_a_connection_to_another_database_says_so(self, postgres_store, databases):
        with psycopg.connect(databases.url("postgres")) as other, pytest.raises(NotMigrated, match="another database"):
            postgres_store.enqueue([job()], connection=other)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def test_ten_thousand_in_one_transaction_of_theirs(kind, url, store, rows: Rows):
    way = sqlite_rows if kind == "sqlite" else psycopg_dicts
    theirs = way(url)
    jobs = [
        job(b"x" * (8001 if n % 1000 == 0 else 7), idempotency_key=f"k{n}" if n % 2 else None) for n in range(10_000)
    ]
    store.enqueue(jobs[:4000], connection=theirs.connection)
    store.enqueue(jobs[4000:], connection=theirs.connection)
    theirs.commit()
    theirs.close()
    assert rows.count(jobs_hot) == 10_000
