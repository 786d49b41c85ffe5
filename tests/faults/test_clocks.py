"""Clocks that make steps, forward and back: leases go by the database's clock, waits by one that knows no steps."""

import contextlib
import os
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import psycopg
import pytest
from structlog.testing import capture_logs

from redrive import Reason, Redrive, Spot
from redrive.store.port import ClaimRequest
from redrive.store.sql import columns
from scripts.services import packaged
from tests.conftest import started
from tests.faults.evidence import Evidence, account
from tests.faults.handlers import RUNS
from tests.faults.nursery import ROOT, Nursery
from tests.faults.scene import SETTINGS, Scene, patience
from tests.faults.serving import serving
from tests.faults.waiting import until

pytestmark = pytest.mark.slow
BEAT, LEASE = 0.3, 1.2
HOUR = 3600

Step = Callable[[int], None]
"""Sets the database's clock so many seconds off the true time."""


@pytest.fixture
def step(database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Step]:
    """On SQLite the database's clock is the host's; on PostgreSQL ``now()`` is one that we can set."""
    if database_url.startswith("sqlite"):
        off = [0]
        monkeypatch.setattr(columns, "time", SimpleNamespace(time_ns=lambda: time.time_ns() + off[0] * 1_000_000_000))
        yield lambda seconds: off.__setitem__(0, seconds)
        return
    with psycopg.connect(database_url, autocommit=True) as admin:

        def put(seconds: int) -> None:
            admin.execute(
                "CREATE OR REPLACE FUNCTION shifted.now() RETURNS timestamptz STABLE LANGUAGE sql AS"
                f" $$ SELECT pg_catalog.now() + interval '{seconds} s' $$"
            )

        admin.execute("CREATE SCHEMA shifted")
        put(0)
        admin.execute(f'ALTER DATABASE "{admin.info.dbname}" SET search_path = shifted, pg_catalog, public')
        yield put


def test_steps_of_the_databases_clock_take_nobodys_jobs(database_url: str, step: Step):
    """Two workers, each with a rescuer; a lease looks an hour old, or as if it were renewed in an hour."""
    shake(database_url, step, [HOUR, -HOUR])


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_many_steps_of_the_databases_clock(database_url: str, step: Step, report: Callable[[str], None]):
    number = int(os.environ.get("REDRIVE_TEST_STEPS", "40"))
    seconds = [HOUR, -HOUR, 2, -2, 30, 0, 86_400, -86_400, 0] * number
    said = shake(database_url, step, seconds[:number])
    report(
        f"clock of the database on {database_url.partition(':')[0]}: {number} steps from 2 s to a day, both ways;"
        f" noticed {said['clock-stepped']} times by 2 rescuers, no job taken from a live worker\n"
    )


def application(url: str) -> tuple[Redrive, threading.Event, Counter[int]]:
    """Handlers that last until the gate opens."""
    app = Redrive(
        url,
        worker={"heartbeat": BEAT, "poll": 0.05, "threads": 6, "concurrency": 6},
        recovery={"zombie_timeout": LEASE, "fetched_timeout": LEASE},
    )
    gate, runs = threading.Event(), Counter[int]()

    @app.job("long.v1")
    def long(n: int) -> None:
        runs[n] += 1
        assert gate.wait(600)

    @app.job("quick.v1")
    async def quick() -> None: ...

    return app, gate, runs


