"""The database is away for long: workers live, what ends meanwhile is settled, nobody is taken for dead.

Rows 36 and 59 of the field reports are here.
"""

import contextlib
import os
import resource
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from redrive import JobContext, Redrive, Spot
from redrive.domain.moves import Answer
from redrive.store.sql import sqlite as sqlite_module
from scripts.services import PrivatePostgres
from tests.conftest import migrate
from tests.faults.evidence import Evidence, account, placed_once
from tests.faults.load import Load
from tests.faults.nursery import Nursery
from tests.faults.proxy import Proxy
from tests.faults.scene import Scene, patience
from tests.faults.serving import serving
from tests.faults.waiting import Crew, until

pytestmark = pytest.mark.slow
BEAT, LEASE = 0.5, 1.5


def test_row_59_the_database_is_away_for_longer_than_a_lease(
    private_postgres: PrivatePostgres, nursery: Nursery, tmp_path: Path, report: Callable[[str], None]
):
    """The worker exited when no connection could be had for 30 s."""
    stay_away(private_postgres, nursery, tmp_path, report, seconds=2 * LEASE)


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_row_59_the_database_is_away_for_five_minutes(
    private_postgres: PrivatePostgres, nursery: Nursery, tmp_path: Path, report: Callable[[str], None]
):
    """The report's own time, or as many seconds as REDRIVE_TEST_AWAY says."""
    seconds = float(os.environ.get("REDRIVE_TEST_AWAY", "300"))
    stay_away(private_postgres, nursery, tmp_path, report, seconds=seconds)


def stay_away(
    server: PrivatePostgres, nursery: Nursery, folder: Path, report: Callable[[str], None], *, seconds: float
) -> None:
    """Half of the handlers end just after it has gone, half of them when every lease has long expired."""
    migrate(server.url)
    with Scene(server.url, nursery, folder) as scene:
        short = patience(BEAT, LEASE)
        workers = [scene.start(**short), scene.start(**short)]
        until(lambda: all("worker-started" in worker.text() for worker in workers), why=scene.outputs)
        soon, late = folder / "soon", folder / "late"
        ended = [scene.enqueue(kind, gate=str(soon)) for kind in ("gated", "gated", "gated-thread")]
        lasting = [scene.enqueue(kind, gate=str(late)) for kind in ("gated", "gated-thread")]
        scene.begun(5)
        server.stop()
        began = time.monotonic()
        soon.touch()
        until(lambda: sum(line.how == "ok" for line in scene.lines()) == 3, why=scene.outputs)
        third = scene.start(**short)  # started while it is away, it waits
        until(lambda: time.monotonic() - began > seconds, seconds + 5)
        until(lambda: scene.outputs().count("lease-lost") == len(lasting), why=scene.outputs)
        late.touch()
        assert [child.code for child in scene.workers] == [None] * 3, "they live"
        server.start()
        away = time.monotonic() - began

        assert [job.wait(60) for job in ended] == [Spot.ARCHIVE] * 3
        assert scene.enqueue("loop", ms=1).wait(60) is Spot.ARCHIVE, "they work on"
        until(lambda: scene.evidence.hot() == 0, 60, why=scene.outputs)
        until(lambda: all("database-back" in worker.text() for worker in scene.workers), why=scene.outputs)
        assert [child.finish() for child in scene.workers] == [0] * 3
        # The lasting ones were given up by their own workers, who could not renew the lease; an end that came all the
        # same was settled under it. Nobody took anything from anybody.
        notes = scene.evidence.notes()
        assert {note.kind for note in notes} <= {"failed"}
        assert {note.reason for note in notes} <= {"heartbeat_lost"}
        assert {job.status() for job in lasting} <= {Spot.ARCHIVE, Spot.DLQ}
        for child in scene.workers:
            text = child.text()
            assert text.count("database-back") == 1, text
            assert 1 <= text.count("database-away") <= 4, text  # once for each cause: ended, refused, starting
            assert "-waits" not in text
            assert "Traceback" not in text
        failed = sum(int(child.text().partition("calls_failed=")[2].split()[0]) for child in (*workers, third))
        scene.promises()
        report(
            f"postgresql away for {away:.1f} s under 3 workers (lease {LEASE:g} s): all live, 3 ends settled"
            f" afterwards, 0 rescued\n  {failed} calls failed meanwhile, said in"
            f" {sum(child.text().count('database-away') for child in scene.workers)} lines\n"
        )


