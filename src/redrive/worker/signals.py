"""What a worker process does when it is told something from outside: by signals, or by the end of its supervisor.

=================  =================================================================================================
SIGTERM, SIGINT    stop in order (see ``process``); a second one ends the process at once, with exit code 1
SIGUSR1            quiet: what runs is finished, nothing more is claimed; it waits for SIGTERM
supervisor's end   as SIGTERM: its end of a socket pair closes, also when it was killed
=================  =================================================================================================
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress

import structlog

from redrive.config import SUPERVISOR_VARIABLE
from redrive.domain.errors import ConfigError

log = structlog.get_logger("redrive.worker")

FORCED = 1
"""Exit code after a second signal."""
DEGRADED = 3
"""Exit code of a worker that left because too many of its threads are stuck: it is to be started anew."""
WRONG = 2
"""Exit code of a command that was used wrongly: starting it anew does not help."""


class Signals:
    """Sets ``stop`` on the first signal, calls ``quiet`` on SIGUSR1. ``held``: how many jobs a forced end leaves."""

    def __init__(
        self, stop: asyncio.Event, *, quiet: Callable[[], None], held: Callable[[], int], grace: float
    ) -> None:
        self._stop = stop
        self._quiet = quiet
        self._held = held
        self._grace = grace
        self._told = False
        self._supervisor: int | None = None

    def listen(self) -> None:
        """From now on, in the running loop of the main thread."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled, number)
        loop.add_signal_handler(signal.SIGUSR1, self._quiet)
        if (pipe := os.environ.get(SUPERVISOR_VARIABLE)) is not None:
            if not pipe.isdecimal():
                raise ConfigError(f"{SUPERVISOR_VARIABLE} is {pipe!r}; a supervisor sets it, nobody else")
            self._supervisor = int(pipe)
            os.set_inheritable(int(pipe), False)  # what handlers start must not hold it
            loop.add_reader(int(pipe), self._orphaned, int(pipe))

    def serving(self) -> None:
        """Tell the supervisor, if there is one, that the worker has begun."""
        if self._supervisor is not None:
            with suppress(OSError):  # it is gone: that is noticed elsewhere
                os.write(self._supervisor, b"1")

    def _signalled(self, number: int) -> None:
        name = signal.Signals(number).name
        if self._told:
            log.warning("worker-forced", signal=name, held=self._held())
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(FORCED)
        self._told = True
        log.info("worker-stopping", signal=name, grace=self._grace, hint="a second signal ends it at once")
        self._stop.set()

    def _orphaned(self, pipe: int) -> None:
        asyncio.get_running_loop().remove_reader(pipe)
        log.warning("supervisor-gone", grace=self._grace)
        self._stop.set()
