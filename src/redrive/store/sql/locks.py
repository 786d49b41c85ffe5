"""A turnstile of two file locks in front of SQLite's write lock.

SQLite's busy handler polls and has no queue: whoever lets go of the lock usually takes it again, and others starve for
seconds. With two locks a waiter holds ``next`` until it has ``main``, so the kernel wakes waiters in turn. The busy
timeout below it stays as a net for writers that do not know the turnstile.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Turnstile:
    """Mutual exclusion over all threads and processes that write to one database file, first come first served."""

    def __init__(self, database: Path) -> None:
        self._paths = (database.with_name(database.name + ".next"), database.with_name(database.name + ".main"))
        self._pid = 0
        self._files: tuple[int, int] = (-1, -1)
        # File locks belong to the open file, which threads share: they need a lock of their own.
        self._threads = threading.Lock()

    def _open(self) -> tuple[int, int]:
        if self._pid != os.getpid():  # a forked child must not share its parent's open files
            self._files = (self._descriptor(self._paths[0]), self._descriptor(self._paths[1]))
            self._pid = os.getpid()
        return self._files

    @staticmethod
    def _descriptor(path: Path) -> int:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Hold the database's write turn."""
        with self._threads:
            following, main = self._open()
            fcntl.flock(following, fcntl.LOCK_EX)
            try:
                fcntl.flock(main, fcntl.LOCK_EX)
            finally:
                fcntl.flock(following, fcntl.LOCK_UN)
            try:
                yield
            finally:
                fcntl.flock(main, fcntl.LOCK_UN)

    def close(self) -> None:
        """Close the files; the next turn opens them again."""
        with self._threads:
            if self._pid == os.getpid():
                for descriptor in self._files:
                    os.close(descriptor)
            self._pid = 0
