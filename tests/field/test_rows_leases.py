"""Field reports about leases: who may end a run, and how a run is found whose worker is gone."""

import threading
from pathlib import Path

import pytest

from redrive import Place, Redrive
from redrive.domain.moves import Answer, Settled, Succeed
from redrive.store.port import ClaimRequest, Rescued, WorkerInfo
from tests.faults.nursery import Nursery
from tests.faults.scene import Scene, patience
from tests.faults.waiting import until


def finisher_against_rescuer(app: Redrive, rounds: int) -> None:
    store = app.store
    store.register(WorkerInfo("finisher", "host", 1, "", ("default",), (), 1))
    finished = 0
    for number in range(rounds):
        job = app.enqueue("any.v1", {}).id
        (held,) = store.claim(ClaimRequest("finisher", ("default",), 1, ("any.v1",)))
        together = number % 5 > 0  # else the rescuer is first, so that both orders are there
        barrier = threading.Barrier(2 if together else 1)
        settled: list[Settled] = []
        rescued: list[Rescued] = []

        def finish(move: Succeed, barrier: threading.Barrier, answers: list[Settled]) -> None:
            barrier.wait(30)
            answers += store.settle([move], worker_id="finisher", build="", slot=1)

        def rescue(barrier: threading.Barrier, found: list[Rescued]) -> None:
            barrier.wait(30)
            found += store.rescue(zombie_timeout=0, fetched_timeout=60, rules=lambda _: None, slot=2)

        crew = [
            threading.Thread(target=finish, args=(Succeed(held.id, held.lease, 1), barrier, settled)),
            threading.Thread(target=rescue, args=(barrier, rescued)),
        ]
        for one in crew if together else reversed(crew):
            one.start()
            if not together:
                one.join(30)
        for one in crew:
            one.join(30)
        record = app.desk("reader").get(job)
        kinds = [line.kind for line in record.ledger]
        (answer,) = settled
        if answer.answer is Answer.APPLIED:
            finished += 1
            assert (record.head.place, kinds, rescued) == (Place.ARCHIVE, [], [])
        else:
            assert (answer.answer, record.head.place) == (Answer.STALE, Place.DLQ)
            assert kinds == ["zombie", "late_success"], "who was late is told so, and the history says so"
            assert [one.id for one in rescued] == [job]
    print(f"\n{rounds} rounds: the finisher was first in {finished}")
    assert 0 < finished < rounds


@pytest.mark.slow
def test_row_31_a_finisher_and_a_rescuer_commit_at_once(app: Redrive):
    """A live worker was taken for dead while it finished: both went through, and the job was finished and failed."""
    finisher_against_rescuer(app, 30)


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_row_31_a_finisher_and_a_rescuer_commit_at_once_a_thousand_times(app: Redrive):
    finisher_against_rescuer(app, 1000)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["its row is deleted", "it is back under its name"])
def test_row_32_the_job_of_a_killed_worker_is_found(database_url: str, nursery: Nursery, tmp_path: Path, how: str):
    """A dead worker's row was gone before its jobs were looked for; or its successor's heartbeats hid them."""
    lease = 0.9
    with Scene(database_url, nursery, tmp_path) as scene:
        job = scene.enqueue("loop", ms=1)
        doomed = scene.start(REDRIVE_TEST_MOMENT="handler-entered:1:kill", **patience(0.2, lease))
        assert doomed.ended.wait(30), scene.outputs()
        (row,) = scene.evidence.held_by(doomed.pid)
        if how == "its row is deleted":
            assert scene.evidence.change("DELETE FROM {s}workers") == 1
        scene.start(**patience(0.2, lease))  # same host, same queues: what was its name, but for the start
        until(lambda: scene.evidence.notes(job=job.id), why=scene.outputs)
        (note,) = scene.evidence.notes(job=job.id)
        assert (note.kind, note.lease) == ("zombie", row.lease)
        assert lease <= note.at - row.heartbeat < lease + 5
        scene.promises()
