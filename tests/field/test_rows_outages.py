"""Field reports about a database under strain: old snapshots, and many who tidy up at once.

Rows 36 and 59 (the database is away) are in ``tests/faults/test_away.py``, row 57 (poolers) in ``test_pooler.py``, row
58 (failover) in ``test_failover.py``, row 63 (SQLite's log) in ``tests/store/test_sqlite_limits.py``.
"""

import contextlib
import statistics
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import psycopg
import pytest

from redrive import JobFilter, Place, Redrive, Retryable
from redrive.domain.audit import Actor, AuditDraft
from redrive.domain.filters import PageRequest
from redrive.domain.job import ClaimedJob
from redrive.domain.moves import Succeed
from redrive.store.port import ClaimRequest, WorkerInfo
from redrive.store.sql.store import SqlStore, open_store
from tests.faults.evidence import Evidence
from tests.faults.waiting import until

pytestmark = pytest.mark.slow
REQUEST = ClaimRequest("w", ("default",), 50, ("any.v1",))
ACTIONS = ("settle", "take", "rescue", "resurrect", "purge")


def test_row_56_claims_stay_quick_while_an_old_snapshot_keeps_dead_rows(postgres_url: str):
    """Autovacuum could not clean the job table, and fetching got slow."""
    strain(postgres_url, jobs=3_000, backlog=5_000, most=0.25)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_row_56_a_snapshot_held_for_long(postgres_url: str):
    """As in the report: 300,000 jobs pass under it (500 a second for 10 minutes), then 2 million rows are pending."""
    strain(postgres_url, jobs=300_000, backlog=2_000_000, most=0.25)


def strain(url: str, *, jobs: int, backlog: int, most: float) -> None:
    """Jobs pass while a REPEATABLE READ transaction is open; then there is a backlog; then it ends."""
    with contextlib.closing(open_store(url)) as store, psycopg.connect(url) as holder:
        app = Redrive(url)
        store.register(WorkerInfo("w", "host", 1, "", ("default",), (), 1))
        holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        holder.execute("SELECT count(*) FROM redrive.jobs_hot")
        waits: list[float] = []
        for _ in range(jobs // 1000):
            app.enqueue_many(app.item("any.v1", {}) for _ in range(1000))
            drain(store, waits)
        quiet = quantile(waits)
        until(lambda: store.describe()["oldest transaction"] != "0 s")
        until(lambda: int(store.describe()["dead rows"].split()[0]) > 0, why=store.describe)
        for _ in range(backlog // 5000):
            app.enqueue_many(app.item("any.v1", {}) for _ in range(5000))
        waits.clear()
        for _ in range(20):
            drain(store, waits, rounds=1)
        assert quantile(waits) < most, f"p95 {quantile(waits):.3f} s with a backlog, {quiet:.3f} s before"
        assert quiet < most
        holder.rollback()
        waits.clear()
        for _ in range(20):
            drain(store, waits, rounds=1)
        assert quantile(waits) < most
        app.close()


def drain(store: SqlStore, waits: list[float], rounds: int = 1_000_000) -> None:
    for _ in range(rounds):
        began = time.monotonic()
        found: list[ClaimedJob] = store.claim(REQUEST)
        waits.append(time.monotonic() - began)
        if not found:
            return
        store.settle([Succeed(job.id, job.lease, 1) for job in found], worker_id="w", build="", slot=0)


def quantile(waits: list[float]) -> float:
    return statistics.quantiles(waits, n=20)[-1]


def test_row_60_many_tidy_up_at_once(database_url: str):
    """Two processes archiving at the same time deadlocked."""
    tidy(database_url, jobs=600, seconds=2.0, crowd=10)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_row_60_many_tidy_up_for_long(database_url: str):
    """The report's own numbers: 200,000 rows, 10 at once, 10 minutes."""
    tidy(database_url, jobs=200_000, seconds=600.0, crowd=10)


def tidy(url: str, *, jobs: int, seconds: float, crowd: int) -> None:
    """Archive, purge, rescue and bulk resurrection over each other, each from a store of its own."""
    app = Redrive(url)
    store = app.store
    store.register(WorkerInfo("w", "host", 1, "", ("default",), (), 1))
    accepted: set[str] = set()
    for _ in range(max(1, jobs // 5000)):
        number = min(jobs, 5000)
        accepted |= {handle.id.hex for handle in app.enqueue_many(app.item("any.v1", {}) for _ in range(number))}
    purged, lock = set[str](), threading.Lock()
    over = time.monotonic() + seconds
    counts = Counter[str]()

    def work(number: int) -> None:
        mine = Redrive(url)
        with contextlib.closing(mine):
            action = ACTIONS[number % len(ACTIONS)]
            while time.monotonic() < over or (time.monotonic() < over + 60 and not all(map(counts.get, ACTIONS))):
                try:
                    said, number = action, act(mine, action)
                except Retryable:  # it asks to be called again, and has done nothing
                    said, number = "again", 1
                with lock:
                    counts[said] += number

    def act(mine: Redrive, action: str) -> int:
        own = mine.store
        if action in ("settle", "take"):
            found = own.claim(REQUEST)
            if action == "settle":
                own.settle([Succeed(job.id, job.lease, 1) for job in found], worker_id="w", build="", slot=0)
            return len(found)
        if action == "rescue":
            return len(own.rescue(zombie_timeout=0.01, fetched_timeout=0.01, rules=lambda _: None, slot=1))
        operator = mine.desk("operator")
        if action == "resurrect":
            dead = [job.id for job in mine.insight().jobs(JobFilter(), PageRequest(limit=200)).jobs]
            return sum(answer.ok for answer in operator.resurrect_many(dead)) if dead else 0
        page = mine.insight().jobs(JobFilter(place=Place.ARCHIVE), PageRequest(limit=100)).jobs
        gone = [job.id for job in page][:20]
        answers = operator.purge(gone) if gone else []
        with lock:
            purged.update(answer.id.hex for answer in answers if answer.ok)
        draft = AuditDraft(Actor("operator"), "purge")
        return len(gone) + own.purge_archive(own.now() - timedelta(days=1), draft)

    with ThreadPoolExecutor(crowd) as pool:
        for done in [pool.submit(work, number) for number in range(crowd)]:
            done.result(timeout=seconds + 120)
    assert all(map(counts.get, ACTIONS)), counts
    assert counts["again"] == 0, "no deadlock reaches a caller"
    places = Evidence(url).places()
    assert places.keys() | purged == accepted, "conserved"
    assert not places.keys() & purged
    assert [job for job, at in places.items() if len(at) > 1] == []
    assert {found.promise: found.examples for found in store.promises() if found.number} == {}
    app.close()
