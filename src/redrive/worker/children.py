"""Processes for handlers with ``isolation="process"``: owned by the worker, one job at a time in each, used again.

A process is started by ``spawn``, never by fork: it shares no connection, no lock and no thread with the worker, and
imports the handlers' modules itself. A thread of ``Threads`` waits for each run; the event loop stops runs:

===========  =========================================================================================================
TIMEOUT,     it is asked where it is, which is kept as the traceback, and killed when it has answered or after
SHUTDOWN     ``ANSWER`` seconds
LOST         killed at once: somebody else may be running the job already
CANCEL       told (``ctx.cancelled``); killed when it has not ended after ``CANCEL_WITHIN`` seconds
===========  =========================================================================================================

Killed is killed: SIGKILL for the process and for the programs it started. A process that dies by itself (out of memory,
a crash in C code) is one failed attempt of the job it ran; the next job gets a new process.
"""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
import os
import signal
import threading
from asyncio import CancelledError
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any

import structlog

from redrive.domain.errors import ConfigError, ProcessDied
from redrive.domain.outcome import Outcome, TimedOut
from redrive.domain.text import one_line

from .child import Ended, Entered, Order, Progress, Ready, Stopped, Target, Work, main
from .handler import Handler
from .run_one import overran, raised
from .running import Running, Stop

log = structlog.get_logger("redrive.worker")

ANSWER = 0.3
CANCEL_WITHIN = 5.0
START_WITHIN = 60.0
"""Seconds for a new process to import the handlers' modules."""
REAPED_WITHIN = 5.0

_SPAWN = multiprocessing.get_context("spawn")


class Child:
    """One process. ``run`` is for one thread at a time, ``order`` and ``kill`` for the event loop's."""

    def __init__(self, targets: Iterable[Target], word: Any, setup: Callable[[], object] | None) -> None:
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._run: Running | None = None
        self._number = 0
        self._killed = False
        self._work, work = _SPAWN.Pipe()
        orders, self._orders = _SPAWN.Pipe(duplex=False)
        lifeline, self._lifeline = _SPAWN.Pipe(duplex=False)
        self._process = _SPAWN.Process(
            target=main, args=(work, orders, lifeline, tuple(targets), word, setup), name="redrive-isolated"
        )
        self._process.start()
        for end in (work, orders, lifeline):
            end.close()

    def ready(self) -> None:
        """Wait until it has its handlers; ``ConfigError`` says what is wrong with them."""
        problem: str | None = f"it was not there after {START_WITHIN:g} s"
        try:
            if self._work.poll(START_WITHIN):
                said: Ready = self._work.recv()
                problem = said.problem
        except (EOFError, OSError):
            self._reap()
            problem = f"it {self._end()}"
        if problem is not None:
            self.close()
            raise ConfigError(f"a process for isolated handlers cannot work: {problem}")

    def run(self, run: Running, entered: Callable[[Running], object]) -> Outcome:
        """Run one job; ``entered`` is called when its time begins."""
        with self._lock:
            self._run, self._number = run, next(self._numbers)
        try:
            if run.stop is not None:
                return raised(run, CancelledError())
            self._work.send(Work(self._number, run.handler.type, run.job))
            return self._follow(run, entered)
        except (EOFError, OSError):
            return self._died(run)
        except Exception as error:  # a handler that wrote into our pipe
            self.kill(run)
            self._reap()
            return raised(run, ProcessDied(f"its process could not be understood: {one_line(error)}"))
        finally:
            with self._lock:
                self._run = None

    def _follow(self, run: Running, entered: Callable[[Running], object]) -> Outcome:
        while True:
            match self._work.recv():
                case Entered():
                    run.entered = True
                    entered(run)
                case Progress(text):
                    run.progress = text
                case Stopped(outcome):
                    self.kill(run)
                    self._reap()
                    return outcome
                case Ended(outcome):
                    late = run.stop is Stop.TIMEOUT and not isinstance(outcome, TimedOut)
                    return overran(run, None) if late else outcome

    def _died(self, run: Running) -> Outcome:
        self._reap()
        error = ProcessDied(f"while it ran, its process {self._end()}")
        log.warning("process-died", job_id=str(run.job.uuid), type=run.job.type, how=self._end(), pid=self.pid)
        return raised(run, CancelledError() if run.stop is Stop.CANCEL else error)

    def _end(self) -> str:
        code = self._process.exitcode
        if self._killed:
            return "was killed by the worker"
        if code is None:
            return "closed its connection to the worker"
        if code >= 0:
            return f"left with exit code {code}"
        if -code == signal.SIGKILL:
            return "was ended by SIGKILL, which the kernel sends when memory is short"
        return f"was ended by {signal.strsignal(-code) or 'signal'} ({-code})"

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid or 0

    @property
    def alive(self) -> bool:
        """Whether it can take another job."""
        return not self._killed and self._process.is_alive()

    def order(self, run: Running, reason: Stop) -> None:
        """Tell it that this run must stop, if it is the one it has."""
        with self._lock:
            if self._run is run:
                with suppress(OSError):
                    self._orders.send(Order(self._number, reason))

    def kill(self, run: Running | None = None) -> None:
        """Kill it, if it still has this run; whoever runs it, or waits for it to be ready, finds that out."""
        with self._lock:
            if run is None or self._run is run:
                self._kill()

    def _kill(self) -> None:
        self._killed = True
        if self._process.is_alive():
            with suppress(OSError):  # it has no group of its own yet, or is gone
                os.killpg(self.pid, signal.SIGKILL)
            self._process.kill()

    def _reap(self) -> None:
        self._process.join(REAPED_WITHIN)
        for end in (self._work, self._orders, self._lifeline):
            end.close()

    def close(self) -> None:
        """End it. For the thread that has it."""
        self.kill()
        self._reap()


