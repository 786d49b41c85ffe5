"""What goes wrong with a database is said in words that help, and a password is never among them."""

import multiprocessing
import os
import shutil
import sqlite3
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from redrive.domain.errors import ConfigError, NotMigrated, RedriveError, Unavailable
from redrive.domain.filters import JobFilter, PageRequest
from redrive.domain.states import Place, Verb
from redrive.store.sql import sqlite as sqlite_module
from redrive.store.sql.store import SqlStore, open_store
from tests.databases import Databases

from .make import Floor, job, succeed, worker

Call = Callable[[SqlStore], object]
PLACE_HOT = JobFilter(place=Place.HOT)

READS: dict[str, Call] = {
    "list_jobs": lambda store: store.list_jobs(JobFilter(), PageRequest()),
    "find": lambda store: store.find(job().id),
    "queues": lambda store: store.queues(),
    "promises": lambda store: store.promises(),
}
WRITES: dict[str, Call] = {
    "enqueue": lambda store: store.enqueue([job()]),
    "enqueue keyed": lambda store: store.enqueue([job(idempotency_key="k")]),
    "enqueue many": lambda store: store.enqueue([job(), job()]),
    "register": lambda store: store.register(worker()),
    "seen": lambda store: store.seen("w1", waiting=False),
    "operate": lambda store: Floor(store).ask(Verb.PURGE, job().id),
}
EVERYTHING = READS | WRITES


def refused(call: Call, store: SqlStore) -> RedriveError:
    with pytest.raises(RedriveError) as error:
        call(store)
    return error.value


# -- SQLite ------------------------------------------------------------------------------------------------------------


def test_a_folder_that_is_missing(folder: Path):
    with pytest.raises(Unavailable, match=r"nowhere.*folder exists"):
        open_store(f"sqlite:///{folder}/nowhere/redrive.db")


def test_a_folder_in_the_place_of_a_file(folder: Path):
    with pytest.raises(Unavailable, match=str(folder)):
        open_store(f"sqlite:///{folder}").queues()


@pytest.mark.parametrize("size", [200, 100_000])
def test_a_file_that_is_no_database(folder: Path, size: int):
    path = folder / "notes.txt"
    path.write_text("to do " * size)
    with pytest.raises(Unavailable, match="no SQLite database"):
        open_store(f"sqlite:///{path}").queues()
    assert path.read_text() == "to do " * size


@pytest.fixture
def foreign(folder: Path) -> Iterator[SqlStore]:
    """A database of somebody else's."""
    path = folder / "theirs.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE orders (id int)")
    with closing(open_store(f"sqlite:///{path}")) as store:
        yield store


@pytest.mark.parametrize("name", EVERYTHING)
def test_a_database_without_our_tables(foreign: SqlStore, name: str):
    error = refused(EVERYTHING[name], foreign)
    assert isinstance(error, NotMigrated)
    assert "redrive db upgrade" in str(error)


def test_somebody_elses_database_gets_our_tables_only_when_told(foreign: SqlStore):
    assert foreign.schema_state().current is None
    foreign.upgrade()
    assert foreign.schema_state().ready
    foreign.enqueue([job()])


def test_a_new_file_is_set_up_by_whoever_opens_it_first(folder: Path):
    for path in (folder / "new.db", folder / "empty.db"):
        if path.stem == "empty":
            path.touch()
        store = open_store(f"sqlite:///{path}")
        assert store.schema_state().ready
        store.enqueue([job()])
        store.close()


def test_a_private_database_ends_with_the_store(folder: Path):
    one, other = open_store("sqlite://"), open_store("sqlite:///:memory:")
    one.enqueue([job()])
    assert (len(one.list_jobs(PLACE_HOT, PageRequest()).jobs), other.list_jobs(PLACE_HOT, PageRequest()).jobs) == (
        1,
        (),
    )
    one.close()
    other.close()


