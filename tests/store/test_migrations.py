"""The migrations make exactly the schema that the code works with, on both databases, whoever runs them how often."""

import multiprocessing
import shutil
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, Engine, Index, create_engine, inspect, text

import redrive.store.sql.tables_later  # noqa: F401 - its tables are in the metadata
from redrive.store.sql import migrate
from redrive.store.sql.store import SqlStore, open_store
from redrive.store.sql.tables import jobs_hot, metadata
from tests.databases import Databases

from .make import Floor, job, worker

STRANGE_SCHEMAS = ["jobs_2", "My Schema", 'we"ird', "select", "ünï-côde"]


def engine_of(url: str, schema: str = "redrive") -> Engine:
    if url.startswith("sqlite"):
        return create_engine(url)
    quoted = '"' + schema.replace('"', '""') + '"'
    driver = url.replace("postgresql://", "postgresql+psycopg://")
    return create_engine(driver, connect_args={"options": f"-csearch_path={quoted.replace(' ', chr(92) + ' ')}"})


@pytest.fixture
def connection(database_url: str) -> Iterator[Connection]:
    engine = engine_of(database_url)
    with engine.connect() as connection:
        yield connection
    engine.dispose()


@pytest.fixture
def bare(databases: Databases) -> Iterator[str]:
    """A database on the server without any schema of ours."""
    name = databases.create()
    yield databases.url(name)
    databases.drop(name)


def differences(connection: Connection) -> list[Any]:
    def ours(_: Any, name: str | None, kind: str, reflected: bool, __: Any) -> bool:
        return not (kind == "table" and reflected and name == migrate.VERSION_TABLE)

    options = {"compare_type": True, "compare_server_default": True, "include_object": ours}
    return list(compare_metadata(MigrationContext.configure(connection, opts=options), metadata))


def names(connection: Connection) -> dict[str, set[Any]]:
    """Names of everything in the database that has one, by table; with the texts of checks and partial indexes."""
    looked = inspect(connection)
    found: dict[str, set[Any]] = {}
    for table in looked.get_table_names():
        mine = found[table] = set()
        mine.add(("pk", looked.get_pk_constraint(table)["name"]))
        mine |= {("check", check["name"], check["sqltext"]) for check in looked.get_check_constraints(table)}
        mine |= {("unique", unique["name"]) for unique in looked.get_unique_constraints(table)}
        for index in looked.get_indexes(table):
            where = index.get("dialect_options", {}).get(f"{connection.dialect.name}_where")
            mine.add(("index", index["name"], bool(index["unique"]), str(where)))
        mine |= {
            ("column", column["name"], str(column["type"]), column["nullable"]) for column in looked.get_columns(table)
        }
    return found


# -- what they make ----------------------------------------------------------------------------------------------------


def test_the_migrated_schema_is_the_metadata(connection: Connection):
    assert differences(connection) == []


def test_a_difference_would_be_seen(connection: Connection):
    connection.execute(text("ALTER TABLE jobs_hot ADD COLUMN extra text"))
    connection.execute(text("DROP INDEX ix_jobs_hot_taken"))
    assert {found[0] for found in differences(connection)} == {"remove_column", "add_index"}


def test_checks_and_names_are_those_of_the_metadata(connection: Connection, folder: Path):
    """Alembic compares no checks and no names of keys; a database made by the metadata itself has them."""
    other = create_engine("sqlite://") if connection.dialect.name == "sqlite" else None
    if other is not None:
        with other.begin() as made:
            metadata.create_all(made)
            wanted = names(made)
        other.dispose()
    else:
        connection.execute(text("CREATE SCHEMA made"))
        connection.execute(text("SET LOCAL search_path TO made"))
        metadata.create_all(connection)
        wanted = names_in(connection, "made")
        connection.execute(text("SET LOCAL search_path TO redrive"))
    found = names(connection) if other is not None else names_in(connection, "redrive")
    found.pop(migrate.VERSION_TABLE)
    assert found == wanted
    assert all(name for table in found.values() for _, name, *_ in table), "everything has a name"


