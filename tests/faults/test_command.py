"""The same faults through the command that people start: ``redrive work``."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from redrive import Spot
from tests.faults.handlers import RUNS
from tests.faults.nursery import ROOT
from tests.faults.scene import SETTINGS, Scene, patience
from tests.faults.waiting import until

pytestmark = pytest.mark.slow


def work(scene: Scene, *options: str, **more: str) -> tuple[int, str]:
    """The exit code of ``redrive work``, and what it said."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("REDRIVE_")}
    environ |= {"REDRIVE_DATABASE_URL": scene.url, RUNS: str(scene.runs), **SETTINGS, **more}
    command = [str(Path(sys.executable).with_name("redrive")), "work", "tests.faults.app:app", *options]
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=100, check=False)
    return done.returncode, done.stderr


def test_one_worker_is_killed_and_the_next_drains(scene: Scene):
    """An armed worker goes by SIGKILL; its job is rescued, resurrected, and a burst finishes it."""
    job = scene.enqueue("loop", ms=1)
    short = patience(0.2, 1)
    code, said = work(scene, **short, REDRIVE_TEST_MOMENT="handler-returned:1:kill")
    assert code == -signal.SIGKILL, said
    until(lambda: scene.app.store.rescue(zombie_timeout=1, fetched_timeout=1, rules=lambda _: None, slot=0))
    assert job.status() is Spot.DLQ
    assert scene.app.desk("operator").resurrect(job.id).ok
    code, said = work(scene, "--burst", **short)
    assert code == 0, said
    assert job.status() is Spot.ARCHIVE
    scene.promises()
