"""Why a database cannot be used: one word for programs, and for people what to do next."""

import contextlib
import os
from collections.abc import Iterator

import psycopg
import pytest
from psycopg import sql
from sqlalchemy.engine import make_url
from structlog.testing import capture_logs

from redrive import Redrive, Spot
from redrive.domain.errors import Unavailable
from redrive.store.sql.store import open_store
from redrive.store.sql.urls import listed
from tests.faults.serving import serving
from tests.faults.waiting import until

from .make import job

pytestmark = pytest.mark.postgres


@pytest.fixture
def role(postgres_url: str) -> Iterator[str]:
    """A role with the owner's rights that may be forbidden things."""
    name = f"redrive_test_role_{os.getpid()}"
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        owner = sql.Identifier(admin.info.user)
        admin.execute(sql.SQL("CREATE ROLE {} LOGIN IN ROLE {}").format(sql.Identifier(name), owner))
        yield name
        admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s", [name])
        until(lambda: not admin.execute("SELECT 1 FROM pg_stat_activity WHERE usename = %s", [name]).fetchone())
        admin.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(name)))


def alter(url: str, role: str, *options: str) -> None:
    with psycopg.connect(url, autocommit=True) as admin:
        for option in options:
            admin.execute(sql.SQL("ALTER ROLE {} {}").format(sql.Identifier(role), sql.SQL(option)))


def as_role(url: str, role: str) -> str:
    return make_url(url).set(username=role, password=None).render_as_string(hide_password=False)


def refused(url: str) -> Unavailable:
    with contextlib.closing(open_store(url)) as store, pytest.raises(Unavailable) as error:
        store.queues()
    return error.value


def test_too_many_connections(postgres_url: str, role: str):
    alter(postgres_url, role, "CONNECTION LIMIT 0")
    error = refused(as_role(postgres_url, role))
    assert error.cause == "full"
    assert "max_connections" in str(error)


def test_a_role_that_may_not_log_in(postgres_url: str, role: str):
    alter(postgres_url, role, "NOLOGIN")
    error = refused(as_role(postgres_url, role))
    assert error.cause == "refused"
    assert "user and the password in database.url" in str(error)


def test_a_role_that_does_not_exist(postgres_url: str):
    assert refused(as_role(postgres_url, "redrive_nobody")).cause == "refused"


@pytest.mark.parametrize(
    ("url", "cause", "advice"),
    [
        ("postgresql://ann@nowhere.invalid/app", "unresolved", "name service"),
        ("postgresql://ann@127.0.0.1:1/app", "unreachable", "PostgreSQL runs there"),
        (
            "postgresql://ann@127.0.0.1:1,127.0.0.1:2/app",
            "unreachable",
            "1:1: Connection refused; 127.0.0.1:2: ",
        ),
    ],
)
def test_a_server_that_cannot_be_reached(url: str, cause: str, advice: str):
    error = refused(url)
    assert error.cause == cause
    assert advice in str(error)


def test_a_database_that_does_not_exist(postgres_url: str):
    error = refused(postgres_url.rpartition("/")[0] + "/redrive_nowhere")
    assert error.cause == "missing"


def test_a_cancelled_statement_is_no_reason_to_end(postgres_url: str):
    with contextlib.closing(open_store(f"{postgres_url}?options=-cstatement_timeout%3D100")) as store:
        with psycopg.connect(postgres_url) as other:
            other.execute("LOCK TABLE redrive.queues")
            with pytest.raises(Unavailable) as error:
                store.queues()
        assert error.value.cause == "cancelled"


def only_reads(url: str, *, on: bool) -> None:
    name = sql.Identifier(url.rpartition("/")[2])
    with psycopg.connect(url, autocommit=True, options="-cdefault_transaction_read_only=off") as admin:
        value = sql.SQL("on" if on else "off")
        admin.execute(sql.SQL("ALTER DATABASE {} SET default_transaction_read_only = {}").format(name, value))


def test_a_server_that_only_reads_is_left_by_every_connection(postgres_url: str):
    """Pools and listeners alike: after a failover they would stay with the old primary."""
    store = open_store(postgres_url)
    with contextlib.closing(store), psycopg.connect(postgres_url, autocommit=True) as admin:
        store.enqueue([job()])
        store.seen("nobody", waiting=False)
        store.queues()
        mine = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        with store.listen(("default",)) as listener:
            before = admin.execute(mine).fetchall()
            assert len(before) == 4
            admin.execute("SET default_transaction_read_only = on")
            with pytest.raises(Unavailable) as error:
                store.enqueue([job()], connection=admin)
            assert error.value.cause == "read-only"
            with pytest.raises(Unavailable, match="left"):
                listener.wait(30)
        until(lambda: not admin.execute(mine).fetchall())
        store.enqueue([job()])


def test_several_hosts_none_of_which_can_be_written(postgres_url: str):
    """Of several hosts the one that can be written is wanted; what each said is told."""
    only_reads(postgres_url, on=True)
    address = make_url(postgres_url)
    host, port = address.host, address.port or 5432
    several = f"postgresql://{address.username}@127.0.0.1:1,{host}:{port}/{address.database}"
    error = refused(several)
    assert error.cause == "read-only"
    assert f"127.0.0.1:1: Connection refused; {host}:{port}: session is read-only" in str(error)
    only_reads(postgres_url, on=False)
    with contextlib.closing(open_store(several)) as store:
        assert store.queues() == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("forbid", "allow", "cause"),
    [("NOLOGIN", "LOGIN", "refused"), ("CONNECTION LIMIT 0", "CONNECTION LIMIT -1", "full")],
)
def test_a_worker_that_is_shut_out_keeps_trying(postgres_url: str, role: str, forbid: str, allow: str, cause: str):
    app = Redrive(as_role(postgres_url, role), worker={"poll": 0.05, "heartbeat": 0.2})

    @app.job("good.v1")
    async def good() -> None: ...

    def events(name: str) -> list[str]:
        return [line.get("cause", "") for line in lines if line["event"] == name]

    with contextlib.closing(app), capture_logs() as lines, serving(app):
        assert good.enqueue().wait(30) is Spot.ARCHIVE
        alter(postgres_url, role, forbid)
        with psycopg.connect(postgres_url, autocommit=True) as admin:
            admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s", [role])
        until(lambda: cause in events("database-away"), why=lambda: lines)
        alter(postgres_url, role, allow)
        until(lambda: events("database-back"), why=lambda: lines)
        assert good.enqueue().wait(30) is Spot.ARCHIVE
    assert len(events("database-away")) <= 3, "one line for each cause"
    assert len(events("database-back")) == 1


@pytest.mark.parametrize(
    ("url", "read"),
    [
        ("postgresql://a:b@one:1,two:2/app", "postgresql://a:b@/app?host=one,two&port=1,2"),
        ("postgresql://one,two/app?sslmode=require", "postgresql:///app?host=one,two&port=5432,5432&sslmode=require"),
        ("postgresql://a@[::1]:1,two/app", "postgresql://a@/app?host=::1,two&port=1,5432"),
        ("postgresql://a@one:1/app?options=-cx=1,2", "postgresql://a@one:1/app?options=-cx=1,2"),
        ("sqlite:///a,b.db", "sqlite:///a,b.db"),
        ("postgresql://a@one:x,two/app", "postgresql://a@one:x,two/app"),
    ],
)
def test_several_hosts_in_a_url(url: str, read: str):
    assert listed(url) == read
