"""Field reports about timeouts, children of a supervisor, and connections that must not be shared."""

import asyncio
import multiprocessing
import os
import random
import re
import shutil
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from redrive import JobFilter, Place, Reason, Redrive, RetryPolicy
from redrive.domain.filters import PageRequest
from redrive.domain.job import JobHead
from scripts.services import PrivatePostgres
from tests.faults.serving import serving
from tests.faults.waiting import until

FORK = multiprocessing.get_context("fork")
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


@pytest.mark.slow
def test_row_37_a_pool_opened_before_a_fork_is_shared_by_nobody():
    """Children of a fork used the connections of their parent: TLS errors, dead connections."""
    with PrivatePostgres() as server:
        forked(server, jobs=200, children=4)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_row_37_ten_thousand_jobs_in_forked_workers(report: Callable[[str], None]):
    """The report's own number."""
    with PrivatePostgres() as server:
        began = time.monotonic()
        forked(server, jobs=5_000, children=4)
        report(f"10,000 jobs in 4 forked workers over TLS in {time.monotonic() - began:.0f} s")


def forked(server: PrivatePostgres, *, jobs: int, children: int) -> None:
    """A parent whose pool is open forks workers; each job enqueues another from inside its handler."""
    with_tls(server)
    url = f"{server.url}?sslmode=require"
    app = Redrive(url, worker={"poll": 0.02})

    @app.job("second.v1")
    async def second(number: int) -> None: ...

    @app.job("first.v1")
    async def first(number: int) -> None:
        await second.aenqueue(number=number)

    app.store.upgrade()
    firsts = app.enqueue_many([first.job(number=number) for number in range(jobs)])
    assert app.store.queues()[0].pending == jobs
    crew = [FORK.Process(target=_forked_worker, args=(app,)) for _ in range(children)]
    for member in crew:
        member.start()
    for member in crew:
        member.join(600)
    assert [member.exitcode for member in crew] == [0] * children
    assert app.store.queues()[0].pending == 0
    counts = Counter(head.type for head in everything(app, Place.ARCHIVE))
    assert counts == {"first.v1": jobs, "second.v1": jobs}
    assert list(everything(app, Place.DLQ)) == []
    assert {handle.status() for handle in firsts[:10]} == {"archive"}
    assert {found.promise: found.examples for found in app.store.promises() if found.number} == {}
    app.close()
    said = [line for line in server.log().splitlines() if re.search(r"SSL|protocol|bad record|decrypt", line)]
    assert said == []


def _forked_worker(app: Redrive) -> None:
    code = app.worker().run(burst=True)
    app.close()
    os._exit(code)


def everything(app: Redrive, place: Place) -> Iterator[JobHead]:
    page = PageRequest(limit=200)
    while True:
        answer = app.insight().jobs(JobFilter(place=place), page)
        yield from answer.jobs
        if answer.next_cursor is None:
            return
        page = PageRequest(limit=200, cursor=answer.next_cursor)


def with_tls(server: PrivatePostgres) -> None:
    """A certificate of its own, and no connection without."""
    subprocess.run(
        ["openssl", "req", "-new", "-x509", "-days", "2", "-nodes", "-subj", "/CN=localhost", "-out", "server.crt",
         "-keyout", "server.key"],
        cwd=server.data, check=True, capture_output=True,
    )  # fmt: skip
    for name in ("server.crt", "server.key"):
        shutil.chown(server.data / name, server.data.owner(), server.data.group())
        (server.data / name).chmod(0o600)
    server.configure(ssl="on")
    server.restart()
