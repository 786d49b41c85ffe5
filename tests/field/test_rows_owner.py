"""Field reports about ownership: who runs a job, who may touch it meanwhile, and when a worker counts as gone."""

import contextlib
import threading
from collections import Counter
from pathlib import Path

import psycopg
import pytest

from redrive import ConfigError, Conflict, NotAllowed, Reason, Redrive, RetryPolicy, Spot, VersionChanged
from redrive.domain.moves import Skipped
from tests.faults.evidence import Evidence
from tests.faults.handlers import KILL_RUN
from tests.faults.nursery import Nursery
from tests.faults.scene import Scene, patience
from tests.faults.serving import serving
from tests.faults.waiting import until
from tests.field.draining import drain


def test_row_24_a_running_job_cannot_be_started_again(app: Redrive):
    """Requeueing a job that was still running started a second run under the same id."""
    gate, runs = threading.Event(), Counter[str]()

    @app.job("slow.v1")
    def slow(name: str) -> None:
        runs[name] += 1
        assert gate.wait(30)

    desk = app.desk("b")
    first = slow.enqueue(name="first")
    stale = desk.get(first.id).head.version  # what is on the page of somebody who looked a moment ago
    with serving(app):
        until(lambda: runs["first"])
        head = desk.get(first.id).head
        for refused in (
            lambda: desk.resurrect(first.id, version=stale),
            lambda: desk.edit(first.id, payload={"name": "other"}, version=stale),
        ):
            with pytest.raises(VersionChanged):
                refused()
        for refused in (lambda: desk.resurrect(first.id), lambda: desk.edit(first.id, payload={"name": "other"})):
            with pytest.raises(NotAllowed):
                refused()
        assert [answer.skipped for answer in desk.purge([(first.id, stale)])] == [Skipped.CHANGED]
        assert [answer.skipped for answer in desk.purge([first.id])] == [Skipped.NOT_ALLOWED]
        assert issubclass(NotAllowed, Conflict)
        assert desk.get(first.id).head == head

        second = slow.enqueue(name="second")
        until(lambda: runs["second"])
        taken = app.store.rescue(zombie_timeout=0, fetched_timeout=60, rules=app.registry.rules, slot=0)
        assert {job.id for job in taken} == {first.id, second.id}
        assert desk.resurrect(second.id).ok
        until(lambda: runs["second"] == 2)
        gate.set()
        assert second.wait(30) is Spot.ARCHIVE
        until(lambda: all(desk.get(job.id).ledger[-1].kind == "late_success" for job in (first, second)))
    assert runs == {"first": 1, "second": 2}
    assert first.status() is Spot.DLQ, "who finishes late changes nothing"
    assert [line.kind for line in desk.get(second.id).ledger] == ["zombie", "late_success"]


@pytest.mark.slow
@pytest.mark.parametrize("shift", ["-120", "120"])
def test_row_27_the_database_has_another_clock_than_the_worker(postgres_url: str, shift: str):
    """A worker whose clock was behind delayed every task by the difference. (SQLite has no clock but the host's.)"""
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute("CREATE SCHEMA shifted")
        admin.execute(
            "CREATE FUNCTION shifted.now() RETURNS timestamptz STABLE LANGUAGE sql AS"
            f" $$ SELECT pg_catalog.now() + interval '{shift} s' $$"
        )
        name = admin.info.dbname
        admin.execute(f'ALTER DATABASE "{name}" SET search_path = shifted, pg_catalog, public')
    app = Redrive(
        postgres_url,
        worker={"poll": 0.05, "heartbeat": 0.3},
        recovery={"zombie_timeout": 1.2, "fetched_timeout": 1.2},
    )
    gate = threading.Event()
    runs: list[int] = []

    @app.job("now.v1")
    async def now() -> None: ...

    @app.job("long.v1")
    def long() -> None:
        runs.append(1)
        assert gate.wait(30)

    with contextlib.closing(app), psycopg.connect(postgres_url, autocommit=True) as watch:
        jobs = [now.enqueue(), now.using(run_after=0.3).enqueue()]
        jobs.append(now.using(run_after=app.store.now()).enqueue())
        running = long.enqueue()
        with serving(app):
            for job in jobs:
                assert job.wait(10) is Spot.ARCHIVE
            older = "SELECT 1 FROM redrive.jobs_hot WHERE now() - started_at > interval '1500 ms'"
            until(lambda: watch.execute(older).fetchone())  # longer than a lease
            (worker,) = app.store.workers()
            assert 0 <= worker.silent < 5
            gate.set()
            assert running.wait(10) is Spot.ARCHIVE
        for job in (*jobs, running):
            head = app.desk("reader").get(job.id).head
            assert head.started_at is not None
            assert head.duration_ms is not None
            assert 0 <= (head.started_at - head.due_at).total_seconds() < 2
            assert 0 <= head.duration_ms < 10_000
            assert app.desk("reader").get(job.id).ledger == ()
    assert runs == [1]


