"""Handlers in processes of their own: killed for real, and their deaths hit nothing else."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID

import pytest

from redrive import ConfigError, InvalidField, Place, Reason, Redrive, Spot
from redrive.domain.job import JobRecord
from redrive.domain.outcome import Failed
from redrive.domain.states import HotState
from redrive.worker import children
from redrive.worker.process import Worker
from redrive.worker.running import Running, Stop
from tests.faults import isolated
from tests.faults.serving import serving
from tests.faults.waiting import until
from tests.worker.make import claimed

pytestmark = pytest.mark.slow

app = isolated.app


@pytest.fixture
def database(database_url: str) -> Iterator[str]:
    app.override(url=database_url, worker={"isolated": 2, "heartbeat": 0.1, "poll": 0.05, "grace": 0.1})
    yield database_url
    app.close()


@contextmanager
def working() -> Iterator[Worker]:
    with serving(app) as worker:
        yield worker
        runner = worker.runner
        until(lambda: not runner.running)
        assert runner.free == runner.slots == {"process": 2}
        assert runner.stuck == 0


def ended(job_id: UUID) -> JobRecord:
    desk = app.desk("reader")
    until(lambda: desk.get(job_id).head.place is not Place.HOT, why=lambda: desk.get(job_id).head)
    return desk.get(job_id)


def gone(pid: int) -> bool:
    """Ended, whoever has to collect it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):  # the latter when it went between opening and reading
        return True


def pids(note: Path) -> list[int]:
    text = until(lambda: note.read_text() if note.exists() else "")
    return [int(pid) for pid in text.split()]


def test_a_job_runs_in_a_process_that_is_used_again(database: str):
    with working():
        first = isolated.where.using(tags=["a"]).enqueue()
        ended(first.id)
        second = isolated.where.enqueue()
        ended(second.id)
    one, other = first.result(), second.result()
    assert isinstance(one, dict)
    assert isinstance(other, dict)
    assert one["pid"] == one["group"] == other["pid"] != os.getpid()
    assert one["parent"] == os.getpid()
    assert (one["job"], one["tags"]) == (str(first.id), ["a"])
    assert gone(one["pid"]), "the worker has ended"


def test_a_timeout_kills_for_real(database: str, tmp_path: Path):
    with working():
        job_id = isolated.hangs.enqueue(note=str(tmp_path / "note")).id
        head = ended(job_id).head
        child, program = pids(tmp_path / "note")
        assert gone(child)
        until(lambda: gone(program))
    assert (head.reason, head.attempt) == (Reason.TIMEOUT, 1)
    (entry,) = app.desk("reader").get(job_id).ledger
    assert entry.error_message == "it ran over its timeout of 0.5 s"
    assert "stay_here" in (entry.traceback or ""), "where it was"
    assert "still be going on" not in (head.error_message or "")


def test_a_timeout_kills_what_keeps_the_gil(database: str, tmp_path: Path):
    with working():
        job_id = isolated.holds.enqueue(note=str(tmp_path / "note")).id
        record = ended(job_id)
        assert all(map(gone, pids(tmp_path / "note")))
    assert record.head.reason is Reason.TIMEOUT
    assert "was killed by the worker" in (record.ledger[0].traceback or "")


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("SIGKILL", "while it ran, its process was ended by SIGKILL, which the kernel sends when memory is short"),
        ("SIGSEGV", "while it ran, its process was ended by Segmentation fault (11)"),
        ("exit", "while it ran, its process left with exit code 7"),
        ("closes", "while it ran, its process left with exit code 1"),
        ("babbles", "its process could not be understood: "),
    ],
)
def test_the_death_of_a_process_is_one_failed_attempt(database: str, how: str, said: str):
    with working():
        beside = isolated.where.enqueue().id
        record = ended(isolated.dies.enqueue(how=how).id)
        assert ended(beside).head.place is Place.ARCHIVE
        assert ended(isolated.where.enqueue().id).head.place is Place.ARCHIVE
    assert (record.head.reason, record.head.attempt) == (Reason.RETRIES_EXHAUSTED, 2)
    assert [entry.error_type for entry in record.ledger] == ["redrive.ProcessDied"] * 2
    assert (record.head.error_message or "").startswith(said)


def test_a_death_can_be_declared_fatal(database: str):
    with working():
        head = ended(isolated.dies_once.enqueue().id).head
    assert (head.reason, head.attempt) == (Reason.FATAL, 1)


def test_errors_come_with_their_traceback(database: str):
    with working():
        raised, left = (ended(isolated.fails.enqueue(how=how).id) for how in ("raise", "exit"))
    assert raised.head.error_message == "the peer is away"
    assert "isolated.py" in (raised.ledger[0].traceback or "")
    assert left.head.error_type == "SystemExit"


def test_a_cancel_is_heard(database: str, tmp_path: Path):
    with working():
        job_id = isolated.listens.enqueue(note=str(tmp_path / "note")).id
        until((tmp_path / "note").exists)
        until(lambda: app.desk("reader").get(job_id).head.progress == "40 % listening")
        cancel(job_id)
        record = ended(job_id)
    assert (record.head.reason, record.head.error_message) == (Reason.CANCELLED, "heard it")


