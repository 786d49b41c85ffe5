"""``redrive work --processes N``: workers that die are replaced, and one that cannot start is not started for ever."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from redrive import JobHandle, Place, Reason
from tests.faults import supervised
from tests.faults.waiting import until

pytestmark = pytest.mark.slow

app = supervised.app
QUICK = {"REDRIVE_WORKER__HEARTBEAT": "0.1", "REDRIVE_WORKER__POLL": "0.05", "REDRIVE_RECOVERY__ZOMBIE_TIMEOUT": "0.5"}


@pytest.fixture(autouse=True)
def database(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("REDRIVE_DATABASE_URL", sqlite_url)
    app.override(url=sqlite_url)
    yield
    app.close()


class Command:
    """The command, and what it has said."""

    def __init__(self, folder: Path, *options: str, **environment: str) -> None:
        self._log = (folder / "log").open("w+")
        self.process = subprocess.Popen(
            [str(Path(sys.executable).with_name("redrive")), "work", "tests.faults.supervised:app", *options],
            stderr=self._log,
            env={**os.environ, **QUICK, **environment},
            process_group=0,  # as a shell starts it
        )

    @property
    def log(self) -> str:
        return Path(self._log.name).read_text()

    def workers(self) -> list[int]:
        return [view.pid for view in app.store.workers() if view.mode == "serving"]

    def close(self) -> None:
        self.process.kill()
        self.process.wait(30)
        self._log.close()


@contextlib.contextmanager
def command(folder: Path, *options: str, **environment: str) -> Iterator[Command]:
    with contextlib.closing(Command(folder, *options, **environment)) as running:
        yield running


@contextlib.contextmanager
def holding(folder: Path) -> Iterator[tuple[Command, JobHandle]]:
    """Two workers, one of which runs a job that waits for the file ``go``."""
    job = supervised.holds.enqueue(folder=str(folder), name="first")
    with command(folder, "--processes", "2") as running:
        until(lambda: (folder / "first").exists() and (folder / "first").read_text(), why=lambda: running.log)
        until(lambda: len(running.workers()) == 2, why=lambda: running.log)
        yield running, job


def test_row_87_a_killed_child_is_replaced_and_the_others_finish(tmp_path: Path):
    """A child that was killed stopped the whole service with exit code 0, so that nobody started it again."""
    with holding(tmp_path) as (running, first):
        victim = int((tmp_path / "first").read_text())
        (other,) = set(running.workers()) - {victim}
        seconds = [supervised.holds.enqueue(folder=str(tmp_path), name=f"more-{n}") for n in range(40)]
        until(lambda: any(note.read_text() == str(other) for note in tmp_path.glob("more-*")))
        os.kill(victim, signal.SIGKILL)
        until(lambda: len(set(running.workers()) - {victim}) == 2, why=lambda: running.log)
        assert other in running.workers()
        (tmp_path / "go").touch()
        assert first.wait(30) == "dlq"
        ends = [handle.wait(30) for handle in seconds]
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(30) == 0
    assert re.search(rf"worker-ended +how=Killed pid={victim} served=True", running.log)
    desk = app.desk("reader")
    assert desk.get(first.id).head.reason is Reason.ZOMBIE
    for handle, end in zip(seconds, ends, strict=True):
        assert end == "archive" or desk.get(handle.id).head.reason is Reason.ZOMBIE
    assert [handle for handle, end in zip(seconds, ends, strict=True) if end == "archive" and handle.result() == other]
    assert set(running.workers()) <= {victim}, "which could not sign off"


@pytest.mark.parametrize(("order", "code", "said"), [("dies", 1, "Killed"), ("wrong", 2, "exit code 2")])
def test_row_87_workers_that_cannot_start_are_given_up_with_an_exit_code(
    tmp_path: Path, order: str, code: int, said: str
):
    with command(tmp_path, "--processes", "3", **{supervised.ORDER: order}) as running:
        assert running.process.wait(60) == code
    assert f"supervisor-gives-up            exit_code={code} failures={5 if order == 'dies' else 1} how='{said}'" in (
        running.log.replace("how=Killed", "how='Killed'")
    )
    assert running.log.count("worker-ended") == (5 if order == "dies" else 1), "the others were not even started"


def test_a_worker_that_was_told_to_end_is_replaced_as_well(tmp_path: Path):
    with command(tmp_path, "--processes", "2") as running:
        until(lambda: len(running.workers()) == 2, why=lambda: running.log)
        victim = running.workers()[0]
        os.kill(victim, signal.SIGTERM)
        until(lambda: victim not in running.workers() and len(running.workers()) == 2, why=lambda: running.log)
        running.process.send_signal(signal.SIGINT)
        assert running.process.wait(30) == 0


def test_a_second_signal_is_passed_on(tmp_path: Path):
    with holding(tmp_path) as (running, job):
        running.process.send_signal(signal.SIGTERM)
        until(lambda: running.log.count("worker-stopping") == 2)
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(30) == 1
    assert "worker-forced" in running.log
    assert app.desk("reader").get(job.id).head.place is Place.HOT


def test_ctrl_c_is_one_signal_for_each_worker(tmp_path: Path):
    """A terminal sends it to every process of the group."""
    with holding(tmp_path) as (running, job):
        os.killpg(running.process.pid, signal.SIGINT)
        until(lambda: running.log.count("worker-stopping") == 2)
        (tmp_path / "go").touch()
        assert running.process.wait(30) == 0
    assert "worker-forced" not in running.log
    assert job.status() == "archive"


def test_quiet_is_passed_on(tmp_path: Path):
    with command(tmp_path, "--processes", "2") as running:
        until(lambda: len(running.workers()) == 2, why=lambda: running.log)
        running.process.send_signal(signal.SIGUSR1)
        until(lambda: [view.mode for view in app.store.workers()] == ["quiet", "quiet"])
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(30) == 0


def test_workers_stop_in_order_when_their_supervisor_is_killed(tmp_path: Path):
    with holding(tmp_path) as (running, job):
        running.process.kill()
        until(lambda: running.log.count("supervisor-gone") == 2)
        (tmp_path / "go").touch()
        assert job.wait(30) == "archive"
        until(lambda: app.store.workers() == [])


def test_a_burst_over_several_processes_ends(tmp_path: Path):
    for _ in range(20):
        supervised.quick.enqueue()
    with command(tmp_path, "--processes", "2", "--burst") as running:
        assert running.process.wait(60) == 0
    assert "worker-ended" not in running.log
    assert app.store.queues()[0].pending == 0
