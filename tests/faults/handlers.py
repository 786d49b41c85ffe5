"""The application that these tests' worker processes run. Its handlers write each run to a file, so that runs can be
counted by somebody other than Redrive.

A line is one ``write`` to a file opened with O_APPEND: whole, in order, and there whatever happens to the process next.
"""

import asyncio
import itertools
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from redrive import Fatal, JobContext, Redrive, RetryPolicy, Snooze

RUNS = "REDRIVE_TEST_RUNS"
"""The file of runs."""
KILL_RUN = "REDRIVE_TEST_KILL_RUN"
"""The how manieth run of this process is killed in its handler."""

QUEUE = "faults"
SOON = RetryPolicy(max_attempts=5, base=0.02, jitter=0.02)
Key = tuple[str, int, int]
"""(job id in hex, life, attempt): one run."""

_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Line:
    """``how`` is ``in`` when the handler begins; ``ok``, ``failed`` or ``snoozed`` just before it is left.

    ``accepted`` tells of a job that a handler has enqueued.
    """

    how: str
    key: Key
    pid: int


def written(runs: Path) -> list[Line]:
    """What the handlers have written so far."""
    lines = []
    for text in runs.read_text().splitlines() if runs.exists() else []:
        how, job, life, attempt, pid = text.split()
        lines.append(Line(how, (job, int(life), int(attempt)), int(pid)))
    return lines


def write(how: str, ctx: JobContext) -> None:
    tell(f"{how} {ctx.id.hex} {ctx.life} {ctx.attempt} {os.getpid()}")


def tell(line: str) -> None:
    file = os.open(os.environ[RUNS], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(file, f"{line}\n".encode())
    os.close(file)


@contextmanager
def run(ctx: JobContext) -> Iterator[None]:
    write("in", ctx)
    if str(next(_numbers)) == os.environ.get(KILL_RUN):
        os.kill(os.getpid(), signal.SIGKILL)
    how = "failed"
    try:
        yield
        how = "ok"
    except Snooze:
        how = "snoozed"
        raise
    finally:
        write(how, ctx)


async def on_loop(ctx: JobContext, ms: int) -> None:
    with run(ctx):
        await asyncio.sleep(ms / 1000)


def in_thread(ctx: JobContext, ms: int) -> None:
    with run(ctx):
        threading.Event().wait(ms / 1000)


async def flaky(ctx: JobContext, ms: int) -> None:
    """Fails at first in each life."""
    with run(ctx):
        await asyncio.sleep(ms / 1000)
        if ctx.attempt == 1:
            raise ConnectionError("the peer is away")


async def snoozing(ctx: JobContext, ms: int) -> None:
    with run(ctx):
        if ctx.attempt == 1:
            raise Snooze(ms / 1000)


async def hopeless(ctx: JobContext, ms: int) -> None:
    with run(ctx):
        raise Fatal("never")


async def failing(ctx: JobContext, ms: int) -> None:
    with run(ctx):
        raise ConnectionError("the peer is away for good")


async def interrupting(ctx: JobContext, ms: int) -> None:
    with run(ctx):
        raise KeyboardInterrupt


async def repeatable(ctx: JobContext, ms: int) -> None:
    with run(ctx):
        await asyncio.sleep(ms / 1000)


async def gated(ctx: JobContext, gate: str) -> None:
    """Ends when the file ``gate`` is there."""
    with run(ctx):
        while not Path(gate).exists():  # noqa: ASYNC110, ASYNC240 - another process makes it
            await asyncio.sleep(0.005)


async def slower_later(ctx: JobContext, gate: str, fail: bool) -> None:
    """Ends at once in its first life, well or badly, and like ``gated`` in later ones."""
    with run(ctx):
        if ctx.life == 1 and fail:
            raise Fatal("in the first life")
        while ctx.life > 1 and not Path(gate).exists():  # noqa: ASYNC110, ASYNC240 - another process makes it
            await asyncio.sleep(0.005)


def gated_thread(ctx: JobContext, gate: str) -> None:
    with run(ctx):
        while not Path(gate).exists():
            time.sleep(0.005)


def spread(ctx: JobContext, number: int) -> None:
    """Enqueues more jobs: a worker process that is a producer too. Each is told once it is accepted."""
    with run(ctx):
        app = make()
        try:
            for _ in range(number):
                handle = app.enqueue("fault.loop.v1", {"ms": 0}, queue=QUEUE)
                tell(f"accepted {handle.id.hex} 1 0 {os.getpid()}")
        finally:
            app.close()


HOPELESS = "fault.hopeless.v1"
KINDS = {
    "fault.loop.v1": on_loop,
    "fault.thread.v1": in_thread,
    "fault.flaky.v1": flaky,
    "fault.snoozing.v1": snoozing,
    HOPELESS: hopeless,
    "fault.repeatable.v1": repeatable,
}
"""Types that take ``ms`` and end by themselves."""


def once(ctx: JobContext, key: str) -> None:
    """Its completion marker is its key."""
    with run(ctx):
        pass


def make(url: str | None = None) -> Redrive:
    """The application; settings come from the environment, which the tests make for each process."""
    app = Redrive(url)
    for name, function in KINDS.items():
        repeat = function is repeatable
        app.job(name, queue=QUEUE, retry=SOON, idempotent=repeat, on_zombie="retry" if repeat else "bury")(function)
    app.job("fault.gated.v1", queue=QUEUE, retry=SOON)(gated)
    app.job("fault.gated-thread.v1", queue=QUEUE, retry=SOON)(gated_thread)
    app.job("fault.failing.v1", queue=QUEUE, retry=SOON)(failing)
    app.job("fault.interrupting.v1", queue=QUEUE, retry=RetryPolicy(max_attempts=1))(interrupting)
    app.job("fault.slower-later.v1", queue=QUEUE, retry=SOON)(slower_later)
    app.job("fault.spread.v1", queue=QUEUE, retry=SOON)(spread)
    app.job("fault.once.v1", queue=QUEUE, retry=SOON, once=lambda key: key, idempotent=True, on_zombie="retry")(once)
    return app