class Children:
    """Runs jobs in processes, at most as many at a time as there are threads that call ``run``.

    ``entered`` is called in the event loop when a run's time begins. ``word`` is the application's, for its like in the
    process; ``setup`` is called there first.
    """

    def __init__(
        self,
        handlers: Iterable[Handler],
        loop: asyncio.AbstractEventLoop,
        *,
        word: Any = None,
        setup: Callable[[], object] | None = None,
    ) -> None:
        targets = [
            Target(h.type, h.function.__module__, h.function.__qualname__) for h in handlers if h.kind == "process"
        ]
        self._start = partial(Child, targets, word, setup)
        self._loop = loop
        self._lock = threading.Lock()
        self._all: set[Child] = set()
        self._idle: list[Child] = []
        self._of: dict[Running, Child] = {}
        self._closed = False
        self.keep = 0
        """How many processes may wait for a job."""
        self.entered: Callable[[Running], object] = lambda _: None

    def check(self) -> None:
        """Have one process ready; ``ConfigError`` says why there cannot be any."""
        self._put(self._get())

    def run(self, run: Running) -> Outcome:
        """Run one job in a process, which is started if none is free. Blocks; for a thread of its own."""
        try:
            child = self._get()
        except Exception as error:  # the thread that calls would die of it, and the run never end
            return raised(run, ProcessDied(f"no process could be started for it: {one_line(error)}"))
        with self._lock:
            self._of[run] = child
        try:
            return child.run(run, self._entered)
        finally:
            with self._lock:
                del self._of[run]
            self._put(child)

    def _entered(self, run: Running) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits for the run any more
            self._loop.call_soon_threadsafe(self.entered, run)

    def _get(self) -> Child:
        with self._lock:
            while self._idle:
                if (child := self._idle.pop()).alive:
                    return child
                self._all.discard(child)
                child.close()
        child = self._start()
        with self._lock:
            self._all.add(child)
            if self._closed:
                child.kill()
        try:
            child.ready()
        except BaseException:
            with self._lock:
                self._all.discard(child)
            raise
        return child

    def _put(self, child: Child) -> None:
        with self._lock:
            if child.alive and len(self._idle) < self.keep and not self._closed:
                self._idle.append(child)
                return
            self._all.discard(child)
        child.close()

    def stop(self, run: Running, reason: Stop) -> None:
        """Stop a run, whatever it was told before: a lost lease does not wait for a cancel. In the event loop."""
        child = self._of.get(run)
        if child is None:  # it finds ``run.stop`` when it begins
            return
        if reason is Stop.LOST:
            child.kill(run)
        else:
            child.order(run, reason)
            self._loop.call_later(CANCEL_WITHIN if reason is Stop.CANCEL else ANSWER, child.kill, run)

    def close(self) -> None:
        """Kill every process. Those that run or start something are collected by the threads that wait for them."""
        with self._lock:
            self._closed = True
            for child in self._all:
                child.kill()
            idle = self._idle[:]
            self._idle.clear()
        for child in idle:
            child.close()
