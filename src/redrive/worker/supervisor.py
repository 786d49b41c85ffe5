"""Several workers on one machine, each a process of its own, kept alive by a process that does nothing else.

The supervisor opens no database and imports no application: it starts programs, so that there is no connection, lock or
thread that a fork could share.

======================================  ============================================================================
a worker dies, is killed, or leaves     another takes its place: at once, or after a growing wait where workers keep
                                        dying within ``STEADY`` seconds; what it held is rescued by the others
the first worker has said that it       the others are started: an application that cannot start says so once
serves
a worker ends ``TRIES`` times in a row  the supervisor gives up: the others stop in order, and its exit code is that of
before it serves, or is told wrongly    the worker, or 1 where that has none. A service manager can start it anew
(exit code 2)
SIGTERM, SIGINT                         passed on: the workers stop in order, and none is replaced. A second one is
                                        passed on too, and ends them at once
SIGUSR1                                 passed on: the workers become quiet
the supervisor is killed                the workers see it and stop in order
======================================  ============================================================================
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from collections.abc import Sequence
from contextlib import suppress

import structlog

from redrive.config import SUPERVISOR_VARIABLE

from .backoff import Backoff
from .rest import rest
from .signals import WRONG

log = structlog.get_logger("redrive.supervisor")

TRIES = 5
STEADY = 10.0
"""Seconds after which a worker has proved that it can live."""
HEARD_WITHIN = 1.0
"""Seconds for the end of a dead worker's socket; a fork of a handler may hold it for longer."""


class Supervisor:
    """Runs ``command`` ``number`` times over. With ``burst`` a worker that ends with 0 is done."""

    def __init__(self, command: Sequence[str], number: int, *, burst: bool = False) -> None:
        self._command = tuple(command)
        self._number = number
        self._burst = burst
        self._serving = asyncio.Event()
        self._stop = asyncio.Event()
        self._code = 0
        self._workers: set[asyncio.subprocess.Process] = set()

    def run(self) -> int:
        """Until they have stopped, or until it gives up; the answer is the exit code. For the main thread."""
        return asyncio.run(self._run())

    async def _run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping, number)
        loop.add_signal_handler(signal.SIGUSR1, self._pass_on, signal.SIGUSR1)
        log.info("supervisor-started", workers=self._number)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._keep())
            for _ in range(self._number - 1):
                group.create_task(self._after_the_first())
        log.info("supervisor-stopped", exit_code=self._code)
        return self._code

    async def _after_the_first(self) -> None:
        await _either(self._serving, self._stop)
        await self._keep()

    async def _keep(self) -> None:
        """One place, and whoever works in it."""
        backoff, failures = Backoff(), 0
        while not self._stop.is_set():
            began = time.monotonic()
            code, served = await self._one()
            if self._stop.is_set():
                self._code = self._code or (code and 1)
                return
            if self._burst and code == 0:
                self._serving.set()
                return
            failures = 0 if served else failures + 1
            if code == WRONG or failures >= TRIES:
                self._give_up(code, failures)
                return
            if time.monotonic() - began >= STEADY:
                backoff.reset()
            await rest(self._stop, backoff.next())

    async def _one(self) -> tuple[int, bool]:
        """One worker from start to end: its exit code, and whether it ever served."""
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                process = await asyncio.create_subprocess_exec(
                    *self._command,
                    stdin=asyncio.subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(),),
                    env={**os.environ, SUPERVISOR_VARIABLE: str(theirs.fileno())},
                    process_group=0,  # Ctrl-C is for the supervisor, which passes it on: twice would be two signals
                )
            self._workers.add(process)
            if self._stop.is_set():
                process.terminate()  # it was started while the others were told
            hearing = asyncio.create_task(self._hear(ours))
            code = await process.wait()
            self._workers.discard(process)
            served = False
            with suppress(TimeoutError):
                served = await asyncio.wait_for(hearing, HEARD_WITHIN)
        if not self._stop.is_set() and not (self._burst and code == 0):
            log.warning("worker-ended", pid=process.pid, how=_how(code), served=served)
        return code, served

    async def _hear(self, ours: socket.socket) -> bool:
        """Whether the worker said that it serves."""
        ours.setblocking(False)
        said = bool(await asyncio.get_running_loop().sock_recv(ours, 1))
        if said:
            self._serving.set()
        return said

    def _give_up(self, code: int, failures: int) -> None:
        self._code = code if code > 0 else 1
        log.error("supervisor-gives-up", how=_how(code), failures=failures, exit_code=self._code)
        self._stop.set()
        self._pass_on(signal.SIGTERM)

    def _stopping(self, number: int) -> None:
        log.info("supervisor-stopping", signal=signal.Signals(number).name, workers=len(self._workers))
        self._stop.set()
        self._pass_on(signal.SIGTERM)

    def _pass_on(self, number: int) -> None:
        for process in self._workers:
            with suppress(ProcessLookupError):
                process.send_signal(number)


def _how(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    return signal.strsignal(-code) or f"signal {-code}"


async def _either(*events: asyncio.Event) -> None:
    """Wait for the first of them."""
    waits = [asyncio.create_task(event.wait()) for event in events]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for one in waits:
        one.cancel()
