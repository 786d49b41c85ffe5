"""SQLite's write-ahead log, kept small.

SQLite by itself begins it anew only when a writer happens to find no reader in it: with readers that follow one another
it grows without end, also after all of it is in the file. So the writer that finds it large empties it, while it has
the turn and no other can write: it waits a moment for old readers to end, and new ones find everything in the file.
"""

from __future__ import annotations

import random
import sqlite3
import time
from contextlib import suppress
from pathlib import Path

LIMIT = 64_000_000
"""Bytes from which on it is emptied."""
PATIENCE = 0.2
"""Seconds to wait for readers, while nobody can write."""
AGAIN = 5.0
"""Seconds until the next try, where a reader was in the way."""


def use_wal(driver: sqlite3.Connection, patience: float) -> None:
    """Have the file use the log. ``patience``: seconds to go on trying while it is busy.

    SQLite does not wait itself here, whatever the busy timeout: of two connections that switch a new file at once, each
    has a lock that the other wants, so one is told at once that it is busy.
    """
    end = time.monotonic() + patience
    while True:
        try:
            driver.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() >= end:
                raise
            time.sleep(random.uniform(0.001, 0.01))


class Wal:
    """The write-ahead log of one database file."""

    def __init__(self, database: Path) -> None:
        self._path = database.with_name(database.name + "-wal")
        self._not_before = 0.0

    @property
    def size(self) -> int:
        """Bytes of the file."""
        try:
            return self._path.stat().st_size
        except OSError:  # none yet, or none any more
            return 0

    def keep_small(self, driver: sqlite3.Connection, busy_timeout: float) -> None:
        """For a writer that has committed and has the turn still. What was committed is safe whatever becomes of it."""
        if self.size < LIMIT or time.monotonic() < self._not_before:
            return
        with suppress(sqlite3.Error):
            driver.execute(f"PRAGMA busy_timeout = {round(PATIENCE * 1000)}")
            try:
                ((busy, _, _),) = driver.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            finally:
                driver.execute(f"PRAGMA busy_timeout = {round(busy_timeout * 1000)}")
            if busy:
                self._not_before = time.monotonic() + AGAIN
