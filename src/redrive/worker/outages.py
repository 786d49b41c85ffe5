"""Whether the database is away, as this worker sees it; said once when it goes and once when it is back.

Each line of calls (claims, settles, heartbeats ...) tells how its calls end. The database is away from the first call
that cannot reach it until every line that failed has come through again: a server that answers reads and refuses writes
is away all the while, and does not come and go. Another cause during one outage is said once more, since the one that
ends it (a password that was changed) is often not the one that began it.
"""

from __future__ import annotations

import threading
import time

import structlog

from redrive.domain.errors import Unavailable

log = structlog.get_logger("redrive.worker")


class Outage:
    """Shared by the threads of one worker."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lines: set[str] = set()
        self._causes: set[str] = set()
        self._calls = 0
        self._began = 0.0
        # What was before is unknown: the worker may have been started because of an outage.
        self._back = time.monotonic()

    @property
    def away(self) -> bool:
        """Whether the database is away."""
        return bool(self._lines)

    def calm(self) -> float:
        """Seconds since the database came back, or since this worker began; 0.0 while it is away."""
        return 0.0 if self._lines else time.monotonic() - self._back

    def failed(self, line: str, error: Unavailable) -> None:
        """A call of ``line`` could not reach the database."""
        with self._lock:
            if not self._lines:
                self._began, self._calls, self._causes = time.monotonic(), 0, set()
            self._lines.add(line)
            self._calls += 1
            news = error.cause not in self._causes
            self._causes.add(error.cause)
        if news:
            log.warning("database-away", call=line, cause=error.cause, error=str(error))

    def succeeded(self, line: str) -> None:
        """A call of ``line`` came through."""
        if line not in self._lines:  # nearly always, and without the lock
            return
        with self._lock:
            self._lines.discard(line)
            if self._lines:
                return
            self._back = time.monotonic()
            seconds, calls = self._back - self._began, self._calls
        log.warning("database-back", seconds=round(seconds, 1), calls_failed=calls)