def test_row_36_a_worker_is_cut_off_and_another_is_not(postgres_url: str):
    """Jobs that still ran were handed to free workers, and two runs collided on the same files."""
    cut_off(postgres_url, beat=0.25, lease=0.8)


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_row_36_cut_off_for_thirty_seconds(postgres_url: str):
    """The report's own numbers: 30 s, a lease of 20 s, 7 long jobs."""
    cut_off(postgres_url, beat=5.0, lease=20.0)


def cut_off(url: str, *, beat: float, lease: float) -> None:
    """Running handlers learn it; a second run starts only after expiry; the first run's completion is refused."""
    gate, told, begun = threading.Event(), Counter[int](), list[tuple[str, int]]()

    def application(name: str, at: str) -> Redrive:
        app = Redrive(
            at,
            worker={"heartbeat": beat, "poll": 0.05, "threads": 7},
            recovery={"zombie_timeout": lease, "fetched_timeout": lease},
        )

        @app.job("long.v1", idempotent=True, on_zombie="retry")
        def long(ctx: JobContext, n: int) -> None:
            begun.append((name, n))
            if name == "first":
                while not ctx.cancelled:
                    time.sleep(0.01)
                told[n] += 1
                assert gate.wait(120)

        return app

    with Proxy(url) as proxy, contextlib.ExitStack() as stack:
        first = stack.enter_context(contextlib.closing(application("first", proxy.url)))
        other = stack.enter_context(contextlib.closing(application("other", url)))
        worker = stack.enter_context(serving(first))
        jobs = other.enqueue_many(other.item("long.v1", {"n": n}) for n in range(7))
        until(lambda: len(begun) == 7)
        proxy.away()
        stack.enter_context(serving(other))
        assert {job.wait(10 * lease) for job in jobs} == {Spot.ARCHIVE}
        assert Counter(begun) == Counter({(name, n): 1 for name in ("first", "other") for n in range(7)})
        assert told == dict.fromkeys(range(7), 1), "each learnt that its lease is lost"
        waits = Evidence(url).query(
            "SELECT {seconds:a.started_at} - {seconds:z.started_at} FROM {s}jobs_archive a"
            " JOIN {s}job_ledger z ON z.job_id = a.id AND z.kind = 'zombie'"
        )
        assert len(waits) == 7
        assert all(wait >= lease for (wait,) in waits)
        proxy.clear()
        gate.set()
        until(lambda: worker.settler.answers == {Answer.STALE: 7}, why=lambda: worker.settler.answers)
        for job in jobs:
            kinds = [(note.attempt, note.kind) for note in other.desk("reader").get(job.id).ledger]
            assert kinds == [(1, "zombie"), (1, "late_success")]
        assert [found.number for found in other.store.promises() if found.number] == []