def test_a_cancel_that_is_not_heard_kills(database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(children, "CANCEL_WITHIN", 0.2)
    with working():
        job_id = isolated.deaf.enqueue(note=str(tmp_path / "note")).id
        (pid,) = pids(tmp_path / "note")
        cancel(job_id)
        assert ended(job_id).head.reason is Reason.CANCELLED
        assert gone(pid)


def cancel(job_id: UUID) -> None:
    app.desk("ann").cancel([job_id])


def test_a_lost_lease_kills_at_once(database: str, tmp_path: Path):
    with working() as worker:
        job_id = isolated.deaf.enqueue(note=str(tmp_path / "note")).id
        (pid,) = pids(tmp_path / "note")
        runner = worker.runner
        (pair,) = runner.held
        runner._loop.call_soon_threadsafe(runner.lose, pair)
        assert ended(job_id).head.reason is Reason.HEARTBEAT_LOST
        assert gone(pid)


def test_a_lost_lease_does_not_wait_for_a_cancel(database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(children, "CANCEL_WITHIN", 600.0)
    with working() as worker:
        job_id = isolated.deaf.enqueue(note=str(tmp_path / "note")).id
        (pid,) = pids(tmp_path / "note")
        runner = worker.runner
        ((pair, run),) = runner.held.items()
        cancel(job_id)
        until(lambda: run.stop is Stop.CANCEL)
        runner._loop.call_soon_threadsafe(runner.lose, pair)
        until(lambda: gone(pid))
        assert ended(job_id).head.reason is Reason.CANCELLED


def test_the_end_of_the_grace_period_kills(database: str, tmp_path: Path):
    with serving(app):
        job_id = isolated.deaf.enqueue(note=str(tmp_path / "note")).id
        (pid,) = pids(tmp_path / "note")
    record = app.desk("reader").get(job_id)
    assert record.head.reason is Reason.ZOMBIE
    assert "stay_here" in (record.ledger[0].traceback or "")
    assert gone(pid)


def test_a_job_is_enqueued_from_inside_one_into_the_same_database(database: str):
    with working():
        job = isolated.passes_on.enqueue(to="later.v1")
        ended(job.id)
    accepted = app.desk("reader").get(UUID(str(job.result())))
    assert (accepted.head.spot, accepted.head.queue) == (Spot.PENDING, "elsewhere")


@pytest.mark.parametrize("handler", ["holds-on.v1", "deaf.v1"])
def test_the_end_of_a_worker_ends_its_processes(sqlite_url: str, tmp_path: Path, handler: str):
    """Killed it cannot do anything for them; a run that went on would meet its own resurrection."""
    app.override(url=sqlite_url)
    job_id = app.enqueue(handler, {"note": str(tmp_path / "note")}).id
    app.close()
    command = [
        str(Path(sys.executable).with_name("redrive")),
        "work",
        "tests.faults.isolated:app",
        "--database",
        sqlite_url,
    ]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        held = pids(tmp_path / "note")
        process.send_signal(signal.SIGKILL)
        process.wait(30)
        until(lambda: all(map(gone, held)))
    assert app.desk("reader").get(job_id).head.state is HotState.PROCESSING
    app.close()


def test_a_process_that_is_just_being_started_ends_with_its_worker(sqlite_url: str, monkeypatch: pytest.MonkeyPatch):
    app.override(url=sqlite_url)
    starting, stopped, made = threading.Event(), threading.Event(), list[children.Child]()
    ready = children.Child.ready

    def later(child: children.Child) -> None:
        made.append(child)
        starting.set()
        stopped.wait(30)
        ready(child)

    monkeypatch.setattr(children.Child, "ready", later)
    with contextlib.closing(asyncio.new_event_loop()) as loop, ThreadPoolExecutor(1) as pool:
        processes = children.Children(app.registry, loop, word=(sqlite_url, None, {}))
        handler = app.registry.get("where.v1")
        assert handler is not None
        ended = pool.submit(processes.run, Running(claimed(), handler))
        assert starting.wait(30)
        processes.close()
        stopped.set()
        outcome = ended.result(30)
    assert isinstance(outcome, Failed)
    assert outcome.error.message.endswith("a process for isolated handlers cannot work: it was killed by the worker")
    assert gone(made[0].pid)


def test_what_a_process_cannot_find_is_said_before_anything_is_claimed(database: str):
    other = Redrive(database)
    other.job("not-there.v1", isolation="process")(isolated.not_there)
    with pytest.raises(ConfigError, match=r"not-there.v1 has isolation=\"process\".*finds no such job as not_there"):
        other.worker().run(burst=True)
    other.close()


def test_a_handler_inside_a_function_is_refused():
    with pytest.raises(InvalidField, match="where another process cannot find it"):

        @Redrive("sqlite://").job("inner.v1", isolation="process")
        def inner() -> None: ...
