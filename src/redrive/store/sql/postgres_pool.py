"""Connections for the hot statements: psycopg, autocommit, with plans that cannot flip.

A prepared statement is planned for good after five runs. A worker that starts on an empty table would keep plans made
for an empty table (up to a hundred times slower); these five settings leave the planner no other choice than the
indexes the statements were written for. They are never set on connections that serve lists.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.types.numeric import Int8BinaryLoader

STEADY = ("enable_seqscan", "enable_bitmapscan", "enable_hashjoin", "enable_mergejoin", "jit")
IDLE_CHECK = 5.0
"""A connection unused for longer is asked whether it still lives before work is given to it (seconds)."""
KEPT = 6
"""Idle connections that are kept."""

Hot = psycopg.Connection[tuple[Any, ...]]


def _spoken_to(connection: Any) -> bool:
    """Whether the server said something to an idle connection: mostly that it ends. One system call."""
    if connection.closed:
        return True
    idle = select.poll()
    idle.register(connection.fileno(), select.POLLIN)
    return bool(idle.poll(0))


def steady(connection: Hot) -> Hot:
    """The connection with plans that cannot flip."""
    try:
        connection.execute("; ".join(f"SET {name} = off" for name in STEADY))
        if not connection.autocommit:
            connection.commit()
    except BaseException:
        connection.close()
        raise
    return connection


def count_micros(reader: Hot | psycopg.Cursor[Any]) -> None:
    """Let times come as the server counts them, in microseconds: a claim needs differences, no calendar."""
    reader.adapters.register_loader("timestamptz", Int8BinaryLoader)


class HotPool:
    """A few psycopg connections, last used first.

    SQLAlchemy's pool would do, at 40 microseconds for each loan; a worker borrows hundreds of times a second.
    """

    def __init__(self, connect: Callable[..., Hot], pooled: Callable[[Hot], bool] = lambda _: False) -> None:
        self._connect = connect
        self._pooled = pooled
        self._idle: list[tuple[Hot, float]] = []
        self._inherited: list[list[tuple[Hot, float]]] = []
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        # A forked child must not talk on its parent's sockets, nor close them: it keeps them and lets them be.
        self._inherited.append(self._idle)
        self._idle = []

    def _open(self) -> Hot:
        connection = self._connect(autocommit=True)
        # Behind a pooler settings would stay with strangers, and prepared statements be missing where they are needed.
        # Plans are made for each call then, from what is in the tables.
        if not self._pooled(connection):
            steady(connection).prepare_threshold = 0
        count_micros(connection)
        return connection

    @contextmanager
    def connection(self) -> Iterator[Hot]:
        """A connection; one that broke is thrown away."""
        hot, home = self._borrow(), self._idle
        try:
            yield hot
        except BaseException as error:
            if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError) or not isinstance(error, Exception):
                if hot.closed:
                    self.close()  # its idle neighbours went the same way
                hot.close()
            raise
        finally:
            # One that is still in a transaction would lend that to the next borrower.
            if home is self._idle and len(home) < KEPT and hot.pgconn.transaction_status == TransactionStatus.IDLE:
                home.append((hot, time.monotonic()))
            else:
                hot.close()

    def _borrow(self) -> Hot:
        while True:
            try:
                hot, used = self._idle.pop()
            except IndexError:
                return self._open()
            if (time.monotonic() - used <= IDLE_CHECK and not _spoken_to(hot)) or _alive(hot):
                return hot
            hot.close()
            self.close()  # its neighbours went the same way

    def close(self) -> None:
        """Close idle connections; one that is lent out is closed when it comes back."""
        idle, self._idle = self._idle, []
        for hot, _ in idle:
            hot.close()


def _alive(hot: Hot) -> bool:
    try:
        hot.execute("SELECT 1")
    except psycopg.Error:
        return False
    return True