def test_another_program_keeps_the_file_locked(sqlite_url: str, monkeypatch: pytest.MonkeyPatch):
    """Longer than the busy timeout: an outage like any other."""
    monkeypatch.setattr(sqlite_module, "BUSY_TIMEOUT", 0.1)
    app = Redrive(sqlite_url, worker={"heartbeat": 0.3, "poll": 0.05})
    gate, entered = threading.Event(), threading.Event()

    @app.job("gated.v1")
    def gated() -> None:
        entered.set()
        assert gate.wait(30)

    with contextlib.closing(app), capture_logs() as lines, serving(app):
        job = gated.enqueue()
        assert entered.wait(30)
        path = sqlite_url.removeprefix("sqlite:///")
        with contextlib.closing(sqlite3.connect(path, isolation_level=None, timeout=30)) as other:
            other.execute("BEGIN IMMEDIATE")
            gate.set()
            until(lambda: [line for line in lines if line["event"] == "database-away"], why=lambda: lines)
            other.execute("ROLLBACK")
        assert job.wait(30) is Spot.ARCHIVE
        until(lambda: [line for line in lines if line["event"] == "database-back"], why=lambda: lines)
    (away,) = [line for line in lines if line["event"] == "database-away"]
    assert away["cause"] == "busy"
    assert app.desk("reader").get(job.id).ledger == ()


def test_the_disk_is_full_while_handlers_end(sqlite_url: str, nursery: Nursery, tmp_path: Path):
    """Writes are refused for real (a limit on the size of files); the ends are kept, and settled with space again."""
    with Scene(sqlite_url, nursery, tmp_path) as scene:
        gate = tmp_path / "gate"
        jobs = [scene.enqueue(kind, gate=str(gate)) for kind in ("gated", "gated", "gated-thread")]
        worker = scene.start(**patience(0.5, 60))
        scene.begun(3)
        _, most = resource.prlimit(worker.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(worker.pid, resource.RLIMIT_FSIZE, (8192, most))
        gate.touch()
        until(lambda: "cause=disk-full" in worker.text(), why=scene.outputs)
        until(lambda: sum(line.how == "ok" for line in scene.lines()) == 3, why=scene.outputs)
        resource.prlimit(worker.pid, resource.RLIMIT_FSIZE, (most, most))
        assert [job.wait(30) for job in jobs] == [Spot.ARCHIVE] * 3
        assert scene.enqueue("loop", ms=1).wait(30) is Spot.ARCHIVE
        until(lambda: "database-back" in worker.text(), why=scene.outputs)
        assert worker.finish() == 0
        assert account(scene.evidence, scene.lines(), set()) == []
        scene.promises()


def test_silence_is_waited_out(postgres_url: str, nursery: Nursery, tmp_path: Path):
    """Nothing comes and nothing is refused (a hung disk, a firewall) for longer than a lease; two workers."""
    with Proxy(postgres_url) as proxy, Scene(postgres_url, nursery, tmp_path) as scene:
        workers = [scene.start(REDRIVE_DATABASE_URL=proxy.url, **patience(0.3, LEASE)) for _ in range(2)]
        until(lambda: all("worker-started" in worker.text() for worker in workers), why=scene.outputs)
        gate = tmp_path / "gate"
        jobs = [scene.enqueue("gated", gate=str(gate)) for _ in range(4)]
        scene.begun(4)
        load = Load(scene)
        with Crew() as crew:
            crew.keep(load.enqueue, 0.02)
            until(lambda: len(load.accepted) > 20, why=scene.outputs)
            proxy.block()
            oldest = "SELECT max(extract(epoch FROM now() - heartbeat_at)) FROM {s}jobs_hot WHERE state = 'taken'"
            gate.touch()
            until(lambda: float(scene.evidence.query(oldest)[0][0]) > LEASE + 0.5)
            proxy.clear()
            assert [job.wait(30) for job in jobs] == [Spot.ARCHIVE] * 4
        until(lambda: scene.evidence.hot() == 0, 60, why=scene.outputs)
        assert [worker.finish() for worker in workers] == [0, 0]
        # What was reserved and not started may have been let go, and goes back to the others without having run.
        rescued = [line for line in scene.outputs().splitlines() if "job-rescued" in line]
        assert all("spot=pending" in line for line in rescued)
        assert placed_once(scene.evidence, load.accepted) == []
        assert account(scene.evidence, scene.lines(), set()) == []
        scene.promises()
