"""Several processes write to one SQLite file at once: nobody is told that it is locked, and each job runs once."""

import contextlib
import os
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.evidence import account, placed_once
from tests.faults.handlers import QUEUE
from tests.faults.nursery import Nursery
from tests.faults.scene import Scene, patience
from tests.faults.waiting import Crew, until


@pytest.mark.slow
def test_row_62_four_writers(sqlite_url: str, nursery: Nursery, tmp_path: Path, report: Callable[[str], None]):
    with Scene(sqlite_url, nursery, tmp_path) as scene:
        crowd(scene, report, processes=4, spread=40, bulk=300, seconds=0)


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_row_62_eight_writers(sqlite_url: str, nursery: Nursery, tmp_path: Path, report: Callable[[str], None]):
    """For ten minutes, or as long as REDRIVE_TEST_SECONDS says."""
    seconds = float(os.environ.get("REDRIVE_TEST_SECONDS", "600"))
    with Scene(sqlite_url, nursery, tmp_path) as scene:
        crowd(scene, report, processes=8, spread=500, bulk=50_000, seconds=seconds)


def crowd(
    scene: Scene, report: Callable[[str], None], *, processes: int, spread: int, bulk: int, seconds: float
) -> None:
    """Workers that enqueue while they work, bulks, somebody who reads everything, and a backup, over and over."""
    app, accepted = scene.app, set[str]()
    copies = looks = 0
    longest = 0.0
    many = {"REDRIVE_WORKER__CONCURRENCY": "100"}
    workers = [scene.start(**patience(1, 30), **many) for _ in range(processes)]
    began = time.monotonic()

    def produce() -> None:
        nonlocal longest
        if scene.evidence.hot() > bulk // 10:
            return
        items = [app.item("fault.loop.v1", {"ms": 0}, queue=QUEUE) for _ in range(bulk)]
        items += [app.item("fault.spread.v1", {"number": spread}, queue=QUEUE) for _ in range(processes)]
        asked = time.monotonic()
        accepted.update(handle.id.hex for handle in app.enqueue_many(items))
        longest = max(longest, time.monotonic() - asked)

    def back_up() -> None:
        nonlocal copies
        path = scene.folder / "backup"
        source = sqlite3.connect(scene.url.removeprefix("sqlite:///"), timeout=60)
        with contextlib.closing(source), contextlib.closing(sqlite3.connect(path)) as copy:
            source.backup(copy)
        path.unlink()
        copies += 1

    def read() -> None:
        nonlocal looks
        scene.promises()
        looks += 1

    with Crew() as crew:
        produce()
        crew.keep(back_up, 0.5)
        crew.keep(read, 0.5)

        def enough() -> bool:
            crew.check()
            if time.monotonic() - began < seconds:
                produce()
                return False
            return scene.evidence.hot() == 0 and copies > 0 and looks > 0

        until(enough, seconds + 600, why=scene.outputs)
    took = time.monotonic() - began
    assert [worker.finish() for worker in workers] == [0] * processes

    lines = scene.lines()
    accepted |= {line.key[0] for line in lines if line.how == "accepted"}
    for word in ("locked", "-waits", "database-away", "-failed", "lease-lost", "Traceback"):
        assert word not in scene.outputs()
    assert scene.evidence.notes() == []
    assert scene.evidence.archived().keys() == accepted
    assert placed_once(scene.evidence, accepted) == []
    assert account(scene.evidence, lines, set()) == []
    assert len({line.pid for line in lines if line.how == "in"}) == processes, "each did its part"
    report(
        f"sqlite: {processes} processes on one file for {took:.0f} s: {len(accepted)} jobs accepted and run once,"
        f" {copies} backups and {looks} looks at all promises meanwhile, no lock error, no heartbeat missed;"
        f" longest bulk of {bulk}: {longest:.2f} s\n"
    )
