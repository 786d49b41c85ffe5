"""Threads that run ``def`` handlers, or wait for the processes that do: a queue of their own, ends collected in a list,
no future per job.

A run that takes too long cannot be stopped. It is given up: its end is decided without it, its late end is ignored, and
a fresh thread takes its thread's place, so that the number of threads that can work stays the same. The stuck thread
leaves when its handler returns, if it ever does.
"""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue

from redrive.domain.outcome import Outcome

from .run_one import End, run_sync
from .running import Running


class Threads:
    """``slots`` threads that ``execute`` what is submitted; ``end`` is called in the event loop, once per run."""

    def __init__(
        self,
        slots: int,
        end: End,
        loop: asyncio.AbstractEventLoop,
        execute: Callable[[Running], Outcome] = run_sync,
    ) -> None:
        self._slots = slots
        self._execute = execute
        self._end = end
        self._loop = loop
        self._context = contextvars.copy_context()
        self._todo: SimpleQueue[Running | None] = SimpleQueue()
        self._ends: deque[tuple[Running, Outcome]] = deque()
        self._told = False
        self._running: dict[Running, bool] = {}
        self._names = itertools.count(1)
        self._threads: set[threading.Thread] = set()
        self._stuck: set[Running] = set()

    @property
    def stuck(self) -> int:
        """Threads whose run was given up and whose handler has not returned yet."""
        return len(self._stuck)

    @property
    def alive(self) -> int:
        """Threads that can take work."""
        return len(self._threads) - len(self._stuck)

    def resize(self, slots: int) -> None:
        """Have ``slots`` threads. Those too many leave when they are done with what they run."""
        if self._threads:
            for _ in range(slots - self._slots):
                self._spawn()
            for _ in range(self._slots - slots):
                self._todo.put(None)
        self._slots = slots

    def submit(self, run: Running) -> None:
        """Have ``run`` run. Called in the loop's thread, never for more runs at a time than there are slots."""
        if not self._threads:
            for _ in range(self._slots):
                self._spawn()
        self._running[run] = True
        self._todo.put(run)

    def give_up(self, run: Running) -> bool:
        """Decide the end of ``run`` without its thread; False when the thread has ended it already."""
        self._stuck.add(run)
        if not self._take(run):
            self._stuck.discard(run)
            return False
        self._spawn()
        return True

    def _take(self, run: Running) -> bool:
        """Whether the caller, and nobody else, says how ``run`` ended: dict.pop is atomic."""
        return self._running.pop(run, False)

    def close(self) -> None:
        """Let idle threads go. They are daemons: a stuck one does not keep the process."""
        for _ in range(len(self._threads)):
            self._todo.put(None)

    def _spawn(self) -> None:
        name = f"redrive-handler-{next(self._names)}"
        thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._threads.add(thread)
        thread.start()

    def _work(self) -> None:
        while True:
            run = self._todo.get()
            if run is None:
                self._threads.discard(threading.current_thread())
                return
            outcome = self._context.copy().run(self._execute, run)
            if not self._take(run):
                self._stuck.discard(run)
                self._threads.discard(threading.current_thread())
                return
            self._ends.append((run, outcome))
            if not self._told:
                self._told = True
                try:
                    self._loop.call_soon_threadsafe(self._drain)
                except RuntimeError:  # the loop is closed: nobody waits for ends any more
                    return

    def _drain(self) -> None:
        # First the flag, then the ends: an end that comes in between wakes the loop once more, and none is left over.
        self._told = False
        while self._ends:
            self._end(*self._ends.popleft())
