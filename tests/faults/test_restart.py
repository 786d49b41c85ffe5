"""PostgreSQL restarted under its workers, in order and by a crash: they wait, come back, and drop nothing."""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from redrive import JobFilter, Retryable, Spot, Unavailable
from redrive.store.sql.store import open_store
from scripts.services import PrivatePostgres, StopMode
from tests.faults.evidence import account, placed_once
from tests.faults.load import Load
from tests.faults.nursery import Nursery
from tests.faults.scene import Scene, patience
from tests.faults.waiting import Crew, until

pytestmark = pytest.mark.slow
MODES: tuple[StopMode, ...] = ("fast", "immediate")


@pytest.fixture
def own(private_postgres: PrivatePostgres, nursery: Nursery, tmp_path: Path) -> Iterator[Scene]:
    """A scene on a server of its own."""
    store = open_store(private_postgres.url)
    store.upgrade()
    store.close()
    with Scene(private_postgres.url, nursery, tmp_path) as scene:
        yield scene


def test_what_ends_while_the_database_is_away_is_settled(private_postgres: PrivatePostgres, own: Scene):
    """Nothing is rescued here, the leases are long: each outcome must arrive, under the lease it was won with."""
    gate = own.folder / "gate"
    worker = own.start(**patience(2, 120))
    jobs = [own.enqueue("gated", gate=str(gate)) for _ in range(4)]
    jobs += [own.enqueue("gated-thread", gate=str(gate)) for _ in range(2)]
    own.begun(6)

    private_postgres.stop()
    gate.touch()
    until(lambda: "database-away" in worker.text(), why=own.outputs)
    until(lambda: sum(line.how == "ok" for line in own.lines()) == 6, why=own.outputs)
    private_postgres.start()

    assert [job.wait(60) for job in jobs] == [Spot.ARCHIVE] * 6
    assert own.evidence.notes() == []
    assert account(own.evidence, own.lines(), set()) == []
    own.promises()
    assert own.enqueue("loop", ms=1).wait(30) is Spot.ARCHIVE, "it works on"
    assert worker.finish() == 0


def test_restarted_and_crashed_under_load(private_postgres: PrivatePostgres, own: Scene, report: Callable[[str], None]):
    bounce(private_postgres, own, report, rounds=1)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_restarted_and_crashed_again_and_again(
    private_postgres: PrivatePostgres, own: Scene, report: Callable[[str], None]
):
    bounce(private_postgres, own, report, rounds=15)


def bounce(server: PrivatePostgres, scene: Scene, report: Callable[[str], None], *, rounds: int) -> None:
    """In each round a restart in order and a crash; handlers that are running end while the database is away."""
    short = patience(0.5, 2)
    workers = [scene.start(**short), scene.start(**short)]
    until(lambda: all("worker-started" in worker.text() for worker in workers), why=scene.outputs)
    load, operator = Load(scene), Operator(scene)
    away = 0.0
    with Crew() as crew:
        for action, pause in ((load.enqueue, 0.01), (load.enqueue, 0.01), (operator.resurrect, 0.1)):
            crew.keep(action, pause)
        for number in range(rounds):
            for mode in MODES:
                away += outage(server, scene, load, mode, scene.folder / f"gate-{number}-{mode}")
                crew.check()
    with Crew() as crew:
        crew.keep(operator.resurrect, 0.1)
        until(lambda: scene.evidence.hot() == 0 and not scene.evidence.dead(), 60, why=scene.outputs)
    assert scene.enqueue("loop", ms=1).wait(30) is Spot.ARCHIVE
    assert [worker.finish() for worker in workers] == [0, 0], "they lived through all of it"
    assert "Warning" not in scene.outputs()

    assert placed_once(scene.evidence, load.accepted) == []
    assert account(scene.evidence, scene.lines(), set()) == []
    scene.promises()
    found = load.unknown & scene.evidence.places().keys()
    kinds = Counter(note.kind for note in scene.evidence.notes())
    report(
        f"postgresql restarted in order {rounds} times and crashed {rounds} times, away for {away:.1f} s in all\n"
        f"  {len(load.accepted)} jobs accepted, none lost; {len(load.unknown)} enqueues unanswered, of which"
        f" {len(found)} jobs are there, once\n"
        f"  {kinds['zombie']} leases expired meanwhile: {kinds['late_success']} late successes, "
        f"{kinds['late_failure']} late failures noted, {operator.count} resurrections\n"
    )


def outage(server: PrivatePostgres, scene: Scene, load: Load, mode: StopMode, gate: Path) -> float:
    """The seconds without a database. It comes back when every worker has met its absence."""
    gated = [scene.enqueue(kind, gate=str(gate)) for kind in ("gated", "gated", "gated-thread")]
    ids = {job.id.hex for job in gated}
    load.accepted |= ids
    until(lambda: ids <= {line.key[0] for line in scene.lines()}, 60, why=scene.outputs)
    # An outage is over, and the next one said, when all that failed in it has come through again.
    until(lambda: all(back(worker.text()) for worker in scene.workers), why=scene.outputs)
    waits = [worker.text().count("database-away") for worker in scene.workers]
    began = time.monotonic()
    server.stop(mode)
    gate.touch()

    def all_wait() -> bool:
        ended = {line.key[0] for line in scene.lines() if line.how != "in"}
        told = all(worker.text().count("database-away") > n for worker, n in zip(scene.workers, waits, strict=True))
        return told and ids <= ended

    until(all_wait, why=scene.outputs)
    server.start()
    away = time.monotonic() - began
    # Settled; or rescued before they could be, refused, and resurrected.
    until(lambda: all(job.status() is Spot.ARCHIVE for job in gated), 60, why=scene.outputs)
    return away


def back(said: str) -> bool:
    return said.rfind("database-back") >= said.rfind("database-away")


class Operator:
    """Resurrects what died of the outage."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self.count = 0

    def resurrect(self) -> None:
        try:
            desk = self._scene.app.desk("operator")
            dead = [job.id for job in self._scene.app.insight().jobs(JobFilter()).jobs]
            self.count += sum(answer.ok for answer in desk.resurrect_many(dead))
        except (Unavailable, Retryable):
            pass  # as everybody else, later
