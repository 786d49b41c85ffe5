"""Where measures happen: a PostgreSQL server, fresh databases with Redrive's schema, fresh SQLite files."""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg

from redrive import Redrive
from scripts import services
from tests.databases import Databases

ROOMY = {"shared_buffers": "512MB", "max_wal_size": "4GB"}
"""For a server of our own: what anybody who runs jobs in earnest would set. Durability stays as it comes."""


class Ground:
    """Makes databases that are empty, migrated and gone afterwards."""

    def __init__(self, server: str, databases: Databases, folder: Path) -> None:
        self.server = server
        self._databases = databases
        self._folder = folder
        self._template = databases.create()
        migrate(databases.url(self._template))

    @contextlib.contextmanager
    def postgres(self, *, empty: bool = False) -> Iterator[str]:
        """The URL of a database, migrated unless it shall be empty."""
        name = self._databases.create() if empty else self._databases.create(template=self._template)
        try:
            yield self._databases.url(name)
        finally:
            self._databases.drop(name)

    @contextlib.contextmanager
    def sqlite(self) -> Iterator[str]:
        """The URL of a file on the disk, not in memory: its commits are as durable as PostgreSQL's."""
        with tempfile.TemporaryDirectory(dir=self._folder) as folder:
            url = f"sqlite:///{folder}/bench.db"
            migrate(url)
            yield url


@contextlib.contextmanager
def ground() -> Iterator[Ground]:
    """On the server the environment names, else on a private one; on the standard port's only when there is no choice,
    for it may have other work to do.
    """
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="redrive-bench-")))
        server = services.named_server() or (None if services.installed() else services.local_server(5432))
        server = server or stack.enter_context(services.PrivatePostgres(**ROOMY)).url
        yield Ground(server, stack.enter_context(contextlib.closing(Databases(server))), folder)


def migrate(url: str) -> None:
    app = Redrive(url)
    app.store.upgrade()
    app.close()


def places(url: str) -> dict[str, int]:
    """How many jobs are in each place, counted in the rows."""
    tables = ("jobs_hot", "jobs_archive", "jobs_dlq")
    if url.startswith("sqlite"):
        import sqlite3

        with contextlib.closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
            return {table: connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in tables}
    with psycopg.connect(url) as postgres:
        counted = postgres.execute("SELECT " + ", ".join(f"(SELECT count(*) FROM redrive.{t})" for t in tables))
        return dict(zip(tables, counted.fetchone() or (), strict=True))


def expect(url: str, **expected: int) -> None:
    """Stops the benchmark when jobs were lost, repeated or failed: a figure about that would be worth nothing."""
    found = places(url)
    if found != {"jobs_hot": 0, "jobs_archive": 0, "jobs_dlq": 0, **expected}:
        raise RuntimeError(f"after the drain there are {found}, expected {expected}")
