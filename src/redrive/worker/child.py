"""Inside a process for isolated handlers: it takes a job, runs it as a thread would, and says how the run ended.

The main thread runs handlers. A second one takes the worker's orders and tells it of progress, which works as long as
the handler lets other threads run. What must work even when C code keeps the GIL is done from outside: the worker kills
the process, and the kernel does when the worker is gone (``_end_with``).
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from asyncio import CancelledError
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from multiprocessing.connection import Connection
from types import FrameType, TracebackType
from typing import Any, NamedTuple

from redrive.domain.errors import ConfigError
from redrive.domain.job import ClaimedJob
from redrive.domain.outcome import Outcome
from redrive.domain.text import one_line

from .handler import Handler
from .run_one import raised, run_sync
from .running import Running, Stop

TELL_EVERY = 0.5
"""Seconds between looks for new progress."""


class Target(NamedTuple):
    """Where the handler of a type is found by a process that has imported nothing yet."""

    type: str
    module: str
    name: str


class Ready(NamedTuple):
    """The handlers are there; or they are not, and why."""

    problem: str | None


class Work(NamedTuple):
    """A job to run, by the number of the run."""

    number: int
    type: str
    job: ClaimedJob


class Order(NamedTuple):
    """The run of this number must stop."""

    number: int
    reason: Stop


class Entered(NamedTuple):
    """The run has begun: its time counts from here."""


class Progress(NamedTuple):
    """What the handler said of its progress."""

    text: str


class Stopped(NamedTuple):
    """Where the run was when it was told to stop, as the outcome it has if it is killed now."""

    outcome: Outcome


class Ended(NamedTuple):
    """The run is over."""

    outcome: Outcome


def main(
    work: Connection,
    orders: Connection,
    lifeline: Connection,
    targets: Sequence[Target],
    word: Any,
    setup: Callable[[], object] | None,
) -> None:
    """The whole life of the process. ``word`` is the application's own, ``setup`` is called first."""
    os.setpgid(0, 0)  # what handlers start is killed with them; a terminal's Ctrl-C is for the worker alone
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):  # likewise what systemd sends to every process
        signal.signal(number, _leave_to_the_worker)  # not SIG_IGN: programs that handlers start would inherit that
    _end_with(lifeline)
    try:
        if setup is not None:
            setup()
        handlers = {target.type: find(target, word) for target in targets}
    except BaseException as error:
        work.send(Ready(f"{type(error).__name__}: {one_line(error)}"))
        return
    work.send(Ready(None))
    inside = _Inside(work, handlers)
    threading.Thread(target=inside.listen, args=(orders,), name="redrive-orders", daemon=True).start()
    inside.serve()


def find(target: Target, word: Any) -> Handler:
    """The handler, as importing its module declares it."""
    found: Any = import_module(target.module)
    for part in target.name.split("."):
        found = getattr(found, part, None)
    handler = found.adopt(word) if hasattr(found, "adopt") else None
    if not isinstance(handler, Handler) or handler.type != target.type:
        raise ConfigError(
            f'{target.type} has isolation="process", and a process that imports {target.module} finds no such job as'
            f" {target.name} in it: declare it at the module's top level, and let the name stay with it"
        )
    return handler


class _Inside:
    """One run after the other."""

    def __init__(self, work: Connection, handlers: Mapping[str, Handler]) -> None:
        self._work = work
        self._handlers = handlers
        self._sending = threading.Lock()
        self._number = 0
        self._run: Running | None = None

    def serve(self) -> None:
        """Run what comes until the worker closes its end."""
        while True:
            try:
                given: Work = self._work.recv()
            except EOFError:
                return
            run = Running(given.job, self._handlers[given.type])
            self._number, self._run = given.number, run
            self._say(Entered())
            outcome = run_sync(run)
            self._run = None
            self._say(Ended(outcome))

    def listen(self, orders: Connection) -> None:
        """Take orders, and tell of progress in between, until the worker is gone."""
        told: str | None = None
        while True:
            try:
                order: Order | None = orders.recv() if orders.poll(TELL_EVERY) else None
            except (EOFError, OSError):
                os.killpg(0, signal.SIGKILL)
                return
            run = self._run
            if run is None:
                continue
            if order is None:
                if run.progress is not None and run.progress != told:
                    self._say(Progress(told := run.progress))
            elif order.number == self._number and run.stop is None:
                run.stop = order.reason
                if order.reason is not Stop.CANCEL:
                    here = CancelledError().with_traceback(_where(threading.main_thread()))
                    self._say(Stopped(raised(run, here)))

    def _say(self, message: Entered | Progress | Stopped | Ended) -> None:
        with self._sending:
            self._work.send(message)


def _where(thread: threading.Thread) -> TracebackType | None:
    """Where a thread is now, as the traceback of an error that came up there."""
    frame: FrameType | None = sys._current_frames().get(thread.ident or 0)
    trace: TracebackType | None = None
    while frame is not None:
        trace = TracebackType(trace, frame, frame.f_lasti, frame.f_lineno)
        if frame.f_code is run_sync.__code__:
            break
        frame = frame.f_back
    return trace


def _leave_to_the_worker(_number: int, _frame: FrameType | None) -> None:
    """The worker was told as well: it lets runs end, or kills."""


def _end_with(lifeline: Connection) -> None:
    """Have the kernel kill this process and what it started when the worker's end of ``lifeline`` is closed.

    Its death closes it, however it died. That needs no thread of ours to run; fcntl(2), F_SETSIG, is Linux's own, and
    elsewhere ``listen`` is what notices.
    """
    if sys.platform == "linux":
        import fcntl

        descriptor = lifeline.fileno()
        fcntl.fcntl(descriptor, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | os.O_ASYNC)
        if lifeline.poll(0):  # closed already, before anybody watched
            os.killpg(0, signal.SIGKILL)
