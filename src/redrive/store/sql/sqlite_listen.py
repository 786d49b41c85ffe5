"""Wake-ups on SQLite: an event for this process, short steps for the others."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Self


class LocalListener:
    """Waits for an event of this process. A step is short, since another process cannot set it."""

    STEP = 0.1
    silent = ""
    heard: frozenset[str] = frozenset()

    def __init__(self, wake: threading.Event) -> None:
        self._wake = wake

    def wait(self, timeout: float) -> bool:
        """True when work may have arrived; after a step it may always have, from another process."""
        woken = self._wake.wait(min(timeout, self.STEP))
        self._wake.clear()
        return woken or timeout > self.STEP

    def interrupt(self) -> None:
        """Make ``wait`` return."""
        self._wake.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None
