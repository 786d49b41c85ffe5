"""An application whose handlers run in processes of their own, where another process can import it."""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from redrive import Cancel, JobContext, ProcessDied, Redrive, RetryPolicy

app = Redrive()
ONCE = RetryPolicy(max_attempts=1)
TWICE = RetryPolicy(max_attempts=2, base=0, jitter=0)


@app.job("where.v1", isolation="process")
def where(ctx: JobContext) -> dict[str, object]:
    """Which process this is, and what it knows of its job."""
    return {"pid": os.getpid(), "group": os.getpgrp(), "parent": os.getppid(), "job": str(ctx.id), "tags": ctx.tags}


@app.job("hangs.v1", isolation="process", timeout=0.5, retry=ONCE)
def hangs(note: str) -> None:
    """Writes its pid, and that of a program it starts, and does not end."""
    program = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    Path(note).write_text(f"{os.getpid()} {program.pid}")
    stay_here()


def stay_here() -> None:
    """The line an operator should see."""
    while True:
        time.sleep(0.01)


@app.job("holds.v1", isolation="process", timeout=0.5, retry=ONCE)
def holds(note: str) -> None:
    """C code that keeps the GIL."""
    Path(note).write_text(f"{os.getpid()} {os.getpid()}")
    ctypes.PyDLL(None).sleep(600)


@app.job("holds-on.v1", isolation="process", retry=ONCE)
def holds_on(note: str) -> None:
    """The same without a timeout."""
    program = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    Path(note).write_text(f"{os.getpid()} {program.pid}")
    ctypes.PyDLL(None).sleep(600)


@app.job("dies.v1", isolation="process", retry=TWICE)
def dies(how: str) -> None:
    """Ends its own process as the kernel does when memory is short, as a crash does, or politely; or cuts it off."""
    if how == "exit":
        os._exit(7)
    if how == "closes":
        os.closerange(3, 64)
        return
    if how == "babbles":
        for descriptor in range(3, 64):
            with contextlib.suppress(OSError):
                os.write(descriptor, b"\x00\x00\x00\x04junk")
        return
    os.kill(os.getpid(), getattr(signal, how))
    threading.Event().wait()


@app.job("dies-once.v1", isolation="process", retry=TWICE, fatal=(ProcessDied,))
def dies_once() -> None:
    """The same, declared not to be tried again."""
    os._exit(1)


@app.job("fails.v1", isolation="process", retry=ONCE)
def fails(how: str) -> None:
    """Raises."""
    if how == "exit":
        sys.exit(3)
    raise ConnectionError("the peer is away")


@app.job("listens.v1", isolation="process")
def listens(ctx: JobContext, note: str) -> None:
    """Tells how far it is until it is told to stop."""
    ctx.progress(40, "listening")
    Path(note).write_text("here")
    while not ctx.cancelled:
        time.sleep(0.005)
    raise Cancel("heard it")


@app.job("deaf.v1", isolation="process")
def deaf(note: str) -> None:
    """Does not look whether it is told to stop."""
    Path(note).write_text(str(os.getpid()))
    stay_here()


@app.job("passes-on.v1", isolation="process")
def passes_on(to: str) -> str:
    """Accepts a job from inside one."""
    return str(app.enqueue(to, {}, queue="elsewhere").id)


def not_there() -> None:
    """Registered under this name, which stays a plain function."""
