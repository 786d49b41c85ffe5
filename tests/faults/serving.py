"""A worker in this process, in a thread of its own: for tests that look into it."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from redrive import Redrive
from redrive.worker.process import Worker
from tests.faults.waiting import until


@contextmanager
def serving(app: Redrive) -> Iterator[Worker]:
    """A worker that has begun, until the end of the block."""
    worker = app.worker()
    told: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []
    errors: list[BaseException] = []

    async def serve() -> None:
        stop = asyncio.Event()
        told.append((asyncio.get_running_loop(), stop))
        await worker.serve(stop)

    def work() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work, name="worker", daemon=True)
    thread.start()
    try:
        until(lambda: errors or hasattr(worker, "line"))
        yield worker
    finally:
        if not errors:
            loop, stop = told[0]
            loop.call_soon_threadsafe(stop.set)
        thread.join(60)
        assert not thread.is_alive()
    assert errors == []
