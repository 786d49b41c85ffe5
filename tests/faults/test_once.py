"""Completion markers when a worker is killed: a marker says done exactly when the job is in the archive."""

import pytest

from redrive import Spot
from tests.faults.scene import Scene, patience


@pytest.mark.slow
@pytest.mark.parametrize(("moment", "runs"), [("handler-returned", 2), ("settled", 1)])
def test_a_worker_killed_around_the_settle(scene: Scene, moment: str, runs: int):
    """Before it, the work counts as not done and is done again; after it, nobody does it twice."""
    quick = patience(0.2, 0.7)
    first = scene.enqueue("once", key="order-1")
    doomed = scene.start(REDRIVE_TEST_MOMENT=f"{moment}:1:kill", **quick)
    assert doomed.ended.wait(30), scene.outputs()
    done = scene.evidence.query("SELECT count(*) FROM {s}once_marks WHERE state = 'completed'")
    assert done == [(len(scene.evidence.archived()),)] == [(2 - runs,)]

    scene.start(**quick)
    assert first.wait(30) is Spot.ARCHIVE, scene.outputs()
    second = scene.enqueue("once", key="order-1")
    assert second.wait(30) is Spot.ARCHIVE, scene.outputs()
    desk = scene.app.desk("reader")
    assert [desk.get(job.id).head.outcome for job in (first, second)] == ["succeeded", "skipped"]
    assert [line.how for line in scene.lines()].count("in") == runs
    (line,) = desk.get(second.id).ledger
    assert (line.kind, line.error_message) == ("skipped", f"'order-1' was completed by job {first.id}")
    scene.promises()
