"""``kill -9`` of whoever runs an operation, anywhere: each job moves once, and the counts add up."""

import os
import random
import signal
import subprocess
import sys
import time

import pytest

from redrive import Redrive, Spot
from redrive.domain.operations import OperationState
from tests.ops.crowd import die
from tests.ops.test_plans import kept, spots

RUN = """
import sys
from redrive import Redrive
from redrive.ops.operations import Runner
app = Redrive(sys.argv[1])
runner = Runner(app.store, batch=int(sys.argv[3]), lease=0.2)
runner.run(int(sys.argv[2]), told=lambda progress: print(progress.done, flush=True))
"""


def runner(url: str, number: int, batch: int) -> "subprocess.Popen[str]":
    words = [sys.executable, "-c", RUN, url, str(number), str(batch)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONUNBUFFERED": "1"})


def killed_again_and_again(url: str, number: int, *, batch: int, kills: int, seed: int) -> int:
    """Kill runners after a few batches each, in the middle of whatever they do; how many were killed in time."""
    chance = random.Random(seed)
    hit = 0
    for _ in range(kills):
        process = runner(url, number, batch)
        assert process.stdout is not None
        for _ in range(chance.randint(1, 4)):
            if not process.stdout.readline():
                break
        time.sleep(chance.random() * 0.02)  # not a wait for anything: a point in time nobody chose
        process.send_signal(signal.SIGKILL)
        process.wait(30)
        process.stdout.close()
        hit += process.returncode == -signal.SIGKILL
    return hit


def check(app: Redrive, number: int, batch: int, kills: int, seed: int) -> None:
    ids = die(app, number)
    desk = app.desk("ann")
    for job in ids[::97]:
        desk.edit(job, tags=["seen"])  # before the plan: these are in it at their new version
    plan = desk.plan("resurrect", filter="queue=q")
    changed = ids[5 :: max(1, number // 7)]
    for job in changed:
        desk.edit(job, tags=["changed"])
    operation = desk.run(plan, wait=False)
    url = app.settings.database.url
    assert url is not None
    hit = killed_again_and_again(url.reveal(), operation.number, batch=batch, kills=kills, seed=seed)
    assert hit >= 1, "no runner was killed while it ran"
    last = runner(url.reveal(), operation.number, 1000)
    assert last.stdout is not None
    last.stdout.read()
    assert last.wait(100) == 0
    last.stdout.close()
    done = desk.operations.get(operation.number)
    progress = done.progress
    assert done.state is OperationState.DONE
    assert progress.moved + sum(progress.skipped.values()) + progress.failed == number
    assert progress.skipped == {"version-changed": len(changed)}
    found = spots(app, ids)
    assert (found[Spot.PENDING], found[Spot.DLQ], found[Spot.NOWHERE]) == (number - len(changed), len(changed), 0)
    lives = {head.life for job in random.Random(seed).sample(ids, 50) if (head := app.store.head(job)) is not None}
    assert lives <= {1, 2}
    assert desk.run(plan).progress == progress
    kept(app)


@pytest.mark.slow
def test_killed_runners(database_url: str):
    app = Redrive(database_url)
    try:
        check(app, 600, batch=20, kills=3, seed=1)
    finally:
        app.close()


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(50))
def test_killed_runners_of_twenty_thousand(postgres_url: str, seed: int):
    app = Redrive(postgres_url)
    try:
        check(app, 20_000, batch=500, kills=5, seed=seed)
    finally:
        app.close()


@pytest.mark.soak
def test_a_third_of_a_million(postgres_url: str):
    """350,000 dead rows, 1,000 missing, 1,000 resurrected meanwhile, 10 unreadable."""
    app = Redrive(postgres_url)
    try:
        ids = [job for _ in range(34) for job in die(app, 10_000)]
        ids += die(app, 9_990) + die(app, 10, payload=b"{")
        desk = app.desk("ann")
        plan = desk.plan("resurrect", filter="queue=q")
        assert plan.counts.matched == 350_000
        desk.purge(ids[1000:2000])
        desk.resurrect_many(ids[3000:4000])
        done = desk.run(plan)
        assert done.progress.moved == 347_990
        assert done.progress.skipped == {"not-found": 1000, "version-changed": 1000, "unreadable": 10}
        assert done.partly
        assert desk.run(plan).progress == done.progress
        kept(app)
    finally:
        app.close()