def test_somebody_who_keeps_the_write_lock(own_sqlite_store: SqlStore, sqlite_url: str, monkeypatch):
    monkeypatch.setattr(sqlite_module, "BUSY_TIMEOUT", 0.05)
    own_sqlite_store.close()
    with closing(sqlite3.connect(sqlite_url.removeprefix("sqlite:///"), isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        for name, call in WRITES.items():
            assert isinstance(refused(call, own_sqlite_store), Unavailable), name
        for call in READS.values():
            call(own_sqlite_store)
        other.execute("ROLLBACK")
    own_sqlite_store.enqueue([job()])


def test_a_disk_that_is_full(own_sqlite_store: SqlStore, monkeypatch):
    def small() -> sqlite3.Connection:
        connection: sqlite3.Connection = own_sqlite_store._db._connect()  # type: ignore[attr-defined]
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count = {pages + 2}")
        return connection

    own_sqlite_store.close()
    monkeypatch.setattr(own_sqlite_store._db.engine.pool, "_invoke_creator", lambda _: small())
    with pytest.raises(Unavailable, match="full"):
        own_sqlite_store.enqueue([job(b"x" * 100_000)])
    assert own_sqlite_store.list_jobs(PLACE_HOT, PageRequest()).jobs == ()


NOBODY = 65534


def _as_nobody(path: str, name: str, answers: "multiprocessing.Queue[tuple[str, str]]") -> None:
    store = open_store(f"sqlite:///{path}")
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    store.close()
    try:
        EVERYTHING[name](store)
        answers.put(("", ""))
    except BaseException as error:
        answers.put((type(error).__name__, str(error)))


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to become somebody without rights")
@pytest.mark.parametrize("name", ["enqueue", "register", "operate", "list_jobs"])
def test_a_file_that_may_not_be_written(sqlite_template: Path, name: str):
    with tempfile.TemporaryDirectory() as folder:
        path = shutil.copy(sqlite_template, f"{folder}/redrive.db")
        for mode, what in ((0o755, folder), (0o644, path)):
            Path(what).chmod(mode)
        context = multiprocessing.get_context("fork")
        answers = context.Queue()
        process = context.Process(target=_as_nobody, args=(path, name, answers))
        process.start()
        kind_, text = answers.get(timeout=20)
        process.join()
    assert kind_ == "Unavailable", text
    assert "writable" in text
    assert path in text


# -- PostgreSQL --------------------------------------------------------------------------------------------------------

SECRET = "s3cr3t-w0rd"


@pytest.mark.postgres
@pytest.mark.parametrize("name", EVERYTHING)
def test_nobody_listens_there(name: str):
    store = open_store(f"postgresql://ann:{SECRET}@127.0.0.1:1/app")
    error = refused(EVERYTHING[name], store)
    assert isinstance(error, Unavailable)
    assert "refused" in str(error)
    assert "ann:***@127.0.0.1:1/app" in str(error)


@pytest.mark.postgres
@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://ann:{SECRET}@127.0.0.1:1/app",
        f"postgresql://ann@127.0.0.1:1/app?password={SECRET}&sslmode=disable",
        f"postgresql://ann:{SECRET}@127.0.0.1:1/app?nonsense=1",
        f"postgresql://ann:{SECRET}@nowhere.invalid:5432/app",
        f"postgresql+psycopg://ann:{SECRET}@127.0.0.1:1/app",
        f"postgresql://ann:a/{SECRET}@127.0.0.1:1/app",
    ],
)
def test_a_password_is_never_shown(url: str):
    store = open_store(url)
    for call in EVERYTHING.values():
        error = refused(call, store)
        assert SECRET not in "".join(traceback.format_exception(error))
        assert SECRET not in repr(error)


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://ann:{SECRET}@host:port/app",
        f"mysql://ann:{SECRET}@host/app",
        f"ann:{SECRET}",
        "",
        "redrive.db",
    ],
)
def test_what_is_no_url_of_ours_is_refused_without_repeating_it(url: str):
    with pytest.raises(ConfigError, match=r"database\.url") as error:
        open_store(url)
    assert "sqlite:///" in str(error.value)
    assert SECRET not in "".join(traceback.format_exception(error.value))


@pytest.mark.postgres
def test_a_database_that_does_not_exist(databases: Databases):
    error = refused(EVERYTHING["enqueue"], open_store(databases.url("redrive_nowhere")))
    assert isinstance(error, Unavailable)
    assert '"redrive_nowhere" does not exist' in str(error)


@pytest.fixture
def bare(databases: Databases) -> Iterator[str]:
    """A database without our schema."""
    name = databases.create()
    yield databases.url(name)
    databases.drop(name)


@pytest.mark.postgres
def test_a_database_that_was_not_migrated(bare: str):
    store = open_store(bare)
    assert store.schema_state().current is None
    assert not store.schema_state().ready
    for name, call in EVERYTHING.items():
        error = refused(call, store)
        assert isinstance(error, NotMigrated), name
        assert "redrive db upgrade" in str(error)
    store.close()


