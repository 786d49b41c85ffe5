"""One empty, migrated store for each test, on both databases."""

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from redrive.store.sql.store import SqlStore, open_store
from redrive.store.sql.tables import metadata
from tests.databases import Databases

from .make import OTHER, QUEUE, Floor, worker
from .rows import Rows

BOTH = ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)]


@pytest.fixture(scope="session")
def shared_postgres(databases: Databases, postgres_template: str) -> str:
    """A database that the tests of this process use one after the other: a new one costs ten times an emptying."""
    name = databases.create(template=postgres_template)
    url = databases.url(name)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"ALTER DATABASE {name} SET synchronous_commit = off")
    return url


@pytest.fixture(scope="session")
def shared_store(shared_postgres: str) -> Iterator[SqlStore]:
    store = open_store(shared_postgres)
    yield store
    store.close()


@pytest.fixture(scope="session")
def emptying(shared_postgres: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(shared_postgres, autocommit=True) as connection:
        yield connection


@pytest.fixture
def postgres_store(shared_store: SqlStore, emptying: psycopg.Connection) -> SqlStore:
    everything = "".join(f"DELETE FROM redrive.{table.name};" for table in metadata.sorted_tables)
    emptying.execute(everything + "ALTER SEQUENCE redrive.incidents_number RESTART")
    return shared_store


@pytest.fixture(scope="session")
def shared_sqlite(sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The same with a file: each store compiles its statements anew, and that is most of a short test's time."""
    return f"sqlite:///{shutil.copy(sqlite_template, tmp_path_factory.mktemp('store') / 'redrive.db')}"


@pytest.fixture(scope="session")
def shared_sqlite_store(shared_sqlite: str) -> Iterator[SqlStore]:
    store = open_store(shared_sqlite)
    yield store
    store.close()


@pytest.fixture
def sqlite_store(shared_sqlite_store: SqlStore, shared_sqlite: str) -> SqlStore:
    with closing(sqlite3.connect(shared_sqlite.removeprefix("sqlite:///"))) as connection:
        everything = "".join(f"DELETE FROM {table.name};" for table in metadata.sorted_tables)
        connection.executescript(f"BEGIN; {everything} COMMIT")
    return shared_sqlite_store


@pytest.fixture
def own_sqlite_store(sqlite_url: str) -> Iterator[SqlStore]:
    """A store of the test's own, whose connections it may close and replace."""
    store = open_store(sqlite_url)
    yield store
    store.close()


@pytest.fixture(params=BOTH)
def store(request: pytest.FixtureRequest) -> SqlStore:
    """The same test on both databases."""
    found: SqlStore = request.getfixturevalue(f"{request.param}_store")
    return found


@pytest.fixture
def url(request: pytest.FixtureRequest, store: SqlStore) -> str:
    """Where ``store`` is, to open it a second time."""
    name = "shared_sqlite" if Rows(store).sqlite else "shared_postgres"
    found: str = request.getfixturevalue(name)
    return found


@pytest.fixture
def rows(store: SqlStore) -> Rows:
    """The tables below the port: to look at what a move left, and to damage it."""
    return Rows(store)


@pytest.fixture
def floor(store: SqlStore) -> Floor:
    """The store with a worker announced for two queues, so that jobs can be claimed."""
    store.register(worker("w1", queues=(QUEUE, OTHER)))
    return Floor(store)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path
