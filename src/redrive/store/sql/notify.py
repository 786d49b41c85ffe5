"""LISTEN: a connection that sleeps until a notification names one of its queues, or its worker."""

from __future__ import annotations

import os
import selectors
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Any, Self

from psycopg import sql

from redrive.domain.errors import Unavailable

from .postgres_pool import Hot


class NotifyListener:
    """Subscribed to the schema's channel; a notification's payload names the queue that got work, or a mailbox."""

    silent = ""
    heard: frozenset[str] = frozenset()

    def __init__(
        self,
        connection: Hot,
        door: Callable[[], AbstractContextManager[Any]],
        channel: str,
        queues: Sequence[str],
    ) -> None:
        self._door = door
        self._queues = frozenset(queues)
        self._connection = connection
        self._left = False
        try:
            with door():
                connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
        except BaseException:
            connection.close()
            raise
        # A byte in this pipe ends a wait at once, from any thread.
        self._bell, self._rope = os.pipe()
        os.set_blocking(self._bell, False)
        os.set_blocking(self._rope, False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._connection.fileno(), selectors.EVENT_READ)
        self._selector.register(self._bell, selectors.EVENT_READ)

    def wait(self, timeout: float) -> bool:
        """True when one of the queues got work, within ``timeout`` seconds."""
        end = time.monotonic() + timeout
        with self._door():
            while True:
                if self._left:
                    raise Unavailable("the server was left, it is read-only", cause="read-only")
                told = {notice.payload for notice in self._connection.notifies(timeout=0)}
                self.heard = self._queues & told
                if self.heard:
                    return True
                ready = {key.fd for key, _ in self._selector.select(max(0.0, end - time.monotonic()))}
                if self._bell in ready:
                    os.read(self._bell, 64)
                    if self._left:
                        continue
                    return False
                if not ready:
                    return False

    def interrupt(self) -> None:
        """Make ``wait`` return now, or its next call."""
        os.write(self._rope, b"!")

    def leave(self) -> None:
        """The server is no longer the one to listen to: make ``wait`` raise."""
        self._left = True
        with suppress(OSError):  # it is being closed
            self.interrupt()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._selector.close()
        self._connection.close()
        os.close(self._bell)
        os.close(self._rope)


class PollingListener:
    """Where nothing can be delivered: waits, and never wakes anybody. A worker finds work by looking."""

    heard: frozenset[str] = frozenset()

    def __init__(self, silent: str) -> None:
        self.silent = silent
        self._bell = threading.Event()

    def wait(self, timeout: float) -> bool:
        """Wait, unless interrupted."""
        self._bell.wait(timeout)
        self._bell.clear()
        return False

    def interrupt(self) -> None:
        """Make ``wait`` return now, or its next call."""
        self._bell.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None
