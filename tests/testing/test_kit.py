"""What applications test their jobs with."""

import asyncio
import datetime as dt
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import redrive
from redrive import Fatal, InvalidField, JobContext, Place, Redrive, RetryPolicy, Spot
from redrive.testing import Clock, Drained, Kit

NOON = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)
app = Redrive("sqlite:///never-made.db")
sent: list[str] = []


@app.job("mail", queue="mails", retry=RetryPolicy(max_attempts=2, base=60, jitter=0))
async def mail(ctx: JobContext, to: str) -> str:
    sent.append(f"{to} {ctx.attempt} {','.join(ctx.tags)}")
    if to == "down":
        raise ConnectionError("away")
    if to == "bad":
        raise Fatal("no address")
    return to.upper()


@app.job("welcome")
def welcome(name: str) -> None:
    mail.using(run_after=dt.timedelta(days=1)).enqueue(name)


@app.every(3600)
@app.job("tick")
def tick() -> None:
    sent.append("tick")


@pytest.fixture
def redrive_app() -> Redrive:
    sent.clear()
    return app


def test_jobs_run_when_their_time_has_come_and_not_before(redrive_kit):
    welcome.enqueue("ann")
    assert redrive_kit.drain() == Drained(succeeded=1, died=0, waiting=1)
    (waiting,) = redrive_kit.assert_enqueued(mail, {"to": "ann"}, times=1, queue="mails")
    assert waiting.head.spot is Spot.SCHEDULED
    assert waiting.head.due_at == redrive_kit.clock.now + dt.timedelta(days=1)
    redrive_kit.clock.advance(dt.timedelta(hours=23, minutes=59, seconds=59))
    assert redrive_kit.drain().waiting == 1
    redrive_kit.clock.advance(1)
    redrive_kit.drain()
    assert sorted(sent) == ["ann 1 ", "tick", "tick"], "of the slots that were missed the latest is run"
    (done,) = redrive_kit.jobs(mail, Place.ARCHIVE)
    assert done.result == b'"ANN"'
    assert done.head.finished_at == redrive_kit.clock.now


def test_retries_wait_for_the_clock_and_then_it_is_dead(redrive_kit):
    handle = mail.enqueue("down")
    assert redrive_kit.drain().waiting == 1
    redrive_kit.clock.advance(59)
    assert redrive_kit.drain().died == 0
    redrive_kit.clock.advance(1)
    assert redrive_kit.drain().died == 1
    record = redrive_kit.desk.get(handle.id)
    assert (record.head.reason, [line.ended_at for line in record.ledger]) == (
        "retries_exhausted",
        [redrive_kit.clock.now - dt.timedelta(seconds=60), redrive_kit.clock.now],
    )


def test_a_handler_is_called_with_a_real_context(redrive_kit):
    job = mail.using(tags=["x"]).job("ann")
    assert redrive_kit.call(job, attempt=2) == "ANN"
    assert sent == ["ann 2 x"]
    with pytest.raises(Fatal, match="no address"):
        redrive_kit.call(mail.job("bad"))
    assert asyncio.run(redrive_kit.acall(mail.job("bob"))) == "BOB"
    redrive_kit.call(welcome.job("cid"))
    redrive_kit.assert_enqueued("mail", {"to": "cid"})
    with pytest.raises(InvalidField, match="nothing handles"):
        redrive_kit.call(app.item("unknown", {}))


def test_what_is_not_there_is_told_with_what_is(redrive_kit):
    mail.using(tags=["x"]).enqueue("ann")
    redrive_kit.assert_enqueued(mail)
    redrive_kit.refute_enqueued(mail, {"to": "bob"})
    redrive_kit.refute_enqueued(mail, {"to": "ann"}, tags=("y",))
    redrive_kit.refute_enqueued(mail, {"to": None, "more": 1})
    with pytest.raises(AssertionError, match=r"0 jobs mail with .*'bob'.* wait, not any(?s:.*)\{\"to\":\"ann\"\}"):
        redrive_kit.assert_enqueued(mail, {"to": "bob"})
    with pytest.raises(AssertionError, match=r"1 jobs mail with .* wait, not 2"):
        redrive_kit.assert_enqueued(mail, times=2, queue="mails")


def test_a_kit_begins_empty_and_leaves_no_trace():
    folders = []
    for _ in range(2):
        with Kit(app, now=NOON) as kit:
            assert kit.clock.now == NOON
            assert kit.app.store.now() == NOON
            assert kit.jobs() == []
            mail.enqueue("ann")
            folders.append(Path(kit._folder.name))
    assert [folder.exists() for folder in folders] == [False, False]
    assert app.stand_on(None) is None
    assert not Path("never-made.db").exists()


def test_in_async_code(redrive_kit):
    async def story() -> Drained:
        await mail.aenqueue("ann")
        drained: Drained = await redrive_kit.adrain()
        return drained

    assert asyncio.run(story()).died == 0
    assert "ann 1 " in sent


def test_a_clock_goes_on_only():
    clock = Clock(NOON)
    clock.set(NOON + dt.timedelta(minutes=1))
    assert clock.micros() == int((NOON + dt.timedelta(minutes=1)).timestamp() * 1_000_000)
    for wrong in (lambda: clock.advance(-1), lambda: clock.set(NOON), lambda: Clock(NOON.replace(tzinfo=None))):
        with pytest.raises(InvalidField):
            wrong()


def test_importing_it_loads_no_database():
    script = "import sys, redrive.testing, redrive.testing.plugin; print('sqlalchemy' in sys.modules)"
    assert (
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout == "False\n"
    )


SHOP = """
from redrive import Redrive
app = Redrive()
@app.job("mail")
def mail(to: str) -> None: ...
"""
TESTS = """
from shop import mail
def test_one(redrive_kit):
    mail.enqueue("ann")
    assert redrive_kit.drain().succeeded == 1
def test_another(redrive_kit):
    redrive_kit.refute_enqueued(mail)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "said"), [("redrive_app = shop:app", "2 passed"), ("", "write redrive_app = package.module:app")]
)
def test_the_plugin_in_a_project_of_its_own(tmp_path, settings, said):
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "test_shop.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text(f"[pytest]\npythonpath = .\nfilterwarnings = error\n{settings}\n")
    command = [sys.executable, "-m", "pytest", "-p", "redrive.testing.plugin", "-p", "no:cacheprovider"]
    env = os.environ | {"PYTHONPATH": str(Path(redrive.__file__).parents[1])}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60)
    assert said in done.stdout, done.stdout + done.stderr


def test_pytest_finds_the_plugin_by_itself():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"redrive.testing.plugin": "redrive.testing.plugin"}
