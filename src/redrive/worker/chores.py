"""Things done every so often, each on a thread of its own: it may wait for the database without holding up the rest."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import structlog

from redrive.domain.errors import Retryable, Unavailable

from .backoff import LONGEST, Backoff
from .outages import Outage

log = structlog.get_logger("redrive.worker")


class Chore:
    """Calls ``action`` every ``interval`` seconds from ``start`` to ``stop``. What it raises is logged, never fatal.

    While the database is away it is called sooner, with growing waits: when it is back, leases must be renewed before
    anybody judges them.
    """

    def __init__(self, name: str, interval: float, action: Callable[[], object], outage: Outage) -> None:
        self.name = name
        self._interval = interval
        self._action = action
        self._outage = outage
        self._backoff = Backoff(longest=min(interval, LONGEST))
        self._stopped = False
        self._bell = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"redrive-{name}", daemon=True)

    def start(self) -> None:
        """Begin; the first call comes after one interval."""
        self._thread.start()

    def stop(self) -> None:
        """No further call begins."""
        self._stopped = True
        self._bell.set()

    def hurry(self) -> None:
        """Make the next call now, or right after the one that is under way; callable from any thread."""
        self._bell.set()

    def join(self, timeout: float) -> None:
        """Wait for a running call to end."""
        if self._thread.is_alive():
            self._thread.join(timeout)

    def tick(self) -> float | None:
        """One call, now. Where the database was away: how many seconds to wait before the next."""
        try:
            self._action()
        except Unavailable as error:
            self._outage.failed(self.name, error)
            return self._backoff.next()
        except Retryable as error:
            log.warning(f"{self.name}-waits", error=str(error))
        except Exception:
            log.exception(f"{self.name}-failed")
        else:
            self._outage.succeeded(self.name)
            self._backoff.reset()
        return None

    def _wait(self, seconds: float) -> bool:
        """Wait, not longer than until it is told to hurry; whether it is over."""
        self._bell.wait(max(0.0, seconds))
        self._bell.clear()
        return self._stopped

    def _run(self) -> None:
        due = time.monotonic() + self._interval
        while not self._wait(due - time.monotonic()):
            due = min(due, time.monotonic())  # it may have been told to hurry
            sooner = self.tick()
            if sooner is not None:
                due = time.monotonic() + sooner
            else:
                # The next one is due an interval after this one was, but never at once after a long call.
                due = max(due + self._interval, time.monotonic() + self._interval / 2)