def names_in(connection: Connection, schema: str) -> dict[str, set[Any]]:
    """Constraints and indexes of one schema, as PostgreSQL writes them."""
    found: dict[str, set[Any]] = {}
    queries = (
        "SELECT c.relname, k.conname, pg_get_constraintdef(k.oid) FROM pg_constraint k JOIN pg_class c"
        " ON c.oid = k.conrelid JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = :schema",
        "SELECT tablename, indexname, replace(indexdef, schemaname || '.', '') FROM pg_indexes"
        " WHERE schemaname = :schema",
        "SELECT c.relname, 'options', array_to_string(c.reloptions, ',') FROM pg_class c"
        " JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = :schema AND c.relkind = 'r'",
        "SELECT table_name, column_name, data_type || coalesce(column_default, '') || is_nullable"
        " FROM information_schema.columns WHERE table_schema = :schema",
    )
    for query in queries:
        for table, name, what in connection.execute(text(query), {"schema": schema}):
            found.setdefault(table, set()).add(("of", name, (what or "").replace(f"{schema}.", "")))
    return {table: mine for table, mine in found.items() if not table.endswith("_number")}


# -- the budget of the hot table ---------------------------------------------------------------------------------------

BUDGET = {
    "ix_jobs_hot_claim": (["queue", "priority DESC", "due_at", "id"], "state = 'pending' AND NOT blocked", False),
    "ix_jobs_hot_blocked": (["lock_key", "priority DESC", "due_at", "id"], "blocked", False),
    "ix_jobs_hot_scheduled": (["due_at"], "state = 'scheduled'", False),
    "uq_jobs_hot_key": (["type", "idempotency_key"], "idempotency_key IS NOT NULL", True),
    "ix_jobs_hot_taken": (["queue"], "state = 'taken'", False),
    "ix_jobs_hot_operation": (["operation_id"], "operation_id IS NOT NULL", False),
}
NEVER = ("started_at", "heartbeat_at", "version", "updated_at")


def test_the_hot_tables_indexes_are_those_of_the_budget():
    found: dict[str, Any] = {}
    for index in jobs_hot.indexes:
        assert isinstance(index, Index)
        columns = [str(column).replace("jobs_hot.", "") for column in index.expressions]
        where = str(index.dialect_options["postgresql"]["where"])
        assert where == str(index.dialect_options["sqlite"]["where"])
        found[str(index.name)] = (columns, where, index.unique)
    assert found == BUDGET


@pytest.mark.postgres
def test_the_database_has_no_other_index_on_the_hot_table(postgres_url: str):
    with psycopg.connect(postgres_url) as connection:
        rows = connection.execute(
            "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'redrive' AND tablename = 'jobs_hot'"
        ).fetchall()
        options = connection.execute(
            "SELECT reloptions FROM pg_class WHERE oid = 'redrive.jobs_hot'::regclass"
        ).fetchone()
    assert {name for name, _ in rows} == {*BUDGET, "pk_jobs_hot"}
    assert not [name for _, definition in rows for name in NEVER if name in definition]
    assert options is not None
    assert "fillfactor=70" in options[0]


def test_sqlite_has_the_same_indexes(sqlite_url: str):
    with closing(sqlite3.connect(sqlite_url.removeprefix("sqlite:///"))) as connection:
        rows = connection.execute(
            "SELECT name, sql FROM sqlite_master WHERE type = 'index' AND tbl_name = 'jobs_hot'"
        ).fetchall()
    assert {name for name, made in rows if made} == set(BUDGET)
    assert not [name for _, made in rows for name in NEVER if made and name in made]


# -- running them ------------------------------------------------------------------------------------------------------


def test_upgrading_again_changes_nothing(database_url: str):
    store = open_store(database_url)
    assert store.schema_state().ready
    assert store.schema_state().current == migrate.head() == store.schema_state().head
    store.enqueue([job()])
    store.upgrade()
    assert store.schema_state().ready
    assert sum(queue.pending for queue in store.queues()) == 1
    store.close()


def _upgrade(url: str, schema: str, barrier: Any, answers: Any) -> None:
    barrier.wait(60)
    try:
        store = SqlStore(*_dialect(url, schema))
        store.upgrade()
        answers.put(store.schema_state().ready)
        store.close()
    except BaseException as problem:
        answers.put(repr(problem))


