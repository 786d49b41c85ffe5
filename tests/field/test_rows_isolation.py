"""Field reports about timeouts, children of a supervisor, and connections that must not be shared."""

import asyncio
import random
import threading
from collections import Counter

import pytest

from redrive import Place, Reason, Redrive, RetryPolicy
from tests.faults.serving import serving
from tests.faults.waiting import until

ONCE = RetryPolicy(max_attempts=1)
EDGE = 0.004
"""A timeout that comes just about when the handlers below end."""


@pytest.mark.slow
def test_row_42_a_timeout_at_any_moment_costs_no_slot(app: Redrive):
    """A time limit that came while a handler was leaving with another error killed its thread, one after the other."""
    app.override(worker={"concurrency": 20, "threads": 10, "stuck_limit": 10_000})

    @app.job("async.v1", timeout=EDGE, retry=ONCE)
    async def on_loop(how: str) -> None:
        try:
            await asyncio.sleep(EDGE * random.uniform(0.5, 1.1))
            if how == "raises":
                raise ConnectionError("the handler's own")
        except asyncio.CancelledError:
            if how == "replaces":
                raise ValueError("while it was told to stop") from None
            raise
        finally:
            if how == "cleans up":
                await asyncio.sleep(EDGE * random.uniform(0, 1))

    @app.job("thread.v1", timeout=EDGE, retry=ONCE)
    def in_thread(how: str) -> None:
        try:
            threading.Event().wait(EDGE * random.uniform(0.5, 1.1))  # a blocking call
            if how == "raises":
                raise ConnectionError("the handler's own")
        finally:
            if how == "cleans up":
                threading.Event().wait(EDGE * random.uniform(0, 1))

    hows = ("returns", "raises", "replaces", "cleans up")
    ids = [
        handle.id
        for handler in (on_loop, in_thread)
        for handle in app.enqueue_many([handler.job(how=hows[n % 4]) for n in range(500)])
    ]
    with serving(app) as worker:
        runner = worker.runner
        until(lambda: not app.store.queues()[0].pending and not runner.held, 60)
        until(lambda: runner.stuck == 0)
        assert runner.free == runner.slots == {"async": 20, "thread": 10}
        assert runner.pools["thread"].alive == 10
    ends: Counter[str] = Counter()
    desk = app.desk("reader")
    for job in ids:
        record = desk.get(job)
        head = record.head
        ends[head.spot if head.place is Place.ARCHIVE else str(head.reason)] += 1
        assert head.attempt == 1
        assert [entry.kind for entry in record.ledger] == ([] if head.place is Place.ARCHIVE else ["failed"])
    assert ends.keys() <= {"archive", Reason.TIMEOUT, Reason.RETRIES_EXHAUSTED}, ends
    assert min(ends["archive"], ends[Reason.TIMEOUT]) > 50, ends
