"""The databases that tests make on a PostgreSQL server."""

import re
import secrets
from collections.abc import Iterable, Iterator
from typing import Any

import psycopg
from psycopg import sql

SHAPE = """
SELECT (SELECT count(*) FROM pg_class), (SELECT count(*) FROM pg_constraint), (SELECT count(*) FROM pg_proc),
  (SELECT count(*) FROM pg_namespace),
  (SELECT count(*) FROM pg_db_role_setting JOIN pg_database ON oid = setdatabase WHERE datname = current_database())
"""


class Databases:
    """The databases of this process on a server that others use too.

    Their names carry a number, and an advisory lock on that number is held as long as the process lives. So those of
    a run that was killed can be told from those in use, from any machine, and are dropped by the next run.
    """

    PREFIX = "redrive_test_"
    LOCK = 0x7265_6472  # the first half of the lock's key: ours

    def __init__(self, server: str) -> None:
        self._server = server
        self._admin = psycopg.connect(server, autocommit=True)
        self._mine: set[str] = set()
        self._empty: list[str] = []
        self._drop_abandoned()
        self._run = secrets.randbits(31)
        self._admin.execute("SELECT pg_advisory_lock(%s, %s)", [self.LOCK, self._run])

    def url(self, name: str) -> str:
        return re.sub(r"^(\w+://[^/?]*)(/[^?]*)?", rf"\1/{name}", self._server)

    def create(self, *, template: str = "template0") -> str:
        name = f"{self.PREFIX}{self._run}_{secrets.token_hex(4)}"
        self._mine.add(name)
        create = sql.SQL("CREATE DATABASE {} TEMPLATE {} ENCODING 'UTF8'")
        self._admin.execute(create.format(sql.Identifier(name), sql.Identifier(template)))
        return name

    def drop(self, name: str) -> None:
        self._admin.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))
        self._mine.discard(name)

    def lend(self, template: str, tables: Iterable[str]) -> Iterator[str]:
        """A copy of ``template``, or one that an earlier test used: emptying ``tables`` takes a tenth of the time.

        Where a test left more than rows (a table, a setting of the database), the copy is dropped after it.
        """
        name = self._empty.pop() if self._empty else self.create(template=template)
        before = self._shape(name)
        yield name
        self._admin.execute("SELECT pg_terminate_backend(pid, 9000) FROM pg_stat_activity WHERE datname = %s", [name])
        if self._shape(name) != before:
            self.drop(name)
            return
        with psycopg.connect(self.url(name), autocommit=True) as connection:
            connection.execute("".join(f"DELETE FROM {table};" for table in tables))
        self._empty.append(name)

    def _shape(self, name: str) -> tuple[Any, ...] | None:
        with psycopg.connect(self.url(name)) as connection:
            return connection.execute(SHAPE).fetchone()

    def close(self) -> None:
        for name in list(self._mine):
            self.drop(name)
        self._admin.close()

    def _drop_abandoned(self) -> None:
        names = self._admin.execute("SELECT datname FROM pg_database WHERE starts_with(datname, %s)", [self.PREFIX])
        for (name,) in names.fetchall():
            run = int(name.removeprefix(self.PREFIX).split("_")[0])
            owner_is_gone = self._admin.execute("SELECT pg_try_advisory_lock(%s, %s)", [self.LOCK, run]).fetchone()
            if owner_is_gone == (True,):
                self.drop(name)
                self._admin.execute("SELECT pg_advisory_unlock(%s, %s)", [self.LOCK, run])
