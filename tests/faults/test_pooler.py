"""Behind PgBouncer in transaction mode: no prepared statements, no LISTEN, nothing left behind in a session."""

import contextlib
import os
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack

import psycopg
import pytest
from structlog.testing import capture_logs

from redrive import JobFilter, Place, Redrive, RetryPolicy, Spot, Unavailable
from redrive.domain.filters import PageRequest
from redrive.store.sql.store import open_store
from scripts.services import MissingError, packaged
from tests.conftest import started
from tests.faults.pgbouncer import pgbouncer
from tests.faults.serving import serving
from tests.faults.waiting import until

pytestmark = pytest.mark.slow


@pytest.fixture
def pooled_url(postgres_url: str) -> Iterator[str]:
    with started(lambda: pgbouncer(postgres_url)) as url:
        yield url


def test_row_57_worker_desk_and_bulk_through_a_pooler(postgres_url: str, pooled_url: str):
    """Prepared statements were reported both as existing already and as missing."""
    through(postgres_url, pooled_url, workers=3, jobs=300)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_row_57_twenty_workers_on_two_server_connections(postgres_url: str, pooled_url: str):
    """The report's own numbers: 2 server connections, 20 workers, 10,000 jobs."""
    through(postgres_url, pooled_url, workers=20, jobs=10_000)


def through(direct: str, url: str, *, workers: int, jobs: int) -> None:
    """Enqueue one by one, in bulk, with keys and delays; run, retry, die, resurrect; then look at the sessions."""
    runs, lock = Counter[int](), threading.Lock()

    def application() -> Redrive:
        app = Redrive(url, worker={"poll": 0.05, "threads": 4, "concurrency": 10})

        @app.job("good.v1")
        async def good(n: int) -> None:
            with lock:
                runs[n] += 1

        @app.job("thread.v1")
        def thread(n: int) -> None:
            with lock:
                runs[n] += 1

        @app.job("bad.v1", retry=RetryPolicy(max_attempts=2, base=0, jitter=0))
        async def bad(n: int) -> None:
            with lock:
                runs[n] += 1
            raise ConnectionError("away")

        return app

    with ExitStack() as stack, capture_logs() as lines:
        app = stack.enter_context(contextlib.closing(application()))
        for _ in range(workers):
            other = stack.enter_context(contextlib.closing(application()))
            stack.enter_context(serving(other))
        kinds = ("good.v1", "thread.v1", "bad.v1")
        app.enqueue_many(
            app.item(kinds[n % 3], {"n": n}, idempotency_key=None if n % 5 else f"k{n}") for n in range(jobs - 20)
        )
        for n in range(jobs - 20, jobs):
            app.enqueue(kinds[n % 3], {"n": n}, run_after=n % 2 * 0.05)
        desk = app.desk("operator")
        until(lambda: app.insight().count(JobFilter(place=Place.HOT)).number == 0, 120, why=lambda: lines)
        dead = app.insight().jobs(JobFilter(), PageRequest(limit=200)).jobs
        assert all(answer.ok for answer in desk.resurrect_many([job.id for job in dead]))
        until(lambda: app.insight().count(JobFilter(place=Place.HOT)).number == 0, 120, why=lambda: lines)
        offences = {found.promise: found.examples for found in app.store.promises() if found.number}
    assert offences == {}
    assert set(runs) == set(range(jobs))
    assert sum(runs.values()) == jobs + len([n for n in range(jobs) if n % 3 == 2]) + 2 * len(dead)
    said = Counter(line["event"] for line in lines if line["log_level"] in ("warning", "error"))
    assert said.pop("no-wake-ups") == workers, "said once by each worker"
    assert set(said) <= {"job-dead"}, said
    with contextlib.closing(open_store(url)) as store:
        assert "in between" in store.describe()["pooler"]
    with psycopg.connect(url, prepare_threshold=None) as leftover:
        for name in ("enable_seqscan", "enable_hashjoin", "jit"):
            assert leftover.execute(f"SHOW {name}").fetchall() == [("on",)], "a setting stayed in somebody's session"
        assert leftover.execute("SELECT 1 FROM pg_prepared_statements").fetchall() == []
        assert leftover.execute("SELECT 1 FROM pg_listening_channels()").fetchall() == []
    with psycopg.connect(direct) as admin:
        locks = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database"
        assert admin.execute(f"{locks} WHERE datname = current_database())").fetchall() == []


def test_a_pooler_in_session_mode_is_trusted_when_the_setting_says_so(postgres_url: str):
    with started(lambda: pgbouncer(postgres_url, mode="session", servers=20)) as url:
        app = Redrive(url, database={"pooler": "session"}, worker={"poll": 60.0})

        @app.job("good.v1")
        async def good() -> None: ...

        with contextlib.closing(app), capture_logs() as lines, serving(app):
            until(lambda: any(worker.waiting for worker in app.store.workers()))
            assert good.enqueue().wait(30) is Spot.ARCHIVE, "an enqueue wakes the worker"
        assert "no-wake-ups" not in [line["event"] for line in lines]


def test_a_server_can_be_said_to_have_a_pooler_that_was_not_seen(postgres_url: str):
    with contextlib.closing(open_store(postgres_url, pooler="transaction")) as store, store.listen(("q",)) as listener:
        assert "no notifications" in listener.silent
        listener.interrupt()
        assert listener.wait(30) is False
        assert "in between" in store.describe()["pooler"]
    with contextlib.closing(open_store(postgres_url)) as store:
        assert store.describe()["pooler"] == "none in between"


def test_a_server_that_is_away_behind_a_pooler_is_an_outage(postgres_url: str):
    """The pooler answers, the server does not."""
    nowhere = postgres_url.replace(":5432", ":1") if ":5432" in postgres_url else "postgresql://postgres@127.0.0.1:1/x"
    with (
        started(lambda: pgbouncer(nowhere)) as url,
        contextlib.closing(open_store(f"{url}?connect_timeout=2")) as store,
        pytest.raises(Unavailable),
    ):
        store.queues()


def test_a_missing_pgbouncer_is_said(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(MissingError, match="apt-get install pgbouncer"):
        packaged(lambda: None, "pgbouncer")