def shake(url: str, step: Step, offsets: list[int]) -> Counter[str]:
    """After each step every worker renews twice, and judges again; then work goes on."""
    with contextlib.ExitStack() as stack:
        apps = [application(url) for _ in range(2)]
        lines = stack.enter_context(capture_logs())
        for app, gate, _ in apps:
            stack.callback(app.close)
            stack.callback(gate.set)
            stack.enter_context(serving(app))
        app = apps[0][0]
        jobs = app.enqueue_many(app.item("long.v1", {"n": n}) for n in range(6))
        until(lambda: sum(runs.total() for _, _, runs in apps) == 6, why=lambda: lines)
        evidence = Evidence(url)
        renewed = "SELECT min({seconds:heartbeat_at}) FROM {s}jobs_hot WHERE state = 'taken'"
        for seconds in offsets:
            step(seconds)
            began = time.monotonic()
            until(lambda: abs(evidence.query(renewed)[0][0] - time.time() - seconds) < 1, why=lambda: lines)  # noqa: B023
            # Longer than the rescuers wait, and than a lease.
            until(lambda: time.monotonic() - began > LEASE + 3 * BEAT)  # noqa: B023
            assert "job-rescued" not in [line["event"] for line in lines]
        assert app.enqueue("quick.v1", {}).wait(30) is Spot.ARCHIVE
        for _, gate, _ in apps:
            gate.set()
        assert [job.wait(30) for job in jobs] == [Spot.ARCHIVE] * 6
        assert evidence.notes() == []
        total = sum((runs for _, _, runs in apps), Counter[int]())
        assert total == dict.fromkeys(range(6), 1)
        said = Counter(line["event"] for line in lines)
    assert said["clock-stepped"] > 0
    assert said["lease-lost"] == 0
    return said


def test_what_a_dead_worker_held_when_the_clock_was_set_back_is_not_held_for_an_hour(database_url: str, step: Step):
    app, _, _ = application(database_url)
    with contextlib.closing(app):
        with serving(app):
            until(lambda: app.store.queues())
        job = app.enqueue("quick.v1", {})
        assert len(app.store.claim(ClaimRequest("dead", ("default",), 1, ("quick.v1",)))) == 1
        with serving(app):
            step(-HOUR)
            assert job.wait(30) is Spot.DLQ
        assert app.desk("reader").get(job.id).head.reason is Reason.ZOMBIE


def library() -> Path | None:
    found = sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))
    return found[0] if found else None


@pytest.mark.soak
def test_steps_of_a_workers_clock(postgres_url: str, nursery: Nursery, tmp_path: Path):
    """The clock of the worker's host is set while handlers run and retries wait. Only PostgreSQL has another clock."""
    present = started(lambda: contextlib.nullcontext(packaged(library, "libfaketime")))
    with present as faketime, Scene(postgres_url, nursery, tmp_path) as scene:
        clock, gate = tmp_path / "clock", tmp_path / "gate"
        clock.write_text("+0\n")
        with worker(scene, clock, faketime) as process:
            # Not in threads: under libfaketime their sleep fails.
            jobs = [scene.enqueue("gated", gate=str(gate)) for _ in range(2)]
            scene.begun(2)
            for offset in ("+1h", "-1h"):
                (tmp_path / "next").write_text(f"{offset}\n")
                (tmp_path / "next").rename(clock)
                for kind in ("flaky", "snoozing", "loop"):
                    assert scene.enqueue(kind, ms=5).wait(10) is Spot.ARCHIVE, offset
                began = time.monotonic()
                until(lambda: time.monotonic() - began > LEASE + BEAT)  # noqa: B023
            gate.touch()
            assert [job.wait(30) for job in jobs] == [Spot.ARCHIVE] * 2
            process.terminate()
            assert process.wait(30) == 0
        said = (tmp_path / "said").read_text()
        stamps = {line[11:13] for line in said.splitlines() if line[:2] == "20"}
        assert len(stamps) > 1, "its clock was set for real"
        assert "lease-lost" not in said
        assert {note.kind for note in scene.evidence.notes()} == {"failed"}
        assert account(scene.evidence, scene.lines(), set()) == []
        scene.promises()


@contextlib.contextmanager
def worker(scene: Scene, clock: Path, faketime: Path) -> Iterator[subprocess.Popen[bytes]]:
    """``redrive work`` with a clock that follows the file."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("REDRIVE_")}
    environ |= {"REDRIVE_DATABASE_URL": scene.url, RUNS: str(scene.runs), **SETTINGS, **patience(BEAT, LEASE)}
    environ |= {
        "LD_PRELOAD": str(faketime),
        "FAKETIME_TIMESTAMP_FILE": str(clock),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
    command = shutil.which("redrive", path=str(Path(sys.executable).parent)) or "redrive"
    with (
        (clock.parent / "said").open("wb") as said,
        subprocess.Popen([command, "work", "tests.faults.app:app"], cwd=ROOT, env=environ, stderr=said) as process,
    ):
        try:
            yield process
        finally:
            process.kill()
