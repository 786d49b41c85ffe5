"""A worker as a process of its own: signals, moments."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import pytest

from redrive.config import SUPERVISOR_VARIABLE
from redrive.domain.errors import ConfigError
from redrive.domain.states import HotState, Place
from redrive.worker import moments

from .make import until
from .shop import Shop

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


def start(
    url: str, *, grace: float = 30.0, burst: bool = False, moment: str = "", pipe: int | None = None
) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.worker.child", url, str(grace), "burst" if burst else "serve"]
    environ = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    if moment:
        environ[moments.VARIABLE] = moment
    held = () if pipe is None else (pipe,)
    if pipe is not None:
        environ[SUPERVISOR_VARIABLE] = str(pipe)
    return subprocess.Popen(command, cwd=ROOT, env=environ, stdout=subprocess.PIPE, text=True, pass_fds=held)


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def enqueue(shop: Shop, type: str) -> UUID:
    return shop.enqueue(type=type)


@pytest.fixture
def url(sqlite_url: str) -> str:
    return sqlite_url


def test_sigterm_lets_handlers_finish(lite_shop: Shop, url: str):
    job_id = enqueue(lite_shop, "waits.v1")
    with start(url) as process:
        assert line(process) == "entered"
        process.send_signal(signal.SIGTERM)
        assert line(process) == "stopping"
        process.send_signal(signal.SIGUSR2)  # the handler's own signal to go on
        assert process.wait(30) == 0
    assert lite_shop.head(job_id).place is Place.ARCHIVE


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_forces(lite_shop: Shop, url: str, number):
    job_id = enqueue(lite_shop, "waits.v1")
    with start(url) as process:
        assert line(process) == "entered"
        process.send_signal(number)
        assert line(process) == "stopping"
        process.send_signal(number)
        assert process.wait(30) == 1
    assert lite_shop.head(job_id).place is Place.HOT


def test_sigusr1_makes_it_quiet_and_sigterm_after_it_is_the_first_one(lite_shop: Shop, url: str):
    job_id = enqueue(lite_shop, "waits.v1")
    with start(url) as process:
        assert line(process) == "entered"
        process.send_signal(signal.SIGUSR1)
        assert line(process) == "quiet"
        later = enqueue(lite_shop, "quick.v1")
        process.send_signal(signal.SIGUSR2)
        lite_until(lambda: lite_shop.head(job_id).place is Place.ARCHIVE)
        lite_until(lambda: [view.mode for view in lite_shop.store.workers()] == ["quiet"])
        process.send_signal(signal.SIGTERM)
        assert line(process) == "stopping"
        assert process.wait(30) == 0
    assert lite_shop.head(later).attempt == 0


def test_too_many_stuck_threads_make_it_leave_with_a_code_of_its_own(lite_shop: Shop, url: str):
    for _ in range(2):
        enqueue(lite_shop, "overruns.v1")
    with start(url) as process:
        assert process.wait(30) == 3
    assert lite_shop.store.workers() == []


def test_the_end_of_its_supervisor_is_a_first_signal(lite_shop: Shop, url: str):
    job_id = enqueue(lite_shop, "waits.v1")
    read, write = os.pipe()
    with start(url, pipe=read) as process:
        os.close(read)
        assert line(process) == "entered"
        os.close(write)
        assert line(process) == "orphaned"
        process.send_signal(signal.SIGUSR2)
        assert process.wait(30) == 0
    assert lite_shop.head(job_id).place is Place.ARCHIVE


def test_a_stuck_thread_does_not_keep_the_process(lite_shop: Shop, url: str):
    job_id = enqueue(lite_shop, "stuck.v1")
    with start(url, grace=0.1) as process:
        assert line(process) == "entered"
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    assert lite_shop.head(job_id).place is Place.DLQ


def test_a_settle_that_hangs_does_not_keep_the_process(lite_shop: Shop, url: str):
    job_id = enqueue(lite_shop, "quick.v1")
    with start(url, grace=0.1, moment="settle-sending:1:hang") as process:
        lite_until(lambda: lite_shop.head(job_id).state is HotState.PROCESSING)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert lite_shop.head(job_id).place is Place.HOT


def lite_until(condition: Callable[[], bool]) -> None:
    asyncio.run(until(condition))


def test_burst_ends_by_itself(lite_shop: Shop, url: str):
    job_id = enqueue(lite_shop, "quick.v1")
    with start(url, burst=True) as process:
        assert process.wait(30) == 0
    assert lite_shop.head(job_id).place is Place.ARCHIVE


@pytest.mark.parametrize("name", moments.NAMES)
def test_every_moment_can_kill(lite_shop: Shop, url: str, name: str):
    enqueue(lite_shop, "mixed.v1")
    with start(url, burst=True, moment=f"{name}:1:kill") as process:
        ended = process.wait(30)
    # A settle may have been answered before the moment within it came: then there was no such moment.
    assert ended == -signal.SIGKILL or (name == "settle-sent" and ended == 0)


@pytest.mark.parametrize(
    "text", ["", "nowhere:1:kill", "claimed", "claimed:0:kill", "claimed:1:jump", "claimed:x:kill"]
)
def test_a_moment_that_does_not_exist_is_refused(text: str, monkeypatch):
    monkeypatch.setattr(moments, "hook", None)
    if not text:
        moments.arm({})
        assert moments.hook is None
        return
    with pytest.raises(ConfigError, match="name:nth:action"):
        moments.arm({moments.VARIABLE: text})


def test_the_nth_time_counts(monkeypatch):
    reached = []
    monkeypatch.setitem(moments._ACTIONS, "stop", lambda: reached.append(1))
    moments.arm({moments.VARIABLE: "settled:3:stop"})
    assert moments.hook is not None
    for _ in range(5):
        moments.hook("settled")
        moments.hook("claimed")
    assert reached == [1]
