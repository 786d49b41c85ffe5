"""What the worker holds and runs: slots, running handlers, their deadlines, and the ends that wait to be settled.

Everything here happens in the event loop's thread. ``held`` is read by the heartbeat thread as well, which only ever
copies its keys.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

import structlog

from redrive.domain.outcome import Outcome
from redrive.store.port import Pair, Pulse

from .children import Children
from .deadlines import Deadlines
from .handler import Kind
from .run_one import left_behind, overran, run_async, run_sync
from .running import Running, Stop
from .threads import Threads

log = structlog.get_logger("redrive.worker")

INSIST_EVERY = 5.0
INSIST_TIMES = 3
"""An async handler that swallows its cancellation is cancelled again, every so often; then its run is given up."""


class End(NamedTuple):
    """A run that is over, and the monotonic time of its end."""

    run: Running
    outcome: Outcome
    at: float


class Runner:
    """Begins runs and takes their ends. ``ended`` is called after each end, ``freed`` when it made enough room,
    ``given_up`` after a run was given up that did not stop at its timeout.

    ``children`` run handlers with ``isolation="process"``; without them these run in threads.
    ``let_go`` are leases that are left to expire: their runs are over, and their ends could not be settled.
    """

    def __init__(
        self, slots: dict[Kind, int], loop: asyncio.AbstractEventLoop, children: Children | None = None
    ) -> None:
        self.slots = slots
        self.free = dict(slots)
        self.half = {kind: max(1, number // 2) for kind, number in slots.items()}
        self.held: dict[Pair, Running] = {}
        self.let_go: set[Pair] = set()
        self.ends: list[End] = []
        self.running = 0
        self.hungry = False
        self.idle = asyncio.Event()
        self.idle.set()
        self.ended: Callable[[], None] = lambda: None
        self.freed: Callable[[], None] = lambda: None
        self.given_up: Callable[[], None] = lambda: None
        self.adrift: set[asyncio.Task[None]] = set()
        self._loop = loop
        self._deadlines = Deadlines(self._overdue, loop)
        self.pools: dict[Kind, Threads] = {"thread": Threads(slots.get("thread", 0), self._end, loop)}
        self._children = children
        if (isolated := slots.get("process")) is not None:
            self.pools["process"] = Threads(isolated, self._end, loop, run_sync if children is None else children.run)
        if children is not None:
            children.keep, children.entered = isolated or 0, self._entered

    @property
    def stuck(self) -> int:
        """Runs that were given up and still go on: threads, and async handlers that swallow their cancellation."""
        return sum(pool.stuck for pool in self.pools.values()) + len(self.adrift)

    def resize(self, slots: dict[Kind, int]) -> None:
        """Run so many jobs of each kind at a time. What runs goes on: where there are too many, none begins."""
        for kind, number in slots.items():
            self.free[kind] += number - self.slots[kind]
            self.half[kind] = max(1, number // 2)
            if kind in self.pools:
                self.pools[kind].resize(number)
        if self._children is not None:
            self._children.keep = slots["process"]
        self.slots = dict(slots)
        self.freed()

    def begin(self, runs: Iterable[Running]) -> None:
        """Run handlers whose jobs are started; there is a free slot for each."""
        now = time.monotonic()
        self.idle.clear()
        for run in runs:
            handler = run.handler
            run.began = now
            self.running += 1
            self.free[handler.kind] -= 1
            if handler.timeout is not None and self._killer(run) is None:
                self._deadlines.watch(run, handler.timeout, now)
            if handler.kind == "async":
                run.task = self._loop.create_task(run_async(run, self._end))
            else:
                self.pools[handler.kind].submit(run)
        if not self.running:
            self.idle.set()

    def _killer(self, run: Running) -> Children | None:
        """Who can kill it, if it runs in a process."""
        return self._children if run.handler.kind == "process" else None

    def _entered(self, run: Running) -> None:
        """A run has begun in its process: starting that was nobody's time."""
        if run.over:
            return
        run.began = time.monotonic()
        if run.handler.timeout is not None:
            self._deadlines.watch(run, run.handler.timeout, run.began)
        if run.stop is not None and (killer := self._killer(run)) is not None:
            killer.stop(run, run.stop)  # it was told before it had begun

    def finish(self, run: Running, outcome: Outcome) -> None:
        """The end of a run whose handler is not called."""
        run.over = True
        run.began = time.monotonic()
        self.ends.append(End(run, outcome, run.began))
        self.ended()

    def _end(self, run: Running, outcome: Outcome) -> None:
        if run.over:
            return
        run.over = True
        run.task = None
        kind, timeout = run.handler.kind, run.handler.timeout
        if timeout is not None:
            self._deadlines.forget(run, timeout)
        if run.tries:
            self._deadlines.forget(run, INSIST_EVERY)
        self.ends.append(End(run, outcome, time.monotonic()))
        self.running -= 1
        if not self.running:
            self.idle.set()
        free = self.free[kind] = self.free[kind] + 1
        self.ended()
        if self.hungry and (free == 1 or free >= self.half[kind]):
            self.freed()

    # -- stopping ------------------------------------------------------------------------------------------------------

    def stop(self, run: Running, reason: Stop) -> None:
        """Tell a run to stop. The first reason stands; async handlers and processes are told each time."""
        if run.over:
            return
        if run.stop is None:
            run.stop = reason
        if (killer := self._killer(run)) is not None:
            killer.stop(run, reason)
        if run.task is not None and run.entered:
            run.task.cancel()

    def _overdue(self, run: Running) -> None:
        self.stop(run, Stop.TIMEOUT)
        run.tries += 1
        if run.tries == 1 and self._killer(run) is not None:
            self._deadlines.watch(run, INSIST_EVERY, time.monotonic())  # it is being killed
        elif run.task is None:
            if self.pools[run.handler.kind].give_up(run):
                log.warning("handler-stuck", job_id=str(run.job.uuid), type=run.job.type, stuck=self.stuck)
                self._end(run, overran(run, None, stopped=False))
                self.given_up()
        elif run.tries <= INSIST_TIMES:
            self._deadlines.watch(run, INSIST_EVERY, time.monotonic())
        else:
            self.adrift.add(run.task)
            run.task.add_done_callback(self.adrift.discard)
            log.warning("handler-does-not-stop", job_id=str(run.job.uuid), type=run.job.type, stuck=self.stuck)
            self._end(run, overran(run, None, stopped=False))
            self.given_up()

    def pulse(self, pulse: Pulse) -> None:
        """What a heartbeat learnt: runs to give up, runs somebody cancelled."""
        for pair in pulse.lost:
            self.lose(pair)
        for pair in pulse.cancel:
            run = self.held.get(pair)
            if run is not None:
                self.stop(run, Stop.CANCEL)

    def lose(self, pair: Pair) -> None:
        """The lease is gone, or must be presumed to be. A run that has ended is still settled: its answer is true."""
        run = self.held.get(pair)
        if run is not None and not run.over and run.stop is not Stop.LOST:
            log.warning("lease-lost", job_id=str(run.job.uuid), type=run.job.type, started=run.began > 0.0)
            self.stop(run, Stop.LOST)

    def shut_down(self) -> None:
        """The grace period is over: stop what still runs, and leave behind what cannot be stopped."""
        for run in list(self.held.values()):
            if run.began and not run.over:
                self.stop(run, Stop.SHUTDOWN)
                if run.task is None and self._killer(run) is None and self.pools[run.handler.kind].give_up(run):
                    self._end(run, left_behind(run))

    def abandon(self) -> None:
        """Leave behind the runs that did not end when they were told to."""
        for run in list(self.held.values()):
            if run.began and not run.over:
                self._end(run, left_behind(run))

    def close(self) -> None:
        """Let go of timers, idle threads and processes."""
        self._deadlines.close()
        for pool in self.pools.values():
            pool.close()
        if self._children is not None:
            self._children.close()