def _dialect(url: str, schema: str) -> tuple[Any, str | None]:
    """Without the first opening's own upgrade."""
    if url.startswith("sqlite"):
        from redrive.store.sql.sqlite import SqliteDialect

        return SqliteDialect(Path(url.removeprefix("sqlite:///"))), None
    from sqlalchemy.engine import make_url

    from redrive.store.sql.postgres import PostgresDialect

    return PostgresDialect(make_url(url), schema), schema


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def test_two_processes_upgrade_at_once(kind: str, request: pytest.FixtureRequest, folder: Path):
    url = f"sqlite:///{folder}/new.db" if kind == "sqlite" else request.getfixturevalue("bare")
    context = multiprocessing.get_context("spawn")
    barrier, answers = context.Barrier(3), context.Queue()
    crew = [context.Process(target=_upgrade, args=(url, "redrive", barrier, answers)) for _ in range(3)]
    for member in crew:
        member.start()
    assert [answers.get(timeout=60) for _ in crew] == [True] * 3
    for member in crew:
        member.join()


@pytest.mark.slow
@pytest.mark.postgres
@pytest.mark.parametrize("schema", STRANGE_SCHEMAS)
def test_another_schema(bare: str, schema: str):
    """The whole story in a schema of another name, next to tables of ours in public that are not ours."""
    with psycopg.connect(bare, autocommit=True) as connection:
        connection.execute("CREATE TABLE public.jobs_hot (id int)")
    store = open_store(bare, schema=schema)
    assert store.schema_state().current is None
    store.upgrade()
    assert store.schema_state().ready
    store.register(worker())
    store.seen("w1", waiting=True)
    floor = Floor(store)
    with store.listen(["default"]) as listener:
        one = floor.dead()
        assert listener.wait(2)
    floor.accept(job(), job(idempotency_key="k"), job(idempotency_key="k"))
    floor.resurrect(one)
    floor.take(5)
    assert len(store.incidents()) == 1
    floor.kept()
    assert store.describe()["schema"] == schema
    with psycopg.connect(bare) as connection:
        assert store.enqueue([job()], connection=connection)
        assert connection.execute("SELECT count(*) FROM public.jobs_hot").fetchone() == (0,)
    store.close()


@pytest.mark.postgres
def test_a_schema_that_somebody_made_for_us(bare: str):
    """A role that may not create schemas may use one it was given."""
    import os

    role = f"redrive_test_{os.getpid()}_m"
    with psycopg.connect(bare, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {role} NOLOGIN")
        try:
            connection.execute(f"CREATE SCHEMA redrive AUTHORIZATION {role}")
            store = open_store(f"{bare}?options=-crole%3D{role}")
            store.upgrade()
            assert store.schema_state().ready
            store.close()
        finally:
            connection.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


# -- by hand -----------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("sqlite3") is None, reason="needs the sqlite3 program")
def test_the_script_makes_the_same_sqlite_schema(sqlite_store: SqlStore, folder: Path, sqlite_url: str):
    path = folder / "by-hand.db"
    script = sqlite_store.upgrade_sql()
    done = subprocess.run(["sqlite3", "-bail", path], input=script, text=True, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert schema_of(path) == schema_of(Path(sqlite_url.removeprefix("sqlite:///")))
    store = open_store(f"sqlite:///{path}")
    assert store.schema_state().ready
    store.enqueue([job()])
    store.close()


def schema_of(path: Path) -> list[Any]:
    with closing(sqlite3.connect(path)) as connection:
        rows = connection.execute("SELECT type, name, sql FROM sqlite_master ORDER BY type, name").fetchall()
    return [(kind, name, made and " ".join(made.split())) for kind, name, made in rows]


@pytest.mark.slow
@pytest.mark.postgres
@pytest.mark.skipif(shutil.which("psql") is None, reason="needs psql")
@pytest.mark.parametrize("schema", ["redrive", 'we"ird one'])
def test_the_script_makes_the_same_postgres_schema(bare: str, schema: str):
    by_code = open_store(bare, schema="by_code")
    by_code.upgrade()
    store = open_store(bare, schema=schema)
    command = ["psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", bare]
    done = subprocess.run(command, input=store.upgrade_sql(), text=True, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert store.schema_state().ready
    engine = engine_of(bare, "by_code")
    with engine.connect() as connection:
        found, wanted = names_in(connection, schema), names_in(connection, "by_code")
    engine.dispose()
    unquoted = {table: {(a, b, c.replace('"we""ird one".', "")) for a, b, c in mine} for table, mine in found.items()}
    assert unquoted == wanted
    store.register(worker())
    Floor(store).dead()
    assert store.incidents()[0].number == 1
    store.close()
    by_code.close()
