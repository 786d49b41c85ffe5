"""A worker process for test_process: `python -m tests.worker.child URL GRACE burst|serve`."""

import asyncio
import signal
import sys
import threading

import structlog

from redrive.store.sql.store import open_store
from redrive.worker.options import WorkerOptions
from redrive.worker.process import Worker
from redrive.worker.registry import Registry

registry = Registry()
SAID = {"worker-stopping": "stopping", "worker-quiet": "quiet", "supervisor-gone": "orphaned"}


def say(word: str) -> None:
    print(word, flush=True)


def said(_logger: object, _method: str, event: dict[str, object]) -> str:
    if event["event"] in SAID:
        say(SAID[str(event["event"])])
    raise structlog.DropEvent


async def waits() -> None:
    """Until SIGUSR2 comes."""
    gate = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR2, gate.set)
    say("entered")
    await gate.wait()


def stuck() -> None:
    say("entered")
    threading.Event().wait()


def overruns() -> None:
    threading.Event().wait()


async def quick() -> None: ...


def mixed() -> None: ...


for handler in (waits, stuck, quick, mixed):
    registry.register(handler, f"{handler.__name__}.v1")

registry.register(overruns, "overruns.v1", timeout=0.05)

if __name__ == "__main__":
    structlog.configure(processors=[said])  # type: ignore[list-item]
    url, grace, how = sys.argv[1:]
    store = open_store(url)
    options = WorkerOptions(
        grace=float(grace), poll=0.05, heartbeat=1.0, zombie_timeout=3.0, fetched_timeout=3.0, stuck_limit=2
    )
    code = Worker(store, registry, options).run(burst=how == "burst")
    store.close()
    sys.exit(code)
