"""Settles whose answer is lost on PostgreSQL, by a cut connection or a killed worker: applied once all the same."""

import contextlib
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from redrive import Fatal, Redrive, Spot
from redrive.domain.moves import Answer
from redrive.worker import moments
from tests.faults.evidence import Evidence
from tests.faults.nursery import Nursery
from tests.faults.proxy import Proxy
from tests.faults.scene import Scene, patience
from tests.faults.serving import serving
from tests.faults.waiting import until


class Blocked:
    """Jobs whose rows are locked, so that their settle waits inside the server, where it can be seen."""

    def __init__(self, url: str, job: object) -> None:
        self._admin = psycopg.connect(url, autocommit=True)
        self._lock = psycopg.connect(url)
        self._lock.execute("SELECT 1 FROM redrive.jobs_hot WHERE id = %s FOR UPDATE", [job])

    def settle(self) -> tuple[int, int]:
        """The settle that waits: its server process, and the port of its client."""
        waiting = (
            "SELECT pid, client_port FROM pg_stat_activity WHERE datname = current_database() AND state = 'active'"
            " AND wait_event_type = 'Lock' AND query LIKE '%jobs_archive%'"
        )
        ((pid, port),) = until(lambda: self._admin.execute(waiting).fetchall())
        return pid, port

    def terminate(self, pid: int) -> None:
        self._admin.execute("SELECT pg_terminate_backend(%s)", [pid])
        until(lambda: not self._admin.execute("SELECT 1 FROM pg_stat_activity WHERE pid = %s", [pid]).fetchone())

    def release(self) -> None:
        self._lock.rollback()

    def close(self) -> None:
        self._admin.close()
        self._lock.close()


@pytest.fixture
def proxy(postgres_url: str) -> Iterator[Proxy]:
    with Proxy(postgres_url) as proxy:
        yield proxy


def application(url: str, threads: int = 10) -> tuple[Redrive, threading.Event, Counter[str]]:
    """An application whose handlers end when the event is set; runs are counted."""
    app = Redrive(url, worker={"heartbeat": 20.0, "threads": threads})
    gate, runs = threading.Event(), Counter[str]()

    @app.job("good.v1")
    def good(n: int) -> None:
        runs[f"good {n}"] += 1
        assert gate.wait(60)

    @app.job("bad.v1")
    def bad(n: int) -> None:
        runs[f"bad {n}"] += 1
        assert gate.wait(60)
        raise Fatal("never")

    return app, gate, runs


def test_a_lost_answer_to_a_success_becomes_already_applied(postgres_url: str, proxy: Proxy):
    app, gate, runs = application(proxy.url)
    with contextlib.closing(app), serving(app) as worker:
        job = app.enqueue("good.v1", {"n": 1})
        until(lambda: runs)
        with contextlib.closing(Blocked(postgres_url, job.id)) as blocked:
            gate.set()
            _, port = blocked.settle()
            proxy.cut(port)
            blocked.release()
        until(worker.settler.answers.total)
        assert worker.settler.answers == {Answer.ALREADY: 1}
        assert (job.status(), runs.total()) == (Spot.ARCHIVE, 1)
        kept(app)


def test_a_lost_answer_to_a_death_becomes_already_applied(postgres_url: str, proxy: Proxy, monkeypatch: Any):
    app, gate, runs = application(proxy.url)

    def hook(name: str) -> None:
        if name == "settle-sending" and not proxy.cuts:
            proxy.cut_after(b"jobs_dlq", b"COMMIT")

    monkeypatch.setattr(moments, "hook", hook)
    with contextlib.closing(app), serving(app) as worker:
        job = app.enqueue("bad.v1", {"n": 1})
        gate.set()
        until(worker.settler.answers.total)
        assert worker.settler.answers == {Answer.ALREADY: 1}
        assert (job.status(), runs.total(), proxy.cuts) == (Spot.DLQ, 1, 1)
        assert [note.kind for note in app.desk("reader").get(job.id).ledger] == ["failed"]
        kept(app)


def test_a_settle_whose_server_process_is_terminated_is_sent_again(postgres_url: str):
    app, gate, runs = application(postgres_url)
    with contextlib.closing(app), serving(app) as worker:
        job = app.enqueue("good.v1", {"n": 1})
        until(lambda: runs)
        with contextlib.closing(Blocked(postgres_url, job.id)) as blocked:
            gate.set()
            pid, _ = blocked.settle()
            blocked.terminate(pid)
            blocked.release()
        until(worker.settler.answers.total)
        assert worker.settler.answers == {Answer.APPLIED: 1}
        assert (job.status(), runs.total()) == (Spot.ARCHIVE, 1)
        kept(app)


@pytest.mark.slow
def test_settles_cut_at_any_point(postgres_url: str, monkeypatch: Any):
    """Server processes terminated up to 3 ms into a settle, in the middle of work: each job ends once."""
    number = 300
    app, gate, runs = application(postgres_url, threads=3)  # small batches: many settles
    gate.set()
    cuts = Counter[str]()
    at_settle = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()" + (
        " AND pid <> pg_backend_pid() AND state <> 'idle' AND (query LIKE '%jobs_archive%' OR query LIKE '%jobs_dlq%')"
    )
    with psycopg.connect(postgres_url, autocommit=True) as admin:

        def hook(name: str) -> None:
            if name == "settle-sent":
                cuts["tried"] += 1
                cuts["done"] += len(admin.execute(at_settle).fetchall())

        monkeypatch.setattr(moments, "hook", hook)
        with contextlib.closing(app), serving(app) as worker:
            app.enqueue_many([("bad.v1" if n % 3 == 0 else "good.v1", {"n": n}) for n in range(number)])
            until(lambda: worker.settler.answers.total() == number, 60, why=lambda: worker.settler.answers)
            answers = worker.settler.answers
            assert answers[Answer.STALE] == 0
            assert set(runs.values()) == {1}
            assert len(runs) == number
            places = Counter(place for places in Evidence(postgres_url).places().values() for place in places)
            assert places == {"archive": number - number // 3, "dlq": number // 3}
            kept(app)
    print(cuts, answers)
    assert cuts["done"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("applied", [True, False], ids=["applied", "not-applied"])
def test_killed_after_the_settle_was_sent(postgres_url: str, nursery: Nursery, tmp_path: Path, applied: bool):
    """The server goes on with what a dead worker sent; the job is settled by it, or by a rescue, never by both."""
    with Scene(postgres_url, nursery, tmp_path) as scene:
        worker = scene.start(**patience(5, 15))
        gate = tmp_path / "gate"
        job = scene.enqueue("gated", gate=str(gate))
        scene.begun(1)
        with contextlib.closing(Blocked(postgres_url, job.id)) as blocked:
            gate.touch()
            pid, _ = blocked.settle()
            worker.signal(signal.SIGKILL)
            assert worker.ended.wait(30)
            if not applied:
                blocked.terminate(pid)
            blocked.release()
        rescue = scene.app.store.rescue
        if applied:
            assert job.wait(30) is Spot.ARCHIVE
            assert rescue(zombie_timeout=0, fetched_timeout=0, rules=lambda _: None, slot=0) == []
        else:
            (found,) = until(lambda: rescue(zombie_timeout=0.1, fetched_timeout=60, rules=lambda _: None, slot=0))
            assert (found.id, found.spot) == (job.id, "dlq")
        kinds = [note.kind for note in scene.evidence.notes(job=job.id)]
        assert kinds == ([] if applied else ["zombie"])
        scene.promises()


def kept(app: Redrive) -> None:
    assert {found.promise: found.examples for found in app.store.promises() if found.number} == {}
