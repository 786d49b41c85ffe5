"""What the database fixtures promise to the tests."""

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

import psycopg
import pytest
import sqlalchemy

from tests.databases import Databases

ROOT = Path(__file__).parents[2]


def names(server: str) -> set[str]:
    with psycopg.connect(server) as connection:
        return {name for (name,) in connection.execute("SELECT datname FROM pg_database").fetchall()}


@pytest.mark.parametrize("turn", ["first", "second"])
def test_each_test_has_a_migrated_database_of_its_own(database_url, turn):
    engine = sqlalchemy.create_engine(database_url.replace("postgresql://", "postgresql+psycopg://"))
    schema = None if engine.dialect.name == "sqlite" else "redrive"
    with engine.begin() as connection:
        assert sqlalchemy.inspect(connection).has_table("jobs_hot", schema=schema)
        connection.execute(sqlalchemy.text("CREATE TABLE left_behind (n int)"))
    engine.dispose()


def test_a_url_of_a_database_keeps_all_else_of_the_server_s(databases, monkeypatch):
    for server, expected in {
        "postgresql://u:p@h:1/postgres?sslmode=require": "postgresql://u:p@h:1/t?sslmode=require",
        "postgresql://u@h": "postgresql://u@h/t",
        "postgresql:///postgres?host=/run/pg": "postgresql:///t?host=/run/pg",
    }.items():
        monkeypatch.setattr(databases, "_server", server)
        assert databases.url("t") == expected


def test_all_databases_are_gone_at_the_end(postgres_server):
    mine = Databases(postgres_server)
    first, second = mine.create(), mine.create()
    assert {first, second} <= names(postgres_server)
    mine.drop(first)
    assert first not in names(postgres_server)
    with psycopg.connect(mine.url(second)):  # a forgotten connection does not keep one alive
        mine.close()
    assert second not in names(postgres_server)


ABANDON = """
import os, sys
from tests.databases import Databases
print(Databases(sys.argv[1]).create(), flush=True)
os.kill(os.getpid(), 9)
"""


def test_databases_of_a_killed_run_are_dropped_by_the_next_and_those_in_use_are_not(postgres_server):
    killed = subprocess.run(
        [sys.executable, "-c", ABANDON, postgres_server], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False
    )
    abandoned = killed.stdout.strip()
    assert (killed.returncode, abandoned.startswith(Databases.PREFIX)) == (-9, True)
    with contextlib.closing(Databases(postgres_server)) as other:
        in_use = other.create()
        deadline = time.monotonic() + 30  # the server takes a moment to see that the client is gone
        while abandoned in names(postgres_server) and time.monotonic() < deadline:
            Databases(postgres_server).close()
        assert abandoned not in names(postgres_server)
        assert in_use in names(postgres_server)


ISOLATED = """
import os
def test_it():
    assert [name for name in os.environ if name.startswith("REDRIVE_")] == ["REDRIVE_TEST_X"]
"""


@pytest.mark.slow
def test_settings_from_outside_do_not_reach_a_test(tmp_path):
    (tmp_path / "test_it.py").write_text(ISOLATED)
    ours = {"REDRIVE_DATABASE_URL": "x", "REDRIVE_WORKER__HEARTBEAT": "1", "REDRIVE_TEST_X": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-c", "pyproject.toml", "-p", "tests.conftest", tmp_path],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"]} | ours,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
