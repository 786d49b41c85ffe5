"""Workers that come back: what they finish late changes nothing, is refused, and is noted."""

from contextlib import closing

import pytest
from sqlalchemy import event

from redrive import Place, Spot
from redrive.domain.moves import Answer, Succeed
from redrive.store.port import ClaimRequest, WorkerInfo
from redrive.store.sql.store import open_store
from tests.faults.evidence import account
from tests.faults.handlers import make
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


def test_a_late_end_is_noted_though_the_job_moves_meanwhile(postgres_url: str):
    """Between two statements of the note a job may leave the place that the second is about to look at."""
    with closing(open_store(postgres_url)) as store, closing(make(postgres_url)) as app:
        desk = app.desk("operator")
        store.register(WorkerInfo("worker", "host", 1, "", ("default",), (), 1))
        job = app.enqueue("any.v1", {}).id
        (claimed,) = store.claim(ClaimRequest("worker", ("default",), 1, ("any.v1",)))
        until(lambda: store.rescue(zombie_timeout=0, fetched_timeout=60, rules=_none, slot=0))

        moved = []

        def move(_connection: object, _cursor: object, statement: str, *_: object) -> None:
            if statement.startswith("INSERT INTO") and "job_ledger" in statement:
                moved.append((desk.resurrect if desk.get(job).head.place is Place.DLQ else desk.isolate)(job))

        event.listen(store._db._writer, "after_cursor_execute", move)  # type: ignore[attr-defined]
        (answer,) = store.settle([Succeed(claimed.id, claimed.lease, 1)], worker_id="worker", build="", slot=0)
        assert answer.answer is Answer.STALE
        assert moved
        kinds = [note.kind for note in desk.get(job).ledger]
        assert kinds.count("late_success") == 1


def _none(_: str) -> None:
    return None
