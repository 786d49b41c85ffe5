"""Workers that come back: what they finish late changes nothing, is refused, and is noted."""

import pytest

from redrive import Spot
from tests.faults.evidence import account
from tests.faults.scene import Scene, patience
from tests.faults.waiting import until


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "over"),
    [("late_success", False), ("late_success", True), ("late_failure", False)],
    ids=["succeeds-while-it-runs", "succeeds-after-it-ran", "fails-while-it-runs"],
)
def test_a_worker_that_slept_while_another_took_its_job(scene: Scene, kind: str, over: bool):
    """Stopped between return and settle, taken for dead, woken when the job runs, or ran, in a second life."""
    calm = patience(5, 15)  # no heartbeat of the sleeper is under way when it is stopped
    gate = scene.folder / "gate"
    desk = scene.app.desk("operator")
    sleeper = scene.start(REDRIVE_TEST_MOMENT="handler-returned:1:stop", **calm)
    until(lambda: any(worker.waiting for worker in scene.app.store.workers()))  # so it has nothing to write
    job = scene.enqueue("slower-later", gate=str(gate), fail=kind == "late_failure")
    assert sleeper.stopped.wait(30), scene.outputs()

    (rescued,) = until(lambda: scene.app.store.rescue(zombie_timeout=0.1, fetched_timeout=15, rules=_none, slot=0))
    assert (rescued.id, rescued.spot) == (job.id, "dlq")
    assert desk.resurrect(job.id).ok
    other = scene.start(**calm)
    scene.begun(2)
    if over:
        gate.touch()
        assert job.wait(30) is Spot.ARCHIVE
    before = desk.get(job.id).head

    sleeper.resume()
    until(lambda: "settle-stale" in sleeper.text(), why=scene.outputs)
    record = desk.get(job.id)
    assert (record.head.spot, record.head.version) == (before.spot, before.version)
    assert [(note.life, note.kind) for note in record.ledger] == [(1, "zombie"), (1, kind)]
    assert record.ledger[1].worker_id == record.ledger[0].worker_id != before.worker_id
    gate.touch()
    assert job.wait(30) is Spot.ARCHIVE

    other.finish()
    again = scene.enqueue("loop", ms=1)
    assert again.wait(30) is Spot.ARCHIVE, "the sleeper works on"
    assert account(scene.evidence, scene.lines(), set()) == []
    scene.promises()


def _none(_: str) -> None:
    return None
