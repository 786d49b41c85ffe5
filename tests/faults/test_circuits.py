"""Worker processes behind one breaker: one is suspended while it opens, one is killed in the middle of a probe."""

import contextlib
import os
import signal
import socketserver
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import update

from redrive import Redrive
from redrive.domain.circuit import CircuitState
from redrive.domain.filters import JobFilter
from redrive.domain.states import Place
from redrive.store.port import CircuitView
from redrive.store.sql.tables_later import circuits
from tests.faults.waiting import until

APP = """
import asyncio
import os

from redrive import Breaker, Redrive, RetryPolicy

app = Redrive()
AGAIN = RetryPolicy(max_attempts=100, base=0, jitter=0)


@app.job(
    "pay.v1", retry=AGAIN, idempotent=True, on_zombie="retry",
    breaker=Breaker("provider", failures=3, open_for=3600, probes=2),
)
async def pay(n: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(os.environ["PROVIDER_PORT"]))
    try:
        writer.write(b"%d\\n" % os.getpid())
        if await reader.readline() != b"fine\\n":
            raise ConnectionError("refused")
    finally:
        writer.close()
"""
PROBES, JOBS = 2, 40


class Provider(socketserver.ThreadingTCPServer):
    """What the jobs call. It counts who is inside, and answers when and how it is told."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Call)
        self.lock = threading.Lock()
        self.inside: list[int] = []
        self.called: list[int] = []
        self.most = 0
        self.fine = False
        self.open = threading.Event()
        self.open.set()


class Call(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        provider = self.server
        assert isinstance(provider, Provider)
        pid = int(self.rfile.readline())
        with provider.lock:
            provider.inside.append(pid)
            provider.called.append(pid)
            provider.most = max(provider.most, len(provider.inside))
        self.connection.settimeout(0.01)
        try:
            while not provider.open.is_set():
                with contextlib.suppress(TimeoutError):
                    if not self.connection.recv(1):
                        break  # the caller was killed
        except OSError:
            pass
        finally:
            with provider.lock:  # before the answer: the caller is outside when it reads it
                provider.inside.remove(pid)
        with contextlib.suppress(OSError):
            self.connection.sendall(b"fine\n" if provider.fine else b"away\n")


@pytest.fixture
def provider() -> Iterator[Provider]:
    with Provider() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.open.set()
        server.shutdown()
        thread.join()


@pytest.mark.slow
def test_probes_over_processes(database_url: str, tmp_path: Path, provider: Provider, report: Callable[[str], None]):
    (tmp_path / "paying.py").write_text(APP)
    env = os.environ | {
        "REDRIVE_DATABASE_URL": database_url, "PROVIDER_PORT": str(provider.server_address[1]),
        "REDRIVE_WORKER__HEARTBEAT": "0.3", "REDRIVE_RECOVERY__ZOMBIE_TIMEOUT": "1",
        "REDRIVE_RECOVERY__FETCHED_TIMEOUT": "1", "REDRIVE_WORKER__POLL": "0.1", "REDRIVE_WORKER__CONCURRENCY": "4",
    }  # fmt: skip
    command = [str(Path(sys.executable).with_name("redrive")), "work", "paying:app"]
    app = Redrive(database_url)
    workers: dict[int, subprocess.Popen[bytes]] = {}

    def circuit() -> CircuitView:
        (found,) = app.store.circuits()
        return found

    def over() -> None:
        """As if its time were over."""
        moved = update(circuits).values(probe_at=circuits.c.changed_at)
        app.store._db.write(lambda connection: connection.execute(moved))  # type: ignore[attr-defined]

    def log(pid: int) -> str:
        return (tmp_path / f"{pid}.log").read_text()

    for number in range(3):
        with (tmp_path / f"{number}.out").open("w") as out:
            process = subprocess.Popen(command, cwd=tmp_path, env=env, stdout=out, stderr=out)
        (tmp_path / f"{process.pid}.log").symlink_to(tmp_path / f"{number}.out")
        workers[process.pid] = process
    try:
        until(lambda: len(app.store.workers()) == 3, 60)
        *_, suspended = workers
        workers[suspended].send_signal(signal.SIGSTOP)
        app.enqueue_many([app.item("pay.v1", {"n": n}) for n in range(JOBS)])
        until(lambda: circuit().state is CircuitState.OPEN)
        until(lambda: not provider.inside and not app.store.queues()[0].processing)
        before = len(provider.called)
        workers[suspended].send_signal(signal.SIGCONT)
        until(lambda: "circuit-opened" in log(suspended))
        assert len(provider.called) == before, "it believed the circuit closed, and started nothing all the same"

        provider.open.clear()
        provider.most = 0
        over()
        until(lambda: len(provider.inside) == PROBES)
        victim = provider.inside[0]
        workers[victim].kill()
        assert workers[victim].wait(60) == -signal.SIGKILL
        until(lambda: len(provider.inside) == PROBES and victim not in provider.inside)  # its lease has expired
        until(lambda: 1 <= sum(log(pid).count("job-rescued") for pid in workers) <= PROBES)
        assert circuit().probing == PROBES

        provider.open.set()
        until(lambda: circuit().state is CircuitState.OPEN and not provider.inside)
        provider.open.clear()
        over()
        until(lambda: len(provider.inside) == PROBES)
        most, provider.fine = provider.most, True
        provider.open.set()
        until(lambda: app.insight().count(JobFilter(place=Place.ARCHIVE)).number == JOBS, 60)
        assert (most, circuit().state) == (PROBES, CircuitState.CLOSED)
    finally:
        for process in workers.values():
            process.send_signal(signal.SIGCONT)
            process.terminate()
        codes = [process.wait(60) for process in workers.values()]
        report("circuit: " + "".join(log(pid) for pid in workers) if sorted(codes) != [-9, 0, 0] else "")
    assert sorted(codes) == [-signal.SIGKILL, 0, 0]
    assert [found.promise for found in app.store.promises() if found.number] == []
    app.close()
    report(f"circuit: {len(provider.called)} calls over 3 processes, never more than {most} probes at a time\n")