@pytest.mark.slow
def test_row_30_many_long_jobs_at_once_and_none_looks_dead(database_url: str):
    """Heartbeats were batched to less than the lease, so running jobs looked dead and were picked again."""
    app = Redrive(
        database_url,
        worker={"heartbeat": 0.3, "poll": 0.05, "threads": 50},
        recovery={"zombie_timeout": 1.2, "fetched_timeout": 1.2},
    )
    gate, runs = threading.Event(), Counter[int]()

    @app.job("long.v1")
    def long(n: int) -> None:
        runs[n] += 1
        assert gate.wait(60)

    evidence = Evidence(database_url)
    since = "SELECT min({seconds:heartbeat_at} - {seconds:started_at}), count(*) FROM {s}jobs_hot WHERE lease > 0"
    with contextlib.closing(app), serving(app):
        jobs = app.enqueue_many(long.job(n=n) for n in range(50))
        until(lambda: [row for row in evidence.query(since) if row[1] == 50 and row[0] > 1.5])
        gate.set()
        assert {job.wait(30) for job in jobs} == {Spot.ARCHIVE}
        assert evidence.notes() == []
    assert runs == dict.fromkeys(range(50), 1)


def test_row_30_leases_shorter_than_three_heartbeats_are_refused():
    """With a heartbeat above a third of the lease one late beat would bury a healthy job."""
    app = Redrive("sqlite://", worker={"heartbeat": 1.0}, recovery={"zombie_timeout": 2.9})
    with pytest.raises(ConfigError, match="zombie_timeout") as refused:
        app.worker()
    assert "three times worker.heartbeat" in str(refused.value)


@pytest.mark.slow
def test_row_34_a_worker_lost_in_the_last_attempt(database_url: str, nursery: Nursery, tmp_path: Path):
    """A worker that vanished during the last allowed attempt left the job running for ever."""
    lease = 1.0
    with Scene(database_url, nursery, tmp_path) as scene:
        job = scene.app.enqueue("fault.failing.v1", {"ms": 1}, queue="faults", max_attempts=3)
        doomed = scene.start(**patience(0.2, lease), **{KILL_RUN: "3"})
        assert doomed.ended.wait(30), scene.outputs()
        assert doomed.code == -9
        (row,) = scene.evidence.held_by(doomed.pid)
        scene.start(**patience(0.2, lease))
        assert job.wait(30) is Spot.DLQ
        head = scene.app.desk("reader").get(job.id).head
        assert (head.reason, head.attempt, head.spent, head.max_attempts) == (Reason.ZOMBIE, 3, 3, 3)
        notes = scene.evidence.notes(job=job.id)
        assert [note.kind for note in notes] == ["failed", "failed", "zombie"]
        assert lease <= notes[-1].at - row.heartbeat < lease + 5
        scene.promises()


@pytest.mark.slow
def test_row_45_every_round_has_the_same_number_of_attempts(app: Redrive):
    """After an operator cleared a task it got one retry less than configured."""
    runs: list[tuple[int, int]] = []

    @app.job("never.v1", retry=RetryPolicy(max_attempts=3, base=0, jitter=0))
    async def never() -> None:
        runs.append((job_head().life, job_head().attempt))
        raise ConnectionError("away")

    desk = app.desk("operator")
    job = never.enqueue()

    def job_head():
        return desk.get(job.id).head

    for life in range(1, 6):
        drain(app)
        assert runs == [(of, attempt) for of in range(1, life + 1) for attempt in (1, 2, 3)]
        assert job_head().reason is Reason.RETRIES_EXHAUSTED
        desk.resurrect(job.id, note=f"round {life}")
    desk.cancel(job.id)
    history = [(line.life, line.attempt) for line in desk.get(job.id).ledger if line.kind == "failed"]
    assert history == runs


def test_row_45_a_zombie_attempt_counts_once(app: Redrive):
    """Two further attempts after one whose worker vanished, no more and no fewer."""
    gate, runs = threading.Event(), list[int]()

    @app.job("never.v1", retry=RetryPolicy(max_attempts=3, base=0, jitter=0), idempotent=True, on_zombie="retry")
    def never() -> None:
        runs.append(1)
        if len(runs) == 1:
            assert gate.wait(30)
        raise ConnectionError("away")

    job = never.enqueue()
    with serving(app):
        until(lambda: runs)
        (found,) = app.store.rescue(zombie_timeout=0, fetched_timeout=60, rules=app.registry.rules, slot=0)
        assert found.spot == "scheduled"
        assert job.wait(30) is Spot.DLQ
        gate.set()
        until(lambda: app.desk("reader").get(job.id).ledger[-1].kind == "late_failure")
    record = app.desk("reader").get(job.id)
    assert len(runs) == 3
    assert (record.head.attempt, record.head.spent, record.head.reason) == (3, 3, Reason.RETRIES_EXHAUSTED)
    assert [(line.attempt, line.kind) for line in record.ledger] == [
        (1, "zombie"),
        (2, "failed"),
        (3, "failed"),
        (1, "late_failure"),
    ]