@pytest.mark.postgres
def test_a_server_that_only_reads(postgres_url: str):
    name = postgres_url.rpartition("/")[2]
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    store = open_store(postgres_url)
    for name, call in WRITES.items():
        error = refused(call, store)
        assert isinstance(error, Unavailable), name
        assert "read-only" in str(error)
    for call in READS.values():
        call(store)
    store.close()


@pytest.mark.postgres
def test_a_role_without_rights(postgres_url: str):
    role = sql.Identifier(f"redrive_test_{os.getpid()}")
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE ROLE {} NOLOGIN").format(role))
        try:
            store = open_store(f"{postgres_url}?options=-crole%3D{f'redrive_test_{os.getpid()}'}")
            for name, call in EVERYTHING.items():
                error = refused(call, store)
                assert "permission denied" in str(error), name
                assert "rights" in str(error), name
            store.close()
        finally:
            connection.execute(sql.SQL("DROP ROLE {}").format(role))


@pytest.mark.slow
@pytest.mark.postgres
def test_connections_that_the_server_ended_are_not_noticed_by_callers(postgres_url: str):
    store = open_store(postgres_url)
    store.register(worker())
    floor = Floor(store)
    for _ in range(2):
        one = floor.dead()  # uses every kind of connection there is
        floor.resurrect(one)
        floor.settle()
        store.queues()
        with psycopg.connect(postgres_url) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        assert floor.spot(one) == "pending"
        for call in EVERYTHING.values():
            call(store)
        for held in floor.take(50):
            floor.settle(succeed(held))
    store.close()


@pytest.mark.postgres
def test_a_statement_that_takes_too_long_names_the_cause(postgres_url: str):
    store = open_store(f"{postgres_url}?options=-cstatement_timeout%3D100")
    with psycopg.connect(postgres_url) as other:
        other.execute("LOCK TABLE redrive.jobs_hot")
        error = refused(EVERYTHING["enqueue"], store)
    assert "statement timeout" in str(error)
    store.close()


# -- both --------------------------------------------------------------------------------------------------------------


def test_what_the_tables_refuse_leaves_nothing(store: SqlStore, rows):
    with pytest.raises(RedriveError, match="priority"):
        store.enqueue([job(), job(priority=101)])
    assert rows.places() == {}
    store.enqueue([job()])


def test_a_closed_store_opens_again(store: SqlStore):
    store.enqueue([job()])
    store.close()
    store.close()
    assert len(store.list_jobs(PLACE_HOT, PageRequest()).jobs) == 1


def test_facts_for_doctor(store: SqlStore, url: str):
    facts = store.describe()
    assert facts["database"].startswith(("SQLite 3.", "PostgreSQL "))
    assert any(str(value) in url for value in facts.values())
    assert "clock" in facts


def _in_a_child(store: SqlStore, answers: "multiprocessing.Queue[str]") -> None:
    try:
        store.enqueue([job()])
        answers.put(str(len(store.list_jobs(PLACE_HOT, PageRequest()).jobs)))
    except BaseException as error:
        answers.put(repr(error))
    finally:
        store.close()


def test_a_forked_child_has_connections_of_its_own(store: SqlStore):
    store.register(worker())
    store.enqueue([job()])
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    process = context.Process(target=_in_a_child, args=(store, answers))
    process.start()
    assert answers.get(timeout=20) == "2"
    process.join()
    assert len(store.list_jobs(PLACE_HOT, PageRequest()).jobs) == 2
    store.enqueue([job()])
    assert len(Floor(store).take(9)) == 3


def _pids(store: SqlStore) -> set[int]:
    """The server's processes behind each kind of connection."""
    database: Any = store._db
    ask = "SELECT pg_backend_pid()"
    with database.pool.connection() as hot:
        pids = {hot.execute(ask).fetchall()[0][0]}
    for run in (database.read, database.write):
        pids.add(run(lambda connection: connection.exec_driver_sql(ask).scalar_one()))
    return pids


@pytest.mark.postgres
def test_a_forked_child_speaks_on_no_socket_of_its_parent(postgres_store: SqlStore):
    mine = _pids(postgres_store)
    assert len(mine) == 3
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    process = context.Process(target=lambda: answers.put(_pids(postgres_store)))
    process.start()
    assert answers.get(timeout=20).isdisjoint(mine)
    process.join()
    assert _pids(postgres_store) == mine
